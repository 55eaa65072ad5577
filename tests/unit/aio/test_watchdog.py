"""The watchdog of the event loop: what stands still is seen from a thread, with its place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub.aio.watchdog import TICK, Stall, Watchdog

ROOT = Path(__file__).parents[3]


def functions(stall: Stall) -> set[str]:
    """Names of the innermost functions seen."""
    return {stack[0].function for stack in stall.samples}


def block(seconds: float) -> None:
    """What no coroutine should do."""
    time.sleep(seconds)


async def test_a_blocked_loop_is_seen_while_it_stands_and_when_it_runs_again() -> None:
    """First looks without an end, then the last word: how long, and where, innermost frame first."""
    for _ in range(5):  # a machine with other work may stop the process meanwhile
        stalls: list[Stall] = []
        with Watchdog(stalls.append):
            await asyncio.sleep(0.05)
            block(1.0)
            await asyncio.sleep(2 * TICK + 0.1)
        if [stall.over for stall in stalls].count(True) == 1 and not any(stall.starved for stall in stalls):
            break
    assert [stall.over for stall in stalls] == [False] * (len(stalls) - 1) + [True]
    assert len(stalls) >= 3
    last = stalls[-1]
    assert 0.5 <= last.seconds <= 1.0 + 2 * TICK
    assert not last.starved
    frame = last.samples[0][0]
    assert (frame.module, frame.file, frame.function) == (__name__, __file__, "block")
    assert str(frame) == f"{__file__}:{frame.line} in block"
    assert last.samples[0][1].function.startswith("test_a_blocked_loop")


async def test_a_loop_that_works_in_small_steps_is_not_reported() -> None:
    """Being busy is no stall."""
    stalls: list[Stall] = []
    with Watchdog(stalls.append, tick=1.0):
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            sum(range(1000))
            await asyncio.sleep(0)
    assert stalls == []


async def test_code_that_holds_the_interpreters_lock_is_named() -> None:
    """A long call into C lets no other thread look; whoever made it is still there when it ends."""

    def hold() -> int:
        return sum(range(60_000_000))

    stalls: list[Stall] = []
    with Watchdog(stalls.append):
        for _ in range(5):  # a machine with other work may keep the core from either thread meanwhile
            await asyncio.sleep(TICK)
            hold()
            await asyncio.sleep(2 * TICK + 0.1)
            if any("hold" in functions(stall) and not stall.starved for stall in stalls):
                return
    pytest.fail(f"nobody named the function: {stalls}")


WATCHED = f"""
import asyncio, sys, time
sys.path.insert(0, {str(ROOT)!r})
from hub.aio.watchdog import Watchdog

def report(stall):
    if stall.over:
        print("blamed" if stall.samples and not stall.starved else "nobody", stall.seconds, flush=True)

async def main():
    with Watchdog(report):
        await asyncio.sleep(0.1)
        print("running", flush=True)
        {{}}
        await asyncio.sleep(60)

asyncio.run(main())
"""


def stopped(work: str, after: float, seconds: float) -> tuple[str, float]:
    """Let a process of its own do some work, stop it meanwhile: whether code is blamed, and for how many seconds."""
    script = [sys.executable, "-c", WATCHED.format(work)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        time.sleep(after)
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(child.pid, signal.SIGCONT)
        said = child.stdout.readline().split()
        child.kill()
    return said[0], float(said[1])


def test_a_process_that_was_stopped_blames_nobody() -> None:
    """Without any CPU for the whole process, no place in the code is to blame."""
    assert stopped("pass", after=3 * TICK, seconds=1.5)[0] == "nobody"


def test_what_the_machine_kept_from_everybody_is_not_charged() -> None:
    """Also where the loop answers before the next look: 0.9 s of blocking are not 2.5."""
    _, seconds = stopped("time.sleep(2.0)", after=0.9, seconds=1.6)
    assert seconds < 1.4


def test_code_that_goes_on_blocking_after_the_process_was_stopped_is_to_blame() -> None:
    """For as long as it could have run: what the machine kept from everybody is not charged to it."""
    said, seconds = stopped("time.sleep(4)", after=2 * TICK, seconds=1.5)
    assert said == "blamed"
    assert 1.0 < seconds < 3.5


def test_code_that_blocked_before_the_process_was_stopped_is_to_blame() -> None:
    """The end of a stall, of which nobody knows who could run, acquits nobody of the rest."""
    said, seconds = stopped("time.sleep(3)", after=2.7, seconds=1.0)
    assert said == "blamed"
    assert 1.5 < seconds < 3.5


async def test_leaving_ends_the_watch() -> None:
    """Nothing is reported of a loop nobody watches any more."""
    stalls: list[Stall] = []
    with Watchdog(stalls.append):
        await asyncio.sleep(0.01)
    block(3 * TICK)
    await asyncio.sleep(2 * TICK)
    assert stalls == []
