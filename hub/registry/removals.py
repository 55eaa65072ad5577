"""Finds the entries that the registry dropped, and withholds a mass removal of their slices until it is approved.

A file that drops more than one entry and more than a fifth of the endpoints is more often a mistake (a template that
came out half empty, the file of another environment) than an intention. The slices that such a file would remove stay
until an operator approves the removal; everything else in the file takes effect.

An entry was dropped if our slices name a Service or a source cluster that the registry lacks. So a hub that starts
decides like one that reloads, and every replica computes the same hash for an approval. A withheld removal is also
recorded next to the last accepted registry and on the Lease. Without that record, endpoints that the same file adds
could make the removal's share small enough to be allowed, after a restart or for a replica that decides later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from hub.approval import Issued, approval_hash, approved_of, issue
from hub.model import Slice
from hub.registry.spec import REGISTRY_HELD, Registry, RegistryHeld, cluster_entry, service_entry

log = logging.getLogger(__name__)

ALWAYS_ALLOWED: Final = 1
MAX_SHARE: Final = 0.2
"""A removal of more entries than this and of a larger share of our endpoints is withheld."""


class Dropped(NamedTuple):
    """The entries that the registry dropped while slices of them still exist.

    Attributes:
        entries: entry -> number of endpoints that its removal would remove. An endpoint whose Service and cluster were
            both dropped counts for the Service only.
        total: number of all endpoints in our slices.
    """

    entries: dict[str, int]
    total: int


def dropped(registry: Registry, slices: Iterable[Slice]) -> Dropped:
    """Compare our slices with the registry.

    Broken entries, frozen clusters and former names do not count as dropped, nor do copies that a Service no longer
    asks for by annotation: the file did not drop them. A Service with policy upsert-only keeps its endpoints, so a
    dropped cluster does not count for it.
    """
    former = {name for cluster in registry.clusters.values() for name in cluster.formerly}
    kept = registry.clusters.keys() | registry.broken_clusters.keys() | registry.frozen_names | former | {""}
    entries: dict[str, int] = {}
    total = 0
    for slice_ in slices:
        total += len(slice_.endpoints)
        target, name = slice_.target, slice_.cluster
        if target in registry.broken_targets or target in registry.withdrawn or name in registry.frozen_names:
            continue
        gone = [cluster_entry(name)] if name not in kept else []
        spec = registry.targets.get(target)
        if spec is None:
            gone.insert(0, service_entry(target))
        elif spec.policy == "upsert-only":
            continue
        for entry in gone:
            entries.setdefault(entry, 0)
        if gone:
            entries[gone[0]] += len(slice_.endpoints)
    return Dropped(entries, total)


def digest(entries: Iterable[str]) -> str:
    """The hash that approves the removal of these entries."""
    return approval_hash("registry", sorted(entries))


class Removals:
    """Decides which removals are withheld: once per registry, and again when further dropped entries appear.

    An entry whose removal was allowed stays allowed, whatever happens to the others. A withheld entry stays withheld
    even when endpoints that the same file added make its share smaller.

    Args:
        slices: returns our slices, for a registry.
        approvals: returns the hashes that are approved now.
        flags: options that ``hub approve`` needs to find this hub's approvals.
        warned: returns whether another replica withholds a removal now.
    """

    def __init__(
        self,
        slices: Callable[[Registry], Iterable[Slice]],
        approvals: Callable[[], Collection[str]],
        flags: str = "",
        warned: Callable[[], bool] = bool,
    ) -> None:
        self._slices = slices
        self._approvals = approvals
        self._flags = flags
        self._warned = warned
        self._other_withheld = False
        """The value of ``warned`` at the last call of :meth:`judge`."""
        self._registry: Registry | None = None
        self._known: set[str] = set()
        self._allowed: set[str] = set()
        self._issued: Issued = ()
        self._withheld: RegistryHeld | None = None
        self._inherited = False

    def reread(self, *, withheld: bool = False) -> None:
        """Decide again at the next call, since another replica may have written slices meanwhile.

        Args:
            withheld: whether that replica withheld a removal. If so, the next decision withholds the dropped entries
                however small their share.
        """
        self._registry = None
        if withheld:
            self._allowed.clear()
            self._inherited = True

    @property
    def found(self) -> RegistryHeld | None:
        """The removal that the last decision withheld; does not decide again."""
        return self._withheld

    def judge(self, registry: Registry) -> RegistryHeld | None:
        """Decide if needed; returns the removal that is withheld under this registry, or None.

        Call it before any other decision under the registry.
        """
        withheld = self._withheld
        if (warned := self._warned()) and not self._other_withheld:
            self.reread(withheld=True)
        self._other_withheld = warned
        if registry is not self._registry or (withheld is not None and self._approved() & {*withheld.entries}):
            self._decide(registry)
        return self._withheld

    def held(self, registry: Registry, entry: str) -> RegistryHeld | None:
        """The withheld removal that an entry belongs to; None if its slices may be removed."""
        self.judge(registry)
        if entry not in self._known:
            self._decide(registry)
            self._known.add(entry)
        withheld = self._withheld
        return withheld if withheld is not None and entry in withheld.entries else None

    def _approved(self) -> frozenset[str]:
        return approved_of(self._issued, self._approvals())

    def _decide(self, registry: Registry) -> None:
        """Decide which of the dropped entries are withheld."""
        found = dropped(registry, self._slices(registry))
        gone = found.entries.keys()
        self._registry = registry
        self._known = set(gone)
        self._allowed &= gone
        rest = gone - self._allowed
        approved = frozenset(rest) if digest(rest) in self._approvals() else self._approved() & rest
        if approved:
            log.warning("registry: the removal of %s is approved", ", ".join(sorted(approved)))
        rest -= approved
        endpoints = sum(found.entries[entry] for entry in rest)
        before = set(self._withheld.entries if self._withheld is not None else ())
        much = endpoints > MAX_SHARE * found.total or bool(before & rest) or self._inherited or self._other_withheld
        self._inherited = False
        if len(rest) <= ALWAYS_ALLOWED or not much:
            self._allowed |= gone
            self._withheld = None
            return
        self._allowed |= approved
        name = digest(rest)
        command = f"hub approve registry {name}{self._flags}"
        self._withheld = RegistryHeld(name, tuple(sorted(rest)), endpoints, found.total, command)
        if rest != before:
            self._issued = issue(self._issued, name, frozenset(rest))
            log.warning("%s: %s", REGISTRY_HELD, self._withheld.message)
