"""Keeps the registry that is in force in step with what Services ask for by annotation.

:mod:`hub.copies.annotations` decides; here is what is remembered: what each Service says, and who has stopped asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hub.copies.annotations import YES, Copies, Wish, copies, merge, wish
from hub.model import Service, TargetKey
from hub.registry.spec import Registry


class Copying:
    """What the Services of the hub cluster ask for.

    Args:
        published: targets that have slices of ours.
    """

    def __init__(self, published: Callable[[], Iterable[TargetKey]]) -> None:
        self._published = published
        self._wishes: dict[TargetKey, Wish] = {}
        self._found = Copies()
        self._withdrawn: frozenset[TargetKey] = frozenset()
        self._last: tuple[Registry, Copies, frozenset[TargetKey], Registry] | None = None

    def note(self, key: TargetKey, service: Service | None) -> bool:
        """Enter what a Service says now; whether that is news."""
        said = wish(service)
        if said == self._wishes.get(key):
            return False
        if said is None:
            del self._wishes[key]
        else:
            self._wishes[key] = said
        return True

    def merged(self, registry: Registry) -> Registry:
        """The registry of the file with the copies in it; the same object where nothing changed."""
        found = copies(self._wishes, registry)
        stopped = {key for key in self._found.targets if key not in found.targets and self._stopped(key)}
        kept = {key for key in self._withdrawn if key not in registry.targets and key not in found.targets}
        withdrawn = frozenset(stopped | (kept.intersection(self._published())))
        self._found, self._withdrawn = found, withdrawn
        last = self._last
        if last is None or last[0] is not registry or last[1] != found or last[2] != withdrawn:
            last = self._last = (registry, found, withdrawn, merge(registry, found, withdrawn))
        return last[3]

    def _stopped(self, key: TargetKey) -> bool:
        """Whether the Service itself takes its wish back, rather than the registry its leave."""
        said = self._wishes.get(key)
        return said is None or said.enabled != YES
