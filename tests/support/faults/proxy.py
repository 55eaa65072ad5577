"""A TCP proxy for an HTTPS server, which injects faults on command.

It terminates TLS on both sides, so that it can tell requests apart (one connection has a watch, the next one writes)
and lose an answer after the server has committed. A fault affects the requests that match its :class:`Where`, also
those in progress; other requests pass. :class:`Door` decides what happens to new connections, before TLS.

All proxies of a process share one thread with its own event loop. Methods of :class:`Proxy` are called from other
threads, and return when they are in effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from tests.support.ports import free_port

T = TypeVar("T")

CHUNK = 64 << 10
HEAD_LIMIT = 1 << 20
SLOTS = 10
"""How often per second a connection with limited bandwidth sends its share."""
_COLLECTION = re.compile(r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/(?P<resource>[a-z]+)(?P<name>/[^/?]+)?$")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Kind(StrEnum):
    """The effect of a fault on a request and its answer."""

    LATENCY = "latency"
    """Data arrives ``amount`` seconds late, in each direction."""
    BLACKHOLE = "blackhole"
    """No data arrives while the fault lasts; afterwards it does, as TCP retransmits it."""
    SILENCE = "silence"
    """No data ever arrives on this connection again, as if a load balancer had forgotten it. New connections work."""
    RESET = "reset"
    """A TCP RST as soon as the request arrives; the server does not get the request."""
    HALF_CLOSE = "half-close"
    """A FIN instead of the answer; the client's data is still read."""
    BANDWIDTH = "bandwidth"
    """Data passes at ``amount`` bytes per second."""
    TLS_CUT = "tls-cut"
    """The connection ends without TLS close_notify, as when a middlebox goes away."""
    TRUNCATE = "truncate"
    """The answer ends properly after ``amount`` bytes, including its head."""
    LOSE_ANSWER = "lose-answer"
    """The server processes the request, and the client gets a TCP RST instead of the answer."""
    INSERT = "insert"
    """The watch in progress gets ``body`` as an additional chunk; the request is otherwise not affected."""
    ANSWER = "answer"
    """The proxy answers with ``body``, a complete HTTP answer; the server does not get the request."""


class Door(StrEnum):
    """The proxy's treatment of new connections."""

    OPEN = "open"
    REFUSED = "refused"
    """Connections are refused: nothing listens on the port."""
    DROPPED = "dropped"
    """SYNs are not answered, as behind a firewall."""
    SILENT = "silent"
    """Connections are accepted, but there is no TLS handshake."""
    SLAMMED = "slammed"
    """Connections end in the middle of the TLS handshake."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the proxy received.

    Attributes:
        verb: watch, list, get, create, update, patch or delete; get if the path is no Kubernetes resource.
        resource: the resource, such as ``nodes``; "" if the path is none.
        at: time.monotonic() when its head arrived.
    """

    verb: str
    resource: str
    path: str
    at: float


