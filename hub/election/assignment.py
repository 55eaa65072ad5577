"""Assigns targets to shards, and computes which clusters the targets of a shard need. Pure.

The shard of a target is a hash of the first of its source clusters in alphabetical order. So one replica writes all
targets of a cluster, or of the same group of clusters, and each replica follows few clusters. Every replica follows a
cluster that very many targets need (such as the one they all fail over to), so such a cluster does not decide the
shard. A copy within the hub cluster is assigned by its own name: every replica follows the hub cluster, and a change of
a Service's annotations must not move a target. A key that is no longer a target is assigned by its own name too.
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

MARK_LENGTH: Final = 16
"""Characters of the registry's digest that identify the registry in a Lease's annotation."""
COMMON: Final = 0.25
"""A cluster is common if more than this share of all targets needs it; copies within the hub cluster do not count."""


def shard(name: str, count: int) -> int:
    """The shard of a name: the same in every process, so not Python's ``hash``; 0 if there is only one shard."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % count


class Assignment:
    """The targets of one registry by shard.

    Args:
        registry: the whole registry.
        count: number of shards.

    Attributes:
        mark: identifies the registry file; equal in all replicas that loaded the same file.
    """

    def __init__(self, registry: Registry, count: int) -> None:
        self.registry = registry
        self.count = count
        self.mark = registry.digest[:MARK_LENGTH]
        self._known: dict[TargetKey, int] = {}

    def of(self, key: TargetKey) -> int:
        """The shard of a key, whether or not it is a target."""
        if self.count == 1:
            return 0
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = shard(self._anchor(key), self.count)
        return found

    def _anchor(self, key: TargetKey) -> str:
        """The text whose hash is the target's shard."""
        spec = self.registry.targets.get(key)
        if spec is None or not spec.sources or _copies(spec):
            return f"service {key}"
        names = [source.cluster for source in spec.sources]
        return f"cluster {min((name for name in names if name not in self._common), default=min(names))}"

    @cached_property
    def _common(self) -> frozenset[str]:
        """Clusters that so many targets need that those targets must not all be in one shard."""
        # Copies do not count: replicas see annotations at different times, and ``mark`` does not cover annotations.
        keys = [key for key, spec in self.registry.targets.items() if not _copies(spec)]
        found: Counter[str] = Counter(name for _, name in self._needs(keys, shared=False))
        most = COMMON * len(keys)
        return frozenset(name for name, number in found.items() if number > most)

    def responsible_shard(self, cluster: str) -> int:
        """The shard whose holder writes the cluster's Events and renews its token.

        It is the shard of the first target, in the order of keys, that needs the cluster. A cluster that no target
        needs is assigned by its name.
        """
        found = self._responsible.get(cluster)
        return shard(f"cluster {cluster}", self.count) if found is None else found

    @cached_property
    def _responsible(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, name in self._needs(sorted(self.registry.targets)):
            found.setdefault(name, self.of(key))
        return found

    def part(self, shards: Collection[int]) -> Registry:
        """The part of the registry that these shards need: their targets and the clusters of these targets.

        The part also contains the clusters that these shards are responsible for (:meth:`responsible_shard`), the
        clusters of endpoint views, which every replica serves, and with shard 0 those of allocations.
        """
        registry = self.registry
        targets = {key: spec for key, spec in registry.targets.items() if self.of(key) in shards}
        names = {LOCAL, *(name for _, name in self._needs(targets))}
        names.update(name for name in registry.clusters if self.responsible_shard(name) in shards)
        names.update(registry.views.clusters if registry.views is not None else ())
        if 0 in shards and registry.allocations is not None:  # one replica serves all allocations
            names.update(name for account in registry.allocations.accounts.values() for name in account.clusters)
        clusters = {name: spec for name, spec in registry.clusters.items() if name in names}
        return replace(registry, targets=targets, clusters=clusters)

    def _needs(self, keys: Collection[TargetKey], *, shared: bool = True) -> Iterator[tuple[TargetKey, str]]:
        """Yields pairs of a target and one of its source clusters.

        With ``shared``, a tuple of sources that several targets of one shard share is visited only for the first of
        these targets: thousands of Services may select the same hundreds of clusters.
        """
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
        """Targets that were in another shard before, even if their own entries did not change.

        Targets also move when one of their clusters becomes common or stops being common.
        """
        keys = before.registry.targets.keys() | self.registry.targets.keys()
        return {key for key in keys if before.of(key) != self.of(key)}


def _copies(spec: TargetSpec) -> bool:
    """Whether the hub cluster is one of the target's sources: annotations may change such a source at any time."""
    return any(source.cluster == LOCAL for source in spec.sources)
