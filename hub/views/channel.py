"""A stream of views in one shape: objects, a log of what became of them, and readers that are positions in it.

An event is encoded once, whoever reads. The log is bounded and shared, so a reader costs nothing but its
connection; one that falls out of the log is told so and has to start with a snapshot.
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

LOG: Final = 10_000
"""Events that can be resumed from; twice the number of objects where that is more: a cluster may change as a whole."""
FRAMED: Final = 8
"""Encoded deltas kept for the next one who asks: followers are at one position or two, and each that comes back with a
token of long ago is at one of its own, with up to all of the log behind it."""
FRESH: Final = 1.0
"""Seconds an encoded snapshot is handed out for, followed by what has happened since."""

SHARE: Final = 0.0005
"""Seconds between two rounds for each reader: one costs 60 µs, so that all of them take an eighth of a core at most."""
TURNS: Final = 32
"""Readers that are served in one go of the event loop: 2 ms, in which nobody else has a turn."""

Framing = Literal["ndjson", "sse"]


class TokenTooOld(HubError):
    """A resume token leads to before what is remembered, or to another life of this process."""


class Event(NamedTuple):
    """One event; ``body`` is the encoded object."""

    type: bytes
    body: bytes


class _Snapshot(NamedTuple):
    """As it was sent: when it was made, the position, the clusters its bookmark names, the text."""

    made: float
    position: int
    unknown: tuple[str, ...]
    text: bytes


class Channel:
    """One stream; a listener of the board.

    Args:
        unknown: names of the clusters that have said nothing yet; bookmarks name them.

    Attributes:
        readers: how many follow it.
        dropped: readers that fell out of the log or did not read, since the start.
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
        """Of the last event."""
        return self._last

    def changed(self, owner: Owner, views: Views) -> None:
        """A Service's views are these now."""
        before = self._objects.get(owner, {})
        after = shaped(views, self.shape)
        for each in diff(before, after):
            kind = b"Deleted" if each.new is None else b"Added" if each.old is None else b"Updated"
            self._log.append(Event(kind, each.new or each.old))
            self._last += 1
        self._count += len(after) - len(before)
        if after:
            self._objects[owner] = after
        else:
            self._objects.pop(owner, None)
        while len(self._log) > max(LOG, 2 * self._count):
            self._log.popleft()
        self._framed.clear()
        self._schedule()

    def token(self, position: int) -> str:
        """What to show in order to go on after ``position``."""
        return f"{self._epoch}-{position}"

    def resume(self, token: str) -> int:
        """The position a token stands for.

        Raises:
            TokenTooOld: nothing is known of what came after it.
        """
        epoch, _, number = token.partition("-")
        known = epoch == self._epoch and number.isascii() and number.isdigit() and len(number) < 16
        if not known or not self._reaches(int(number)):
            raise TokenTooOld(f"the resume token {token[:40]!r} is too old: start again without one, with a snapshot")
        return int(number)

    def _reaches(self, position: int) -> bool:
        return self._last - len(self._log) <= position <= self._last

    def objects(self) -> list[bytes]:
        """All objects as they are now, sorted by name."""
        return [
            body for _, body in sorted((name, body) for each in self._objects.values() for name, body in each.items())
        ]

    def snapshot(self, framing: Framing) -> tuple[int, bytes]:
        """A position, and all objects as of it with the bookmark behind them; shared by readers that come together."""
        known, unknown = self._snapshots.get(framing), tuple(self._unknown())
        fresh = known is not None and (known.position == self._last or self._clock.now() - known.made < FRESH)
        if known is None or not fresh or known.unknown != unknown or not self._reaches(known.position):
            position = self._last
            lines = [frame(framing, Event(b"Added", body), self.token(position)) for body in self.objects()]
            text = b"".join([*lines, self.bookmark(framing, position)])
            known = self._snapshots[framing] = _Snapshot(self._clock.now(), position, unknown, text)
        return known.position, known.text

    def bookmark(self, framing: Framing, position: int) -> bytes:
        """Everything up to ``position`` has been said."""
        body: dict[str, Any] = {"kind": KIND, "metadata": {"resourceVersion": self.token(position)}}
        if not self.shape.compat:
            body["status"] = {"unknownClusters": list(self._unknown())}
        return frame(framing, Event(b"Bookmark", msgspec.json.encode(body)), self.token(position))

    def since(self, position: int, framing: Framing) -> tuple[int, bytes]:
        """The last position, and what has happened after ``position``, encoded once for all who ask.

        Raises:
            TokenTooOld: it is forgotten.
        """
        if not self._reaches(position):
            raise TokenTooOld("this reader is too slow: start again without a resume token, with a snapshot")
        if (position, framing) not in self._framed:
            if len(self._framed) >= FRAMED:
                self._framed.clear()
            first = self._last - len(self._log)
            events = [self._log[index] for index in range(position - first, len(self._log))]
            self._framed[position, framing] = b"".join(
                frame(framing, event, self.token(number)) for number, event in enumerate(events, position + 1)
            )
        return self._last, self._framed[position, framing]

    async def news(self, position: int) -> None:
        """Wait until something has happened after ``position``, and it is this reader's turn."""
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
        """See to it that there is a round, not too soon after the last one."""
        if self._round is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._round = loop.call_at(max(loop.time(), self._not_before), self._begin)

    def _begin(self) -> None:
        self._round = None
        waiting, self._waiting = list(self._waiting), {}
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + len(waiting) * SHARE
        self._wake(waiting)

    def _wake(self, waiting: list[asyncio.Future[None]]) -> None:
        """Some of them; the others after whatever else the event loop has to do."""
        for turn in waiting[:TURNS]:
            if not turn.done():
                turn.set_result(None)
        if rest := waiting[TURNS:]:
            asyncio.get_running_loop().call_soon(self._wake, rest)


def frame(framing: Framing, event: Event, token: str) -> bytes:
    """One event as it is sent: a line of JSON, or an event of an EventSource."""
    line = b'{"type":"%s","resourceVersion":"%s","object":%s}' % (event.type, token.encode(), event.body)
    if framing == "ndjson":
        return line + b"\n"
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (token.encode(), event.type, line)
