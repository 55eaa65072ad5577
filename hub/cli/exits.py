"""The exit codes of ``hub``, and a deadline for the end of the process."""

from __future__ import annotations

import os
import threading
from enum import IntEnum
from typing import Final

GRACE: Final = 1.0
"""Seconds that unstoppable threads (a name look-up, a plugin's import) may delay the end of a command."""


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    CHANGES = 1
    """``plan``: something would change; ``check``: the file has problems; ``why``, ``history``: nothing was found."""
    USAGE = 2
    """A wrong option or argument: unknown, contradicting, or the name of something that does not exist."""
    ERROR = 3
    """A file, a context, a permission or an API server does not work as needed."""
    UNKNOWN = 4
    """The answer is incomplete: a source is unknown."""
    DEFECT = 70
    """A defect of the hub itself (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def exit_within(seconds: float, code: int) -> None:
    """End this process after ``seconds`` even if threads still run; has no effect on a process that ends earlier."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
