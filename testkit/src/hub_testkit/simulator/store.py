"""Objects as encoded bytes, one resourceVersion for the whole cluster, and the history that watches are served from.

A stored object is encoded once; a change is encoded once per event type, however many watchers there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hub_testkit.simulator.answers import expired
from hub_testkit.simulator.kinds import Kind

Json = dict[str, Any]
Match = Callable[["Stored"], bool]

FIRST_VERSION = 1
MAX_PENDING = 10_000
"""Events a watcher may lag behind before its stream is ended, as the API server does with a slow reader."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object. ``body`` is its JSON without ``kind`` and ``apiVersion``, as list items are."""

    key: str
    namespace: str
    name: str
    uid: str
    version: int
    labels: dict[str, str]
    body: bytes

    def decode(self) -> Json:
        """The object without ``kind`` and ``apiVersion``, as a value of the caller's own."""
        obj: Json = msgspec.json.decode(self.body)
        return obj


@dataclass(slots=True)
class Change:
    """What happened to one object at one resourceVersion; ``after`` is None when it was deleted."""

    kind: Kind
    version: int
    before: Stored | None
    after: Stored | None
    _lines: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def line(self, match: Match) -> bytes | None:
        """The watch event a watcher with this selection sees, or None."""
        was = self.before is not None and match(self.before)
        now = self.after is not None and match(self.after)
        if now:
            return self._line("MODIFIED" if was else "ADDED")
        return self._line("DELETED") if was else None

    def _line(self, event: str) -> bytes:
        line = self._lines.get(event)
        if line is None:
            line = self._lines[event] = event_line(event, full_body(self.kind, self._shown(event)))
        return line

    def _shown(self, event: str) -> bytes:
        if event != "DELETED" and self.after is not None:
            return self.after.body
        # Gone, or gone out of the selection: the last state seen, at the version of its going.
        if self.before is None:
            raise AssertionError("a change without an object")
        last = self.before.decode()
        last["metadata"]["resourceVersion"] = str(self.version)
        return msgspec.json.encode(last)


def encoded(kind: Kind, obj: Json, version: int) -> Stored:
    """An object (without ``kind`` and ``apiVersion``) as it is stored; its resourceVersion is what it says itself."""
    meta = obj["metadata"]
    namespace = meta.get("namespace", "")
    return Stored(
        key=kind.key(namespace, meta["name"]),
        namespace=namespace,
        name=meta["name"],
        uid=meta["uid"],
        version=version,
        labels=meta.get("labels", {}),
        body=msgspec.json.encode(obj),
    )


def full_body(kind: Kind, body: bytes) -> bytes:
    """An object with ``kind`` and ``apiVersion``, as everywhere but in lists."""
    return b'{"kind":"%b","apiVersion":"%b",%b' % (kind.kind.encode(), kind.api_version.encode(), body[1:])


def event_line(event: str, obj: bytes) -> bytes:
    """One line of a watch stream."""
    return b'{"type":"%b","object":%b}\n' % (event.encode(), obj)


class Watcher:
    """One open watch: lines waiting to be written, and whether it must end.

    Attributes:
        ended: end the stream once nothing is pending; with ``reset``, by resetting the connection.
        abort: resets the connection now; set by whoever serves the stream.
    """

    def __init__(self, table: Table, match: Match, since: int) -> None:
        self._table = table
        self._match = match
        self.since = since
        self.pending: deque[bytes] = deque()
        self.ended = False
        self.reset = False
        self.abort: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()

    @property
    def resource(self) -> str:
        """The resource watched."""
        return self._table.kind.resource

    def push(self, change: Change) -> None:
        """A change happened."""
        if change.version > self.since and (line := change.line(self._match)) is not None:
            self.push_line(line)

    def push_line(self, line: bytes) -> None:
        """Write this line next."""
        self.pending.append(line)
        self._wake.set()

    def drop_if_lagging(self) -> None:
        """End the stream of a reader that does not keep up."""
        if len(self.pending) > MAX_PENDING:
            self.end()

    def end(self, *, reset: bool = False) -> None:
        """End the stream after what is pending."""
        self.ended, self.reset = True, reset
        self._wake.set()

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to write or an end, at most this long."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def take(self) -> bytes:
        """Everything pending, as one piece."""
        piece = b"".join(self.pending)
        self.pending.clear()
        return piece

    def close(self) -> None:
        """Stop listening."""
        self._table.watchers.pop(self, None)


