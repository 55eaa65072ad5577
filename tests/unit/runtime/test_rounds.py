"""Work that takes the processor for a while, spread over the loop's rounds."""

from __future__ import annotations

import asyncio

from hub.runtime.rounds import own_round


async def test_everybody_has_a_round_of_his_own() -> None:
    """Between two who waited together the loop served others."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    rounds = 0

    def turn() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 20:
            loop.call_soon(turn)

    async def work(name: str) -> None:
        await own_round()
        seen.append(f"{name} {rounds}")

    loop.call_soon(turn)
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(work(name))
    names, when = zip(*(each.split() for each in seen), strict=True)
    assert names == ("a", "b", "c")  # first come, first served
    assert len(set(when)) == 3


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    """A cancelled caller's round goes to the next."""
    first, second, third = (asyncio.create_task(own_round()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    async with asyncio.timeout(1):
        await third


def test_each_loop_has_rounds_of_its_own() -> None:
    """What a loop left undone when it ended holds up no other one."""

    async def leave() -> None:
        task = asyncio.create_task(own_round())
        await asyncio.sleep(0)
        task.cancel()

    async def wait() -> None:
        async with asyncio.timeout(1):
            await own_round()

    asyncio.run(leave())
    asyncio.run(wait())
