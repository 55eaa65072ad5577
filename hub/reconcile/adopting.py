"""Taking over from another controller: its slices as they are observed.

One watch, and only while a target says ``adopt``: the slices with the named managed-by values and without
anybody's owner label; another one for those of endpoint-copier, which writes no such label.
:mod:`hub.decide.adopt` decides; the writer deletes, fenced, and only what is exactly as it was observed.
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
"""Findings of :mod:`hub.decide.adopt`."""

PATIENCE: Final = 5.0
"""Seconds the first write waits for theirs: with them, ours begin with equal conditions."""


class Adopting:
    """Everything about slices of other controllers that are to be replaced by ours.

    Args:
        on_change: called with a target whose foreign slices changed.
        namespaces: the only ones that are followed; empty = all.
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
        """By selector and namespace."""
        self._observer = Follower("slices to be adopted", SLICES.rule)
        self._told: dict[TargetKey, tuple[str, ...]] = {}

    # --- observing ---------------------------------------------------------------------------------

    def follow(self, registry: Registry) -> None:
        """Follow what this registry wants to be adopted, from now on."""
        selectors = tuple(_selectors({target.adopt for target in registry.targets.values() if target.adopt}))
        if selectors != self._selectors:
            self._selectors = selectors
            places = product(selectors, self._namespaces)
            self._stores = {each: self._stores.get(each) or SliceStore(self._on_change) for each in places}
            self._changed.set()
        for key in self._told.keys() - registry.targets.keys():
            del self._told[key]

    @property
    def synced(self) -> bool:
        """Whether theirs are known, or there is nothing to know."""
        return all(each.lists > 0 for each in self._stores.values())

    async def wait_synced(self, patience: float = PATIENCE, poll: float = 0.02) -> None:
        """Wait until theirs are known, no longer than ``patience`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self.synced:
                    await self._clock.sleep(poll)

    async def run(self) -> None:
        """Follow until cancelled; start over when other values are to be followed."""
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
        """Slices of a target that may be adopted; None while they have not been listed."""
        if not self.synced:
            return None
        return tuple(slice_ for store in self._stores.values() for slice_ in store.of(key).values())

    # --- telling --------------------------------------------------------------------------------------

    def tell(self, key: TargetKey, findings: Iterable[Finding]) -> None:
        """Log once what stands in the way of an adoption."""
        reasons = {each.reason: each.message for each in findings if each.reason in REASONS}
        for reason, message in reasons.items():
            if reason not in self._told.get(key, ()):
                log.warning("%s: %s: %s", key, reason, message)
        self._told[key] = tuple(reasons)

    def wrote(self, target: TargetSpec, done: Iterable[tuple[str, Slice]]) -> tuple[str, ...]:
        """Log which slices of theirs were deleted; their UIDs."""
        gone = [slice_ for operation, slice_ in done if operation == "delete" and is_theirs(slice_, target.adopt)]
        if gone:
            names = ", ".join(sorted(slice_.name for slice_ in gone))
            log.info("%s: slices of %s are covered by ours and deleted: %s", target.key, target.adopt, names)
        return tuple(slice_.uid for slice_ in gone)


def _selectors(values: set[str]) -> Iterable[str]:
    """Label selectors of the slices that ``adopt`` values stand for."""
    if named := sorted(values - {ENDPOINT_COPIER}):
        yield f"{LABEL_MANAGED_BY} in ({','.join(named)}),!{LABEL_OWNER}"
    if ENDPOINT_COPIER in values:
        yield f"{LABEL_COPIER_SOURCE},!{LABEL_MANAGED_BY},!{LABEL_OWNER}"
