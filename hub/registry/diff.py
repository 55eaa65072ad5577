"""What changed between two registries, and what did not: a pure comparison of specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from hub.model import TargetKey
from hub.registry.spec import Registry, TargetSpec

K = TypeVar("K")
T = TypeVar("T")


class Changes(msgspec.Struct, Generic[K], frozen=True):
    """What became of the entries of one section; entries in none of the sets need nothing.

    Attributes:
        added: new, and valid.
        removed: in the file no more; an entry that broke is not removed.
        changed: valid before and now with another spec, or broken before and valid now.
        broken: broken now, and valid, absent or otherwise broken before: to be frozen, and said so.
    """

    added: frozenset[K]
    removed: frozenset[K]
    changed: frozenset[K]
    broken: frozenset[K]

    def __bool__(self) -> bool:
        """True when there is anything to do."""
        return bool(self.added or self.removed or self.changed or self.broken)


class RegistryDiff(msgspec.Struct, frozen=True):
    """What a reload has to touch.

    Attributes:
        clusters: by name.
        targets: by key; a target also changes with what its clusters and the defaults say.
        settings: owner, previous owners or denied networks differ: everything is concerned.
    """

    clusters: Changes[str]
    targets: Changes[TargetKey]
    settings: bool = False

    def __bool__(self) -> bool:
        """True when there is anything to do."""
        return bool(self.clusters or self.targets or self.settings)


def diff(old: Registry, new: Registry) -> RegistryDiff:
    """Compare by value: equal specs are untouched, whatever happened to the file around them."""
    return RegistryDiff(
        clusters=_changes(old.clusters, old.broken_clusters, new.clusters, new.broken_clusters),
        targets=_changes(old.targets, old.broken_targets, new.targets, new.broken_targets),
        settings=(old.owner, old.previous_owners, old.denied_cidrs, old.folder)
        != (new.owner, new.previous_owners, new.denied_cidrs, new.folder),
    )


def reuse(old: Registry, new: Registry) -> Registry:
    """The new registry made of the old one's specs wherever they are equal.

    What was computed from them holds by identity, and no earlier registry stays in memory for one target of it.
    """
    clusters = {name: _same(old.clusters.get(name), each) for name, each in new.clusters.items()}
    targets = {key: _same_target(old.targets.get(key), each) for key, each in new.targets.items()}
    return msgspec.structs.replace(new, clusters=clusters, targets=targets)


def _same_target(old: TargetSpec | None, new: TargetSpec) -> TargetSpec:
    if old is None:
        return new
    before = {each.cluster: each for each in old.sources}
    sources = tuple([_same(before.get(each.cluster), each) for each in new.sources])
    return _same(old, msgspec.structs.replace(new, sources=sources))


def _same(old: T | None, new: T) -> T:
    return old if old is not None and old == new else new


def _changes(
    old: Mapping[K, object], old_broken: Mapping[K, str], new: Mapping[K, object], new_broken: Mapping[K, str]
) -> Changes[K]:
    before = old.keys() | old_broken.keys()
    after = new.keys() | new_broken.keys()
    return Changes(
        added=frozenset(new.keys() - before),
        removed=frozenset(before - after),
        changed=frozenset(key for key in new.keys() & before if key in old_broken or old[key] != new[key]),
        broken=frozenset(key for key, why in new_broken.items() if old_broken.get(key) != why),
    )
