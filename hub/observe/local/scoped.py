"""Presents the stores of several namespaces of the hub cluster as one store.

Each namespace has its own watch and its own lists, so it has its own store: the content and resourceVersion of a list
are valid only for its namespace. Objects of other namespaces are treated as if they did not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import chain

from hub.model import ObjectKey, Service, Slice, TargetKey
from hub.observe.local.stores import Reading, ServiceStore, SliceStore


class SliceStores:
    """Slices of several namespaces, with the methods of :class:`.stores.SliceStore` for readers and writers.

    Args:
        stores: namespace -> store.
        elsewhere: store for all other namespaces; it stays empty.
    """

    def __init__(self, stores: Mapping[str, SliceStore], elsewhere: SliceStore) -> None:
        self._stores = stores
        self._elsewhere = elsewhere

    @property
    def lists(self) -> int:
        """Number of complete lists, of the namespace with the fewest."""
        return min(store.lists for store in self._stores.values())

    def of(self, target: TargetKey) -> Mapping[str, Slice]:
        """The slices of a target, by name."""
        return self._in(target.namespace).of(target)

    def targets(self) -> Iterable[TargetKey]:
        """All targets that have slices of ours."""
        return list(chain.from_iterable(store.targets() for store in self._stores.values()))

    def thin(self, target: TargetKey) -> list[ObjectKey]:
        """See :meth:`hub.observe.local.stores.SliceStore.thin`."""
        return self._in(target.namespace).thin(target)

    def thin_out(self) -> None:
        """See :meth:`hub.observe.local.stores.SliceStore.thin_out`."""
        for store in self._stores.values():
            store.thin_out()

    def get(self, key: ObjectKey) -> Slice | None:
        """One slice."""
        return self._in(key.namespace).get(key)

    def values(self) -> Iterable[Slice]:
        """All slices."""
        return chain.from_iterable(store.values() for store in self._stores.values())

    def items(self) -> Iterable[tuple[ObjectKey, Slice]]:
        """All slices by key."""
        return chain.from_iterable(store.items() for store in self._stores.values())

    def __contains__(self, key: object) -> bool:
        return any(key in store for store in self._stores.values())

    def writing(self, key: ObjectKey) -> AbstractContextManager[None]:
        """See :meth:`hub.observe.local.stores.SliceStore.writing`."""
        return self._in(key.namespace).writing(key)

    def wrote(self, value: Slice) -> None:
        """See :meth:`hub.observe.local.stores.SliceStore.wrote`."""
        self._in(value.namespace).wrote(value)

    def deleted(self, value: Slice) -> None:
        """See :meth:`hub.observe.local.stores.SliceStore.deleted`."""
        self._in(value.namespace).deleted(value)

    def reading(self, key: ObjectKey) -> Reading:
        """See :meth:`hub.observe.local.stores.SliceStore.reading`."""
        return self._in(key.namespace).reading(key)

    def read(self, key: ObjectKey, value: Slice | None, before: Reading) -> None:
        """See :meth:`hub.observe.local.stores.SliceStore.read`."""
        self._in(key.namespace).read(key, value, before)

    def _in(self, namespace: str) -> SliceStore:
        return self._stores.get(namespace, self._elsewhere)


class ServiceStores:
    """Services of several namespaces, with the methods of :class:`hub.observe.local.stores.ServiceStore` for readers.

    Args:
        stores: namespace -> store.
    """

    def __init__(self, stores: Mapping[str, ServiceStore]) -> None:
        self._stores = stores

    @property
    def lists(self) -> int:
        """Number of complete lists, of the namespace with the fewest."""
        return min(store.lists for store in self._stores.values())

    def get(self, target: TargetKey) -> Service | None:
        """One Service."""
        found = self._stores.get(target.namespace)
        return found.get(target) if found is not None else None
