"""Evaluates ``clusterSelector``: which clusters it selects.

A cluster whose entry is broken may have had the labels before it broke. If it were not selected, its endpoints would be
removed from every Service that selects it. So a cluster whose labels cannot be read counts as selected: as an unknown
source it adds nothing and removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Selection:
    """The clusters of the file, to be found by name and by label.

    Args:
        entries: the plain data of all entries of ``clusters:``.

    Attributes:
        names: of all clusters in file order, broken ones included.
        without_provider: names of the clusters that have a kubeconfig and certainly no provider.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        named = [(name, entry) for entry in entries if isinstance(name := entry.get("name"), str)]
        self.names = {name: None for name, _ in named}
        self.without_provider = frozenset(
            name for name, entry in named if "kubeconfig" in entry and "provider" not in entry
        )
        self._labels = [(name, entry.get("labels", {})) for name, entry in named]
        self._broken: frozenset[str] = frozenset()
        self._cache: dict[tuple[tuple[str, str], ...], tuple[str, ...]] = {}

    def assume_provider(self, names: Iterable[str]) -> None:
        """Remove entries with an invalid key or value from ``without_provider``: it may be a misspelt provider."""
        self.without_provider -= frozenset(names)

    def set_broken(self, broken: Iterable[str]) -> None:
        """Set the broken entries. A broken entry without labels matches every selector: its labels may be misspelt."""
        self._broken = frozenset(broken)
        self._cache.clear()

    def select(self, selector: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the clusters that have, or may have, all these labels; in file order."""
        wanted = tuple(sorted((str(key), str(value)) for key, value in selector.items()))
        if wanted not in self._cache:
            self._cache[wanted] = tuple(name for name, labels in self._labels if self._matches(name, labels, wanted))
        return self._cache[wanted]

    def _matches(self, name: str, labels: object, wanted: tuple[tuple[str, str], ...]) -> bool:
        if not isinstance(labels, dict) or (not labels and name in self._broken):
            return True
        return all(_may_have(labels, key, value) for key, value in wanted)

    def labels_in_use(self) -> list[str]:
        """All labels of all clusters as ``key=value``, sorted."""
        pairs = (labels.items() for _, labels in self._labels if isinstance(labels, dict))
        return sorted({f"{key}={value}" for items in pairs for key, value in items if isinstance(value, str)})


def _may_have(labels: Mapping[str, object], key: str, value: str) -> bool:
    """Whether a cluster has, or may have, a label: a value of the wrong type counts as a match."""
    return key in labels and (labels[key] == value or not isinstance(labels[key], str))
