"""Workers that take targets from the queue and reconcile them; failed passes are retried with backoff."""

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
from hub.runtime.tally import WRITE_BOUNDS, Tally

log = logging.getLogger(__name__)

WORKERS: Final = 16
"""Maximum number of passes at the same time. A pass waits for its own writes only."""
NOT_LEADER_DELAY: Final = 1.0
"""Seconds until a pass is retried whose writes the Lease did not allow, while this process still writes the target."""


class Passes:
    """Takes targets from the queue and reconciles them.

    Args:
        reconciler: makes the passes.
        queue: the targets that need a pass.
        clock: where time comes from.
        writing: whether this process writes a target; targets that it does not write are dropped from the queue.
        dry_run: write nothing; log what would be written.

    Attributes:
        outcomes: number of passes since the start, by outcome.
        durations: durations of passes, in seconds.
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
        self.durations = Tally(WRITE_BOUNDS)

    async def work(self) -> None:
        """Work as one of the workers until cancelled. Run this under :func:`hub.runtime.supervise.supervise`."""
        while True:
            key = await self._queue.get()
            try:
                if self._writing(key):
                    started = self._clock.now()
                    self.outcomes[await self._pass(key)] += 1
                    self.durations.note(self._clock.now() - started)
            except asyncio.CancelledError:
                # Either this worker is cancelled, or only something that the pass awaited. In the second case
                # supervise() restarts the worker, and the target needs another pass.
                self._queue.retry(key)
                raise
            finally:
                self._queue.done(key)
            if len(self._queue):  # a pass without a write never yields, and 2,000 such passes would block for 2 s
                await asyncio.sleep(0)

    async def _pass(self, key: TargetKey) -> str:
        """Reconcile a target and schedule its next pass, also after a failure; return the outcome."""
        started = self._clock.now()
        try:
            again = await self._reconcile(key)
        except NotLeader as error:
            log.info("%s: not written: %s", key, error)
            if self._writing(key):  # the Lease may still be renewed
                self._queue.add_after(key, NOT_LEADER_DELAY)
            return "not-leader"
        except HubError as error:
            elapsed = self._clock.now() - started
            delay = self._queue.retry(key, _retry_delay(error, elapsed), elapsed)
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


def _retry_delay(error: HubError, elapsed: float) -> float:
    """Seconds after a failed pass in which the target is not tried again, even if it changes.

    So an API server that is overloaded (429, 5xx, no answer) gets at most one attempt a second for each target, however
    often the target changes. 0.0 for other errors; a Retry-After of the server is respected up to a maximum.

    Args:
        error: the failure.
        elapsed: seconds that the failed pass took; a request without an answer takes ten.
    """
    if isinstance(error, ApiError) and error.retry_after:
        return min(error.retry_after, LONGEST_RETRY_AFTER)
    overloaded = isinstance(error, TooManyRequests | ServerFault | ClusterUnreachable)
    return max(RETRY_BASE - elapsed, 0.0) if overloaded else 0.0
