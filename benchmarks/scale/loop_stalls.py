"""Runs ``hub`` and records the stalls of its event loop and its long garbage collections.

    python -m benchmarks.scale.loop_stalls FILE run --registry …

The hub itself counts only stalls of at least a quarter of a second, and the goal is shorter. Here a timer on the loop
fires every 20 ms, which costs half a percent of a core (1.6 percent every 5 ms). If it fires late, a line is added to
FILE: ``[monotonic time, seconds since the previous call, seconds of CPU in between, -1]``. A long garbage collection is
added with its generation in place of -1. If a stall took little CPU, the loop's thread waited for a disk, a lock or a
core.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

import uvloop

INTERVAL = 0.02
"""Seconds between two calls of the timer."""
MIN_SECONDS = 0.01
"""Shorter delays of the timer, and shorter garbage collections, are not recorded."""


class StallRecorder:
    """A timer on an event loop that records late calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: str) -> None:
        self._loop = loop
        self._file = open(file, "a", buffering=1)  # noqa: SIM115 - open until the process ends
        self._collection_began = 0.0
        self._last = time.monotonic()
        self._cpu = time.thread_time()
        gc.callbacks.append(self._on_collection)
        loop.call_soon(self._tick)

    def _tick(self) -> None:
        now, cpu = time.monotonic(), time.thread_time()
        if now - self._last >= INTERVAL + MIN_SECONDS:
            self._record(now, now - self._last, cpu - self._cpu, -1)
        self._last, self._cpu = now, cpu
        self._loop.call_later(INTERVAL, self._tick)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._collection_began = now
        elif now - self._collection_began >= MIN_SECONDS:
            self._record(now, now - self._collection_began, 0.0, info["generation"])

    def _record(self, at: float, seconds: float, cpu: float, generation: int) -> None:
        self._file.write(f"[{at:.4f}, {seconds:.4f}, {cpu:.4f}, {generation}]\n")


def main() -> None:
    """Run the hub on an event loop with a ``StallRecorder``."""
    file = sys.argv.pop(1)
    original = uvloop.new_event_loop

    def new_event_loop() -> Any:
        loop = original()
        StallRecorder(loop, file)
        return loop

    uvloop.new_event_loop = new_event_loop
    from hub.cli import main as hub

    hub()


if __name__ == "__main__":
    main()
