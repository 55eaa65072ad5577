"""Objects as encoded bytes, one resourceVersion for the whole cluster, and the history from which watches are served.

An object is encoded once, and a change once per event type, however many watchers there are.
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
"""How many events a watcher may lag behind. The stream of a slower watcher is ended, as on the API server."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object. ``body`` is its JSON without ``kind`` and ``apiVersion``, as in a list."""

    key: str
    namespace: str
    name: str
    uid: str
    version: int
    labels: dict[str, str]
    body: bytes

    def decode(self) -> Json:
        """Returns a new copy of the object, without ``kind`` and ``apiVersion``."""
        obj: Json = msgspec.json.decode(self.body)
        return obj


@dataclass(slots=True)
class Change:
    """A change of one object at one resourceVersion; ``after`` is None if it was deleted."""

    kind: Kind
    version: int
    before: Stored | None
    after: Stored | None
    _lines: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def line(self, match: Match) -> bytes | None:
        """Returns the watch event for a watcher with this selection; None if the watcher sees no change."""
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
        # Deleted, or no longer selected: the event has the last selected state, at the version of the change.
        if self.before is None:
            raise AssertionError("a change without an object")
        last = self.before.decode()
        last["metadata"]["resourceVersion"] = str(self.version)
        return msgspec.json.encode(last)


def encoded(kind: Kind, obj: Json, version: int) -> Stored:
    """Encodes an object, which has no ``kind`` and ``apiVersion``; ``version`` is not written into it."""
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
    """Returns an object with ``kind`` and ``apiVersion``, as everywhere except in lists."""
    return b'{"kind":"%b","apiVersion":"%b",%b' % (kind.kind.encode(), kind.api_version.encode(), body[1:])


def event_line(event: str, obj: bytes) -> bytes:
    """Returns one line of a watch stream."""
    return b'{"type":"%b","object":%b}\n' % (event.encode(), obj)


class Watcher:
    """An open watch, and its lines that are not written yet.

    Attributes:
        ended: Whether to end the stream after the pending lines; with ``reset``, by resetting the connection.
        abort: Resets the connection now. Set by the code that serves the stream.
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
        """The resource that is watched."""
        return self._table.kind.resource

    def push(self, change: Change) -> None:
        """Adds the event for a change, if the watch selects it."""
        if change.version > self.since and (line := change.line(self._match)) is not None:
            self.push_line(line)

    def push_line(self, line: bytes) -> None:
        """Adds a line."""
        self.pending.append(line)
        self._wake.set()

    def drop_if_lagging(self) -> None:
        """Ends the stream if its reader does not keep up."""
        if len(self.pending) > MAX_PENDING:
            self.end()

    def end(self, *, reset: bool = False) -> None:
        """Ends the stream after the pending lines."""
        self.ended, self.reset = True, reset
        self._wake.set()

    async def wait(self, seconds: float) -> None:
        """Waits up to ``seconds`` until there is a line to write, or the stream ends."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def take(self) -> bytes:
        """Removes and returns all pending lines."""
        piece = b"".join(self.pending)
        self.pending.clear()
        return piece

    def close(self) -> None:
        """Stops following changes."""
        self._table.watchers.pop(self, None)


class Table:
    """All objects of one kind, with their history."""

    def __init__(self, kind: Kind, history: int) -> None:
        self.kind = kind
        self.objects: dict[str, Stored] = {}
        self.log: deque[Change] = deque()
        self.compacted = 0
        self.watchers: dict[Watcher, None] = {}
        """In the order of creation, so that events always reach watchers in the same order."""
        self._history = history

    def record(self, change: Change) -> None:
        """Applies a change and notifies the watchers."""
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
        """Forgets all changes up to ``version``."""
        while self.log and self.log[0].version <= version:
            self.log.popleft()
        self.compacted = max(self.compacted, version)

    def restore(self, version: int) -> None:
        """Goes back to ``version``, and forgets all later changes."""
        self.objects = self.at(version)
        while self.log and self.log[-1].version > version:
            self.log.pop()

    def at(self, version: int) -> dict[str, Stored]:
        """Returns the objects as they were at ``version``.

        Raises:
            Refusal: 410: the version is no longer in the history.
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
        """Opens a watch of the changes after ``since``, including past ones.

        Raises:
            Refusal: 410: the version is no longer in the history.
        """
        if since < self.compacted:
            raise expired("watch")
        watcher = Watcher(self, match, since)
        for change in self.log:
            watcher.push(change)
        self.watchers[watcher] = None
        return watcher


class Store:
    """All tables, and the resourceVersion that they share."""

    def __init__(self, kinds: Iterable[Kind], history: int) -> None:
        self.version = FIRST_VERSION
        self.tables = {kind.resource: Table(kind, history) for kind in kinds}

    def __getitem__(self, kind: Kind) -> Table:
        return self.tables[kind.resource]

    def save(self, kind: Kind, obj: Json, before: Stored | None) -> Stored:
        """Stores an object (without ``kind`` and ``apiVersion``) with the next version as its resourceVersion."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        after = encoded(kind, obj, self.version)
        self[kind].record(Change(kind, self.version, before, after))
        return after

    def remove(self, kind: Kind, before: Stored) -> None:
        """Deletes an object, at the next version."""
        self.version += 1
        self[kind].record(Change(kind, self.version, before, None))

    def compact(self) -> None:
        """Forgets the whole history: versions before the current one are expired."""
        for table in self.tables.values():
            table.compact(self.version)

    def restore(self, version: int) -> None:
        """Goes back to ``version``.

        Raises:
            Refusal: 410: the version is no longer in the history.
        """
        for table in self.tables.values():
            table.restore(version)
        self.version = version

    def watchers(self, resource: str | None = None) -> list[Watcher]:
        """Returns the open watches, of one resource or of all."""
        return [
            watcher
            for name, table in self.tables.items()
            if resource in (None, name)
            for watcher in tuple(table.watchers)
        ]
