"""Waiting for what happens elsewhere, without sleeping longer than needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout: float = 10.0, every: float = 0.05) -> T:
    """Call ``check`` until it returns something true, and return that.

    Raises:
        AssertionError: it did not within ``timeout`` seconds; an AssertionError of ``check`` counts as "not yet".
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            if answer := check():
                return answer
            last: AssertionError | None = None
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {last or check}") from last
        time.sleep(every)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait in an event loop until ``condition`` gives something true.

    Raises:
        TimeoutError: it did not within so many seconds.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what tests wait for raises no event
            await asyncio.sleep(0.005)
