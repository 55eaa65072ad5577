"""The keyed queue in virtual time: what it promises about keys, delays and whoever stops waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.aio.queue import RETRY_BASE, RETRY_CAP, KeyedQueue
from tests.unit.resolution.virtual import LoopClock, VirtualLoop

Test = Callable[[], Coroutine[Any, Any, None]]


def simulate(main: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def _virtual(request: pytest.FixtureRequest) -> None:
    """Tests in here that are coroutines run in virtual time, see pytestmark."""


def queue(seed: int = 0) -> KeyedQueue[str]:
    """A queue."""
    return KeyedQueue(LoopClock(), random.Random(seed))


async def drain(q: KeyedQueue[str]) -> list[str]:
    """Keys that are ready now, worked on."""
    keys = []
    while len(q):
        keys.append(await q.get())
        q.done(keys[-1])
    return keys
