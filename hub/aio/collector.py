"""Keeps the garbage collector from stopping the event loop.

A full collection looks at everything that is alive, and nobody is served meanwhile: a third of a second for 50,000
Nodes. It would find next to nothing, since almost all of this is freed by reference counts. So nothing is collected
while the hub gets to know its fleet; what it knows then is not looked at again; full collections come often, so that
there is little to look at; and where one takes long all the same, what it left is not looked at again either. The
price: a cycle among these objects, should it die, stays in memory until everything is looked at, once a day.

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

LONG: Final = 0.01
"""Seconds of a full collection that are enough: a tenth of what the loop may stand still."""
THRESHOLDS: Final = (700, 3, 1)
"""New objects, collections of these, and of the middle generation until the next: with Python's own (700, 10, 10) up to
70,000 objects pile up, and each of a slice's may lead to a hundred endpoints."""
DAY: Final = 86400.0
"""Seconds until everything is looked at again: a third of a second of CPU for 50,000 Nodes."""
PATIENCE: Final = 300.0
"""Seconds without collections at most: what a start needs with hundreds of clusters on the tenth of a core."""
LOOK: Final = 0.5
"""Seconds between looks whether the start is over."""


@asynccontextmanager
async def sparing(known: Callable[[], bool], patience: float = PATIENCE) -> AsyncIterator[None]:
    """Spare the running loop long collections while the context is open; it belongs to whoever runs the process.

    Args:
        known: whether the start is over; looked at now and then.
        patience: seconds after which it counts as over.
    """
    watch, thresholds = _Watch(), gc.get_threshold()
    gc.disable()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(watch)
    task = asyncio.create_task(_settle(known, patience), name="garbage collector")
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(watch)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()


async def _settle(known: Callable[[], bool], patience: float) -> None:
    """Wait for the end of the start; then collect as usual, but for what is there, and that once a day."""
    end = time.monotonic() + patience
    while not known() and time.monotonic() < end:  # noqa: ASYNC110 - a state, not an event
        await asyncio.sleep(LOOK)
    gc.freeze()
    gc.enable()
    log.debug("%d objects are not looked at any more by the garbage collector", gc.get_freeze_count())
    while True:
        await asyncio.sleep(DAY)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.collect()  # Python waits with the next one until there is a quarter more than the last one has seen


class _Watch:
    """Freezes what a long full collection has left; one of ``gc.callbacks``."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > LONG:
            gc.freeze()
