"""The cache that the pages and the API share: snapshots of the hub's state, and answers computed from it.

A snapshot is used for half a second and an answer for a second, so that many requests do not slow down the hub.
At most two answers are computed at a time, mostly in threads. A computation that has not begun is cancelled when all
its callers have disconnected.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from hub.events.timeline import Span
from hub.model import TargetKey
from hub.registry.spec import SourceSpec
from hub.report.collect import Collector
from hub.report.hub_state import HubState
from hub.report.metrics import Metrics
from hub.report.state import Snapshots, last_decision
from hub.report.values import Status

SNAPSHOT_SECONDS: Final = 0.5
"""Seconds for which a snapshot is used."""
ANSWER_SECONDS: Final = 1.0
"""Seconds for which an answer is used."""
ANSWERS: Final = 64
"""Most cached answers."""
AT_ONCE: Final = 2
"""Most answers that are computed at the same time."""


class VersionedStatus(NamedTuple):
    """A snapshot; different snapshots have different ``version`` strings.

    Attributes:
        version: identifies ``status``.
        status: the state of the hub.
        at: Unix time of the last look at the hub.
        since: Unix time at which the recording of ``states`` began.
        states: cluster -> its recent states.
    """

    version: str
    status: Status
    at: float = 0.0
    since: int = 0
    states: Mapping[str, tuple[Span, ...]] = {}


class _Answer:
    """An answer, finished or in progress.

    Attributes:
        until: when the answer expires.
        of: the object that the answer was computed from.
        begun: whether the computation has begun; then it is not cancelled, since it may run in a thread.
        waiting: number of callers that wait for the answer.
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
    """Snapshots and answers for the listener of one hub."""

    def __init__(self, hub: HubState) -> None:
        self.hub = hub
        self.snapshots = Snapshots(hub)
        self.metrics = Metrics(Collector(hub))
        self._start = secrets.token_hex(4)
        self._number = 0
        self._snapshot: VersionedStatus | None = None
        self._taken_at = float("-inf")
        self._answers: dict[Any, _Answer] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._passes: Mapping[TargetKey, object] = {}
        self._known: Mapping[tuple[str, SourceSpec | None], object] = {}

    def snapshot(self) -> VersionedStatus:
        """The present snapshot, at most :data:`SNAPSHOT_SECONDS` seconds old."""
        now = self.hub.clock.now()
        if self._snapshot is None or now - self._taken_at >= SNAPSHOT_SECONDS:
            status = self.snapshots.take()
            self._taken_at = now
            timelines = self.hub.timelines
            if self._snapshot is None or status != self._snapshot.status:
                self._number += 1
            else:
                status = self._snapshot.status
            version = f"{self._start}-{self._number}"
            self._snapshot = VersionedStatus(
                version, status, self.hub.clock.wall(), timelines.since, dict(timelines.clusters)
            )
        return self._snapshot

    def changed_targets(self) -> set[TargetKey]:
        """Targets with a new decision since the last call."""
        passes = {key: last_decision(self.hub, key).desired for key in self.hub.registry.targets}
        old, self._passes = self._passes, passes
        return {key for key, desired in passes.items() if old.get(key) is not desired}

    def changed_clusters(self) -> set[str]:
        """Clusters with changed Nodes or views since the last call, on the leader and on standbys."""
        hub = self.hub
        # Many targets share one tuple of sources, so this hashes few sources even with a large registry.
        shared = {id(target.sources): target.sources for target in hub.registry.targets.values()}
        sources = set(chain.from_iterable(shared.values()))
        known: dict[tuple[str, SourceSpec | None], object]
        known = {(source.cluster, source): hub.reconciler.view(source) for source in sources}
        known |= {(name, None): cluster.version for name, cluster in hub.fleet.clusters.items()}
        old, self._known = self._known, known
        return {key[0] for key, value in known.items() if (was := old.get(key)) is not value and was != value}

    async def cached(
        self, key: Any, make: Callable[[], Awaitable[Any]], seconds: float = ANSWER_SECONDS, of: object = None
    ) -> Any:
        """The result of ``make``, cached under ``key``.

        Args:
            key: identifies the answer.
            make: computes the answer.
            seconds: for which the answer is cached.
            of: the object that the answer is computed from; with another object, the answer is computed again.
        """
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
        old: Iterable[Any] = [
            key for key, answer in self._answers.items() if now >= answer.until and answer.task.done()
        ]
        for key in old:
            del self._answers[key]
        while len(self._answers) >= ANSWERS:
            del self._answers[next(iter(self._answers))]

    async def close(self) -> None:
        """Cancel all computations."""
        tasks = [answer.task for answer in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
