"""Logs what was written, at most one line a second, so that a burst of writes does not flood the log.

The heartbeat of :mod:`hub.app.hub` calls :meth:`Journal.flush` once a second.
"""

from __future__ import annotations

import logging

from hub.model import TargetKey, join_first

log = logging.getLogger(__name__)

NAMED = 5
"""Maximum number of Services named in one line."""


class Journal:
    """Counts writes until the next line."""

    def __init__(self) -> None:
        self._writes: dict[TargetKey, int] = {}

    def note(self, target: TargetKey, writes: int) -> None:
        """Count the slices that a pass over ``target`` wrote."""
        self._writes[target] = self._writes.get(target, 0) + writes

    def flush(self) -> None:
        """Log one line if slices were written since the last call."""
        if not self._writes:
            return
        written, self._writes = self._writes, {}
        names = join_first(sorted(map(str, written)), NAMED)
        log.info("published: %d slices written for %s", sum(written.values()), names)
