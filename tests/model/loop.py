"""An event loop with virtual time: time jumps to the next timer, connections are pairs of queues, threads run inline.

All code above is real: the hub's HTTP client talks to the HTTP server of the simulated API servers. TLS and the kernel
are left out. The transit time of bytes is drawn from the seed, so that the order of simultaneous events differs between
seeds, but not between runs with the same seed.
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
"""The longest transit time of bytes, in seconds."""
FOREVER = 1e9
"""Seconds. A timer this late keeps a future that is never set, and its waiters, from being garbage collected."""
PROCESS: ContextVar[str] = ContextVar("process", default="")
"""The process that opens a connection: set in a simulated process's first task, inherited by all its tasks."""


class _Null(selectors.BaseSelector):
    """A selector that never waits: the time jumps instead."""

    def __init__(self) -> None:
        self.slept = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: no timer is pending in the simulation")
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
        """The protocol that reads this side."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Whether this side is closed."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether data is passed to the protocol."""
        return not self._paused

    def pause_reading(self) -> None:
        """Keep arriving data."""
        self._paused = True

    def resume_reading(self) -> None:
        """Pass the kept data."""
        self._paused = False
        kept, self._waiting = self._waiting, []
        for item in kept:
            self._loop.call_soon(self._receive, item)

    def get_write_buffer_size(self) -> int:
        """0: writes are never buffered."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: there is no buffer."""

    def can_write_eof(self) -> bool:
        """False, as with TLS."""
        return False

    def write(self, data: Any) -> None:
        """Send bytes, which arrive in order, a moment later."""
        if data and not self._closing:
            self._send(bytes(data))

    def close(self) -> None:
        """Close the connection after the sent data."""
        if not self._closing:
            self._closing = True
            self._send(None)
            self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        """Reset the connection; sent data that has not arrived is lost."""
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
    """The event loop; see the module.

    Args:
        seed: the seed of all random choices.

    Attributes:
        dead: killed processes: their connections are cut, and they cannot open others.
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
        """Virtual time since the start, in seconds."""
        return 1000.0 + self._null.slept

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run a function that is meant for a thread, here and now."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the error is raised in the task that awaits the result
            future.set_exception(error)
        return future

    # --- the network --------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen on a port; 0 = any free one."""
        if not port:
            self._ports += 1
            port = self._ports
        listener = self.listeners[port] = _Listener(self, port, protocol_factory)
        return listener

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect; refused if nothing listens. A dead process waits for ever."""
        await asyncio.sleep(self.rng.random() * DELAY)
        await self._alive()
        if address[1] not in self.listeners:
            raise ConnectionRefusedError(111, "connection refused")
        self._wanted[id(sock)] = address

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        """Make a transport for a connected socket."""
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
            await asyncio.sleep(FOREVER)

    def kill(self, process: str) -> None:
        """Cut off a process at once, like SIGKILL: data that it has not sent never arrives, answers to it are lost."""
        self.dead.add(process)
        for pipe in [pipe for pipe in self.pipes if pipe.process == process]:
            pipe._closing = True
            pipe._lost = True  # it receives nothing more
            self.pipes.pop(pipe, None)
            if pipe.peer is not None:
                self.call_soon(pipe.peer._end, ConnectionResetError("reset by the peer"))


class VirtualClock:
    """The hub's clock, in the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jump = 0.0

    def now(self) -> float:
        """Monotonic time in seconds."""
        return self._loop.time()

    def wall(self) -> float:
        """Unix time by a clock that may be set."""
        return 1_767_225_600.0 + self._loop.time() + self.jump

    async def sleep(self, seconds: float) -> None:
        """Sleep, like asyncio.sleep."""
        await asyncio.sleep(seconds)
