"""Free memory is returned to the system."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from hub.runtime.heap import trimming

PROGRAM = """
import asyncio, resource
from hub.runtime.heap import trimming

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

THREADS = """
import asyncio, ctypes, os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from hub.runtime.heap import trimming

def arenas():
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    assert libc.malloc_info(0, stream) == 0
    libc.fclose(stream)
    return text.value.count(b"<heap nr=")

def threads():
    together = Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: (together.wait(), bytes(2000 + number)), range(6)))

async def main():
    async with trimming():
        before = arenas()
        threads()
        print(before, arenas())

asyncio.run(main())
"""


def test_memory_that_was_needed_for_a_moment_is_given_back() -> None:
    """Free memory below a block in use is returned too; tested in a process of its own, whose memory is known."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    grown, freed_by_itself, kept = map(int, ended.stdout.split())
    assert grown > 24
    assert freed_by_itself < 8  # or there is nothing to be done
    assert kept == 2000


def test_threads_share_their_arenas() -> None:
    """Six concurrent threads share one malloc arena; by default each would have its own."""
    ended = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    before, after = map(int, ended.stdout.split())
    assert after <= before
    alone = THREADS.replace("trimming():", "asyncio.timeout(None):")
    ended = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, timeout=60, check=False)
    before, after = map(int, ended.stdout.split())
    assert after > before + 3  # or there is nothing to be done


async def test_trimming_ends_with_its_context() -> None:
    """After the context is closed, memory is no longer trimmed."""
    async with trimming(0.01):
        await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "memory" in names
    await asyncio.sleep(0)
    assert "memory" not in {task.get_name() for task in asyncio.all_tasks()}
