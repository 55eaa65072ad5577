"""Whether a change may still be sent: not after its caller was cancelled, and not after its time.

A thread cannot be cancelled. It asks its permit immediately before it sends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class NotSent(Exception):
    """Nothing was sent; the message says why."""


class Permit:
    """The permit of one change. It is used by the event loop and by a thread.

    Args:
        now: Returns the time in seconds.
        seconds: For how long the change may be sent, from now on.
    """

    def __init__(self, now: Callable[[], float], seconds: float) -> None:
        self._now = now
        self._ends = now() + seconds
        self._seconds = seconds
        self._withdrawn = threading.Event()

    def withdraw(self) -> None:
        """Makes :meth:`check` fail from now on."""
        self._withdrawn.set()

    def check(self) -> None:
        """Returns if the change may be sent now.

        Raises:
            NotSent: It was withdrawn, or its time is over.
        """
        if self._withdrawn.is_set():
            raise NotSent("it was cancelled")
        if self._now() >= self._ends:
            raise NotSent(f"the hub may send it for {self._seconds:g} s only, and they are over")
