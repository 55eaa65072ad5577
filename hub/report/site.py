"""What the listener's pages and API share: the snapshot of this moment, and answers that are made once.

A snapshot counts for half a second and an explanation for one, so that however many ask, the hub is looked at
a few times a second at most. Explanations are made in threads, two at a time; one that nobody waits for any
more is not begun.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from hub.model import TargetKey
from hub.registry.spec import SourceSpec
from hub.report.hub_state import HubState
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


class _Answer:
    """An answer that is made, or was.

    Attributes:
        until: when it is too old.
        of: what it was made from.
        begun: it is made to its end: a thread cannot be stopped.
        waiting: callers.
    """

    def __init__(self, until: float, of: object, make: Callable[[], Awaitable[Any]], slots: asyncio.Semaphore) -> None:
        self.until = until
        self.of = of
        self.begun = False
        self.waiting = 0
        self.task = asyncio.create_task(self._made(make, slots), name="answer")

    async def _made(self, make: Callable[[], Awaitable[Any]], slots: asyncio.Semaphore) -> Any:
        async with slots:
            self.begun = True
            return await make()


class Site:
    """The hub as its listener shows it."""

    def __init__(self, hub: HubState) -> None:
        self.hub = hub
        self.snapshots = Snapshots(hub)
        self.metrics = Metrics(hub)
        self._start = secrets.token_hex(4)
        self._number = 0
        self._moment: Moment | None = None
        self._taken = float("-inf")
        self._answers: dict[Any, _Answer] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._passes: Mapping[TargetKey, object] = {}
        self._known: Mapping[tuple[str, SourceSpec | None], object] = {}

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

    def renewed(self) -> set[str]:
        """Clusters of which something else is known than when this was asked last, whoever decides what follows."""
        hub = self.hub
        shared = {id(each.sources): each.sources for each in hub.registry.targets.values()}  # a large one has few
        sources = set(chain.from_iterable(shared.values()))
        known: dict[tuple[str, SourceSpec | None], object]
        known = {(source.cluster, source): hub.reconciler.view(source) for source in sources}
        known |= {(name, None): unit.version for name, unit in hub.fleet.clusters.items()}
        old, self._known = self._known, known
        return {key[0] for key, each in known.items() if (was := old.get(key)) is not each and was != each}

    async def once(self, key: Any, make: Callable[[], Awaitable[Any]], seconds: float = KEPT, of: object = None) -> Any:
        """What ``make`` gives; for some time the same to everybody who asks for ``key``, while ``of`` is the same."""
        now = self.hub.clock.now()
        known = self._answers.get(key)
        if known is None or now >= known.until or known.of is not of:
            self._drop(now)
            known = self._answers[key] = _Answer(now + seconds, of, make, self._slots)
        known.waiting += 1
        try:
            return await asyncio.shield(known.task)
        finally:
            known.waiting -= 1
            if not known.waiting and not known.begun:
                known.task.cancel()
                if self._answers.get(key) is known:
                    del self._answers[key]

    def _drop(self, now: float) -> None:
        old: Iterable[Any] = [key for key, each in self._answers.items() if now >= each.until and each.task.done()]
        for each in old:
            del self._answers[each]
        while len(self._answers) >= ANSWERS:
            del self._answers[next(iter(self._answers))]

    async def close(self) -> None:
        """Let nothing run on."""
        tasks = [each.task for each in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
