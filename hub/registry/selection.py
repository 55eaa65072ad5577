"""Which clusters a ``clusterSelector`` selects.

A cluster whose entry is broken may have had the labels before it broke. Leaving it out would remove its endpoints from
every Service that selects it. So a cluster whose labels cannot be read counts as selected: as an unknown source it adds
nothing and removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Selection:
    """The declared clusters, by name and by label.

    Attributes:
        names: of all clusters in file order, broken ones included.
        bare: those with a kubeconfig and without a provider, as far as they can be read.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        named = [(name, entry) for entry in entries if isinstance(name := entry.get("name"), str)]
        self.names = {name: None for name, _ in named}
        self.bare = frozenset(name for name, entry in named if "kubeconfig" in entry and "provider" not in entry)
        self._labels = [(name, entry.get("labels", {})) for name, entry in named]
        self._suspects: frozenset[str] = frozenset()
        self._memory: dict[tuple[tuple[str, str], ...], tuple[str, ...]] = {}

    def misread(self, names: Iterable[str]) -> None:
        """Name the entries with a key or value that cannot be read: it may be a misspelt provider."""
        self.bare -= frozenset(names)

    def suspect(self, broken: Iterable[str]) -> None:
        """Name the broken entries: one of them without labels matches every selector."""
        self._suspects = frozenset(broken)
        self._memory.clear()

    def select(self, selector: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the clusters that carry, or may carry, all these labels; in file order."""
        wanted = tuple(sorted((str(key), str(value)) for key, value in selector.items()))
        if wanted not in self._memory:
            self._memory[wanted] = tuple(name for name, labels in self._labels if self._matches(name, labels, wanted))
        return self._memory[wanted]

    def _matches(self, name: str, labels: object, wanted: tuple[tuple[str, str], ...]) -> bool:
        if not isinstance(labels, dict) or (not labels and name in self._suspects):
            return True
        return all(_carries(labels, key, value) for key, value in wanted)

    def labels_in_use(self) -> list[str]:
        """``key=value`` of all clusters, sorted."""
        pairs = (labels.items() for _, labels in self._labels if isinstance(labels, dict))
        return sorted({f"{key}={value}" for items in pairs for key, value in items if isinstance(value, str)})


def _carries(labels: Mapping[str, object], key: str, value: str) -> bool:
    """Whether a cluster carries a label; a value of the wrong type counts as the right one."""
    return key in labels and (labels[key] == value or not isinstance(labels[key], str))
