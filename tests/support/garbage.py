"""Counts garbage in reference cycles, which stays until the garbage collector runs; in the hub it rarely does."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Count, by type, the objects that become unreachable in the block and are not freed by their reference counts."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.freeze()  # objects of earlier tests, which may become unreachable in the block, do not count
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(obj).__name__ for obj in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