@dataclass(frozen=True, slots=True)
class Where:
    """Selects requests; an empty field matches all."""

    verbs: frozenset[str] = frozenset()
    resource: str = ""
    path: str = ""

    def holds(self, request: Request) -> bool:
        """Whether it matches a request."""
        return (
            (not self.verbs or request.verb in self.verbs)
            and self.resource in ("", request.resource)
            and self.path in request.path
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject.

    Attributes:
        amount: seconds of latency, bytes per second, or bytes until the end.
        times: the number of requests that it affects; None = all while it lasts.
    """

    kind: Kind
    where: Where = Where()
    amount: float = 0.0
    body: bytes = b""
    times: int | None = None


@dataclass(frozen=True, slots=True)
class Trap:
    """What a test does at exactly one moment of a request; the client's connection ends then.

    Attributes:
        when: ``before``: the server does not get the request. ``after``: the server has answered, and the client does
            not get the answer. ``late``: the server gets the request ``seconds`` after the client's connection ended.
        act: called at that moment, in the thread of the proxies; it must be short.
    """

    when: Literal["before", "after", "late"]
    act: Callable[[], object]
    seconds: float = 0.0


EVERYTHING = Where()


def where(*verbs: str, resource: str = "", path: str = "") -> Where:
    """Selects requests with one of these verbs, of a resource, with a path that contains ``path``."""
    return Where(frozenset(verbs), resource, path)


def answer(status: int, reason: str, body: bytes = b"", kind: str = "application/json", *headers: str) -> bytes:
    """A complete HTTP answer, for :attr:`Kind.ANSWER`."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class ProxyThread:
    """The thread and event loop of all proxies; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            proxy.close()
        self.call(self._rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def proxy(self, port: int, client: ssl.SSLContext | None, server: ssl.SSLContext | None) -> Proxy:
        """A proxy to a port on loopback.

        Args:
            port: the server's port.
            client: TLS context for connections to the server; None = without TLS.
            server: TLS context for connections from clients; None = without TLS.
        """
        made = Proxy(self, port, client, server)
        self._proxies.append(made)
        return made

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    @staticmethod
    async def _rest() -> None:
        """Cancel all tasks and wait for their end."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Proxy:
    """One proxy; see the module. Its ``port`` never changes.

    Attributes:
        requests: all requests so far, in order.
        hook: called with each request and its body; returns the trap that it springs, or None.
    """

    def __init__(
        self, thread: ProxyThread, target: int, client: ssl.SSLContext | None, server: ssl.SSLContext | None
    ) -> None:
        self._thread = thread
        self._target = target
        self._client = client
        self._server = server
        self._usual = server
        self._door = Door.OPEN
        self._faults: list[list[Any]] = []  # [fault, times left or None]
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._fillers: list[socket.socket] = []
        self._changed = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.hook: Callable[[Request, bytes], Trap | None] = lambda _request, _body: None
        self.port = free_port()
        thread.call(self._open(Door.OPEN))

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"https://127.0.0.1:{self.port}"

    # --- from other threads ----------------------------------------------------------------------------

    def door(self, door: Door) -> None:
        """Change the treatment of new connections; existing ones are not affected."""
        self._thread.call(self._open(door))

    def certificate(self, server: ssl.SSLContext | None) -> None:
        """Change the certificate for new connections; None = the usual one."""
        self._server = server or self._usual

    def reset(self) -> None:
        """Send a TCP RST on every existing connection."""
        self._thread.call(self._reset())

    def silence(self) -> None:
        """Stop all data on every existing connection, for ever."""
        self._thread.call(self._silence())

    def inject(self, *faults: Fault) -> None:
        """Start faults together. The first one that matches a request affects it, also a request in progress."""
        self._thread.call(self._inject(faults))

    def heal(self) -> None:
        """End all faults and open the door. Data that was held back continues."""
        self._thread.call(self._heal())

    @contextlib.contextmanager
    def broken(self, *faults: Fault) -> Iterator[None]:
        """Inject faults while the block runs."""
        self.inject(*faults)
        try:
            yield
        finally:
            self.heal()

    def close(self) -> None:
        """Close the port and all connections."""
        self._thread.call(self._close())

    # --- in the loop -------------------------------------------------------------------------------------

    async def _open(self, door: Door) -> None:
        self._door = door
        self._notify()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        for socket_ in (*self._fillers, *([self._listener] if self._listener else ())):
            socket_.close()
        self._fillers, self._listener = [], None
        if door is Door.REFUSED:
            return
        listener = self._listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(0)
        listener.bind(("127.0.0.1", self.port))
        if door is Door.DROPPED:
            listener.listen(0)
            await self._fill()
            return
        listener.listen(128)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def _fill(self) -> None:
        """Fill the queue of connections that are not accepted, so that the kernel drops further SYNs."""
        for _ in range(4):
            filler = socket.socket()
            filler.settimeout(0)
            self._fillers.append(filler)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.port))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        while True:
            accepted, _ = await loop.sock_accept(listener)
            task = loop.create_task(self._serve(accepted))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        door = self._door
        if door is Door.SILENT:
            with contextlib.closing(accepted):
                while self._door is door:
                    await self.until_changed()
            return
        if door is Door.SLAMMED:
            with contextlib.closing(accepted):
                await asyncio.get_running_loop().sock_recv(accepted, CHUNK)
                return
        link = _Link(self)
        self._links.add(link)
        try:
            await link.run(accepted, self._target, self._client, self._server)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, EOFError):
            pass  # one end has closed its connection, so the other one is closed too
        finally:
            self._links.discard(link)
            link.abort()

    async def _inject(self, faults: Sequence[Fault]) -> None:
        self._faults += ([fault, fault.times] for fault in faults)
        self._notify()
        for link in list(self._links):
            if link.waits and link.request is not None:
                await link.strike(self.fault_of(link.request))

    async def _heal(self) -> None:
        self._faults.clear()
        for link in self._links:
            link.healed()
        self._notify()
        if self._door is not Door.OPEN:
            await self._open(Door.OPEN)

    async def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _silence(self) -> None:
        for link in list(self._links):
            link.fault = Fault(Kind.SILENCE)

    async def _close(self) -> None:
        await self._open(Door.REFUSED)
        self._notify()
        for link in list(self._links):
            link.abort()

    def fault_of(self, request: Request) -> Fault | None:
        """Return the fault that affects a request now, and count it."""
        for entry in self._faults:
            fault, left = entry
            if fault.where.holds(request) and left != 0:
                if left is not None:
                    entry[1] = left - 1
                return fault  # type: ignore[no-any-return]
        return None

    def send_late(self, data: bytes, seconds: float) -> None:
        """Send a request on a connection of its own after some seconds, and drop its answer."""

        async def send() -> None:
            await asyncio.sleep(seconds)
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._target, ssl=self._client)
                writer.write(data)
                await reader.readuntil(b"\r\n\r\n")
                writer.transport.abort()

        task = asyncio.get_running_loop().create_task(send())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_changed(self) -> None:
        """Wait until the faults or the door change."""
        await self._changed.wait()


