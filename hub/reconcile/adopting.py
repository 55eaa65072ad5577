"""Observes the slices of other controllers that targets adopt from.

In comments and names here, "ours" are the hub's slices and "theirs" are the slices of the other controllers.

While any target has ``adopt``, one watch follows the slices that have one of the named managed-by values and no owner
label. A second watch follows the slices of endpoint-copier, which sets no managed-by label. :mod:`hub.decide.adopt`
decides which slices to delete. The writer deletes them, only while it may write the target, and only if they are
exactly as observed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from typing import Any, Final

from hub.decide.adopt import is_theirs
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import SLICES
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, Finding, Slice, TargetKey
from hub.observe.local.cluster import ALL, Follower
from hub.observe.local.stores import SliceStore
from hub.registry.spec import ENDPOINT_COPIER, LABEL_COPIER_SOURCE, Registry, TargetSpec
from hub.runtime.clock import Clock
from hub.runtime.supervise import until_one_ends

log = logging.getLogger(__name__)

REASONS: Final = ("OldWriterActive", "AdoptionWaiting")
"""Reasons of the findings of :mod:`hub.decide.adopt`."""

PATIENCE: Final = 5.0
"""Maximum seconds that the first write waits for theirs. If they are known, ours start with the same conditions."""


class Adopting:
    """Follows the slices of other controllers that ours replace, and logs how the adoptions proceed.

    Args:
        client: client of the hub cluster.
        on_change: called with a target whose slices of another controller changed.
        namespaces: the only namespaces that are followed; empty = all.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_change: Callable[[TargetKey], None],
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._namespaces = namespaces or (ALL,)
        self._selectors: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._stores: dict[tuple[str, str], SliceStore] = {}
        """Stores by selector and namespace."""
        self._observer = Follower("slices to be adopted", SLICES.rule)
        self._logged: dict[TargetKey, tuple[str, ...]] = {}
        """Reasons of the findings that the last pass logged or repeated, by target."""

    # --- observing ---------------------------------------------------------------------------------

    def follow(self, registry: Registry) -> None:
        """From now on, follow the slices that the targets of this registry adopt."""
        selectors = tuple(_selectors({target.adopt for target in registry.targets.values() if target.adopt}))
        if selectors != self._selectors:
            self._selectors = selectors
            places = product(selectors, self._namespaces)
            self._stores = {place: self._stores.get(place) or SliceStore(self._on_change) for place in places}
            self._changed.set()
        for key in self._logged.keys() - registry.targets.keys():
            del self._logged[key]

    @property
    def synced(self) -> bool:
        """Whether theirs have been listed; also True if nothing is to be adopted."""
        return all(store.lists > 0 for store in self._stores.values())

    async def wait_synced(self, patience: float = PATIENCE, poll: float = 0.02) -> None:
        """Wait until theirs have been listed, at most ``patience`` seconds; check every ``poll`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self.synced:
                    await self._clock.sleep(poll)

    async def run(self) -> None:
        """Follow until cancelled; start over when the selectors change."""
        while True:
            self._changed.clear()
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._changed.wait(), name="other slices to adopt")]
            tasks += [
                asyncio.create_task(self._reflect(selector, namespace, store), name=f"slices to be adopted: {selector}")
                for (selector, namespace), store in self._stores.items()
            ]
            await until_one_ends(tasks)

    async def _reflect(self, selector: str, namespace: str, store: SliceStore) -> None:
        await Reflector(
            "slices to be adopted",
            self._client,
            SLICES,
            store,
            self._observer,
            self._clock,
            params={"labelSelector": selector},
            namespace=namespace or None,
        ).run()

    def theirs(self, key: TargetKey) -> tuple[Slice, ...] | None:
        """The slices of other controllers for a target; None while they have not been listed."""
        if not self.synced:
            return None
        return tuple(slice_ for store in self._stores.values() for slice_ in store.of(key).values())

    # --- logging --------------------------------------------------------------------------------------

    def log_obstacles(self, key: TargetKey, findings: Iterable[Finding]) -> None:
        """Log what prevents an adoption, unless the last findings of the target had the same reason."""
        reasons = {finding.reason: finding.message for finding in findings if finding.reason in REASONS}
        for reason, message in reasons.items():
            if reason not in self._logged.get(key, ()):
                log.warning("%s: %s: %s", key, reason, message)
        self._logged[key] = tuple(reasons)

    def log_deleted(self, target: TargetSpec, done: Iterable[tuple[str, Slice]]) -> tuple[str, ...]:
        """Log which of their slices a pass deleted; return the UIDs of these slices.

        Args:
            target: the target.
            done: (operation, slice) of the writes that succeeded.
        """
        gone = [slice_ for operation, slice_ in done if operation == "delete" and is_theirs(slice_, target.adopt)]
        if gone:
            names = ", ".join(sorted(slice_.name for slice_ in gone))
            log.info("%s: slices of %s are covered by ours and deleted: %s", target.key, target.adopt, names)
        return tuple(slice_.uid for slice_ in gone)


def _selectors(values: set[str]) -> Iterable[str]:
    """Label selectors of the slices that these values of ``adopt`` select."""
    if named := sorted(values - {ENDPOINT_COPIER}):
        yield f"{LABEL_MANAGED_BY} in ({','.join(named)}),!{LABEL_OWNER}"
    if ENDPOINT_COPIER in values:
        yield f"{LABEL_COPIER_SOURCE},!{LABEL_MANAGED_BY},!{LABEL_OWNER}"
