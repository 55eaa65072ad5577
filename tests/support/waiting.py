"""Waiting for conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout: float = 10.0, every: float = 0.05) -> T:
    """Call ``check`` until it returns something true, and return that.

    Raises:
        AssertionError: it was not true within ``timeout`` seconds. An AssertionError in ``check`` counts as false.
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
    """Wait in an event loop until ``condition`` returns something true.

    Raises:
        TimeoutError: it was not true within ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what tests wait for raises no event
            await asyncio.sleep(0.005)
