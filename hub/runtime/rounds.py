"""Spreads CPU-bound work over the rounds (iterations) of the event loop: one piece of work in each round.

Hundreds of clusters start together. A TLS handshake takes a millisecond and a page of Nodes up to ten. All of them in
one round would block the event loop for a third of a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

_Waiting = deque[Callable[[], object]]
_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = WeakKeyDictionary()


def in_own_round(work: Callable[[], object]) -> None:
    """Call ``work`` in the next round of the running loop that has no other such work; first come, first served."""
    loop = asyncio.get_running_loop()
    waiting = _of_loops.setdefault(loop, deque())
    waiting.append(work)
    if len(waiting) == 1:
        loop.call_soon(_next, loop, waiting)


async def own_round() -> None:
    """Wait for a round without other such work (see :func:`in_own_round`); the caller continues in that round."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    in_own_round(partial(_begin, turn))
    await turn


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # the caller may have been cancelled meanwhile
        turn.set_result(None)


def _next(loop: asyncio.AbstractEventLoop, waiting: _Waiting) -> None:
    work = waiting.popleft()
    if waiting:
        loop.call_soon(_next, loop, waiting)
    work()
