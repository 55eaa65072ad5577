"""An event loop without a machine: time jumps to the next timer, connections are pairs of queues, threads run inline.

Everything above it is real code: the hub's own HTTP client speaks to the simulated API servers' real HTTP server. TLS
is left out, and so is whatever the kernel does. How long bytes are under way is drawn from the seed, so that the order
of what happens at once differs from seed to seed and never within one.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from hub.kube.tls_stream import TlsStream

DELAY = 0.002
"""Longest time, seconds, that bytes are under way."""
EVER = 1e9
"""Seconds. A future that nobody sets would be forgotten, with all that wait for it, when Python collects garbage."""
PROCESS: ContextVar[str] = ContextVar("process", default="")
"""Whose connections are opened: set in the task that a simulated process starts with, inherited by all its tasks."""


class _Null(selectors.BaseSelector):
    """Waits for nothing: what it should wait for is jumped over."""

    def __init__(self) -> None:
        self.slept = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation has come to a standstill: nothing is due, and nothing will come")
        self.slept += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        raise RuntimeError("a real file descriptor in the simulation")

    def unregister(self, fileobj: Any) -> Any:
        raise KeyError(fileobj)

    def get_map(self) -> Any:
        return {}


class Pipe(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, process: str) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop = loop
        self._protocol = protocol
        self.process = process
        self.peer: Pipe | None = None
        self._closing = self._lost = False
        self._paused = False
        self._waiting: list[Any] = []
        self._arrival = 0.0

    def get_protocol(self) -> Any:
        """Who reads this side."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Somebody else reads it."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Whether this side is done."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether what arrives is handed on."""
        return not self._paused

    def pause_reading(self) -> None:
        """Keep what arrives."""
        self._paused = True

    def resume_reading(self) -> None:
        """Hand on what has been kept."""
        self._paused = False
        kept, self._waiting = self._waiting, []
        for item in kept:
            self._loop.call_soon(self._receive, item)

    def get_write_buffer_size(self) -> int:
        """Nothing is ever kept on this side."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def can_write_eof(self) -> bool:
        """As with TLS."""
        return False

    def write(self, data: Any) -> None:
        """Send bytes: they arrive in order, a moment later."""
        if data and not self._closing:
            self._send(bytes(data))

    def close(self) -> None:
        """End in good order, after what was sent."""
        if not self._closing:
            self._closing = True
            self._send(None)
            self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        """Reset: what is under way to the other side is lost with it."""
        if self._lost:
            return
        self._closing = True
        self._loop.call_soon(self._end, None)
        if self.peer is not None:
            self._loop.call_soon(self.peer._end, ConnectionResetError("reset by the peer"))

    def _send(self, item: bytes | None) -> None:
        peer = self.peer
        if peer is None:
            return
        self._arrival = max(self._arrival + 1e-7, self._loop.time() + self._loop.rng.random() * DELAY)
        self._loop.call_at(self._arrival, peer._receive, item)

    def _receive(self, item: bytes | None) -> None:
        if self._lost:
            return
        if self._paused:
            self._waiting.append(item)
        elif item is None:
            self._protocol.eof_received()
            self._closing = True
            self._end(None)
        elif not self._closing:
            self._protocol.data_received(item)

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._loop.pipes.pop(self, None)
            self._protocol.connection_lost(error)


class _Name:
    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self._port)


class _Listener:
    def __init__(self, loop: VirtualLoop, port: int, factory: Callable[[], Any]) -> None:
        self._loop, self.port, self.factory = loop, port, factory
        self.sockets = [_Name(port)]

    def close(self) -> None:
        self._loop.listeners.pop(self.port, None)

    async def wait_closed(self) -> None:
        return


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    Args:
        seed: of everything random below and above.

    Attributes:
        dead: processes that were killed: their connections are cut, and they never open another.
    """

    def __init__(self, seed: int) -> None:
        self._null = _Null()
        self.rng = random.Random(seed)
        self.listeners: dict[int, _Listener] = {}
        self.pipes: dict[Pipe, None] = {}
        self.dead: set[str] = set()
        self._ports = 20000
        self._wanted: dict[int, tuple[str, int]] = {}
        super().__init__(self._null)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the start."""
        return 1000.0 + self._null.slept

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """What is meant for a thread runs here and now."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is whoever waits who gets it
            future.set_exception(error)
        return future

    # --- the network --------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen; port 0 is a free one."""
        if not port:
            self._ports += 1
            port = self._ports
        listener = self.listeners[port] = _Listener(self, port, protocol_factory)
        return listener

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Refused where nobody listens; a process that is dead waits for ever."""
        await asyncio.sleep(self.rng.random() * DELAY)
        await self._alive()
        if address[1] not in self.listeners:
            raise ConnectionRefusedError(111, "connection refused")
        self._wanted[id(sock)] = address

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        """Make a connected socket one of our own."""
        port = self._wanted.pop(id(sock))[1]
        sock.close()
        await self._alive()
        listener = self.listeners.get(port)
        if listener is None:
            raise ConnectionResetError(104, "reset by the peer")
        stream: TlsStream = protocol_factory()
        near = Pipe(self, stream.above, PROCESS.get())
        far = Pipe(self, listener.factory(), "")
        near.peer, far.peer = far, near
        self.pipes[near] = self.pipes[far] = None
        far._protocol.connection_made(far)
        near._protocol.connection_made(near)
        stream.secured.set_result(None)
        return near, stream

    async def _alive(self) -> None:
        if PROCESS.get() in self.dead:
            await asyncio.sleep(EVER)

    def kill(self, process: str) -> None:
        """Cut off a process at once, as kill -9 does: nothing it has not sent arrives, nothing it asked is heard."""
        self.dead.add(process)
        for pipe in [each for each in self.pipes if each.process == process]:
            pipe._closing = True
            pipe._lost = True  # it hears no more
            self.pipes.pop(pipe, None)
            if pipe.peer is not None:
                self.call_soon(pipe.peer._end, ConnectionResetError("reset by the peer"))


class VirtualClock:
    """The hub's clock, on the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jump = 0.0

    def now(self) -> float:
        """Seconds that only move forward."""
        return self._loop.time()

    def wall(self) -> float:
        """Unix time, by a clock that may be set."""
        return 1_767_225_600.0 + self._loop.time() + self.jump

    async def sleep(self, seconds: float) -> None:
        """As asyncio.sleep."""
        await asyncio.sleep(seconds)
