"""What only the garbage collector would free: the hub looks for it rarely, and never at what it has known for long."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Counts, when it ends, by type, what became unreachable meanwhile and was not freed by reference counts."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
