"""Work that takes the processor for a while: one piece in each round of the event loop.

Hundreds of clusters start together; a TLS handshake takes a millisecond, and a page of Nodes up to ten: without this
nobody else would be served for a third of a second.
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
    """Call ``work`` soon, in a round of the running loop that no other such work has; first come, first served."""
    loop = asyncio.get_running_loop()
    waiting = _of_loops.setdefault(loop, deque())
    waiting.append(work)
    if len(waiting) == 1:
        loop.call_soon(_next, loop, waiting)


async def own_round() -> None:
    """Go on in such a round."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    in_own_round(partial(_begin, turn))
    await turn


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # else it was cancelled meanwhile
        turn.set_result(None)


def _next(loop: asyncio.AbstractEventLoop, waiting: _Waiting) -> None:
    work = waiting.popleft()
    if waiting:
        loop.call_soon(_next, loop, waiting)
    work()
