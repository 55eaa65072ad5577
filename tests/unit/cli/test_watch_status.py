"""``hub status --watch``: lines for changes, tables in a terminal, a hub that goes away, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner
from rich.console import Console

from hub.cli import cli, watch_status
from hub.cli.exits import Exit
from hub.cli.server import Server
from hub.cli.watch_status import changes, picture
from hub.errors import HubError
from hub.report.values import Cluster, Held, Replica, Service, Source, Status
from tests.support.waiting import until
from tests.unit.report.conftest import watching

ROOT = Path(__file__).parents[3]
HELD = Held("eu", "IPv4", "RemovalWithheld", "abc", ("10.0.0.1",), "", "1 of 3 would go", "hub approve edge/pay abc")
HUB = Replica(identity="hub-0", role="leader")
CALM = Status(
    HUB,
    clusters=(Cluster("eu", state="Ready", nodes=3), Cluster("us", state="Ready", nodes=1)),
    services=(Service("edge/pay", ready=3, total=3, sources=(Source("eu", 3, 3),)),),
)
WORSE = Status(
    HUB,
    clusters=(Cluster("eu", state="Unreachable", error="timeout\x1b[2J"),),
    services=(Service("edge/pay", ready=3, total=3, sources=(Source("eu", 3, 3),), withheld=(HELD,)),),
)


def test_each_change_is_a_line() -> None:
    """A line names what changed and its present state; nothing is printed for what stays."""
    assert list(changes(CALM, CALM)) == []
    assert list(changes(CALM, WORSE)) == [
        "cluster eu: active, Unreachable, timeout\\x1b[2J",
        "edge/pay: followed, 1 removals withheld; 3/3 ready; eu 3/3",
        "edge/pay eu IPv4: 1 of 3 would go; approve with: hub approve edge/pay abc",
        "cluster us: gone",
    ]


def drawn(found: Status, footer: str, height: int = 40) -> str:
    """A picture as a terminal of 100 columns shows it."""
    console = Console(width=100, height=height, color_system=None)
    with console.capture() as captured:
        console.print(picture(found, footer))
    return captured.get()


def test_terminal_shows_the_same_tables_and_problems_first() -> None:
    """The tables have the headers and cells of ``hub status``; names are no markup."""
    odd = Service("edge/[red]x", ready=1, total=1)
    late = Service("edge/zz", ready=1, total=1, withheld=(HELD,))
    text = drawn(msgspec.structs.replace(CALM, services=(odd, late)), "as of now").splitlines()
    assert "CLUSTER   MODE     STATE   SINCE   NODES   ERROR" in [line.rstrip() for line in text]
    rows = [line.split()[0] for line in text if re.match(r"edge/\S+ ", line)]
    assert rows[-2:] == ["edge/zz", "edge/[red]x"]
    assert "    approve with: hub approve edge/pay abc" in [line.rstrip() for line in text]
    assert "\x1b" not in drawn(WORSE, "as of now")


class Fragile:
    """A server whose answer the test sets; None = 503."""

    def __init__(self) -> None:
        self.found: Status | None = CALM

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """The server."""

        async def status(_: web.Request) -> web.Response:
            if self.found is None:
                return web.Response(status=503)
            return web.Response(body=msgspec.json.encode(self.found))

        app = web.Application()
        app.add_routes([web.get("/api/v1/status", status)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield Server(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await runner.cleanup()


async def test_hub_that_goes_away_is_shown_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first missing answer is a line, and so are the next answer and what changed meanwhile."""
    monkeypatch.setattr(watch_status, "INTERVAL", 0.02)
    fragile, said = Fragile(), ""

    def has(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return text in said

    async with fragile.serving() as server:
        watching_ = asyncio.create_task(watch_status.watch_status(server))
        await until(lambda: has("hub-0: leader; 2 clusters, 1 Service\n"))
        fragile.found = None
        await until(lambda: has("no answer, asking again: http://127.0.0.1:"))
        await asyncio.sleep(0.1)
        fragile.found = WORSE
        await until(lambda: has("cluster us: gone\n"))
        watching_.cancel()
    assert said.count("no answer") == 1
    assert [line.split(" ", 1)[1] for line in said.splitlines()[2:4]] == [
        "the hub answers again",
        "cluster eu: active, Unreachable, timeout\\x1b[2J",
    ]


async def test_hub_that_never_answered_is_an_error() -> None:
    """If the first request fails, the address is probably wrong."""
    fragile = Fragile()
    fragile.found = None
    async with fragile.serving() as server:
        with pytest.raises(HubError, match="503"):
            await watch_status.watch_status(server)


@pytest.mark.parametrize("terminal", [True, False])
async def test_ctrl_c_ends_the_watch_with_code_0(tmp_path: Path, terminal: bool) -> None:
    """In a terminal and in a pipe, the watch of a running hub shows a change, and Ctrl-C is a normal end."""
    async with watching(tmp_path) as watched:
        reading, writing = pty.openpty() if terminal else os.pipe()
        ended = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hub", "status", "--watch", "--server", watched.url),
            cwd=ROOT,
            stdout=writing,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )
        os.close(writing)
        os.set_blocking(reading, False)
        said = ""

        def has(text: str) -> bool:
            nonlocal said
            with suppress(BlockingIOError):
                said += os.read(reading, 65536).decode()
            return text in said

        await until(lambda: has("eu 3/3" if terminal else "1 Service"), 20)
        watched.remote.nodes.delete("n3")
        await until(lambda: has("eu 2/2"), 20)
        ended.send_signal(signal.SIGINT)
        _, problems = await ended.communicate()
        os.close(reading)
    assert (ended.returncode, problems.decode()) == (0, "")
    assert terminal == ("\x1b[" in said)
    assert terminal != ("edge/payments: followed; 2/2 ready; eu 2/2\n" in said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--registry", "clusters.yaml"], "--watch needs --server"),
        (["--server", "http://127.0.0.1:1", "-o", "json"], "--watch and -o json cannot be combined"),
    ],
)
def test_watch_refuses_what_it_cannot_do(arguments: list[str], said: str, tmp_path: Path) -> None:
    """Only a running hub can be watched, and only as tables."""
    (tmp_path / "clusters.yaml").write_text("version: 1\n")
    done = CliRunner().invoke(cli, ["status", "--watch", *arguments])
    assert done.exit_code == Exit.USAGE
    assert said in done.stderr
