"""What an input may cost: one second, and 256 MiB.

Both are limits of the process, and not of a measurement afterwards: the address space may grow by 256 MiB from
where it stands when the fuzzing begins (``MemoryError`` is then an error like any other), and a timer of CPU time
interrupts what takes too long. CPU time, since the machine has other work; whoever sleeps instead is ended by
whoever started this process. Where threads and sockets are part of it, the peak of the resident memory counts
instead: each thread reserves more addresses than that.
"""

from __future__ import annotations

import gc
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

SECONDS: Final = 1.0
MEMORY: Final = 256 << 20


class TooSlow(BaseException):
    """An input took longer than it may. No ``Exception``: nobody takes it for a mistake of the input."""


def limit_memory() -> None:
    """From here on the process may grow by so much and no more."""
    gc.collect()
    most = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def reset_peak() -> int:
    """Forget the peak of resident memory; how much there is now, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """Bytes of resident memory at most, since the last reset."""
    return _status("VmHWM")


class Stopwatch:
    """Holds every input to its second.

    Attributes:
        slowest: CPU seconds of the slowest input so far.
    """

    def __init__(self) -> None:
        self.slowest = 0.0
        signal.signal(signal.SIGPROF, _too_slow)

    @contextmanager
    def input(self) -> Iterator[None]:
        """Around one input.

        Raises:
            TooSlow: it takes too long; noticed at once, or where it returns from C.
        """
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            took = time.process_time() - started
            self.slowest = max(self.slowest, took)
        if took > SECONDS:
            raise TooSlow(f"{took:.1f} s of CPU time")


def _too_slow(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise TooSlow(f"more than {SECONDS:g} s of CPU time")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) << 10
