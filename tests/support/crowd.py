"""Counts calls that run at the same time, for tests of concurrency limits."""

from __future__ import annotations

import threading
import time


class Crowd:
    """Call ``visit`` in threads; ``most`` is the largest number of calls at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._here = 0
        self._lock = threading.Lock()

    def visit(self, seconds: float) -> None:
        """Block for some seconds, counted among the calls in progress."""
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        time.sleep(seconds)
        with self._lock:
            self._here -= 1
