"""Measures the time from the arrival of a change to the end of the write that publishes it.

A change is recorded when it wakes a target. The next pass over the target carries it. If the pass writes, the time
until its last write has succeeded is measured, including retries and waiting; if a write fails, the next pass carries
the change. If the pass needs no write (the change was a heartbeat, or the guard withholds it), the change is forgotten.
"""

from __future__ import annotations

from hub.model import TargetKey
from hub.runtime.tally import WRITE_BOUNDS, Tally


class Latency:
    """The changes that are not published yet, by target.

    Attributes:
        seconds: times of the published changes.
    """

    def __init__(self) -> None:
        self.seconds = Tally(WRITE_BOUNDS)
        self._arrived: dict[TargetKey, float] = {}
        """When the oldest change arrived that no pass has seen."""
        self._carried: dict[TargetKey, float] = {}
        """When the oldest change arrived that a pass has seen but not published."""

    def arrived(self, key: TargetKey, now: float) -> None:
        """Record a change of a target at time ``now``; of several changes, the first one counts."""
        self._arrived.setdefault(key, now)

    def begin(self, key: TargetKey) -> None:
        """Start a pass: it carries the change that has arrived, or an older one that a failed pass carried."""
        since = self._arrived.pop(key, None)
        if since is not None:
            self._carried.setdefault(key, since)

    def wrote_nothing(self, key: TargetKey) -> None:
        """End a pass that wrote nothing: forget its change."""
        self._carried.pop(key, None)

    def published(self, key: TargetKey, now: float) -> None:
        """End a pass whose writes all succeeded: measure the time of its change."""
        since = self._carried.pop(key, None)
        if since is not None:
            self.seconds.note(now - since)

    def oldest(self, now: float) -> float:
        """Seconds since the oldest change arrived that is neither published nor forgotten; 0.0 if there is none."""
        return max(
            (now - since for waiting in (self._arrived, self._carried) for since in waiting.values()), default=0.0
        )

    def clear(self) -> None:
        """Forget all changes; called when this process no longer writes."""
        self._arrived.clear()
        self._carried.clear()

    def forget(self, key: TargetKey) -> None:
        """Forget the changes of one target."""
        self._arrived.pop(key, None)
        self._carried.pop(key, None)
