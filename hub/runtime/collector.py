"""Keeps the garbage collector from stopping the event loop.

A full collection examines all live objects and blocks the event loop meanwhile: a third of a second for 50,000 Nodes.
It frees next to nothing, since reference counting already frees almost all objects. Therefore:

- no collection runs while the hub starts and reads its fleet;
- objects that exist at the end of the start are frozen (:func:`gc.freeze`): later collections skip them;
- full collections run often, so that each examines few objects;
- after a full collection that takes long, all objects that exist are frozen too.

The price: garbage in cycles among frozen objects stays in memory until the daily collection of all objects.

https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

log = logging.getLogger(__name__)

LONG_COLLECTION: Final = 0.01
"""Seconds; after a full collection that takes longer, all remaining objects are frozen. A tenth of the time that
anything may block the event loop."""
THRESHOLDS: Final = (700, 3, 1)
"""Thresholds of the three generations. With Python's defaults (700, 10, 10), up to 70,000 objects accumulate between
full collections, and each of them may refer to a hundred endpoints."""
FULL_COLLECTION_INTERVAL: Final = 86400.0
"""Seconds between collections of all objects, which take a third of a second of CPU for 50,000 Nodes."""
LONGEST_START: Final = 300.0
"""The longest time without collections, in seconds; a start with hundreds of clusters takes that long on a tenth of a
core."""
START_POLL: Final = 0.5
"""Seconds between two checks whether the start is over."""


@asynccontextmanager
async def avoid_long_collections(started: Callable[[], bool], patience: float = LONGEST_START) -> AsyncIterator[None]:
    """Avoid long collections while the context is open. This changes settings of the whole process.

    Args:
        started: returns whether the start is over; polled every ``START_POLL`` seconds.
        patience: seconds after which the start counts as over.
    """
    watch, thresholds = _Watch(), gc.get_threshold()
    gc.disable()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(watch)
    task = asyncio.create_task(_settle(started, patience), name="garbage collector")
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(watch)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()


async def _settle(started: Callable[[], bool], patience: float) -> None:
    """Wait until the start is over, then freeze all objects and enable collections; once a day collect all objects."""
    end = time.monotonic() + patience
    while not started() and time.monotonic() < end:  # noqa: ASYNC110 - a state, not an event
        await asyncio.sleep(START_POLL)
    gc.freeze()
    gc.enable()
    log.debug("the garbage collector skips %d objects from now on", gc.get_freeze_count())
    while True:
        await asyncio.sleep(FULL_COLLECTION_INTERVAL)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python runs a full collection once the objects have grown by a quarter since the last one. This call sets that
        # base to the few objects that are not frozen.
        gc.collect()


class _Watch:
    """A member of ``gc.callbacks`` that freezes all objects after a long full collection."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > LONG_COLLECTION:
            gc.freeze()
