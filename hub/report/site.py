"""What the listener's pages and API share: the snapshot of this moment, and answers that are made once.

A snapshot counts for half a second and an explanation for one, so that however many ask, the hub is looked at
a few times a second at most. Explanations are made in threads, two at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from hub.app.hub import Hub
from hub.model import TargetKey
from hub.report.metrics import Metrics
from hub.report.state import Snapshots, decided
from hub.report.values import Status

FRESH: Final = 0.5
"""Seconds a snapshot counts."""
KEPT: Final = 1.0
"""Seconds an answer that took work counts."""
ANSWERS: Final = 64
AT_ONCE: Final = 2


class Moment(NamedTuple):
    """A snapshot; ``version`` is another string for another one."""

    version: str
    status: Status


class Site:
    """The hub as its listener shows it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.snapshots = Snapshots(hub)
        self.metrics = Metrics(hub)
        self._start = secrets.token_hex(4)
        self._number = 0
        self._moment: Moment | None = None
        self._taken = float("-inf")
        self._answers: dict[Any, tuple[float, object, asyncio.Task[Any]]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._passes: Mapping[TargetKey, object] = {}

    def look(self) -> Moment:
        """The snapshot of this moment."""
        now = self.hub.clock.now()
        if self._moment is None or now - self._taken >= FRESH:
            status = self.snapshots.take()
            self._taken = now
            if self._moment is None or status != self._moment.status:
                self._number += 1
                self._moment = Moment(f"{self._start}-{self._number}", status)
        return self._moment

    def touched(self) -> set[TargetKey]:
        """Targets that were looked at since this was asked last: what is behind them may be something else."""
        passes = {key: decided(self.hub, key).desired for key in self.hub.registry.targets}
        old, self._passes = self._passes, passes
        return {key for key, each in passes.items() if old.get(key) is not each}

    async def once(self, key: Any, make: Callable[[], Awaitable[Any]], seconds: float = KEPT, of: object = None) -> Any:
        """What ``make`` gives; for some time the same to everybody who asks for ``key``, while ``of`` is the same."""
        now = self.hub.clock.now()
        known = self._answers.get(key)
        if known is None or now >= known[0] or known[1] is not of:
            self._drop(now)
            task = asyncio.create_task(self._made(make), name="answer")
            known = self._answers[key] = (now + seconds, of, task)
        return await asyncio.shield(known[2])

    async def _made(self, make: Callable[[], Awaitable[Any]]) -> Any:
        async with self._slots:
            return await make()

    def _drop(self, now: float) -> None:
        old: Iterable[Any] = [each for each, (until, _, task) in self._answers.items() if now >= until and task.done()]
        for each in old:
            del self._answers[each]
        while len(self._answers) >= ANSWERS:
            del self._answers[next(iter(self._answers))]

    async def close(self) -> None:
        """Let nothing run on."""
        tasks = [task for _, _, task in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
