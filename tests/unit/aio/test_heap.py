"""What is free is given back to the system."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from hub.aio.heap import trimming

MIB = 1 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_memory_that_was_needed_for_a_moment_is_given_back() -> None:
    """Also what lies below something that stays, which the C library keeps for good."""
    before = resident()
    blocks = [bytes(2000) for _ in range(32 * MIB // 2000)]
    kept = blocks[-1]
    peak = resident()
    assert peak - before > 24 * MIB
    del blocks
    assert peak - resident() < 8 * MIB  # or there is nothing to be done

    async with trimming(0.01), asyncio.timeout(10):
        while peak - resident() < 24 * MIB:  # noqa: ASYNC110 - a state, not an event
            await asyncio.sleep(0.01)

    assert len(kept) == 2000


async def test_it_ends_with_its_context() -> None:
    """Nobody else's process is trimmed."""
    async with trimming(0.01):
        await asyncio.sleep(0)
        names = {each.get_name() for each in asyncio.all_tasks()}
        assert "memory" in names
    await asyncio.sleep(0)
    assert "memory" not in {each.get_name() for each in asyncio.all_tasks()}
