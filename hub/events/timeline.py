"""Recent changes of each Service and each cluster, which the status page draws.

They are kept in memory only: they start with the process and end with it. A pass that changes neither endpoints nor a
finding adds nothing and counts nothing, so heartbeats cost nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from hub.decide.decision import Decision
from hub.model import Slice, TargetKey

WINDOW: Final = 6 * 3600
"""Seconds after which a change is forgotten."""
NAMED: Final = 5
"""Most sources of a Service that are counted separately; further ones are counted together."""
POINTS: Final = 100
"""Most points of a Service. Beyond them, older points are merged in pairs."""
MARKS: Final = 16
"""Most marks of a Service, and most changes of the leader; the oldest are forgotten."""
STATES: Final = 48
"""Most states of a cluster; the oldest are forgotten."""

# The limits keep 2,000 Services that change all the time within 12 MB: 100 points of 32 bytes, and 16 marks.

STRIDE: Final = NAMED + 3
"""Numbers of a point: time, endpoints that are not ready, ready endpoints of each named source and of all others."""
UNKNOWN: Final = 0xFFFFFFFF
"""Instead of the number of endpoints that are not ready: from here on the endpoints are not known."""

Kind = Literal["withheld", "released", "panic", "panic over", "failover", "leader"]


class Mark(NamedTuple):
    """Something that happened at one moment; ``about`` is a cluster, or a sentence about this process."""

    at: int
    kind: Kind
    about: str = ""


class Point(NamedTuple):
    """Published endpoints from ``at`` on: the ready ones by source, and the others; None = not known."""

    at: int
    ready: tuple[int, ...]
    not_ready: int | None


class Span(NamedTuple):
    """The state of a cluster from ``at`` on; "" if this process does not follow the cluster."""

    at: int
    state: str


class Recent(NamedTuple):
    """Recent changes of a Service, oldest first. ``sources`` names the columns of the points."""

    since: int
    sources: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    marks: tuple[Mark, ...] = ()


class Timeline:
    """Recent changes of one Service."""

    __slots__ = ("_active", "_held", "_marks", "_panic", "_rows", "_sources")

    def __init__(self) -> None:
        self._sources: tuple[str, ...] = ()
        self._rows = array("I")
        self._marks: tuple[Mark, ...] = ()
        self._held: frozenset[str] = frozenset()
        self._panic = False
        self._active = ""

    @property
    def known(self) -> bool:
        """Whether the present number of endpoints is known."""
        return bool(self._rows) and self._rows[1 - STRIDE] != UNKNOWN

    def count(self, at: int, counts: Mapping[str, tuple[int, int]]) -> None:
        """Record the ready and all published endpoints of each source."""
        added = [name for name in sorted(counts) if name not in self._sources][: NAMED - len(self._sources)]
        self._sources += tuple(added)
        ready = [counts.get(name, (0, 0))[0] for name in self._sources]
        ready += [0] * (NAMED - len(ready))
        ready.append(sum(number for number, _ in counts.values()) - sum(ready))
        self._add(at, (sum(total - number for number, total in counts.values()), *ready))

    def interrupt(self, at: int) -> None:
        """Record that the endpoints are not known from now on."""
        self._add(at, (UNKNOWN, *([0] * (STRIDE - 2))))

    def _add(self, at: int, numbers: Sequence[int]) -> None:
        rows = self._rows
        if rows:
            at = max(at, rows[-STRIDE])  # the system's clock may be set back
            if tuple(rows[1 - STRIDE :]) == tuple(numbers):
                return
            if rows[-STRIDE] == at:
                del rows[-STRIDE:]
        rows.extend((at, *numbers))
        while len(rows) > STRIDE and rows[STRIDE] <= at - WINDOW:
            del rows[:STRIDE]
        if len(rows) > POINTS * STRIDE:
            self._merge()

    def _merge(self) -> None:
        """Merge the older half in pairs. The point with fewer ready endpoints stays, so that no outage is lost."""
        rows = self._rows
        half = POINTS // 4 * 2 * STRIDE
        older = array("I")
        for start in range(0, half, 2 * STRIDE):
            one, other = rows[start : start + STRIDE], rows[start + STRIDE : start + 2 * STRIDE]
            kept = min(one, other, key=_ready)
            kept[0] = one[0]
            older.extend(kept)
        self._rows = older + rows[half:]

    def note(self, at: int, held: frozenset[str], active: str, *, panic: bool) -> None:
        """Record what changed since the last call.

        Args:
            at: Unix time.
            held: source clusters with a withheld removal.
            active: the active source of a failover; "" if there is none.
            panic: whether health verdicts are ignored because no endpoint would be ready.
        """
        found = [Mark(at, "withheld", name) for name in sorted(held - self._held)]
        found += [Mark(at, "released", name) for name in sorted(self._held - held)]
        if panic != self._panic:
            found.append(Mark(at, "panic" if panic else "panic over"))
        if active and self._active and active != self._active:
            found.append(Mark(at, "failover", active))
        self._held, self._panic, self._active = held, panic, active
        if found:
            self._marks = bounded((*self._marks, *found))

    def recent(self, since: int, more: Iterable[Mark]) -> Recent:
        """The changes since the start of the process, with ``more`` marks."""
        rows = self._rows
        named = len(self._sources)
        points: list[Point] = []
        for start in range(0, len(rows), STRIDE):
            at, not_ready, *ready = rows[start : start + STRIDE]
            shown = None if not_ready == UNKNOWN else not_ready
            points.append(Point(at, (*ready[:named], ready[NAMED]), shown))
        return Recent(since, (*self._sources, ""), tuple(points), tuple(sorted((*self._marks, *more))))


def _ready(row: array[int]) -> int:
    return -1 if row[1] == UNKNOWN else sum(row[2:])


def bounded(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """The marks of the last hours, at most :data:`MARKS`."""
    return tuple(mark for mark in marks[-MARKS:] if mark.at > marks[-1].at - WINDOW)


def endpoints_by_source(slices: Iterable[Slice]) -> Mapping[str, tuple[int, int]]:
    """Source cluster -> its ready endpoints, and all its endpoints."""
    found: dict[str, tuple[int, int]] = {}
    for slice_ in slices:
        if not slice_.cluster:  # a slice of another controller, which is being replaced
            continue
        ready, total = found.get(slice_.cluster, (0, 0))
        ready += sum(endpoint.conditions.ready is not False for endpoint in slice_.endpoints)
        found[slice_.cluster] = (ready, total + len(slice_.endpoints))
    return found


def slices_after(observed: Iterable[Slice], done: Iterable[tuple[str, Slice]]) -> Iterator[Slice]:
    """The slices of a target after the writes that succeeded, given as (operation, slice)."""
    slices = {slice_.name: slice_ for slice_ in observed}
    for operation, slice_ in done:
        if operation == "delete":
            slices.pop(slice_.name, None)
        else:
            slices[slice_.name] = slice_
    return iter(slices.values())


class Timelines:
    """Recent changes of all Services that this process writes, and of all clusters that it follows.

    Args:
        wall: returns the present time in Unix seconds.

    Attributes:
        since: when the recording began.
        clusters: cluster -> its states, oldest first; the tuples are replaced, never changed.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.since = int(wall())
        self.clusters: dict[str, tuple[Span, ...]] = {}
        self._services: dict[TargetKey, Timeline] = {}
        self._leaders: tuple[Mark, ...] = ()

    def decided(self, decision: Decision) -> None:
        """Record the findings of a pass, and at the first pass the endpoints that it observed."""
        key = decision.target
        known = self._services.get(key)
        if decision.status == "gone":
            self._services.pop(key, None)
            return
        if known is None:
            known = self._services[key] = Timeline()
        if not known.known:
            known.count(self._now(), endpoints_by_source(decision.observed))
        if (desired := decision.desired) is None:
            return
        memory = desired.memory
        held = frozenset(group.cluster for group in decision.withheld)
        known.note(self._now(), held, memory.failover.active, panic=memory.panic)

    def published(self, decision: Decision, done: Iterable[tuple[str, Slice]]) -> None:
        """Record the endpoints after the writes of a pass."""
        if decision.status == "removing":
            self._services.pop(decision.target, None)
        elif (known := self._services.get(decision.target)) is not None:
            known.count(self._now(), endpoints_by_source(slices_after(decision.observed, done)))

    def rights_changed(self, words: str, written: set[TargetKey]) -> None:
        """Record a change of the leader.

        Args:
            words: what this process does now.
            written: the Services that this process writes now; the others are unknown from now on.
        """
        now = self._now()
        self._leaders = bounded((*self._leaders, Mark(now, "leader", words)))
        for key in self._services.keys() - written:
            self._services[key].interrupt(now)

    def keep(self, targets: set[TargetKey], states: Mapping[str, str]) -> None:
        """Forget all Services and clusters but these, and record the present states of the clusters."""
        for key in self._services.keys() - targets:
            del self._services[key]
        for name in self.clusters.keys() - states.keys():
            del self.clusters[name]
        for name, state in states.items():
            self.cluster_changed(name, state)

    def cluster_changed(self, name: str, state: str) -> None:
        """Record the present state of a cluster, if it is a new one."""
        spans = self.clusters.get(name, ())
        if not spans or spans[-1].state != state:
            self.clusters[name] = (*spans, Span(self._now(), state))[-STATES:]

    def _now(self) -> int:
        return int(self._wall())

    def of(self, key: TargetKey) -> Recent | None:
        """The recent changes of a Service; None if this process has not written it."""
        known = self._services.get(key)
        return known.recent(self.since, self._leaders) if known is not None else None
