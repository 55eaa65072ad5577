"""One cloud account: an open plugin, the observations that its clusters share, and its writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from hub.cloud.balancers import Balancer, Done, Notice, Record, Refused, Step, Wait
from hub.cloud.instances import Absent, CloudNode, Instance, InstanceAnswer, Unknown
from hub.controlling.site import Observation, Outlook
from hub.observe.providers.calls import Calls, OpenManager
from hub.observe.providers.faults import ProviderCrashed, ProviderDefect, ProviderStalled
from hub.observe.providers.host import CLOSE_DEADLINE, Prepared, ProviderHost
from hub.observe.providers.status import Health, ProviderStatus
from hub.plugin.clouds import Balancers, Cloud, CloudType, Instances, QuotaExceeded, Uncertain
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from hub.registry.spec import ProviderRef

T = TypeVar("T")

ASK_DEADLINE: Final = 30.0
"""Seconds for one question; it may take several requests."""
PLAN_DEADLINE: Final = 10.0
"""Seconds for a plan, which does no I/O: a plugin that takes longer has a defect."""
IN_FLIGHT: Final = 8
"""Most writes of one account at a time."""
CREDENTIAL_CHECK: Final = 30.0
"""Seconds after a terminal error until the cloud is asked again: a credential may have been replaced."""
LONGEST_WAIT: Final = 3600.0
"""Seconds of the longest Retry-After that is honoured."""
RATE_LIMITED: Final = 60.0
"""Seconds that an account waits after a rate limit without a Retry-After."""


class OpenAccount:
    """Implements :class:`hub.controlling.site.Account`.

    Args:
        ref: the plugin and its configuration.
        host: opens plugins.
        on_change: called when the state of the plugin changed, or when it asks to be called again.

    Attributes:
        clusters: the clusters that use the account.
        calls: (operation, name of the error's class or "") -> number of calls.
    """

    def __init__(self, ref: ProviderRef, host: ProviderHost, on_change: Callable[[], None]) -> None:
        self.ref = ref
        self.clusters: set[str] = set()
        self.calls: dict[tuple[str, str], int] = {}
        self.rate_limited = 0
        self._host = host
        self._on_change = on_change
        self._health = Health(f"cloud {ref.name}", host.clock)
        self._calls = Calls(f"cloud {ref.name}:")
        self._prepared: Prepared | None = None
        self._held: OpenManager[Any] | None = None
        self._cloud: Cloud | None = None
        self._opening = asyncio.Lock()
        self._writes = asyncio.Semaphore(IN_FLIGHT)
        self._wanted: dict[str, Mapping[str, Balancer]] = {}
        self._seen: Observation | None = None
        self._observing: tuple[float, asyncio.Task[Observation]] | None = None
        self._blocked: tuple[float, Exception] | None = None
        """Until when no call is made, and the error of the last call."""

    @property
    def type(self) -> CloudType | None:
        """The cloud's declaration; None until it was loaded for the first time."""
        return self._prepared.cloud if self._prepared is not None else None

    @property
    def status(self) -> ProviderStatus:
        """The state of the plugin."""
        return self._health.status

    # --- opening ---------------------------------------------------------------------------------------

    async def opened(self) -> CloudType:
        """See :class:`hub.controlling.site.Account`."""
        prepared, _ = await self._open()
        assert prepared.cloud is not None  # noqa: S101 - prepare_cloud sets it
        return prepared.cloud

    async def _open(self) -> tuple[Prepared, Cloud]:
        async with self._opening:
            self._check_blocked()
            if self._held is not None and not self._held.alive:
                held, self._held, self._cloud = self._held, None, None
                error = held.failure()
                self._failed(error)
                raise error
            try:
                if self._cloud is None:
                    prepared = self._prepared
                    if prepared is None or prepared.loop.abandoned is not None:
                        names = ", ".join(sorted(self.clusters)) or "no cluster"
                        prepared = self._prepared = await self._host.prepare_cloud(self.ref, names, self._changed)
                    self._held, self._cloud = await self._host.open(prepared, self._calls)
            except Exception as error:
                self._failed(error)
                raise
            assert self._prepared is not None  # noqa: S101 - set before _cloud
            assert self._cloud is not None  # noqa: S101
            return self._prepared, self._cloud

    async def close(self) -> None:
        """Close the cloud; calls under way end with an error."""
        if self._observing is not None:
            self._observing[1].cancel()
            await asyncio.wait({self._observing[1]})  # its call must have ended before the plugin's session is closed
        held, self._held, self._cloud = self._held, None, None
        if held is not None:
            await held.close(CLOSE_DEADLINE)

    def _changed(self) -> None:
        """Handle the plugin's ``CloudContext.changed()``."""
        self._blocked = None
        self._seen = None
        self._on_change()

    # --- calls -----------------------------------------------------------------------------------------

    def _check_blocked(self) -> None:
        """Raise the last error while the cloud must not be asked."""
        if self._blocked is not None:
            until, error = self._blocked
            if self._host.clock.now() < until:
                raise error.with_traceback(None)  # each raise adds its frames to the error, for up to an hour
            self._blocked = None

    def _failed(self, error: Exception) -> None:
        now, before = self._host.clock.now(), self.status.state
        self._health.failed(error)
        if isinstance(error, TerminalProviderError):
            self._blocked = now + CREDENTIAL_CHECK, error
        elif (seconds := _rate_limit(error)) is not None:
            self.rate_limited += 1
            self._blocked = now + seconds, error
        if self.status.state != before:
            self._on_change()

    async def _call(self, operation: str, work: Callable[[Cloud], Coroutine[Any, Any, T]], seconds: float) -> T:
        kind = ""
        try:
            self._check_blocked()
            prepared, cloud = await self._open()
            found = await self._calls.call(prepared.loop, operation, partial(work, cloud), seconds)
        except Exception as error:
            kind = type(error).__name__
            if self._blocked is None:
                self._failed(error)
            raise
        else:
            if self._health.succeeded():
                self._on_change()
            return found
        finally:
            self.calls[operation, kind] = self.calls.get((operation, kind), 0) + 1

    async def instances(self, nodes: Sequence[CloudNode]) -> Mapping[str, InstanceAnswer]:
        """See :class:`hub.controlling.site.Account`."""

        async def work(cloud: Cloud) -> dict[str, InstanceAnswer]:
            answer = await _instances(cloud).instances(tuple(nodes))
            if not isinstance(answer, Mapping):
                raise TypeError(f"instances() returned {type(answer).__name__}, not a mapping")
            found: dict[str, InstanceAnswer] = {}
            for node in nodes:
                state = answer.get(node.name, Unknown("the answer leaves it out"))
                if not isinstance(state, Instance | Absent | Unknown):
                    raise TypeError(f"instances() answered {type(state).__name__} for {node.name}")
                found[node.name] = state
            return found

        return await self._call("instances", work, ASK_DEADLINE)

    # --- load balancers --------------------------------------------------------------------------------

    def want(self, cluster: str, wanted: Mapping[str, Balancer]) -> None:
        """See :class:`hub.controlling.site.Account`."""
        self._wanted[cluster] = wanted

    def forget(self, cluster: str) -> None:
        """The cluster does not use the account any more."""
        self.clusters.discard(cluster)
        self._wanted.pop(cluster, None)

    async def observe(self, begun_after: float) -> Observation:
        """See :class:`hub.controlling.site.Account`."""
        while True:
            if self._seen is not None and self._seen.begun >= begun_after:
                return self._seen
            if self._observing is None:
                begun = self._host.clock.now()
                task = asyncio.create_task(self._observe(begun), name=f"observation of cloud {self.ref.name}")
                self._observing = begun, task
                task.add_done_callback(self._observed)
            begun, task = self._observing
            await asyncio.wait({task})
            if begun >= begun_after:
                if task.cancelled():
                    raise ProviderCrashed(f"cloud {self.ref.name}: the observation was cancelled")
                return task.result()

    def _observed(self, task: asyncio.Task[Observation]) -> None:
        self._observing = None
        if not task.cancelled() and task.exception() is None:
            self._seen = task.result()

    async def _observe(self, begun: float) -> Observation:
        wanted = tuple(balancer for found in self._wanted.values() for balancer in found.values())

        async def work(cloud: Cloud) -> Any:
            return await _balancers(cloud).observe(wanted)

        return Observation(await self._call("observe", work, ASK_DEADLINE), begun)

    async def names(self, seen: Any) -> Mapping[str, tuple[str, ...]]:
        """See :class:`hub.controlling.site.Account`."""

        async def work(cloud: Cloud) -> Mapping[str, tuple[str, ...]]:
            return _balancers(cloud).names(seen)

        return await self._call("names", work, PLAN_DEADLINE)

    async def plan(
        self, want: Balancer | None, seen: Any, record: Record, made: Sequence[tuple[Step, Done]] = ()
    ) -> Outlook:
        """See :class:`hub.controlling.site.Account`."""

        async def work(cloud: Cloud) -> Outlook:
            balancers, now = _balancers(cloud), seen
            for step, done in made:
                now = balancers.after(now, step, done)
            planned = tuple(balancers.plan(want, now, record))
            for item in planned:
                if not isinstance(item, Step | Wait | Refused | Notice):
                    raise TypeError(f"plan() returned {type(item).__name__}")
            ingress = tuple(balancers.ingress(want, now, record)) if want is not None else ()
            return Outlook(planned, ingress, dict(balancers.found(now, record)))

        return await self._call("plan", work, PLAN_DEADLINE)

    async def perform(self, step: Step, seconds: float, admit: Callable[[], object]) -> Done:
        """See :class:`hub.controlling.site.Account`."""

        async def work(cloud: Cloud) -> Done:
            done = await _balancers(cloud).perform(step)
            if not isinstance(done, Done):
                raise TypeError(f"perform() returned {type(done).__name__}, not Done")
            return done

        await self._open()
        async with self._writes:
            left = admit()  # less than ``seconds`` if the queue was long
            if isinstance(left, float):
                seconds = min(seconds, left)
            try:
                return await self._call("perform", work, seconds)
            except (ProviderStalled, ProviderCrashed, ProviderDefect) as error:
                raise Uncertain(f"{step.summary}: {error}") from error


def _rate_limit(error: Exception) -> float | None:
    """Seconds that the whole account must wait; None if it need not: a quota concerns one kind of object only."""
    if not isinstance(error, TransientProviderError) or isinstance(error, QuotaExceeded | Uncertain):
        return None
    return None if error.retry_after is None else min(error.retry_after or RATE_LIMITED, LONGEST_WAIT)


def _instances(cloud: Cloud) -> Instances:
    if (found := cloud.instances) is None:
        raise TerminalProviderError("this cloud has no node part: write cloud.nodes: off")
    return found


def _balancers(cloud: Cloud) -> Balancers:
    if (found := cloud.balancers) is None:
        raise TerminalProviderError("this cloud has no load balancers: write cloud.loadBalancers: off")
    return found
