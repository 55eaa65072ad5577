"""What all followed clusters say, joined Service by Service; whoever listens hears of each Service that changed.

A Service is joined anew when something of it changed, never all of them at once in one go of the event loop.
Clusters that give no answers keep what they said; only a complete answer takes something away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hub.model import ObjectKey, Service, Slice
from hub.views.join import Views, views_of

ALL = ""
"""Stands for all namespaces."""
AT_ONCE = 200
"""Services joined in one go of the event loop: 200 with 10 endpoints each take 10 ms."""


class Owner(NamedTuple):
    """A Service of a cluster."""

    cluster: str
    namespace: str
    service: str


Listener = Callable[[Owner, Views], None]
"""Called in the event loop with a Service and all of its views as they are now; none = it has none any more."""
Chooses = Callable[[str, Service], bool]


class Content:
    """What one cluster said last.

    Args:
        on_change: called with Services (by key) whose join may have changed.
        namespaces: the only ones that are followed, each by itself; empty = all, with one watch.
    """

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None], namespaces: Iterable[str] = ()) -> None:
        parts = tuple(namespaces) or (ALL,)
        self.services = {each: ServicesStore(on_change) for each in parts}
        self.slices = {each: SlicesStore(on_change) for each in parts}
        self.stale = False
        self.joined = False
        """It was complete when something changed: from then on only what changes is joined."""

    @property
    def complete(self) -> bool:
        """Everything was listed at some time."""
        services = all(each.lists > 0 for each in self.services.values())
        return services and all(each.lists > 0 for each in self.slices.values())

    def keys(self) -> Iterable[ObjectKey]:
        """Of all Services."""
        return [key for each in self.services.values() for key in each.by_key]

    def service(self, key: ObjectKey) -> Service | None:
        """One Service."""
        part = self.services.get(ALL) or self.services.get(key.namespace)
        return part.by_key.get(key) if part is not None else None

    def slices_of(self, key: ObjectKey) -> Iterable[Slice]:
        """Those of one Service."""
        part = self.slices.get(ALL) or self.slices.get(key.namespace)
        return part.of(key) if part is not None else ()


class ServicesStore:
    """Services by key."""

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None]) -> None:
        self._on_change = on_change
        self.by_key: dict[ObjectKey, Service] = {}
        self.lists = 0

    def replace(self, objects: dict[Any, Service], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
        concerned = self.by_key.keys() | objects.keys()
        self.lists += 1
        self.by_key = objects
        self._on_change(concerned)

    def upsert(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """New or changed."""
        self.by_key[key] = value
        self._on_change((key,))

    def delete(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Gone."""
        if self.by_key.pop(key, None) is not None:
            self._on_change((key,))


class SlicesStore:
    """Slices by their Service's key and their own."""

    def __init__(self, on_change: Callable[[Iterable[ObjectKey]], None]) -> None:
        self._on_change = on_change
        self._by_key: dict[ObjectKey, Slice] = {}
        self._of: dict[ObjectKey, dict[ObjectKey, Slice]] = {}
        self.lists = 0

    def of(self, service: ObjectKey) -> Iterable[Slice]:
        """Those of one Service."""
        return self._of.get(service, {}).values()

    def replace(self, objects: dict[Any, Slice], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
        before = self._of.keys()
        self.lists += 1
        self._by_key, self._of = {}, {}
        for key, value in objects.items():
            self._put(key, value)
        self._on_change(before | self._of.keys())

    def upsert(self, key: Any, value: Slice, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """New or changed, and perhaps of another Service than before."""
        concerned = {ObjectKey(*value.target)}
        if (dropped := self._drop(key)) is not None:
            concerned.add(dropped)
        self._put(key, value)
        self._on_change(concerned)

    def delete(self, key: Any, value: Slice, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Gone."""
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
    """All views.

    Args:
        chooses: whether a Service of a cluster has views.
        namespaces: by cluster, the only ones that are followed; all of a cluster that is not in here.
    """

    def __init__(self, chooses: Chooses, namespaces: Mapping[str, Iterable[str]] | None = None) -> None:
        self._chooses = chooses
        self._namespaces = namespaces or {}
        self._clusters: dict[str, Content] = {}
        self._views: dict[Owner, Views] = {}
        self._listeners: list[Listener] = []
        self._dirty: dict[Owner, None] = {}
        self._scheduled: asyncio.Handle | None = None

    @property
    def views(self) -> Mapping[Owner, Views]:
        """Everything that is known, by Service; without Services that have no views."""
        return self._views

    def cluster(self, name: str) -> Content:
        """What a cluster says; it is followed from the first asking."""
        if name not in self._clusters:
            self._clusters[name] = Content(lambda keys: self._touch(name, keys), self._namespaces.get(name, ()))
        return self._clusters[name]

    def forget(self, name: str) -> None:
        """A cluster is not asked for any more: what it said goes."""
        self._clusters.pop(name, None)
        self._mark(owner for owner in self._views if owner.cluster == name)

    def choose(self, chooses: Chooses) -> None:
        """Other Services than before have views."""
        self._chooses = chooses
        for name, content in self._clusters.items():
            self._touch(name, content.keys())

    def mark_stale(self, name: str, *, stale: bool) -> None:
        """A cluster gives no answers, or gives them again."""
        content = self._clusters.get(name)
        if content is not None and content.stale != stale:
            content.stale = stale
            self._mark([owner for owner in self._views if owner.cluster == name])

    def listen(self, listener: Listener) -> None:
        """Tell of everything there is, and from now on of each Service that changes."""
        self._listeners.append(listener)
        for owner, views in self._views.items():
            listener(owner, views)

    def unlisten(self, listener: Listener) -> None:
        """Tell no more."""
        self._listeners.remove(listener)

    @property
    def idle(self) -> bool:
        """Everything that clusters said has been joined."""
        return not self._dirty

    def _touch(self, cluster: str, keys: Iterable[ObjectKey]) -> None:
        content = self._clusters.get(cluster)  # one that was forgotten may still be ending
        if content is not None and content.complete:
            everything = () if content.joined else content.keys()
            content.joined = True
            self._mark(Owner(cluster, *key) for key in (*keys, *everything))

    def _mark(self, owners: Iterable[Owner]) -> None:
        self._dirty.update(dict.fromkeys(owners))
        if self._dirty and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = None
        self._join()
        if self._dirty and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._go_on)

    def _join(self) -> None:
        for owner in list(self._dirty)[:AT_ONCE]:
            del self._dirty[owner]
            views = self._of(owner)
            if views == self._views.get(owner, {}):
                continue
            if views:
                self._views[owner] = views
            else:
                del self._views[owner]
            for listener in self._listeners:
                listener(owner, views)

    def _of(self, owner: Owner) -> Views:
        content = self._clusters.get(owner.cluster)
        if content is None:
            return {}
        key = ObjectKey(owner.namespace, owner.service)
        service = content.service(key)
        if service is None or not self._chooses(owner.cluster, service):
            return {}
        return views_of(owner.cluster, service, content.slices_of(key), stale=content.stale)
