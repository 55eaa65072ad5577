"""``/healthz`` and ``/readyz``: whether this process is alive, and whether it may be relied on.

Alive: the event loop's heartbeat is fresh. Ready: alive, the hub cluster is known, and nobody asked us to
stop. Never a remote cluster, never the lease: a standby is ready, and a dead remote must not restart the
hub that keeps its last known good. Answers are Kubernetes': ``ok``, or one line per check with
``?verbose`` and on failure; reasons go to the log, not to whoever can reach the port.

HTTP by hand, as little of it as probes need: aiohttp.web costs 10 MB of memory (measured), a fifth of the hub.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from hub.aio.clock import Clock
from hub.errors import UsageError

if TYPE_CHECKING:
    from hub.app import Health

log = logging.getLogger(__name__)

FRESH: Final = 30.0
"""Seconds a heartbeat counts; it beats once per second, and a pass over a huge fleet takes one or two."""

HEAD_LIMIT: Final = 8192
"""Bytes of a request line and its headers; a kubelet sends 200."""
PATIENCE: Final = 5.0
"""Seconds a whole request may take; a kubelet waits 1 by default."""
AT_ONCE: Final = 32
"""Connections; a kubelet and a load balancer have one each."""
REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*?)(?:\?([!-~]*))? HTTP/1\.[01]\r\n")


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
    connections = _Connections(hub)
    try:
        server = await asyncio.start_server(
            connections.serve, address.host, address.port, limit=HEAD_LIMIT, backlog=AT_ONCE
        )
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise UsageError(
            f"--health-probe-bind-address {address}: {reason}; give another HOST:PORT, or 0 for no probes"
        ) from error
    names = sorted({f"{host}:{port}" for host, port, *_ in (each.getsockname() for each in server.sockets)})
    log.info("probes answer on %s", ", ".join(names))
    try:
        yield
    finally:
        server.close()
        connections.abort()


class _Connections:
    """One request per connection, read to the end of its head and never further."""

    def __init__(self, hub: Probed) -> None:
        self._hub = hub
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close."""
        self._open.add(writer)
        try:
            # A probe that has to wait fails, and that is better than to serve a flood.
            if len(self._open) <= AT_ONCE:
                async with asyncio.timeout(PATIENCE):
                    writer.write(await self._respond(reader))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            log.debug("a probe went away before its answer")
        finally:
            self._open.discard(writer)
            writer.close()

    def abort(self) -> None:
        """Wait for nobody."""
        for writer in self._open:
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431, "too large\n")
        found = REQUEST.match(head)
        if found is None:
            return _response(400, "not a request\n")
        method, path, query = (part.decode("ascii") for part in found.groups(b""))
        if method not in ("GET", "HEAD"):
            return _response(405, "only GET\n", "Allow: GET, HEAD\r\n")
        probed = checks(self._hub, path)
        if probed is None:
            status, text = 404, "only /healthz and /readyz\n"
        else:
            status, text = answer(probed, path[1:], verbose="verbose" in re.split("[&=]", query))
        return _response(status, text, body=method == "GET")


def _response(status: int, text: str, headers: str = "", *, body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(text.encode())}\r\n{headers}Connection: close\r\n\r\n"
    )
    return (head + (text if body else "")).encode()
