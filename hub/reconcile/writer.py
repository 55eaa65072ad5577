"""Carries out a plan: create, then update, then delete; fenced, bounded, idempotent.

Every write is a POST, or a PUT or DELETE of a known resourceVersion; nothing is retried here. A conflict
re-reads that slice so that the next plan sees it; a refused slice blocks itself only. What happened is
returned as a value; only the loss of the lease or of the API ends a pass early.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from hub.decide.plan import Plan
from hub.decide.split import exchange
from hub.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, NotLeader
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY, ObjectKey, Slice, TargetKey

IN_FLIGHT = 16
"""Writes under way per hub: one API server's throughput no longer grows beyond (measured: 4 to 16)."""

REQUEST_TIMEOUT = 10.0
"""Seconds one write may take."""

NAMESPACE_ENDS = "unable to create new content"
"""In the 403 of a namespace that is being deleted, before the place where long names cut the message off."""

ENDPOINT_FIELD = re.compile(r"^endpoints\[(\d+)\]")


class Fence(Protocol):
    """The right to write (hub.app.leading)."""

    def check(self, target: TargetKey) -> float:
        """Seconds a request for a target that starts now may take.

        Raises:
            NotLeader: no request may start now.
        """
        ...


class Free:
    """The right of a process without an election (``--leader-elect=false``)."""

    def check(self, target: TargetKey) -> float:  # noqa: ARG002 - a Fence
        """Always."""
        return REQUEST_TIMEOUT


class SliceApi(Protocol):
    """The part of the hub cluster that is written to (hub.observe.local.cluster)."""

    async def create(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def update(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def delete(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None: ...  # noqa: ASYNC109, D102


class Outcome(msgspec.Struct):
    """What became of a plan.

    Attributes:
        done: (operation, slice) of each request that succeeded, in order.
        again: something changed under the plan; plan anew, soon.
        refused_addresses: addresses the API server refused -> its message.
        blamed: slices it refused because of such addresses, with its message.
        blocked: slices it refused for another reason, with its message.
        foreign: names that are taken by slices that are not ours.
        missing_namespace: the namespace does not exist (any more), or is being deleted.
        failure: the answer that ended the pass early.
    """

    done: list[tuple[str, Slice]] = msgspec.field(default_factory=list)
    again: bool = False
    refused_addresses: dict[str, str] = msgspec.field(default_factory=dict)
    blamed: list[tuple[Slice, str]] = msgspec.field(default_factory=list)
    blocked: list[tuple[Slice, str]] = msgspec.field(default_factory=list)
    foreign: set[str] = msgspec.field(default_factory=set)
    missing_namespace: bool = False
    failure: ApiError | None = None

    @property
    def ended(self) -> bool:
        """Whether the rest of the plan cannot succeed either."""
        return self.missing_namespace or self.failure is not None


class Writer:
    """Applies plans to the hub cluster.

    Attributes:
        writes: successful writes by operation.
        failures: those that the API server did not accept.
    """

    def __init__(self, api: SliceApi, fence: Fence) -> None:
        self._api = api
        self._fence = fence
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._stopped = False
        self.writes = {"create": 0, "update": 0, "delete": 0}
        self.failures = {"create": 0, "update": 0, "delete": 0}

    def stop(self) -> None:
        """Let what is under way end, and start no further request."""
        self._stopped = True

    async def apply(self, plan: Plan) -> Outcome:
        """Write what the plan says, in its order.

        Raises:
            NotLeader: the lease does not allow a write now, or this process is ending.
            ClusterUnreachable, CredentialError, …: the hub cluster's API is away.
        """
        outcome = Outcome()
        undone = [each for each in plan.creates if not await self._one("create", self._api.create, each, outcome)]
        # What did not arrive may be what let the guard allow a departure: that is decided anew first.
        for each in () if outcome.again else plan.updates:
            moving = any(exchange(each, other) for other in undone)
            if moving or not await self._one("update", self._api.update, each, outcome):
                undone.append(each)
        if not (outcome.blocked or outcome.again or outcome.ended):  # never away before it is there
            for each in plan.deletes:
                await self._one("delete", self._api.delete, each, outcome)
        return outcome

    async def _one(
        self, operation: str, send: Callable[[Slice, float], Awaitable[None]], value: Slice, outcome: Outcome
    ) -> bool:
        """Whether it was done."""
        if outcome.ended:
            return False
        async with self._slots:
            try:
                await send(value, self._time(value.target))
            except (AlreadyExists, Conflict, NotFound) as error:
                await self._otherwise(operation, value, error, outcome)
            except Invalid as error:
                _refused(value, error, outcome)
            except ApiError as error:
                if isinstance(error, Forbidden) and NAMESPACE_ENDS in error.message:
                    outcome.missing_namespace = True
                else:
                    outcome.failure = error
            else:
                outcome.done.append((operation, value))
                self.writes[operation] += 1
                return True
        self.failures[operation] += 1
        return False

    async def _otherwise(self, operation: str, value: Slice, error: ApiError, outcome: Outcome) -> None:
        """The slice is not as it was known: read it again, for the next plan."""
        if operation == "create" and isinstance(error, NotFound):
            outcome.missing_namespace = True
            return
        outcome.again = True
        found = await self._api.reread(ObjectKey(value.namespace, value.name), self._time(value.target))
        if isinstance(error, AlreadyExists) and found is not None and not _same_owner(found, value):
            outcome.foreign.add(value.name)

    def _time(self, target: TargetKey) -> float:
        if self._stopped:
            raise NotLeader("this hub is ending")
        return min(REQUEST_TIMEOUT, self._fence.check(target))


def _same_owner(found: Slice, value: Slice) -> bool:
    return (
        found.labels.get(LABEL_MANAGED_BY) == MANAGED_BY
        and found.labels.get(LABEL_OWNER) == value.labels.get(LABEL_OWNER)
        and found.target == value.target
    )


def _refused(value: Slice, error: Invalid, outcome: Outcome) -> None:
    """Blame the endpoints the server names; where it names none, the slice."""
    blamed = False
    for path, message in error.causes:
        match = ENDPOINT_FIELD.match(path)
        if match and int(match[1]) < len(value.endpoints):
            outcome.refused_addresses[value.endpoints[int(match[1])].address] = message
            blamed = True
    if blamed:
        outcome.again = True
        outcome.blamed.append((value, error.message))
    else:
        outcome.blocked.append((value, error.message))
