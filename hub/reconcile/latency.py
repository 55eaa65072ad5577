"""From the arrival of a change to the end of the write that carries it: what users of the hub wait for.

A change is noted where it wakes a target. The pass that deals with it takes it along; where that pass comes to
writes, the time until the last of them has succeeded counts, retries and waiting included. A change that means
no write (a heartbeat, something the guard withholds) is forgotten: nobody waits for it.
"""

from __future__ import annotations

from hub.model import TargetKey
from hub.runtime.tally import WRITES, Tally


class Latency:
    """The changes under way, by target.

    Attributes:
        seconds: of those that were published.
    """

    def __init__(self) -> None:
        self.seconds = Tally(WRITES)
        self._arrived: dict[TargetKey, float] = {}
        self._carried: dict[TargetKey, float] = {}

    def arrived(self, key: TargetKey, now: float) -> None:
        """Something changed for a target; the first of several changes is the one that counts."""
        self._arrived.setdefault(key, now)

    def begin(self, key: TargetKey) -> None:
        """A pass sees everything that has arrived so far. One before it that failed leaves its change to this one."""
        since = self._arrived.pop(key, None)
        if since is not None:
            self._carried.setdefault(key, since)

    def nothing(self, key: TargetKey) -> None:
        """The pass needed no write."""
        self._carried.pop(key, None)

    def published(self, key: TargetKey, now: float) -> None:
        """All writes of the pass succeeded."""
        since = self._carried.pop(key, None)
        if since is not None:
            self.seconds.note(now - since)

    def oldest(self, now: float) -> float:
        """Seconds since the oldest change arrived that is neither published nor dismissed; 0.0 where there is none."""
        return max(
            (now - since for waiting in (self._arrived, self._carried) for since in waiting.values()), default=0.0
        )

    def clear(self) -> None:
        """Forget all changes: another replica writes from now on."""
        self._arrived.clear()
        self._carried.clear()

    def forget(self, key: TargetKey) -> None:
        """Forget the changes of a removed target."""
        self._arrived.pop(key, None)
        self._carried.pop(key, None)
