"""Tells of slices that others wrote for our Services; consumers mix their endpoints with ours.

They are never touched, and not watched either: one list per target now and then, from the API server's
cache, is all it costs. A leftover Endpoints object is the usual cause (the mirroring controller copies it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from heapq import nsmallest

import msgspec

from hub.errors import HubError
from hub.kube.client import Client
from hub.kube.wire import UNDECODABLE
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, LABEL_SERVICE_NAME, Finding, TargetKey
from hub.registry.spec import ENDPOINT_COPIER, LABEL_COPIER_SOURCE
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

PERIOD = 600.0
"""Seconds between two looks at one target."""
PACE = 0.2
"""Seconds between two looks: five lists a second at most."""
IDLE = 5.0
"""Seconds after which it is seen whether there are targets to look at, where there were none."""
AT_ONCE = int(IDLE / PACE)
"""Targets that are chosen together, so that a new one waits for as long at most."""
TIMEOUT = 10.0
LISTED = 20
"""Names in a finding."""


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _Item(msgspec.Struct):
    metadata: _Meta


class _List(msgspec.Struct):
    items: tuple[_Item, ...] | None = None


_decode = msgspec.json.Decoder(_List).decode


class ForeignSlices:
    """Looks at one target after the other.

    Args:
        owners: values of the owner label that are ours.
        targets: all that have slices.
        publishes: whether this process is the one that publishes a target now.
        report: called with a target and what was found, each time it was looked at.
        adopted: the managed-by value whose slices a target replaces (these are told of elsewhere), or "".
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
        self._looked: dict[TargetKey, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            due = self._due()
            for key in filter(self._publishes, due):  # still
                self._looked[key] = self._clock.now()
                try:
                    self._report(key, await self._look(key))
                except (HubError, *UNDECODABLE) as error:
                    log.debug("%s: foreign slices: %s", key, error)
                await self._clock.sleep(PACE)
            if len(due) < AT_ONCE:
                await self._clock.sleep(IDLE)

    def _due(self) -> list[TargetKey]:
        """Some of the targets that were not looked at for a while: first those that never were."""
        targets, long_ago = set(filter(self._publishes, self._targets())), self._clock.now() - PERIOD
        self._looked = {key: at for key, at in self._looked.items() if key in targets}
        due = ((at, key) for key in targets if (at := self._looked.get(key, float("-inf"))) <= long_ago)
        return [key for _, key in nsmallest(AT_ONCE, due)]

    async def _look(self, key: TargetKey) -> tuple[Finding, ...]:
        selector = f"{LABEL_SERVICE_NAME}={key.name},{LABEL_OWNER} notin ({','.join(self._owners())})"
        if managed_by := self._adopted(key):
            copier = managed_by == ENDPOINT_COPIER
            selector += f",!{LABEL_COPIER_SOURCE}" if copier else f",{LABEL_MANAGED_BY}!={managed_by}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{key.namespace}/endpointslices"
        params = {"labelSelector": selector, "resourceVersion": "0"}
        found = _decode(await self._client.request("GET", path, params=params, timeout=TIMEOUT)).items or ()
        if not found:
            return ()
        names = tuple(sorted(each.metadata.name for each in found))
        makers = sorted({(each.metadata.labels or {}).get(LABEL_MANAGED_BY, "nobody named") for each in found})
        message = f"{len(names)} slices of others are published for this Service too, managed by {', '.join(makers)}"
        return (Finding("ForeignEndpoints", message, names[:LISTED]),)
