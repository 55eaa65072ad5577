"""Notices, from a thread of its own, that an event loop stands still, and where.

Whatever runs on a loop without awaiting stops everybody else on it. Neither the loop nor a deadline on it can
see that: only another thread can. This one asks the loop for a sign of life four times a second; where none
came by the next time, it looks at the stack of the loop's thread. It knows no business: who is to blame, and
what to do about it, is up to who listens.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, Self

import msgspec

log = logging.getLogger(__name__)

TICK: Final = 0.25
"""Seconds between two looks: every stall of two ticks is seen, most of one tick too; 4 wake-ups a second."""

MAX_SAMPLES: Final = 40
"""Stacks kept of one stall."""

MAX_DEPTH: Final = 100
"""Frames kept of one stack, the innermost ones."""


MIN_CPU: Final = 0.1
"""Part of the time a thread got to run that held the interpreter's lock, on a machine ten times overloaded."""


class Frame(msgspec.Struct, frozen=True):
    """A place in the code."""

    module: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]
"""Innermost first."""


class Stall(msgspec.Struct, frozen=True):
    """A loop that stands still.

    Attributes:
        seconds: for how long, so far; without the time in which the whole process got no CPU, if it went on after that.
        over: the loop runs again; this is the last word on it.
        samples: what it was seen at, in order of time; empty where it was over before anybody could look.
        starved: the whole process got no CPU until now, or, once it is over, for all but a moment; no code is to blame.
    """

    seconds: float
    over: bool
    samples: tuple[Stack, ...]
    starved: bool = False


class Watchdog:
    """Watches the running event loop until it is left.

    Args:
        report: called in the watchdog's thread with each look at a stall, and once more when it is over.
        tick: seconds between two looks.
    """

    def __init__(self, report: Callable[[Stall], None], tick: float = TICK) -> None:
        self._report = report
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._cpu = time.pthread_getcpuclockid(self._ident)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event loop watchdog", daemon=True)
        self._answer = (0, 0.0)
        """Number and time of the last sign of life; one tuple, so that a thread reads both or neither."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        question = _Question(0, time.monotonic())
        woke, cpu = time.monotonic(), time.clock_gettime(self._cpu)
        while not self._stop.wait(self._tick):
            try:
                now, used = time.monotonic(), time.clock_gettime(self._cpu)
                # A whole tick late itself: the loop's thread held the interpreter's lock, and used CPU; or nobody ran.
                late = now - woke - self._tick if now - woke > 2 * self._tick else 0.0
                idle = used - cpu < late * MIN_CPU
                if idle:
                    question.starved, question.at = True, min(now, question.at + now - woke)
                woke, cpu = now, used
                number, at = self._answer
                if number < question.number:
                    if not late:  # there was a tick to answer in
                        question.starved = False
                    self._look(question)
                    self._report(question.stall(now - question.at, over=False))
                    continue
                if late:  # and asked nothing meanwhile
                    self._look(question)
                if question.samples or at - question.at > self._tick:
                    self._report(self._over(question, at - question.at, late, idle=idle))
                question = _Question(number + 1, time.monotonic())
                self._loop.call_soon_threadsafe(self._alive, question.number)
            except (RuntimeError, OSError):  # the loop is closed, its thread has ended
                return
            except Exception:
                log.exception("the watchdog failed")

    def _over(self, question: _Question, seconds: float, late: float, *, idle: bool) -> Stall:
        """The last word: it answered after so many seconds, and this look was late because nobody ran, or not."""
        if seconds > self._tick:  # it could have run, and did not answer
            question.starved = False
        if not idle or question.starved:
            seconds = max(seconds, late)
        return question.stall(seconds, over=True)

    def _look(self, question: _Question) -> None:
        frame = sys._current_frames().get(self._ident)  # noqa: SLF001 - public in all but its name
        if len(question.samples) < MAX_SAMPLES:
            question.samples.append(stack_of(frame))

    def _alive(self, number: int) -> None:
        self._answer = (number, time.monotonic())


class _Question(msgspec.Struct):
    """What the loop was asked, when (later by what nobody could run), and where it was seen instead of answering."""

    number: int
    at: float
    starved: bool = False
    samples: list[Stack] = msgspec.field(default_factory=list[Stack])

    def stall(self, seconds: float, *, over: bool) -> Stall:
        return Stall(seconds, over, tuple(self.samples), self.starved)


def stack_of(frame: FrameType | None) -> Stack:
    """The stack that ends in ``frame``."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MAX_DEPTH:
        module = frame.f_globals.get("__name__")
        name = module if isinstance(module, str) else ""
        frames.append(Frame(name, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames)
