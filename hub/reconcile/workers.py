"""Passes over targets: workers that take dirty targets from the queue, and what becomes of those that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from hub.errors import ApiError, ClusterUnreachable, HubError, NotLeader, ServerFault, TooManyRequests
from hub.kube.reflector import LONGEST_RETRY_AFTER
from hub.model import TargetKey
from hub.reconcile.reconciler import Reconciler
from hub.runtime.clock import Clock
from hub.runtime.queue import RETRY_BASE, KeyedQueue
from hub.runtime.tally import WRITES, Tally

log = logging.getLogger(__name__)

WORKERS: Final = 16
"""Passes under way at once; each waits for its own writes only."""
NOT_LEADER_DELAY: Final = 1.0
"""Seconds until a pass is tried again that the lease did not allow, while this hub is the leader."""


class Passes:
    """Takes one target after the other and has it reconciled.

    Args:
        reconciler: makes a pass.
        queue: of dirty targets.
        clock: where time comes from.
        writing: whether this process is the one that writes a target; while it is not, what is due is dropped.
        dry_run: say what would be written.

    Attributes:
        outcomes: passes by outcome, since the start.
        durations: of passes.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        queue: KeyedQueue[TargetKey],
        clock: Clock,
        writing: Callable[[TargetKey], bool],
        *,
        dry_run: bool,
    ) -> None:
        self._reconciler = reconciler
        self._queue = queue
        self._clock = clock
        self._writing = writing
        self._dry_run = dry_run
        self._problems: dict[TargetKey, str] = {}
        self.outcomes = dict.fromkeys(("succeeded", "failed", "not-leader", "defect"), 0)
        self.durations = Tally(WRITES)

    async def work(self) -> None:
        """Be one of the workers, until cancelled; to be supervised."""
        while True:
            key = await self._queue.get()
            try:
                if self._writing(key):
                    started = self._clock.now()
                    self.outcomes[await self._pass(key)] += 1
                    self.durations.note(self._clock.now() - started)
            except asyncio.CancelledError:  # perhaps not ours, but of something it waited for: who supervises us knows
                self._queue.retry(key)
                raise
            finally:
                self._queue.done(key)
            if len(self._queue):  # a pass without a write waits for nothing: two thousand of them take two seconds
                await asyncio.sleep(0)

    async def _pass(self, key: TargetKey) -> str:
        """Reconcile, and see to it that it is tried again where that failed; what came of it."""
        try:
            again = await self._reconcile(key)
        except NotLeader as error:
            log.info("%s: not written: %s", key, error)
            if self._writing(key):  # the lease may be renewed yet
                self._queue.add_after(key, NOT_LEADER_DELAY)
            return "not-leader"
        except HubError as error:
            delay = self._queue.retry(key, _rest(error))
            level = logging.WARNING if self._problems.get(key) != str(error) else logging.DEBUG
            self._problems[key] = str(error)
            log.log(level, "%s: %s; again in %.0f s", key, error, delay)
            return "failed"
        except Exception:
            self._queue.retry(key)
            log.exception("%s: a pass failed", key)
            return "defect"
        self._queue.forget(key)
        self._problems.pop(key, None)
        if again is not None:
            self._queue.add_after(key, again)
        return "succeeded"

    async def _reconcile(self, key: TargetKey) -> float | None:
        if not self._dry_run:
            return await self._reconciler.reconcile(key)
        result = self._reconciler.decide(key)
        if result.plan is not None and result.plan.writes:
            log.info(
                "dry run: %s: would create %d, update %d, delete %d slices",
                key,
                len(result.plan.creates),
                len(result.plan.updates),
                len(result.plan.deletes),
            )
        return result.again_after


def _rest(error: HubError) -> float:
    """Seconds after a failed write in which no change of its target is tried, either.

    An API server that is overloaded (429, 5xx, no answer) gets one attempt a second, however fast the target changes.
    """
    if isinstance(error, ApiError) and error.retry_after:
        return min(error.retry_after, LONGEST_RETRY_AFTER)
    return RETRY_BASE if isinstance(error, TooManyRequests | ServerFault | ClusterUnreachable) else 0.0
