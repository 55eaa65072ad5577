"""How many calls run at the same time, for tests of what bounds them."""

from __future__ import annotations

import threading
import time


class Crowd:
    """Calls of ``visit`` in threads; ``most`` is how many there were at once."""

    def __init__(self) -> None:
        self.most = 0
        self._here = 0
        self._lock = threading.Lock()

    def visit(self, seconds: float) -> None:
        """Be one of them for a while."""
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        time.sleep(seconds)
        with self._lock:
            self._here -= 1
