"""Decides which Events to send: turns findings and occurrences into a bounded number of requests.

The rules are client-go's (tools/events/event_broadcaster.go and tools/record/events_cache.go), applied to findings that
every pass reports again: one Event when a finding appears, and its ``series`` when it comes back or lasts; similar
Events are combined; each object has a token bucket. Pure: time is an argument, and nothing is sent here.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

import msgspec

from hub.events.catalog import Reason

QUIET: Final = 360.0
"""Seconds after which a finding that comes back makes a new Event (client-go's finishTime)."""
REFRESH: Final = 1800.0
"""Seconds between updates for a finding that lasts (client-go's refreshTime; an Event lives for an hour)."""
LIFETIME: Final = 3300.0
"""Seconds after a write in which an Event can be updated; less than kube-apiserver's --event-ttl of 1 h."""
UPDATE: Final = 10.0
"""Seconds between two updates of one Event, so that a flapping finding does not send an update each time."""
SIMILAR: Final = 10
SIMILAR_WITHIN: Final = 600.0
"""After ``SIMILAR`` different messages of one reason on one object within this many seconds, further messages are
combined into one Event (client-go)."""
BURST: Final = 25.0
RATE: Final = 1 / 300
"""Most requests for one object and type: ``BURST`` in a row, then ``RATE`` per second (client-go)."""
PENDING: Final = 1000
"""Most Events of each type that wait to be sent; then the oldest are dropped."""
KNOWN: Final = 4096
"""Most Events that are remembered (client-go's maxLruCacheEntries)."""
NOTE: Final = 1024
"""Most bytes of a note (k8s.io/api/events/v1)."""
COMBINED: Final = "(combined from similar events): "


class Regarding(NamedTuple):
    """The object of an Event."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""


class Key(NamedTuple):
    """Identifies an Event."""

    regarding: Regarding
    reason: str
    scope: str


class EventFinding(NamedTuple):
    """A current finding; ``scope`` distinguishes findings of one reason on one object."""

    reason: Reason
    regarding: Regarding
    scope: str
    note: str


class Series(msgspec.Struct):
    """One Event.

    Attributes:
        note: the message of the first occurrence; the API does not allow changing it.
        count: how often it occurred.
        seen_at: when it last occurred.
        sent_at: when it was last put into the queue.
        name: the Event's name; "" until it is created.
        queued: whether the Event waits to be sent.
        unsent: whether it occurred since it was last taken from the queue.
    """

    key: Key
    reason: Reason
    note: str
    seen_at: float
    count: int = 1
    sent_at: float = float("-inf")
    name: str = ""
    queued: bool = False
    unsent: bool = True


class _CurrentFinding(msgspec.Struct):
    """A current finding.

    Attributes:
        since: when it was first reported.
        subjects: the subjects that report it.
        counted_at: when it was last counted in an Event; None = not yet.
    """

    finding: EventFinding
    since: float
    subjects: set[Hashable] = msgspec.field(default_factory=set)
    counted_at: float | None = None


class _Bucket(msgspec.Struct):
    tokens: float = BURST
    at: float = 0.0

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.at) * RATE)
        self.at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class EventSeries:
    """Decides which Events are sent.

    Attributes:
        suppressed: number of Events not sent: too many for one object, or for the queue.
    """

    def __init__(self) -> None:
        self.suppressed = 0
        self._current: dict[Key, _CurrentFinding] = {}
        self._reported: dict[Hashable, frozenset[Key]] = {}
        self._without_event: set[Key] = set()
        """Current findings without an Event so far."""
        self._later: dict[Key, tuple[EventFinding | None, float]] = {}
        """Occurrences of reasons with ``every``: the last one that is not sent (None = all are), and when it may be."""
        self._series: dict[Key, Series] = {}
        self._similar: dict[tuple[Regarding, str], dict[str, float]] = {}
        self._buckets: dict[tuple[Regarding, str], _Bucket] = {}
        self._queues: dict[str, deque[Series]] = {"Warning": deque(), "Normal": deque()}
        self._swept_at = 0.0

    # --- findings and occurrences -----------------------------------------------------------------------

    def record_occurrence(self, finding: EventFinding, now: float) -> None:
        """Record one occurrence."""
        if not finding.reason.every:
            self._record(finding, now)
            return
        key = _key(finding)
        known = self._later.get(key)
        if known is None:
            self._record(finding, now)
            self._later[key] = (None, now + finding.reason.every)
        else:
            self._later[key] = (finding, known[1])

    def set_findings(self, subject: Hashable, found: Iterable[EventFinding], now: float) -> None:
        """Record all current findings of a subject. Earlier findings that are missing have ended."""
        before = self._reported.get(subject, _NONE)
        keys: set[Key] = set()
        for finding in found:
            key = _key(finding)
            keys.add(key)
            known = self._current.get(key)
            if known is None:
                known = self._current[key] = _CurrentFinding(finding, now)
                self._without_event.add(key)
                self._try_event(key, known, now)
            known.finding = finding
            known.subjects.add(subject)
        for key in before - keys:
            known = self._current[key]
            known.subjects.discard(subject)
            if not known.subjects:
                del self._current[key]
                self._without_event.discard(key)
        if keys:
            self._reported[subject] = frozenset(keys)
        else:
            self._reported.pop(subject, None)

    def has_findings(self, subject: Hashable) -> bool:
        """Whether a subject has current findings."""
        return subject in self._reported

    def tick(self, now: float) -> None:
        """Queue the Events that have become due. The recorder calls this every few seconds."""
        for key in list(self._without_event):
            self._try_event(key, self._current[key], now)
        self._record_due(now)
        for series in list(self._series.values()):  # a copy: if the queue is full, _send removes the oldest series
            if series.unsent and not series.queued and now - series.sent_at >= UPDATE:
                self._send(series, now)
        if now - self._swept_at >= 60.0:
            self._swept_at = now
            self._sweep(now)

    def clear(self) -> None:
        """Forget all current findings, when another process leads. They count as new if this process leads again."""
        self._current.clear()
        self._reported.clear()
        self._without_event.clear()
        self._later.clear()
        for queue in self._queues.values():
            queue.clear()
        self._series = {key: series for key, series in self._series.items() if series.name}
        for series in self._series.values():
            series.queued = series.unsent = False

    def _try_event(self, key: Key, known: _CurrentFinding, now: float) -> None:
        if now - known.since >= known.finding.reason.after and self._count(known.finding, now):
            known.counted_at = now
            self._without_event.discard(key)

    def _record_due(self, now: float) -> None:
        for key, (finding, due) in list(self._later.items()):
            if now < due:
                continue
            if finding is None:
                del self._later[key]
            else:
                self._record(finding, now)
                self._later[key] = (None, now + finding.reason.every)

    def _record(self, finding: EventFinding, now: float) -> None:
        if not self._count(finding._replace(scope=finding.note), now):
            self.suppressed += 1

    def _sweep(self, now: float) -> None:
        """Count findings that last, and forget series, similar messages and token buckets that are no longer needed."""
        for known in self._current.values():
            if known.counted_at is not None and now - known.counted_at >= REFRESH:
                known.counted_at = now
                self._count(known.finding, now, lasts=True)
        for key in [
            key for key, series in self._series.items() if not series.queued and self._is_over(key, series, now)
        ]:
            del self._series[key]
        for name, seen in list(self._similar.items()):
            fresh = {scope: at for scope, at in seen.items() if now - at < SIMILAR_WITHIN}
            if fresh:
                self._similar[name] = fresh
            else:
                del self._similar[name]
        for owner in [
            owner for owner, bucket in self._buckets.items() if bucket.tokens + (now - bucket.at) * RATE >= BURST
        ]:
            del self._buckets[owner]

    def _is_over(self, key: Key, series: Series, now: float) -> bool:
        """Whether the series has ended, so that the next occurrence makes a new Event."""
        return now - series.seen_at > (LIFETIME if key in self._current else QUIET)

    # --- one Event ----------------------------------------------------------------------------------------

    def _count(self, finding: EventFinding, now: float, *, lasts: bool = False) -> bool:
        """Count one occurrence.

        Args:
            finding: the finding.
            now: the time.
            lasts: whether the finding lasts, rather than having come back.

        Returns:
            False if the object's token bucket is empty, so that a new Event cannot be sent yet.
        """
        key = _key(finding)
        series = self._series.get(key)
        if series is None:
            similar = self._similar.setdefault((key.regarding, key.reason), {})
            if similar.get(key.scope, float("-inf")) <= now - SIMILAR_WITHIN:
                recent = sum(1 for at in similar.values() if now - at < SIMILAR_WITHIN)
                if recent >= SIMILAR:
                    finding = finding._replace(scope=COMBINED, note=COMBINED + finding.note)
                    key = _key(finding)
                    series = self._series.get(key)
                else:
                    similar.pop(key.scope, None)
                    similar[key.scope] = now
        if series is not None and (lasts or now - series.seen_at < QUIET) and now - series.sent_at < LIFETIME:
            series.count += 1
            series.seen_at, series.unsent = now, True
            if now - series.sent_at >= UPDATE:
                self._send(series, now)
            return True
        if series is not None and series.queued:  # the series has ended, but its Event still waits in the queue
            return True
        series = Series(key, finding.reason, note(finding.note), now)
        if not self._send(series, now):
            return False
        self._series.pop(key, None)
        self._series[key] = series
        if len(self._series) > KNOWN:
            del self._series[next(iter(self._series))]
        return True

    def _send(self, series: Series, now: float) -> bool:
        if series.queued:
            return True
        owner = (series.key.regarding, series.reason.type)
        bucket = self._buckets.setdefault(owner, _Bucket(at=now))
        if not bucket.take(now):
            return False
        queue = self._queues[series.reason.type]
        if len(queue) >= PENDING:
            self.suppressed += 1
            self.forget(queue.popleft())
        series.queued, series.sent_at = True, now
        queue.append(series)
        return True

    # --- the sender's side ----------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Number of Events that wait to be sent."""
        return sum(map(len, self._queues.values()))

    def take(self) -> Series | None:
        """Remove and return the next Event to send, Warnings first. Its count includes all occurrences until now."""
        for queue in self._queues.values():
            if queue:
                series = queue.popleft()
                series.queued = series.unsent = False
                return series
        return None

    def forget(self, series: Series) -> None:
        """Forget a series whose Event does not exist, so that the next occurrence makes a new Event."""
        if self._series.get(series.key) is series:
            del self._series[series.key]


_NONE: Final[frozenset[Key]] = frozenset()


def _key(finding: EventFinding) -> Key:
    return Key(finding.regarding, finding.reason.name, finding.scope)


def note(text: str) -> str:
    """A message as one line of printable text, at most 1,024 bytes, as an Event allows.

    A message may contain text of a remote cluster. Its control and format characters could colour a terminal, break the
    line or reverse the direction of the text.
    """
    clean = text[: 2 * NOTE]
    if not clean.isprintable():
        clean = "".join(" " if char.isspace() else char for char in clean if char.isspace() or _printable(char))
    clean = clean.strip()
    encoded = clean.encode()
    if len(encoded) <= NOTE:
        return encoded.decode()
    return encoded[: NOTE - 3].decode("utf-8", "ignore") + "…"


def _printable(char: str) -> bool:
    return unicodedata.category(char)[0] != "C"
