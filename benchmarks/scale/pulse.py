"""``hub``, with a pulse: the same program, which also notes when its event loop stood still, and when it collected.

    python -m benchmarks.scale.pulse FILE run --registry …

The hub itself counts stalls of a quarter of a second; the goal is less. Here the loop is to call back every
20 ms, which costs half a percent of a core (every 5 ms it was 1.6), and each call that comes late is a line in FILE:
``[when it came, seconds since the one before, seconds of CPU meanwhile, generation]``, by the monotonic clock: at least
as long as the stall. The generation is -1, or that of a garbage collection that took so long. Late without CPU means
that the loop's thread waited: for a disk, a lock, or its turn on the core.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

import uvloop

EVERY = 0.02
WORTH = 0.01
"""Seconds late below which nothing is noted; also of a collection."""


class Pulse:
    """Calls itself on a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: str) -> None:
        self._loop = loop
        self._file = open(file, "a", buffering=1)  # noqa: SIM115 - as long as the process
        self._began = 0.0
        self._last = time.monotonic()
        self._cpu = time.thread_time()
        gc.callbacks.append(self._collecting)
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        now, cpu = time.monotonic(), time.thread_time()
        if now - self._last >= EVERY + WORTH:
            self._note(now, now - self._last, cpu - self._cpu, -1)
        self._last, self._cpu = now, cpu
        self._loop.call_later(EVERY, self._beat)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._began = now
        elif now - self._began >= WORTH:
            self._note(now, now - self._began, 0.0, info["generation"])

    def _note(self, at: float, seconds: float, cpu: float, generation: int) -> None:
        self._file.write(f"[{at:.4f}, {seconds:.4f}, {cpu:.4f}, {generation}]\n")


def main() -> None:
    """Run the hub on a loop with a pulse."""
    file = sys.argv.pop(1)
    plain = uvloop.new_event_loop

    def with_pulse() -> Any:
        loop = plain()
        Pulse(loop, file)
        return loop

    uvloop.new_event_loop = with_pulse
    from hub.cli import main as hub

    hub()


if __name__ == "__main__":
    main()
