"""Compares two registries: which specs a reload must touch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from hub.model import TargetKey
from hub.registry.spec import Registry, TargetSpec

K = TypeVar("K")
T = TypeVar("T")


class Changes(msgspec.Struct, Generic[K], frozen=True):
    """The entries of one section that a reload must touch; entries in none of the sets are unchanged.

    Attributes:
        added: new and valid.
        removed: no longer in the file; an entry that became invalid does not count as removed.
        changed: valid, and either its spec has changed or it was broken before.
        broken: newly broken (before valid or absent), or broken for another reason than before; frozen and reported.
    """

    added: frozenset[K]
    removed: frozenset[K]
    changed: frozenset[K]
    broken: frozenset[K]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.added or self.removed or self.changed or self.broken)


class RegistryDiff(msgspec.Struct, frozen=True):
    """Everything that a reload must touch.

    Attributes:
        clusters: by name.
        targets: by key; includes targets that changed because their clusters or the defaults changed.
        settings: whether owner, previous owners, denied networks or folder differ, which concerns every target.
    """

    clusters: Changes[str]
    targets: Changes[TargetKey]
    settings: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.clusters or self.targets or self.settings)


def diff(old: Registry, new: Registry) -> RegistryDiff:
    """Compare two registries by the values of their specs, not by the text of the file."""
    return RegistryDiff(
        clusters=_changes(old.clusters, old.broken_clusters, new.clusters, new.broken_clusters),
        targets=_changes(old.targets, old.broken_targets, new.targets, new.broken_targets),
        settings=(old.owner, old.previous_owners, old.denied_cidrs, old.folder)
        != (new.owner, new.previous_owners, new.denied_cidrs, new.folder),
    )


def reuse(old: Registry, new: Registry) -> Registry:
    """The new registry, with the old registry's objects for all specs that are equal.

    So results that are cached by the identity of these specs stay valid. The rest of the old registry is not kept.
    """
    clusters = {name: _same(old.clusters.get(name), spec) for name, spec in new.clusters.items()}
    targets = {key: _same_target(old.targets.get(key), spec) for key, spec in new.targets.items()}
    return msgspec.structs.replace(new, clusters=clusters, targets=targets)


def _same_target(old: TargetSpec | None, new: TargetSpec) -> TargetSpec:
    if old is None:
        return new
    before = {source.cluster: source for source in old.sources}
    sources = tuple([_same(before.get(source.cluster), source) for source in new.sources])
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
