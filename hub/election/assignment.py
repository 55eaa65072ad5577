"""Which shard a target is in, and which clusters the targets of a shard need. Pure.

A target goes with a source cluster, the first by name, so that the targets of one cluster, or of the same several, are
written by one replica and a replica follows few clusters. A cluster that very many targets need (the one all fail over
to, say) is followed by everybody anyway, and draws nobody. A copy within the hub cluster goes by its own name: the hub
cluster is followed by every replica, and what a Service's annotations ask for cannot move a target then. So does what
is no target any more.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from hub.model import LOCAL, TargetKey
from hub.registry.spec import Registry, TargetSpec

SCHEME: Final = "3"
"""Of this module: replicas with different ones do not share targets. To be changed with what :func:`shard` says, and
with the names of the Leases (:func:`hub.election.lease.lease_of`): then the first, whose name stays, tells alone."""
DIGITS: Final = 16
COMMON: Final = 0.25
"""Share of all targets."""


def shard(name: str, count: int) -> int:
    """The shard of a name, the same in every process; 0 where there is only one."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % count


class Assignment:
    """The targets of one registry by shard.

    Args:
        registry: the whole of it.
        count: of shards.

    Attributes:
        mark: the same in every replica that divides the same file in the same way.
    """

    def __init__(self, registry: Registry, count: int) -> None:
        self.registry = registry
        self.count = count
        self.mark = f"{SCHEME}-{registry.digest[:DIGITS]}"
        self._known: dict[TargetKey, int] = {}

    def of(self, key: TargetKey) -> int:
        """The shard of a target, or of what is none (any more)."""
        if self.count == 1:
            return 0
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = shard(self._anchor(key), self.count)
        return found

    def _anchor(self, key: TargetKey) -> str:
        spec = self.registry.targets.get(key)
        if spec is None or not spec.sources or _copies(spec):
            return f"service {key}"
        names = [each.cluster for each in spec.sources]
        return f"cluster {min((name for name in names if name not in self._common), default=min(names))}"

    @cached_property
    def _common(self) -> frozenset[str]:
        """Clusters that so many targets need that these had better not all be in one shard."""
        # Copies do not count: replicas hear at different times of what annotations ask for, and no Lease says it.
        keys = [key for key, spec in self.registry.targets.items() if not _copies(spec)]
        found: Counter[str] = Counter(name for _, name in self._needs(keys, shared=False))
        most = COMMON * len(keys)
        return frozenset(name for name, number in found.items() if number > most)

    def minder(self, cluster: str) -> int:
        """The shard whose holder speaks for a cluster (Events, tokens): one in which it is needed."""
        found = self._minders.get(cluster)
        return shard(f"cluster {cluster}", self.count) if found is None else found

    @cached_property
    def _minders(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, name in self._needs(sorted(self.registry.targets)):
            found.setdefault(name, self.of(key))
        return found

    def part(self, shards: Collection[int]) -> Registry:
        """The registry as these shards need it: their targets, and the clusters of these.

        Beside them the clusters they speak for, and those of endpoint views, which every replica serves.
        """
        registry = self.registry
        targets = {key: each for key, each in registry.targets.items() if self.of(key) in shards}
        names = {LOCAL, *(name for _, name in self._needs(targets))}
        names.update(name for name in registry.clusters if self.minder(name) in shards)
        names.update(registry.views.clusters if registry.views is not None else ())
        clusters = {name: each for name, each in registry.clusters.items() if name in names}
        return replace(registry, targets=targets, clusters=clusters)

    def _needs(self, keys: Collection[TargetKey], *, shared: bool = True) -> Iterator[tuple[TargetKey, str]]:
        """Targets and their source clusters; ``shared``: sources that targets of a shard have in common only once."""
        seen: set[tuple[int, int]] = set()
        for key in keys:
            sources = self.registry.targets[key].sources
            if shared:
                if (id(sources), self.of(key)) in seen:
                    continue
                seen.add((id(sources), self.of(key)))
            for source in sources:
                yield key, source.cluster

    def moved(self, before: Assignment) -> set[TargetKey]:
        """Targets that were in another shard, be it only since a cluster has become common, or ceased to be."""
        keys = before.registry.targets.keys() | self.registry.targets.keys()
        return {key for key in keys if before.of(key) != self.of(key)}


def _copies(spec: TargetSpec) -> bool:
    """Whether any source of a target is within the hub cluster: annotations may change it, or make a loop of it."""
    return any(each.cluster == LOCAL for each in spec.sources)
