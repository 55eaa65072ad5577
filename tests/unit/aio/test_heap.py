"""What is free is given back to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from hub.aio.heap import trimming

PROGRAM = """
import asyncio, resource
from hub.aio.heap import trimming

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20

async def main():
    before = resident()
    blocks = [bytes(2000) for _ in range(32 * 2**20 // 2000)]
    kept = blocks[-1]  # and so the C library keeps all that lies below it
    peak = resident()
    del blocks
    freed = resident()
    async with trimming(0.01), asyncio.timeout(10):
        while peak - resident() < 24:
            await asyncio.sleep(0.01)
    print(peak - before, peak - freed, len(kept))

asyncio.run(main())
"""


def test_memory_that_was_needed_for_a_moment_is_given_back() -> None:
    """Also what lies below something that stays; in a process of its own, whose memory is known."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    grown, freed_by_itself, kept = map(int, ended.stdout.split())
    assert grown > 24
    assert freed_by_itself < 8  # or there is nothing to be done
    assert kept == 2000


async def test_it_ends_with_its_context() -> None:
    """Nobody else's process is trimmed."""
    async with trimming(0.01):
        await asyncio.sleep(0)
        names = {each.get_name() for each in asyncio.all_tasks()}
        assert "memory" in names
    await asyncio.sleep(0)
    assert "memory" not in {each.get_name() for each in asyncio.all_tasks()}
