"""Adds the copies that Services ask for by annotation to the registry, and follows changes.

:mod:`hub.registry.copies.annotations` decides. This module keeps the annotations of each Service, and remembers which
Services no longer ask for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hub.model import Service, TargetKey
from hub.registry.copies.annotations import YES, Copies, CopyRequest, copies, copy_request, merge
from hub.registry.spec import Registry


class Copying:
    """The copies that Services of the hub cluster ask for.

    Args:
        published: returns the targets for which this hub has slices.
    """

    def __init__(self, published: Callable[[], Iterable[TargetKey]]) -> None:
        self._published = published
        self._requests: dict[TargetKey, CopyRequest] = {}
        self._found = Copies()
        self._withdrawn: frozenset[TargetKey] = frozenset()
        self._last: tuple[Registry, Copies, frozenset[TargetKey], Registry] | None = None

    def note(self, key: TargetKey, service: Service | None) -> bool:
        """Store a Service's copy annotations; returns whether they have changed. ``service`` None = it was deleted."""
        request = copy_request(service)
        if request == self._requests.get(key):
            return False
        if request is None:
            del self._requests[key]
        else:
            self._requests[key] = request
        return True

    def merged(self, registry: Registry) -> Registry:
        """The file's registry with the copies added; the same object as at the last call if nothing changed.

        A Service that no longer asks for a copy is listed as withdrawn until its slices are gone.
        """
        found = copies(self._requests, registry)
        stopped = {key for key in self._found.targets if key not in found.targets and self._stopped(key)}
        kept = {key for key in self._withdrawn if key not in registry.targets and key not in found.targets}
        withdrawn = frozenset(stopped | (kept.intersection(self._published())))
        self._found, self._withdrawn = found, withdrawn
        last = self._last
        if last is None or last[0] is not registry or last[1] != found or last[2] != withdrawn:
            last = self._last = (registry, found, withdrawn, merge(registry, found, withdrawn))
        return last[3]

    def _stopped(self, key: TargetKey) -> bool:
        """Whether a copy ended since its Service no longer asks for it; else the registry no longer allows it."""
        request = self._requests.get(key)
        return request is None or request.enabled != YES
