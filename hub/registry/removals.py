"""Which entries the registry dropped, and whether their slices may be removed: a mass removal waits for approval.

A file that drops more than one entry and more than a fifth of the endpoints is more often a mistake (a template that
came out half empty, the file of another environment) than an intention. Slices that such a file would remove stay until
an operator approves the removal; everything else in the file takes effect. Our slices show what was dropped: they name
a Service or a source cluster that the registry lacks. So a hub that starts decides like one that reloads, and every
replica computes the same hash for an approval. A withheld removal is also noted beside the last accepted registry and
on the Lease. Otherwise endpoints that the same file adds could make the removal's share small enough to be allowed
after a restart, or for a replica that decides later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from hub.approval import Issued, approval_hash, approved_of, issue
from hub.model import Slice
from hub.registry.spec import REGISTRY_HELD, Registry, RegistryHeld, cluster_entry, service_entry

log = logging.getLogger(__name__)

ENTRIES: Final = 1
SHARE: Final = 0.2
"""A removal of more entries than this and of a larger share of our endpoints is withheld."""


class Dropped(NamedTuple):
    """What is published although the registry does not ask for it.

    Attributes:
        entries: entry -> number of endpoints that go with it, each endpoint counted once.
        total: number of endpoints of this hub.
    """

    entries: dict[str, int]
    total: int


def dropped(registry: Registry, slices: Iterable[Slice]) -> Dropped:
    """Compare our slices with the registry; broken and frozen entries and former names do not count as dropped.

    Copies that a Service no longer asks for by annotation do not count either: the file did not drop them.
    """
    former = {name for each in registry.clusters.values() for name in each.formerly}
    kept = registry.clusters.keys() | registry.broken_clusters.keys() | registry.frozen_names | former | {""}
    entries: dict[str, int] = {}
    total = 0
    for each in slices:
        total += len(each.endpoints)
        target, name = each.target, each.cluster
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
            entries[gone[0]] += len(each.endpoints)
    return Dropped(entries, total)


def digest(entries: Iterable[str]) -> str:
    """What an approval names: all entries that are gone."""
    return approval_hash("registry", sorted(entries))


class Removals:
    """Decides once per registry, and again for entries that turn up later.

    An entry that was allowed to go stays allowed, whatever happens to the others. A withheld entry stays withheld even
    when endpoints that the same file added make its share smaller.

    Args:
        slices: our slices, for a registry.
        approvals: the hashes that are approved now.
        flags: options that ``hub approve`` needs to find this hub's approvals.
        warned: whether another replica withholds a removal now.
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
        self._heeded = False
        """Whether another replica withheld a removal at the last decision."""
        self._registry: Registry | None = None
        self._known: set[str] = set()
        self._allowed: set[str] = set()
        self._issued: Issued = ()
        self._withheld: RegistryHeld | None = None
        self._inherited = False

    def reread(self, *, withheld: bool = False) -> None:
        """Decide again when asked next: another replica may have written since.

        Args:
            withheld: that replica withheld a removal. Whatever is dropped now is withheld, however small its share.
        """
        self._registry = None
        if withheld:
            self._allowed.clear()
            self._inherited = True

    @property
    def found(self) -> RegistryHeld | None:
        """What the last decision withheld; decides nothing."""
        return self._withheld

    def judge(self, registry: Registry) -> RegistryHeld | None:
        """What is withheld under this registry. Call it before any other decision under the registry."""
        withheld = self._withheld
        if (warned := self._warned()) and not self._heeded:
            self.reread(withheld=True)
        self._heeded = warned
        if registry is not self._registry or (withheld is not None and self._approved() & {*withheld.entries}):
            self._look(registry)
        return self._withheld

    def held(self, registry: Registry, entry: str) -> RegistryHeld | None:
        """The withheld removal that an entry belongs to; None if its slices may be removed."""
        self.judge(registry)
        if entry not in self._known:
            self._look(registry)
            self._known.add(entry)
        withheld = self._withheld
        return withheld if withheld is not None and entry in withheld.entries else None

    def _approved(self) -> frozenset[str]:
        return approved_of(self._issued, self._approvals())

    def _look(self, registry: Registry) -> None:
        found = dropped(registry, self._slices(registry))
        gone = found.entries.keys()
        self._registry = registry
        self._known = set(gone)
        self._allowed &= gone
        rest = gone - self._allowed
        approved = frozenset(rest) if digest(rest) in self._approvals() else self._approved() & rest
        if approved:
            log.warning("registry: approved: %s may go", ", ".join(sorted(approved)))
        rest -= approved
        endpoints = sum(found.entries[each] for each in rest)
        before = set(self._withheld.entries if self._withheld is not None else ())
        much = endpoints > SHARE * found.total or bool(before & rest) or self._inherited or self._heeded
        self._inherited = False
        if len(rest) <= ENTRIES or not much:
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
