"""What the registry dropped, and whether it may go: a mass removal waits until somebody approves it.

A file that drops more than one entry and more than a fifth of the endpoints is more often a mistake (a
template that came out half empty, the file of another environment) than an intention. What would go with
such a file stays as it is, without end; everything else in the file takes effect. What was dropped is read
off the slices of ours: they name a Service or a source cluster that the registry does not. So a hub that
starts judges as one that reloads, and the hash of an approval is the same in every replica. That something is
withheld is also noted, beside the last accepted registry and on the Lease: the endpoints that came with the same
file must not make its share small enough to go after a restart, or for a replica that judges later.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

import msgspec

from hub.model import Finding, Slice, TargetKey, few
from hub.registry.spec import Registry

log = logging.getLogger(__name__)

REASON: Final = "RegistryRemovalWithheld"
ENTRIES: Final = 1
SHARE: Final = 0.2
"""More entries than this and a larger share of the owned endpoints are withheld together."""
NAMED: Final = 5
"""Entries that a message names."""
ISSUED_LIMIT: Final = 8
"""Withheld sets remembered, so that an approval that comes late still finds its entries."""


def service_entry(key: TargetKey) -> str:
    """A Service that is gone from the registry."""
    return f"service {key}"


def cluster_entry(name: str) -> str:
    """A cluster that is gone from the registry."""
    return f"cluster {name}"


class RegistryHeld(msgspec.Struct, frozen=True):
    """A mass removal that is withheld.

    Attributes:
        hash: what an approval names.
        entries: what is gone from the registry and does not go from the hub cluster; sorted.
        endpoints: how many go with it.
        total: how many the hub owns.
        approve: the command that lets it happen.
    """

    hash: str
    entries: tuple[str, ...]
    endpoints: int
    total: int
    approve: str

    @property
    def message(self) -> str:
        """One sentence that says what ends it."""
        return (
            f"the registry lacks {len(self.entries)} entries ({few(self.entries, NAMED)}) with "
            f"{self.endpoints} of {self.total} endpoints; withheld until: {self.approve}"
        )

    @property
    def finding(self) -> Finding:
        """For the targets that it is about."""
        return Finding(REASON, self.message, self.entries)


class Dropped(NamedTuple):
    """What of the published the registry does not ask for.

    Attributes:
        entries: entry -> endpoints that go with it, each counted once.
        total: endpoints owned.
    """

    entries: dict[str, int]
    total: int


def dropped(registry: Registry, slices: Iterable[Slice]) -> Dropped:
    """Compare our slices with the registry; broken and frozen entries, and former names, are not gone.

    What a Service asked for by annotation and asks for no more goes, but that is not the file's doing.
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
    """What an approval names: 12 hex digits over the sorted entries."""
    return hashlib.sha256(msgspec.json.encode(("registry", sorted(entries)))).hexdigest()[:12]


class Removals:
    """Judges each registry once, and what turns up later.

    An entry that may go may go on going, whatever becomes of the others. One that is withheld stays so
    when the endpoints that came with the same file make its share smaller.

    Args:
        slices: those of ours, for a registry.
        approvals: the hashes that are approved now.
        flags: what ``hub approve`` needs to find the approvals of this hub.
        warned: whether another replica withholds something now.
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
        """Whether the last judgement was under a warning."""
        self._registry: Registry | None = None
        self._known: set[str] = set()
        self._allowed: set[str] = set()
        self._issued: tuple[tuple[str, frozenset[str]], ...] = ()
        self._withheld: RegistryHeld | None = None
        self._inherited = False

    def reread(self, *, withheld: bool = False) -> None:
        """Another hub may have written since: judge anew when asked.

        Args:
            withheld: it withheld a removal. What is dropped now stays so, whatever its share is by now.
        """
        self._registry = None
        if withheld:
            self._allowed.clear()
            self._inherited = True

    @property
    def found(self) -> RegistryHeld | None:
        """What the last judgement withheld. Judges nothing."""
        return self._withheld

    def judge(self, registry: Registry) -> RegistryHeld | None:
        """What is withheld under this registry. Called before anything is decided under it."""
        withheld = self._withheld
        if (warned := self._warned()) and not self._heeded:
            self.reread(withheld=True)
        self._heeded = warned
        if registry is not self._registry or (withheld is not None and self._approved() & {*withheld.entries}):
            self._look(registry)
        return self._withheld

    def held(self, registry: Registry, entry: str) -> RegistryHeld | None:
        """Whether the removal of one entry's slices is withheld."""
        self.judge(registry)
        if entry not in self._known:
            self._look(registry)
            self._known.add(entry)
        withheld = self._withheld
        return withheld if withheld is not None and entry in withheld.entries else None

    def _approved(self) -> frozenset[str]:
        approvals = self._approvals()
        if not approvals:
            return frozenset()
        return frozenset(each for name, entries in self._issued if name in approvals for each in entries)

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
            self._issued = (*(each for each in self._issued if each[0] != name), (name, frozenset(rest)))
            self._issued = self._issued[-ISSUED_LIMIT:]
            log.warning("%s: %s", REASON, self._withheld.message)
