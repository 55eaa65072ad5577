"""The probes: what they check and what they answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from hub.app.hub import Health
from hub.cli.options import BindAddress
from hub.errors import HubError
from hub.report.probes import FRESH, answer, checks, serving
from tests.support.clocks import ManualClock


@dataclass
class Probed:
    """A hub with a current heartbeat."""

    clock: ManualClock = field(default_factory=ManualClock)
    health: Health = field(default_factory=lambda: Health(ManualClock().now(), local_synced=True))


def test_readiness_never_looks_at_remotes_or_the_lease() -> None:
    """Readiness checks the loop, the hub cluster and the shutdown, not remote clusters or the Lease."""
    assert checks(Probed(), "/readyz") == {"loop": "", "hub-cluster": "", "running": ""}


def test_readiness_fails_until_the_hub_cluster_is_known() -> None:
    """Before the hub cluster has been read, the hub is alive but not ready."""
    hub = Probed()
    hub.health.local_synced = False

    assert answer(checks(hub, "/readyz") or {}, "readyz", verbose=False) == (
        500,
        "[+]loop ok\n[-]hub-cluster failed: not synced yet\n[+]running ok\nreadyz check failed\n",
    )
    assert answer(checks(hub, "/healthz") or {}, "healthz", verbose=False) == (200, "ok")


def test_readiness_fails_once_stopping() -> None:
    """A hub that is shutting down is not ready."""
    hub = Probed()
    hub.health.stopping = True

    assert answer(checks(hub, "/readyz") or {}, "readyz", verbose=False)[0] == 500


def test_liveness_is_the_heartbeat() -> None:
    """A hub whose heartbeat is 30 s old or older is not alive."""
    hub = Probed(ManualClock(1000.0), Health(1000.0 - FRESH + 1, local_synced=True))
    assert checks(hub, "/livez") == checks(hub, "/healthz") == {"loop": ""}
    assert checks(hub, "/nosuch") is None
    hub.clock.advance(1.0)

    assert answer(checks(hub, "/healthz") or {}, "healthz", verbose=False) == (
        500,
        "[-]loop failed: no heartbeat\nhealthz check failed\n",
    )


def test_verbose_lists_the_checks() -> None:
    """``?verbose`` lists the checks, as in kube-apiserver."""
    assert answer({"loop": ""}, "healthz", verbose=True) == (200, "[+]loop ok\nhealthz check passed\n")


async def test_probes_answer_over_http(port: int) -> None:
    """Only the two paths are answered, and only for GET and HEAD."""
    url = f"http://127.0.0.1:{port}"
    async with serving(BindAddress("127.0.0.1", port), Probed()), aiohttp.ClientSession() as http:
        found = {}
        for method, path in (
            ("GET", "/healthz"),
            ("HEAD", "/readyz"),
            ("GET", "/readyz?verbose"),
            ("GET", "/metrics"),
            ("POST", "/healthz"),
        ):
            async with http.request(method, url + path) as response:
                found[f"{method} {path}"] = (response.status, (await response.text()).splitlines()[:1])
    assert found == {
        "GET /healthz": (200, ["ok"]),
        "HEAD /readyz": (200, []),
        "GET /readyz?verbose": (200, ["[+]loop ok"]),
        "GET /metrics": (404, ["only /healthz and /readyz"]),
        "POST /healthz": (405, ["only GET"]),
    }


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /healthz?verbose=1&x HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /healthz?x?y HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET http://127.0.0.1/healthz HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET  /healthz HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /healthz HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\r\n\r\n", b"400 Bad Request"),
        (b"GET /healthz/../readyz HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
async def test_probes_are_strict(port: int, request_head: bytes, status: bytes) -> None:
    """Any other request is refused, and every connection is closed after one answer."""
    async with serving(BindAddress("127.0.0.1", port), Probed()), asyncio.timeout(2.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_head)
        first = await reader.readline()
        rest = await reader.read()
        writer.close()
    assert first == b"HTTP/1.1 " + status + b"\r\n"
    assert b"Connection: close\r\n" in rest


async def test_probes_give_up_on_a_slow_request(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose request does not end in time is closed."""
    monkeypatch.setattr("hub.report.listener.PATIENCE", 0.2)
    async with serving(BindAddress("127.0.0.1", port), Probed()), asyncio.timeout(2.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_probes_outlast_a_flood(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many connections, the oldest one without a request is closed."""
    monkeypatch.setattr("hub.report.listener.AT_ONCE", 1)
    async with serving(BindAddress("127.0.0.1", port), Probed()), asyncio.timeout(2.0):
        reader, first = await asyncio.open_connection("127.0.0.1", port)
        _, second = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        first.close()
        second.close()


async def test_probes_do_not_hold_up_the_end(port: int) -> None:
    """An open connection does not delay the shutdown."""
    async with asyncio.timeout(2.0):
        async with serving(BindAddress("127.0.0.1", port), Probed()):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HT")
            await writer.drain()
        writer.close()


async def test_a_taken_port_is_one_clear_line(port: int) -> None:
    """The error for a port in use names the flag, the address, the reason and a remedy."""
    address = BindAddress("127.0.0.1", port)
    async with serving(address, Probed()):
        with pytest.raises(HubError) as caught:
            async with serving(address, Probed()):
                pass
    assert str(caught.value) == (
        f"--health-probe-bind-address 127.0.0.1:{port}: address already in use; "
        "give another HOST:PORT, or 0 for no probes"
    )


async def test_probes_can_be_off() -> None:
    """Without an address no socket is opened."""
    before = open_files()
    async with serving(None, Probed()):
        assert open_files() == before
    async with serving(BindAddress("127.0.0.1", 0), Probed()):
        assert open_files() == before + 1


def open_files() -> int:
    """The number of open file descriptors of this process, sockets included."""
    return len(list(Path("/dev/fd").iterdir()))
