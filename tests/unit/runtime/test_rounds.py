"""CPU-bound work that is spread over rounds of the event loop."""

from __future__ import annotations

import asyncio

from hub.runtime.rounds import own_round


async def test_each_caller_has_a_separate_round() -> None:
    """Each of several concurrent callers continues in a separate round, in the order of their calls."""
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
    names, when = zip(*(entry.split() for entry in seen), strict=True)
    assert names == ("a", "b", "c")  # first come, first served
    assert len(set(when)) == 3


async def test_cancelled_caller_does_not_block_others() -> None:
    """Cancelled callers do not block those behind them."""
    first, second, third = (asyncio.create_task(own_round()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    async with asyncio.timeout(1):
        await third


def test_each_event_loop_has_separate_rounds() -> None:
    """Work that is left over in a closed event loop does not block another loop."""

    async def leave() -> None:
        task = asyncio.create_task(own_round())
        await asyncio.sleep(0)
        task.cancel()

    async def wait() -> None:
        async with asyncio.timeout(1):
            await own_round()

    asyncio.run(leave())
    asyncio.run(wait())
