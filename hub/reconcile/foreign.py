"""Reports slices that other controllers write for our targets: consumers mix their endpoints with ours.

The usual cause is a leftover Endpoints object, which the EndpointSlice mirroring controller copies. The hub never
changes such slices, and does not watch them: it lists them once in PERIOD seconds for each target, from the API
server's cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from heapq import nsmallest

import msgspec

from hub.decide.adopt import labels_are_theirs
from hub.errors import HubError
from hub.kube.client import Client
from hub.kube.wire import UNDECODABLE
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, LABEL_SERVICE_NAME, Finding, TargetKey
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

PERIOD = 600.0
"""Seconds between two checks of one target."""
PACE = 0.2
"""Seconds between the checks of two targets: at most five lists a second."""
IDLE = 5.0
"""Seconds until the next search for targets that are due, if few or none were."""
ROUND_SIZE = int(IDLE / PACE)
"""Maximum number of targets in one round. A round takes IDLE seconds, so a new target waits no longer than that."""
TIMEOUT = 10.0
"""Seconds for one list."""
LISTED = 20
"""Maximum number of slice names in a finding."""


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _Item(msgspec.Struct):
    metadata: _Meta


class _List(msgspec.Struct):
    items: tuple[_Item, ...] | None = None


_decode = msgspec.json.Decoder(_List).decode


class ForeignSlices:
    """Checks one target after the other.

    Args:
        client: client of the hub cluster.
        owners: returns the values of the owner label that are ours.
        targets: returns all targets that have slices of ours.
        publishes: whether this process publishes a target now.
        report: called with a target and the findings after each check; no finding = no foreign slices.
        adopted: the managed-by value of the slices that a target adopts, "" if it adopts none. These slices are not
            foreign: :mod:`hub.decide.adopt` reports them.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        owners: Callable[[], tuple[str, ...]],
        targets: Callable[[], Iterable[TargetKey]],
        publishes: Callable[[TargetKey], bool],
        report: Callable[[TargetKey, tuple[Finding, ...]], None],
        adopted: Callable[[TargetKey], str] = lambda _: "",
    ) -> None:
        self._client = client
        self._clock = clock
        self._owners = owners
        self._targets = targets
        self._publishes = publishes
        self._report = report
        self._adopted = adopted
        self._checked_at: dict[TargetKey, float] = {}

    async def run(self) -> None:
        """Check targets until cancelled."""
        while True:
            due = self._due()
            for key in filter(self._publishes, due):  # again: another replica may have taken over a target meanwhile
                self._checked_at[key] = self._clock.now()
                try:
                    self._report(key, await self._check(key))
                except (HubError, *UNDECODABLE) as error:
                    log.debug("%s: foreign slices: %s", key, error)
                await self._clock.sleep(PACE)
            if len(due) < ROUND_SIZE:
                await self._clock.sleep(IDLE)

    def _due(self) -> list[TargetKey]:
        """Up to ROUND_SIZE targets whose last check is PERIOD seconds ago; those never checked come first."""
        targets, long_ago = set(filter(self._publishes, self._targets())), self._clock.now() - PERIOD
        self._checked_at = {key: at for key, at in self._checked_at.items() if key in targets}
        due = ((at, key) for key in targets if (at := self._checked_at.get(key, float("-inf"))) <= long_ago)
        return [key for _, key in nsmallest(ROUND_SIZE, due)]

    async def _check(self, key: TargetKey) -> tuple[Finding, ...]:
        selector = f"{LABEL_SERVICE_NAME}={key.name},{LABEL_OWNER} notin ({','.join(self._owners())})"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{key.namespace}/endpointslices"
        params = {"labelSelector": selector, "resourceVersion": "0"}
        listed = _decode(await self._client.request("GET", path, params=params, timeout=TIMEOUT)).items or ()
        adopted = self._adopted(key)
        found = [item for item in listed if not (adopted and labels_are_theirs(item.metadata.labels or {}, adopted))]
        if not found:
            return ()
        names = tuple(sorted(item.metadata.name for item in found))
        makers = sorted({(item.metadata.labels or {}).get(LABEL_MANAGED_BY, "an unnamed controller") for item in found})
        message = f"{len(names)} slices of other controllers are published for this Service too: {', '.join(makers)}"
        return (Finding("ForeignEndpoints", message, names[:LISTED]),)
