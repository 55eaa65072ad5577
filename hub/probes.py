"""``/healthz`` and ``/readyz``: whether this process is alive, and whether it may be relied on.

Alive: the event loop's heartbeat is fresh. Ready: alive, the hub cluster is known, and nobody asked us to
stop. Never a remote cluster, never the lease: a standby is ready, and a dead remote must not restart the
hub that keeps its last known good. Answers are Kubernetes': ``ok``, or one line per check with
``?verbose`` and on failure; reasons go to the log, not to whoever can reach the port.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from hub.aio.clock import Clock
from hub.errors import UsageError

if TYPE_CHECKING:
    from aiohttp import web

    from hub.app import Health

log = logging.getLogger(__name__)

FRESH: Final = 30.0
"""Seconds a heartbeat counts; it beats once per second, and a pass over a huge fleet takes one or two."""


class Address(Protocol):
    """Where to listen; ``host`` None = on all addresses."""

    @property
    def host(self) -> str | None: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102


class Probed(Protocol):
    """The hub, as far as probes look at it."""

    @property
    def health(self) -> Health: ...  # noqa: D102
    @property
    def clock(self) -> Clock: ...  # noqa: D102


def checks(hub: Probed, path: str) -> Mapping[str, str] | None:
    """The checks of a probe: name -> what is wrong, "" where nothing is. None: there is no such probe."""
    beat = "" if hub.clock.now() - hub.health.beat < FRESH else "no heartbeat"
    if path in ("/healthz", "/livez"):
        return {"loop": beat}
    if path == "/readyz":
        return {
            "loop": beat,
            "hub-cluster": "" if hub.health.local_synced else "not synced yet",
            "running": "shutting down" if hub.health.stopping else "",
        }
    return None


def answer(found: Mapping[str, str], probe: str, *, verbose: bool) -> tuple[int, str]:
    """Status and body, as kube-apiserver words them."""
    failed = any(found.values())
    if not failed and not verbose:
        return 200, "ok"
    lines = [f"[-]{name} failed: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in found.items()]
    return (500 if failed else 200), "\n".join([*lines, f"{probe} check {'failed' if failed else 'passed'}", ""])


@asynccontextmanager
async def serving(address: Address | None, hub: Probed) -> AsyncIterator[None]:
    """Answer probes while the context is open; None = do not.

    Raises:
        UsageError: the address cannot be listened on.
    """
    if address is None:
        yield
        return
    from aiohttp import web

    async def respond(request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET\n", headers={"Allow": "GET, HEAD"})
        found = checks(hub, request.path)
        if found is None:
            return web.Response(status=404, text="only /healthz and /readyz\n")
        status, text = answer(found, request.path[1:], verbose="verbose" in request.query)
        return web.Response(status=status, text=text, headers={"X-Content-Type-Options": "nosniff"})

    runner = web.ServerRunner(web.Server(respond, access_log=None, keepalive_timeout=15.0), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await _listen(runner, address)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.ServerRunner, address: Address) -> None:
    from aiohttp import web

    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise UsageError(
            f"--health-probe-bind-address {address}: {reason}; give another HOST:PORT, or 0 for no probes"
        ) from error
    log.info("probes answer on %s", ", ".join(f"http://{host}:{port}" for host, port, *_ in runner.addresses))
