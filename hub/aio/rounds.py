"""Work that takes the processor for a while: one piece in each round of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = WeakKeyDictionary()


async def own_round() -> None:
    """Wait for a round of the loop that no other caller has.

    Hundreds of clusters start together, and a TLS handshake takes half a millisecond: without this nobody else would be
    served for a third of a second.
    """
    loop = asyncio.get_running_loop()
    waiting = _of_loops.setdefault(loop, deque())
    turn: asyncio.Future[None] = loop.create_future()
    waiting.append(turn)
    if len(waiting) == 1:
        loop.call_soon(_next, loop, waiting)
    await turn


def _next(loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
    """Who has waited longest goes on in the next round; the others wait for another."""
    turn = waiting[0]
    if not turn.done():  # else it was cancelled
        turn.set_result(None)
    waiting.popleft()
    if waiting:
        loop.call_soon(_next, loop, waiting)
