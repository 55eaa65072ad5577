"""One stream of views in one shape: the present objects, and a log of changes that readers follow by position.

An event is encoded once for all readers. The log is bounded and shared, so a reader costs only its connection. A reader
whose position has left the log must start again with a snapshot.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from hub.errors import HubError
from hub.runtime.clock import Clock
from hub.views.board import Owner
from hub.views.join import Views, diff
from hub.views.shapes import KIND, ObjectName, Shape, shaped

LOG_EVENTS: Final = 10_000
"""Events in the log, or twice the number of objects if that is more, since a whole cluster may change at once."""
CACHED_DELTAS: Final = 8
"""Most encoded deltas that are cached. Readers that are up to date share one or two positions; a reader that resumes
with an old token has a position of its own and a large delta."""
SNAPSHOT_SECONDS: Final = 1.0
"""Seconds for which an encoded snapshot is reused; the reader then gets the events since that snapshot."""
PAUSE_PER_READER: Final = 0.0005
"""Seconds of pause after a round, for each of its readers. Serving a reader takes 60 µs, so that all readers take at
most an eighth of a core."""
READERS_PER_TURN: Final = 32
"""Readers that are served without giving the event loop to other tasks, which takes 2 ms."""

Framing = Literal["ndjson", "sse"]


class TokenTooOld(HubError):
    """A resume token is older than the log, or comes from another process."""


class Event(NamedTuple):
    """One event; ``body`` is the encoded object."""

    type: bytes
    body: bytes


class _Snapshot(NamedTuple):
    """An encoded snapshot: its time and position, the unknown clusters in its bookmark, and the text."""

    made: float
    position: int
    unknown: tuple[str, ...]
    text: bytes


class Channel:
    """One stream; :meth:`changed` is a listener of the board.

    Args:
        shape: the form of the objects.
        clock: for the age of cached snapshots.
        unknown: returns the names of clusters that have not answered yet, for bookmarks.

    Attributes:
        readers: number of present readers.
        dropped: number of readers since the start that were too slow for the log or did not read.
    """

    def __init__(self, shape: Shape, clock: Clock, unknown: Callable[[], Sequence[str]] = tuple) -> None:
        self.shape = shape
        self._unknown = unknown
        self.readers = 0
        self.dropped = 0
        self._clock = clock
        self._epoch = secrets.token_hex(4)
        self._objects: dict[Owner, Mapping[ObjectName, bytes]] = {}
        self._count = 0
        self._log: deque[Event] = deque()
        self._last = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._round: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._snapshots: dict[Framing, _Snapshot] = {}
        self._framed: dict[tuple[int, Framing], bytes] = {}

    @property
    def position(self) -> int:
        """Position of the last event."""
        return self._last

    def changed(self, owner: Owner, views: Views) -> None:
        """The views of a Service have changed to ``views``."""
        before = self._objects.get(owner, {})
        after = shaped(views, self.shape)
        for change in diff(before, after):
            kind = b"Deleted" if change.new is None else b"Added" if change.old is None else b"Updated"
            self._log.append(Event(kind, change.new or change.old))
            self._last += 1
        self._count += len(after) - len(before)
        if after:
            self._objects[owner] = after
        else:
            self._objects.pop(owner, None)
        while len(self._log) > max(LOG_EVENTS, 2 * self._count):
            self._log.popleft()
        self._framed.clear()
        self._schedule()

    def token(self, position: int) -> str:
        """The resume token for ``position``."""
        return f"{self._epoch}-{position}"

    def resume(self, token: str) -> int:
        """The position of a resume token.

        Raises:
            TokenTooOld: the log does not have all later events.
        """
        epoch, _, number = token.partition("-")
        known = epoch == self._epoch and number.isascii() and number.isdigit() and len(number) < 16
        if not known or not self._reaches(int(number)):
            raise TokenTooOld(f"the resume token {token[:40]!r} is too old: start again without one, with a snapshot")
        return int(number)

    def _reaches(self, position: int) -> bool:
        return self._last - len(self._log) <= position <= self._last

    def objects(self) -> list[bytes]:
        """All present objects, sorted by name."""
        named = ((name, body) for objects in self._objects.values() for name, body in objects.items())
        return [body for _, body in sorted(named)]

    def snapshot(self, framing: Framing) -> tuple[int, bytes]:
        """A position, and the encoded objects at that position, followed by a bookmark; cached for a second."""
        known, unknown = self._snapshots.get(framing), tuple(self._unknown())
        now = self._clock.now()
        fresh = known is not None and (known.position == self._last or now - known.made < SNAPSHOT_SECONDS)
        if known is None or not fresh or known.unknown != unknown or not self._reaches(known.position):
            position = self._last
            lines = [frame(framing, Event(b"Added", body), self.token(position)) for body in self.objects()]
            text = b"".join([*lines, self.bookmark(framing, position)])
            known = self._snapshots[framing] = _Snapshot(self._clock.now(), position, unknown, text)
        return known.position, known.text

    def bookmark(self, framing: Framing, position: int) -> bytes:
        """An encoded event that tells a reader its position."""
        body: dict[str, Any] = {"kind": KIND, "metadata": {"resourceVersion": self.token(position)}}
        if not self.shape.compat:
            body["status"] = {"unknownClusters": list(self._unknown())}
        return frame(framing, Event(b"Bookmark", msgspec.json.encode(body)), self.token(position))

    def since(self, position: int, framing: Framing) -> tuple[int, bytes]:
        """The last position, and the encoded events after ``position``.

        Raises:
            TokenTooOld: the log does not have all events after ``position``.
        """
        if not self._reaches(position):
            raise TokenTooOld("this reader is too slow: start again without a resume token, with a snapshot")
        if (position, framing) not in self._framed:
            if len(self._framed) >= CACHED_DELTAS:
                self._framed.clear()
            first = self._last - len(self._log)
            events = [self._log[index] for index in range(position - first, len(self._log))]
            self._framed[position, framing] = b"".join(
                frame(framing, event, self.token(number)) for number, event in enumerate(events, position + 1)
            )
        return self._last, self._framed[position, framing]

    async def wait_for_events(self, position: int) -> None:
        """Wait for events after ``position``; :meth:`_wake` limits how many readers return in one round."""
        turn: asyncio.Future[None] | None = None
        try:
            while turn is None or self._last == position:
                turn = asyncio.get_running_loop().create_future()
                self._waiting[turn] = None
                if self._last != position:
                    self._schedule()
                await turn
        finally:
            if turn is not None:
                self._waiting.pop(turn, None)

    def _schedule(self) -> None:
        """Schedule the next round, with a pause after the last one."""
        if self._round is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._round = loop.call_at(max(loop.time(), self._not_before), self._begin)

    def _begin(self) -> None:
        self._round = None
        waiting, self._waiting = list(self._waiting), {}
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + len(waiting) * PAUSE_PER_READER
        self._wake(waiting)

    def _wake(self, waiting: list[asyncio.Future[None]]) -> None:
        """Wake :data:`READERS_PER_TURN` readers, and the others in later rounds of the event loop."""
        for turn in waiting[:READERS_PER_TURN]:
            if not turn.done():
                turn.set_result(None)
        if rest := waiting[READERS_PER_TURN:]:
            asyncio.get_running_loop().call_soon(self._wake, rest)


def frame(framing: Framing, event: Event, token: str) -> bytes:
    """One encoded event: a line of JSON, or a server-sent event."""
    line = b'{"type":"%s","resourceVersion":"%s","object":%s}' % (event.type, token.encode(), event.body)
    if framing == "ndjson":
        return line + b"\n"
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (token.encode(), event.type, line)
