"""Says in the log what was written, at most one line a second: a storm must not drown in its own report."""

from __future__ import annotations

import logging

from hub.model import TargetKey, few

log = logging.getLogger(__name__)

NAMED = 5
"""Services named in one line."""


class Journal:
    """Collects writes until the next line."""

    def __init__(self) -> None:
        self._writes: dict[TargetKey, int] = {}

    def note(self, target: TargetKey, writes: int) -> None:
        """A pass over ``target`` wrote so many slices."""
        self._writes[target] = self._writes.get(target, 0) + writes

    def flush(self) -> None:
        """Write the line, if there is anything to say."""
        if not self._writes:
            return
        written, self._writes = self._writes, {}
        names = few(sorted(map(str, written)), NAMED)
        log.info("published: %d slices written for %s", sum(written.values()), names)
