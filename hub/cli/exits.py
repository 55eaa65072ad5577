"""What the exit codes of ``hub`` mean, and leaving in time."""

from __future__ import annotations

import os
import threading
from enum import IntEnum
from typing import Final

GRACE: Final = 1.0
"""Seconds that threads nobody can stop (a name look-up, a plugin's import) may hold up the end of a command."""


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    CHANGES = 1
    """``plan``: something would change; ``check``: the file has problems; ``why``: nobody knows it."""
    UNKNOWN = 2
    """The answer is incomplete: a source made no statement. Also a wrong flag or argument."""
    ERROR = 3
    """A file, a context, a permission or an API server is not as needed."""
    DEFECT = 70
    """A defect of the hub itself (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def leave_within(seconds: float, code: int) -> None:
    """End this process after ``seconds`` whatever still runs; a process that ends earlier does not notice."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
