"""Finds the targets that a change of a cluster, of a copied Service or of the registry affects."""

from __future__ import annotations

from collections.abc import Sequence

from hub.model import LOCAL, TargetKey
from hub.registry.diff import diff
from hub.registry.spec import ProviderRef, Registry


class AffectedTargets:
    """The targets of one registry, by source cluster and by copied Service."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_cluster: dict[str, list[TargetKey]] = {}
        self._by_copy: dict[ProviderRef, list[TargetKey]] = {}
        for key, target in registry.targets.items():
            for source in target.sources:
                self._by_cluster.setdefault(source.cluster, []).append(key)
                if source.cluster == LOCAL:
                    self._by_copy.setdefault(source.provider, []).append(key)

    def of_cluster(self, name: str) -> Sequence[TargetKey]:
        """Targets that have this cluster among their sources."""
        return self._by_cluster.get(name, ())

    def of_copy(self, provider: ProviderRef) -> Sequence[TargetKey]:
        """Targets that copy from the hub cluster with this provider configuration, which names the copied Service."""
        return self._by_copy.get(provider, ())

    def since(self, before: AffectedTargets) -> list[TargetKey] | None:
        """Targets that the change from the registry of ``before`` to this one may affect, sorted; None = all."""
        old, new = before._registry, self._registry
        changes = diff(old, new)
        if changes.settings or old.frozen_names != new.frozen_names:
            return None
        names, keys = changes.clusters, changes.targets
        clusters = names.added | names.removed | names.changed | names.broken
        touched = {key for name in clusters for key in (*before.of_cluster(name), *self.of_cluster(name))}
        return sorted(touched | keys.added | keys.changed | keys.removed | keys.broken)
