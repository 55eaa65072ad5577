"""``hub approve`` beside a running hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from hub_testkit import SimulatedCluster

from hub.cli.approving import Withholding, approve_one, list_withheld
from hub.cli.server import Server
from hub.observe.local.approvals import config_map
from hub.report.values import Held, Replica, Service, Status

HASH = "3887d42857cf"
HELD = Held("us", "IPv4", "RemovalWithheld", HASH, ("10.11.0.13",), "2026-11-25T11:03:11Z", "1 would go", "")
STATUS = Status(hub=Replica(owner="default", role="leader"), services=(Service("edge/payments", withheld=(HELD,)),))


@pytest.fixture
async def server(unused_tcp_port: int) -> AsyncIterator[Server]:
    """A running hub that withholds a removal."""
    application = web.Application()

    async def status(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(STATUS), content_type="application/json")

    application.router.add_get("/api/v1/status", status)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield Server(f"http://127.0.0.1:{unused_tcp_port}")
    await runner.cleanup()


async def test_approvals_are_written_for_the_owner_of_the_running_hub(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the hub that was asked has another owner, its own is used and said: it would not read any other approval."""
    async with SimulatedCluster("hub") as here:
        kubeconfig = str(here.write_kubeconfig(tmp_path / "hub"))
        where = Withholding(kubeconfig, "default", "release", server=server)
        assert await list_withheld(where) == 0
        said = capsys.readouterr()
        assert f"hub approve edge/payments {HASH}\n" in said.out
        assert "the running hub has the owner default, which is used instead of release" in said.err
        assert await approve_one(where, "edge/payments", HASH, force=False) == 0
        assert f"ConfigMap default/{config_map('default')}" in capsys.readouterr().out
        assert await approve_one(where, "edge/payments", "0" * 12, force=False) == 1
        assert HASH in capsys.readouterr().err
