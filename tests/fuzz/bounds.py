"""The limits of an input: one second of CPU time and 256 MiB of memory.

Both interrupt the process instead of being measured afterwards. The address space may grow by 256 MiB from the start of
the fuzzing; beyond, there is a ``MemoryError``, which counts as any other error. A timer of CPU time interrupts a slow
input; CPU time does not depend on other work of the machine. An input that sleeps is stopped by the parent process's
timeout. Targets with threads and sockets are limited by their peak of resident memory instead, as each thread reserves
more address space than that.
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
    """An input took too long. Not an ``Exception``, so that no handler takes it for an error in the input."""


def limit_memory() -> None:
    """Limit the memory of the process to :data:`MEMORY` bytes more than it has now."""
    gc.collect()
    most = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def reset_peak() -> int:
    """Reset the peak of resident memory; returns the present resident memory in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The peak of resident memory in bytes since the last reset."""
    return _status("VmHWM")


class Stopwatch:
    """Limits each input to one second.

    Attributes:
        slowest: CPU seconds of the slowest input so far.
    """

    def __init__(self) -> None:
        self.slowest = 0.0
        signal.signal(signal.SIGPROF, _too_slow)

    @contextmanager
    def input(self) -> Iterator[None]:
        """Limit and time one input, which is processed in the block.

        Raises:
            TooSlow: it takes too long. Code in C is not interrupted, but fails when it returns.
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