class Table:
    """All objects of one kind, with history."""

    def __init__(self, kind: Kind, history: int) -> None:
        self.kind = kind
        self.objects: dict[str, Stored] = {}
        self.log: deque[Change] = deque()
        self.compacted = 0
        self.watchers: dict[Watcher, None] = {}
        """In the order in which they came: what happens at once happens in the same order every time."""
        self._history = history

    def record(self, change: Change) -> None:
        """Take a change in and tell the watchers."""
        if change.after is not None:
            self.objects[change.after.key] = change.after
        elif change.before is not None:
            del self.objects[change.before.key]
        self.log.append(change)
        while len(self.log) > self._history:
            self.compacted = self.log.popleft().version
        for watcher in tuple(self.watchers):
            watcher.push(change)
            watcher.drop_if_lagging()

    def compact(self, version: int) -> None:
        """Forget everything older than ``version``."""
        while self.log and self.log[0].version <= version:
            self.log.popleft()
        self.compacted = max(self.compacted, version)

    def restore(self, version: int) -> None:
        """Go back to ``version``; what came later never was."""
        self.objects = self.at(version)
        while self.log and self.log[-1].version > version:
            self.log.pop()

    def at(self, version: int) -> dict[str, Stored]:
        """The objects as they were at ``version``.

        Raises:
            Refusal: 410, that is forgotten.
        """
        if version < self.compacted:
            raise expired("list")
        objects = dict(self.objects)
        for change in reversed(self.log):
            if change.version <= version:
                break
            if change.before is not None:
                objects[change.before.key] = change.before
            elif change.after is not None:
                objects.pop(change.after.key, None)
        return objects

    def watch(self, match: Match, since: int) -> Watcher:
        """Follow the changes after ``since``, those of the past first.

        Raises:
            Refusal: 410, the past is forgotten.
        """
        if since < self.compacted:
            raise expired("watch")
        watcher = Watcher(self, match, since)
        for change in self.log:
            watcher.push(change)
        self.watchers[watcher] = None
        return watcher


class Store:
    """The tables and the one resourceVersion they share."""

    def __init__(self, kinds: Iterable[Kind], history: int) -> None:
        self.version = FIRST_VERSION
        self.tables = {kind.resource: Table(kind, history) for kind in kinds}

    def __getitem__(self, kind: Kind) -> Table:
        return self.tables[kind.resource]

    def save(self, kind: Kind, obj: Json, before: Stored | None) -> Stored:
        """Store an object (without ``kind`` and ``apiVersion``) at the next version, which is written into it."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        after = encoded(kind, obj, self.version)
        self[kind].record(Change(kind, self.version, before, after))
        return after

    def remove(self, kind: Kind, before: Stored) -> None:
        """Delete an object, at the next version."""
        self.version += 1
        self[kind].record(Change(kind, self.version, before, None))

    def compact(self) -> None:
        """Forget the past: every version older than now is expired."""
        for table in self.tables.values():
            table.compact(self.version)

    def restore(self, version: int) -> None:
        """Go back to ``version``.

        Raises:
            Refusal: 410, that is forgotten.
        """
        for table in self.tables.values():
            table.restore(version)
        self.version = version

    def watchers(self, resource: str | None = None) -> list[Watcher]:
        """Open watches, of one resource or all."""
        return [
            watcher
            for name, table in self.tables.items()
            if resource in (None, name)
            for watcher in tuple(table.watchers)
        ]
