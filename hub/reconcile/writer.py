"""Carries out a plan: creates first, then updates, then deletes.

The fence is checked before every write. A write is a POST, or a PUT or DELETE with a known resourceVersion, so it never
overwrites a state that the hub has not seen. Nothing is retried here. After a conflict the slice is read again, for the
next plan. If the API server refuses a slice, the creates and updates of other slices still go out. A pass ends early if
this process may no longer write, if the namespace is missing, or on an error of the API that may affect every write.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from hub.decide.plan import Plan
from hub.decide.split import may_exchange
from hub.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, NotLeader
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY, ObjectKey, Slice, TargetKey

IN_FLIGHT = 16
"""Maximum number of writes at the same time. Measurements: more than 4 to 16 do not increase an API server's
throughput."""

REQUEST_TIMEOUT = 10.0
"""Seconds that one write may take."""

NAMESPACE_ENDS = "unable to create new content"
"""Part of the message of the 403 for a namespace that is being deleted. It comes before the namespace's name, so it is
there even if long names make the message longer than the 256 characters that the client keeps."""

ENDPOINT_FIELD = re.compile(r"^endpoints\[(\d+)\]")
"""Start of a field path in an answer that names the endpoint which the API server refuses."""


class Fence(Protocol):
    """Says whether this process may write now (hub.app.leading)."""

    def check(self, target: TargetKey) -> float:
        """Seconds that a request for a target may take if it starts now.

        Raises:
            NotLeader: this process may not write the target now.
        """
        ...


class NoElection:
    """The fence of a process that takes part in no election (``--leader-elect=false``): it may always write."""

    def check(self, target: TargetKey) -> float:  # noqa: ARG002 - a Fence
        """Seconds that a request may take."""
        return REQUEST_TIMEOUT


class SliceApi(Protocol):
    """Writes slices in the hub cluster (hub.observe.local.cluster)."""

    async def create(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def update(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def delete(self, value: Slice, timeout: float) -> None: ...  # noqa: ASYNC109, D102
    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None: ...  # noqa: ASYNC109, D102


class Outcome(msgspec.Struct):
    """The outcome of a plan's writes.

    Attributes:
        done: (operation, slice) of each request that succeeded, in order.
        again: the plan was out of date, or an address was refused: plan again soon.
        refused_addresses: addresses that the API server refused -> its message.
        blamed: slices that it refused because of such addresses, with its message.
        blocked: slices that it refused for another reason, with its message.
        foreign: planned names that slices of other controllers have.
        missing_namespace: the namespace does not exist, or is being deleted.
        failure: the answer that ended the pass early; None if there was none.
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
        """Whether the rest of the plan is skipped, because it cannot succeed."""
        return self.missing_namespace or self.failure is not None


class Writer:
    """Applies plans to the hub cluster.

    Args:
        api: sends the requests.
        fence: says whether this process may write.

    Attributes:
        writes: number of successful writes, by operation.
        failures: number of writes that the API server answered with an error, by operation.
    """

    def __init__(self, api: SliceApi, fence: Fence) -> None:
        self._api = api
        self._fence = fence
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._stopped = False
        self.writes = {"create": 0, "update": 0, "delete": 0}
        self.failures = {"create": 0, "update": 0, "delete": 0}

    def stop(self) -> None:
        """Start no further request; requests under way continue."""
        self._stopped = True

    async def apply(self, plan: Plan) -> Outcome:
        """Carry out a plan in its order.

        Raises:
            NotLeader: this process may not write now, or is ending.
            ClusterUnreachable, CredentialError, …: the API of the hub cluster does not answer.
        """
        outcome = Outcome()
        undone = [slice_ for slice_ in plan.creates if not await self._one("create", self._api.create, slice_, outcome)]
        # The guard may have allowed a removal only because of an address that could not be created: decide again first.
        for slice_ in () if outcome.again else plan.updates:
            # An address may move from this slice to one that was not written. It must not be removed before.
            moving = any(may_exchange(slice_, other) for other in undone)
            if moving or not await self._one("update", self._api.update, slice_, outcome):
                undone.append(slice_)
        # Addresses of deleted slices may have moved to slices that were not written: then delete nothing.
        if not (outcome.blocked or outcome.again or outcome.ended):
            for slice_ in plan.deletes:
                await self._one("delete", self._api.delete, slice_, outcome)
        return outcome

    async def _one(
        self, operation: str, send: Callable[[Slice, float], Awaitable[None]], value: Slice, outcome: Outcome
    ) -> bool:
        """Write one slice, unless the pass has ended; return whether the write succeeded."""
        if outcome.ended:
            return False
        async with self._slots:
            try:
                await send(value, self._seconds_allowed(value.target))
            except (AlreadyExists, Conflict, NotFound) as error:
                await self._note_mismatch(operation, value, error, outcome)
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

    async def _note_mismatch(self, operation: str, value: Slice, error: ApiError, outcome: Outcome) -> None:
        """Handle a slice, or a namespace, that is not as the plan assumed: read the slice again, for the next plan."""
        if operation == "create" and isinstance(error, NotFound):
            outcome.missing_namespace = True
            return
        outcome.again = True
        found = await self._api.reread(ObjectKey(value.namespace, value.name), self._seconds_allowed(value.target))
        if isinstance(error, AlreadyExists) and found is not None and not _same_owner(found, value):
            outcome.foreign.add(value.name)

    def _seconds_allowed(self, target: TargetKey) -> float:
        if self._stopped:
            raise NotLeader("this hub is ending")
        return min(REQUEST_TIMEOUT, self._fence.check(target))


def _same_owner(found: Slice, value: Slice) -> bool:
    """Whether a slice that has a planned name belongs to this owner and to this target."""
    return (
        found.labels.get(LABEL_MANAGED_BY) == MANAGED_BY
        and found.labels.get(LABEL_OWNER) == value.labels.get(LABEL_OWNER)
        and found.target == value.target
    )


def _refused(value: Slice, error: Invalid, outcome: Outcome) -> None:
    """Note a refused slice: blame the endpoints that the server names, or block the slice if it names none."""
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
