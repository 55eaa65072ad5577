"""Taking over from another controller: its slices as they are observed, and what each target remembers.

One watch, and only while a target says ``adopt``: the slices with the named managed-by values and without
anybody's owner label; another one for those of endpoint-copier, which writes no such label.
:mod:`hub.decide.adopt` decides; the writer deletes, fenced, and only what is exactly as it was observed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final

from hub.decide.adopt import Adoption, AdoptMemory, adopt, deleted
from hub.decide.endpoints import EndpointGroup
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import SLICES
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, Finding, Slice, SourceView, TargetKey
from hub.observe.local.cluster import ALL, Follower
from hub.observe.local.stores import SliceStore
from hub.registry.copies.annotations import ENDPOINT_COPIER, LABEL_COPIER_SOURCE
from hub.registry.spec import Registry, TargetSpec
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
        self._memory: dict[TargetKey, AdoptMemory] = {}
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
        for key in self._memory.keys() - registry.targets.keys():
            del self._memory[key]
            self._told.pop(key, None)

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

    # --- deciding ------------------------------------------------------------------------------------

    def check(
        self,
        spec: TargetSpec,
        published: Iterable[Slice],
        groups: tuple[EndpointGroup, ...],
        sources: Sequence[SourceView] = (),
    ) -> Adoption:
        """What follows for one target; nothing where it does not adopt, or theirs are not known yet.

        Args:
            spec: the target.
            published: ours, as observed.
            groups: what is wanted of ours, after the guard.
            sources: what the sources of the target say; none where one of them makes no statement.
        """
        if not spec.adopt:
            self._memory.pop(spec.key, None)
            return Adoption(groups)
        if not self.synced:
            return Adoption(groups)
        present = (each for store in self._stores.values() for each in store.of(spec.key).values())
        theirs = [each for each in present if _theirs(each, spec.adopt)]
        memory = self._memory.get(spec.key, AdoptMemory())
        # A copy of the same source, only better: what is gone there, theirs never let go of.
        said = sources if spec.adopt == ENDPOINT_COPIER else ()
        found = adopt(spec.adopt, theirs, published, groups, memory, self._clock.now(), sources=said)
        self._memory[spec.key] = found.memory
        return found

    def pending(self, key: TargetKey) -> bool:
        """Whether there is something of theirs left: what was just written of ours may cover it."""
        memory = self._memory.get(key)
        return memory is not None and bool(memory.seen)

    def tell(self, key: TargetKey, findings: Iterable[Finding]) -> None:
        """Log what stands in the way of an adoption, once."""
        if key not in self._memory:
            return
        reasons = {each.reason: each.message for each in findings if each.reason in REASONS}
        for reason, message in reasons.items():
            if reason not in self._told.get(key, ()):
                log.warning("%s: %s: %s", key, reason, message)
        self._told[key] = tuple(reasons)

    def wrote(self, spec: TargetSpec | None, done: Iterable[tuple[str, Slice]]) -> None:
        """Enter which of theirs were deleted."""
        if spec is None or not spec.adopt:
            return
        gone = [each for operation, each in done if operation == "delete" and _theirs(each, spec.adopt)]
        if gone:
            names = ", ".join(sorted(each.name for each in gone))
            log.info("%s: slices of %s are covered by ours and deleted: %s", spec.key, spec.adopt, names)
            self._memory[spec.key] = deleted(self._memory.get(spec.key, AdoptMemory()), (each.uid for each in gone))


def _selectors(values: set[str]) -> Iterable[str]:
    """Label selectors of the slices that ``adopt`` values stand for."""
    if named := sorted(values - {ENDPOINT_COPIER}):
        yield f"{LABEL_MANAGED_BY} in ({','.join(named)}),!{LABEL_OWNER}"
    if ENDPOINT_COPIER in values:
        yield f"{LABEL_COPIER_SOURCE},!{LABEL_MANAGED_BY},!{LABEL_OWNER}"


def _theirs(value: Slice, managed_by: str) -> bool:
    labels = value.labels
    if LABEL_OWNER in labels:
        return False
    if managed_by == ENDPOINT_COPIER:
        return LABEL_COPIER_SOURCE in labels and LABEL_MANAGED_BY not in labels
    return labels.get(LABEL_MANAGED_BY) == managed_by
