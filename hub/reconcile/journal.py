"""Logs what was written, at most one line a second, so that a burst of writes does not flood the log.

The heartbeat of :mod:`hub.app.hub` calls :meth:`Journal.flush` once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hub.model import TargetKey, join_first

log = logging.getLogger(__name__)

NAMED = 5
"""Maximum number of Services named in one line."""


class Journal:
    """Counts writes until the next line."""

    def __init__(self) -> None:
        self._targets: set[TargetKey] = set()
        self._written = self._deleted = 0

    def note(self, target: TargetKey, operations: Iterable[str]) -> None:
        """Count the operations (create, update, delete) on slices that a pass over ``target`` made."""
        self._targets.add(target)
        for operation in operations:
            if operation == "delete":
                self._deleted += 1
            else:
                self._written += 1

    def flush(self) -> None:
        """Log one line if slices were written or deleted since the last call."""
        if not self._targets:
            return
        numbers = ((self._written, "written"), (self._deleted, "deleted"))
        done = ", ".join(f"{number} slice{'' if number == 1 else 's'} {verb}" for number, verb in numbers if number)
        log.info("published: %s for %s", done, join_first(sorted(map(str, self._targets)), NAMED))
        self._targets.clear()
        self._written = self._deleted = 0