class _Link:
    """A connection of a client, with its connection to the server.

    Attributes:
        request: the latest request.
        fault: the fault that affects it.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._near: asyncio.StreamWriter | None = None
        self._far: asyncio.StreamWriter | None = None
        self._passed = 0
        """Bytes of the present answer so far."""
        self._trap: Trap | None = None
        self.request: Request | None = None
        self.fault: Fault | None = None

    async def run(
        self, accepted: socket.socket, port: int, client: ssl.SSLContext | None, server: ssl.SSLContext | None
    ) -> None:
        """Pass data until one end closes."""
        try:
            far_reader, self._far = await asyncio.open_connection("127.0.0.1", port, ssl=client, limit=HEAD_LIMIT)
        except OSError:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(HEAD_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=server)
        self._near = asyncio.StreamWriter(transport, protocol, reader, loop)
        ways: list[Awaitable[None]] = [self._up(reader), self._down(far_reader)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def waits(self) -> bool:
        """Whether a request without a fault is in progress. It is done when its answer begins, except for a watch."""
        return self.request is not None and self.fault is None and (self._passed == 0 or self.request.verb == "watch")

    # --- client to server -----------------------------------------------------------------------------

    async def _up(self, reader: asyncio.StreamReader) -> None:
        """Pass requests, one after the other."""
        assert self._far is not None
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            self.request, self._passed = parse(head), 0
            self._proxy.requests.append(self.request)
            self._trap = trap = self._proxy.hook(self.request, body)
            if trap is not None and trap.when != "after":
                trap.act()
                if trap.when == "late":
                    self._proxy.send_late(head + body, trap.seconds)
                return
            if self.fault is None or self.fault.kind is not Kind.SILENCE:
                self.fault = None
                await self.strike(self._proxy.fault_of(self.request))
            if self.fault is not None and self.fault.kind is Kind.ANSWER:
                await self._answer(self.fault.body)
                continue
            if self.fault is not None and self.fault.kind in (Kind.HALF_CLOSE, Kind.SILENCE):
                while await reader.read(CHUNK):
                    pass
                return
            await self._pass(head + body, self._far)

    async def _answer(self, body: bytes) -> None:
        assert self._near is not None
        self._near.write(body)
        await self._near.drain()

    # --- server to client -----------------------------------------------------------------------------

    async def _down(self, reader: asyncio.StreamReader) -> None:
        """Pass answers."""
        assert self._near is not None
        while data := await reader.read(CHUNK):
            if self._trap is not None:
                self._trap.act()
                return
            fault = self.fault
            if fault is not None and fault.kind is Kind.LOSE_ANSWER:
                self.reset()
                return
            if fault is not None and fault.kind is Kind.TRUNCATE:
                left = max(0, int(fault.amount) - self._passed)
                if len(data) > left:
                    self._near.write(data[:left])
                    self._near.close()  # with TLS's own end
                    await self._near.wait_closed()
                    return
            self._passed += len(data)
            await self._pass(data, self._near)

    # --- both -----------------------------------------------------------------------------------------

    async def _pass(self, data: bytes, to: asyncio.StreamWriter) -> None:
        """Pass data, as the current fault demands."""
        while data:
            fault = self.fault
            match fault.kind if fault is not None else None:
                case Kind.LATENCY if fault is not None:
                    await asyncio.sleep(fault.amount)
                    piece = data
                case Kind.BANDWIDTH if fault is not None:
                    await asyncio.sleep(1 / SLOTS)
                    piece = data[: max(1, int(fault.amount / SLOTS))]
                case Kind.BLACKHOLE | Kind.SILENCE | Kind.HALF_CLOSE | Kind.RESET | Kind.TLS_CUT:
                    while self.fault is fault:
                        await self._proxy.until_changed()
                    continue
                case _:
                    piece = data
            to.write(piece)
            await to.drain()
            data = data[len(piece) :]

    async def strike(self, fault: Fault | None) -> None:
        """Apply a fault to the request in progress."""
        self.fault, self._passed = fault, 0
        match fault.kind if fault is not None else None:
            case Kind.RESET:
                self.reset()
            case Kind.HALF_CLOSE:
                self._shutdown(socket.SHUT_WR)
            case Kind.TLS_CUT:
                self._shutdown(socket.SHUT_RDWR)
                self.abort()
            case Kind.INSERT if fault is not None:
                self.fault = None
                await self._answer(b"%x\r\n%s\r\n" % (len(fault.body), fault.body))

    def healed(self) -> None:
        """End the fault; a broken connection stays broken."""
        if self.fault is not None and self.fault.kind in (Kind.LATENCY, Kind.BLACKHOLE, Kind.BANDWIDTH):
            self.fault = None

    def reset(self) -> None:
        """Send an RST to the client; the server sees the connection end."""
        if self._near is not None:
            raw = self._near.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def abort(self) -> None:
        """Close both connections at once."""
        for writer in (self._near, self._far):
            if writer is not None:
                writer.transport.abort()

    def _shutdown(self, how: int) -> None:
        if self._near is not None:
            with contextlib.suppress(OSError):
                self._near.get_extra_info("socket").shutdown(how)


def parse(head: bytes) -> Request:
    """Parse the head of a request."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    parts = urlsplit(target)
    match = _COLLECTION.match(parts.path)
    resource = match["resource"] if match else ""
    if method != "GET":
        verb = _VERBS.get(method, method.lower())
    elif parse_qs(parts.query).get("watch") == ["true"]:
        verb = "watch"
    else:
        verb = "list" if match and not match["name"] else "get"
    return Request(verb, resource, target, time.monotonic())
