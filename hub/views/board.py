"""Computes the views of all followed clusters, and calls listeners with every Service whose views changed.

The views of a Service are computed again when it or one of its slices changes, at most :data:`BATCH` Services in one
round of the event loop. While a cluster does not answer, its views stay; only a complete answer removes views.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hub.model import ObjectKey, Service, Slice
from hub.views.join import Views, views_of

ALL = ""
"""Key for all namespaces, when one watch follows them all."""
BATCH = 200
"""Services whose views are computed in one round of the event loop: 200 with 10 endpoints each take 10 ms."""


class Owner(NamedTuple):
    """A Service of a cluster."""

    cluster: str
    namespace: str
    service: str


Listener = Callable[[Owner, Views], None]
"""Called in the event loop with a Service and all of its present views; empty = the Service has no views any more."""
Selects = Callable[[str, Service], bool]
"""Returns whether a Service of a cluster has views."""


class Content:
    """The Services and slices of one cluster.

    Args:
        on_change: called with the keys of Services whose views may have changed.
        namespaces: the only namespaces that are followed, each with its own watch; empty = all, with one watch.

    Attributes:
        stale: whether the cluster does not answer at present.
    """

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None], namespaces: Iterable[str] = ()) -> None:
        parts = tuple(namespaces) or (ALL,)
        self.services = {namespace: ServicesStore(on_change) for namespace in parts}
        self.slices = {namespace: SlicesStore(on_change) for namespace in parts}
        self.stale = False
        self.computed = False
        """Whether the views of all Services have been computed once; later only those of changed Services are."""

    @property
    def complete(self) -> bool:
        """Whether Services and slices have been listed completely at least once."""
        services = all(store.lists > 0 for store in self.services.values())
        return services and all(store.lists > 0 for store in self.slices.values())

    def keys(self) -> Iterable[ObjectKey]:
        """Keys of all Services."""
        return [key for store in self.services.values() for key in store.by_key]

    def service(self, key: ObjectKey) -> Service | None:
        """One Service."""
        part = self.services.get(ALL) or self.services.get(key.namespace)
        return part.by_key.get(key) if part is not None else None

    def slices_of(self, key: ObjectKey) -> Iterable[Slice]:
        """The slices of one Service."""
        part = self.slices.get(ALL) or self.slices.get(key.namespace)
        return part.of(key) if part is not None else ()


class ServicesStore:
    """The Services of one watch, by key; a store of a reflector."""

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None]) -> None:
        self._on_change = on_change
        self.by_key: dict[ObjectKey, Service] = {}
        self.lists = 0

    def replace(self, objects: dict[Any, Service], resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Replace all objects by those of a complete list."""
        concerned = self.by_key.keys() | objects.keys()
        self.lists += 1
        self.by_key = objects
        self._on_change(concerned)

    def upsert(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Add or replace a Service."""
        self.by_key[key] = value
        self._on_change((key,))

    def delete(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Remove an object."""
        if self.by_key.pop(key, None) is not None:
            self._on_change((key,))


class SlicesStore:
    """The slices of one watch, by their Service; a store of a reflector."""

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None]) -> None:
        self._on_change = on_change
        self._by_key: dict[ObjectKey, Slice] = {}
        self._of: dict[ObjectKey, dict[ObjectKey, Slice]] = {}
        self.lists = 0

    def of(self, service: ObjectKey) -> Iterable[Slice]:
        """The slices of one Service."""
        return self._of.get(service, {}).values()

    def replace(self, objects: dict[Any, Slice], resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Replace all objects by those of a complete list."""
        before = self._of.keys()
        self.lists += 1
        self._by_key, self._of = {}, {}
        for key, value in objects.items():
            self._put(key, value)
        self._on_change(before | self._of.keys())

    def upsert(self, key: Any, value: Slice, resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Add or replace a slice, which may have belonged to another Service before."""
        concerned = {ObjectKey(*value.target)}
        if (dropped := self._drop(key)) is not None:
            concerned.add(dropped)
        self._put(key, value)
        self._on_change(concerned)

    def delete(self, key: Any, value: Slice, resource_version: str) -> None:  # noqa: ARG002 - the Store protocol
        """Remove an object."""
        if (dropped := self._drop(key)) is not None:
            self._on_change((dropped,))

    def _put(self, key: ObjectKey, value: Slice) -> None:
        self._by_key[key] = value
        self._of.setdefault(ObjectKey(*value.target), {})[key] = value

    def _drop(self, key: ObjectKey) -> ObjectKey | None:
        value = self._by_key.pop(key, None)
        if value is None:
            return None
        service = ObjectKey(*value.target)
        slices = self._of[service]
        del slices[key]
        if not slices:
            del self._of[service]
        return service


class Board:
    """Computes and keeps all views.

    Args:
        selects: returns whether a Service of a cluster has views.
        namespaces: cluster -> the only namespaces that are followed. All namespaces of other clusters are followed.
    """

    def __init__(self, selects: Selects, namespaces: Mapping[str, Iterable[str]] | None = None) -> None:
        self._selects = selects
        self._namespaces = namespaces or {}
        self._clusters: dict[str, Content] = {}
        self._views: dict[Owner, Views] = {}
        self._listeners: list[Listener] = []
        self._dirty: dict[Owner, None] = {}
        self._scheduled: asyncio.Handle | None = None

    @property
    def views(self) -> Mapping[Owner, Views]:
        """All views, by Service; Services without views are left out."""
        return self._views

    def cluster(self, name: str) -> Content:
        """The content of a cluster, created at the first call."""
        if name not in self._clusters:
            self._clusters[name] = Content(lambda keys: self._touch(name, keys), self._namespaces.get(name, ()))
        return self._clusters[name]

    def forget(self, name: str) -> None:
        """Remove a cluster and its views."""
        self._clusters.pop(name, None)
        self._mark(owner for owner in self._views if owner.cluster == name)

    def set_selector(self, selects: Selects) -> None:
        """Replace the function that selects the Services with views."""
        self._selects = selects
        for name, content in self._clusters.items():
            self._touch(name, content.keys())

    def mark_stale(self, name: str, *, stale: bool) -> None:
        """Record whether a cluster does not answer at present; its views change accordingly."""
        content = self._clusters.get(name)
        if content is not None and content.stale != stale:
            content.stale = stale
            self._mark([owner for owner in self._views if owner.cluster == name])

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with all present views, and from now on with every Service that changes."""
        self._listeners.append(listener)
        for owner, views in self._views.items():
            listener(owner, views)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    @property
    def idle(self) -> bool:
        """Whether all views are up to date with the content of the clusters."""
        return not self._dirty

    def _touch(self, cluster: str, keys: Iterable[ObjectKey]) -> None:
        content = self._clusters.get(cluster)  # None if the cluster was removed and its watch has not ended yet
        if content is not None and content.complete:
            everything = () if content.computed else content.keys()
            content.computed = True
            self._mark(Owner(cluster, *key) for key in (*keys, *everything))

    def _mark(self, owners: Iterable[Owner]) -> None:
        self._dirty.update(dict.fromkeys(owners))
        if self._dirty and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = None
        self._compute_batch()
        if self._dirty and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _compute_batch(self) -> None:
        for owner in list(self._dirty)[:BATCH]:
            del self._dirty[owner]
            views = self._views_of(owner)
            if views == self._views.get(owner, {}):
                continue
            if views:
                self._views[owner] = views
            else:
                del self._views[owner]
            for listener in self._listeners:
                listener(owner, views)

    def _views_of(self, owner: Owner) -> Views:
        content = self._clusters.get(owner.cluster)
        if content is None:
            return {}
        key = ObjectKey(owner.namespace, owner.service)
        service = content.service(key)
        if service is None or not self._selects(owner.cluster, service):
            return {}
        return views_of(owner.cluster, service, content.slices_of(key), stale=content.stale)
