"""Stores of the hub cluster's Services and slices, updated from lists, watch events and our own writes.

Updates of a slice come from a reflector and from the writer in any order; the newest one counts. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from hub.model import Conditions, Endpoint, ObjectKey, Service, Slice, TargetKey
from hub.runtime.recent import Recent

log = logging.getLogger(__name__)

POOLED = 50_000
"""Recently used endpoints that new ones are compared with, to share equal ones: as many as the largest fleet in the
benchmarks has."""

NO_SLICES: Mapping[str, Slice] = {}


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer; versions of one API server compare as numbers (KEP-5504).

    If one of them is not a number, every different version counts as newer.
    """
    try:
        return int(version) > int(than)
    except ValueError:
        return version != than


def _is_thin(value: Slice) -> bool:
    """Whether a slice is thin: its endpoints have no address, which the API requires of every endpoint."""
    return bool(value.endpoints) and not value.endpoints[0].addresses


class Reading(NamedTuple):
    """The state of the store when a GET of a slice began.

    Attributes:
        known: the slice; None if it was not known.
        seen: the newest resourceVersion from list and watch.
    """

    known: Slice | None
    seen: str


class SliceStore:
    """Our slices by target. Slices share equal endpoints, to save memory.

    Args:
        on_change: called with a target whose slices changed.
        whole: returns whether the slices of a target are kept whole. The others, which another replica writes, are
            thin: only number and conditions of their endpoints are kept. None = all are kept whole.

    Attributes:
        lists: complete lists so far.
    """

    def __init__(
        self, on_change: Callable[[TargetKey], None], whole: Callable[[TargetKey], bool] | None = None
    ) -> None:
        self._on_change = on_change
        self._whole = whole
        self._thin: set[ObjectKey] = set()
        """Keys of the thin slices."""
        self._blank: dict[Conditions, Endpoint] = {}
        """The shared endpoints of thin slices, by their conditions."""
        self._by_target: dict[TargetKey, dict[str, Slice]] = {}
        self._by_key: dict[ObjectKey, Slice] = {}
        self._deleted_uids: set[str] = set()
        """uids of slices that this process deleted, until the watch or a list confirms it."""
        self._deferred: dict[ObjectKey, list[Callable[[], None]]] = {}
        """Slices with a write under way -> watch events that wait until it ends."""
        self._pool: Recent[Endpoint, Endpoint] = Recent(POOLED)
        self._listed = ""
        """resourceVersion of the last list: an older object is in the list, or was deleted before it."""
        self._seen = ""
        """The newest resourceVersion from list and watch."""
        self.lists = 0

    def of(self, target: TargetKey) -> Mapping[str, Slice]:
        """The slices of a target, by name."""
        return self._by_target.get(target, NO_SLICES)

    def targets(self) -> Iterable[TargetKey]:
        """All targets that have slices of ours."""
        return self._by_target.keys()

    def thin(self, target: TargetKey) -> list[ObjectKey]:
        """Keys of the thin slices of a target, which must be read before a decision about it."""
        if not self._thin:
            return []
        keys = (ObjectKey(slice_.namespace, slice_.name) for slice_ in self.of(target).values())
        return [key for key in keys if key in self._thin]

    def thin_out(self) -> None:
        """Drop the endpoints of slices that this process no longer writes."""
        if self._whole is None:
            return
        for key, value in list(self._by_key.items()):
            if key not in self._thin and not self._keeps(value):
                self._put(key, self._pooled(value))
        self._pool = Recent(POOLED)

    def shrink_page(self, page: dict[Any, Slice]) -> dict[Any, Slice]:
        """Prepare a page of a list for ``replace``: thin out other replicas' slices, and share equal endpoints.

        The reflector calls this for every page: a whole list is the hub's largest object and would take longest.
        """
        return {key: value if value is self._by_key.get(key) else self._leaned(value) for key, value in page.items()}

    def stored_at_version(self, key: ObjectKey, resource_version: str, listed: str) -> Slice | None:
        """The slice if it is stored with this resourceVersion; ``listed`` is the resourceVersion of the list.

        Also None if the list is older than the last watch event: a restored etcd uses versions a second time. May be
        called in a thread, where large pages are decoded.
        """
        known = self._by_key.get(key)
        if known is None or known.resource_version != resource_version or self._ahead_of(listed):
            return None
        return known

    def get(self, key: ObjectKey) -> Slice | None:
        """One slice."""
        return self._by_key.get(key)

    def values(self) -> Iterable[Slice]:
        """All slices."""
        return self._by_key.values()

    def items(self) -> Iterable[tuple[ObjectKey, Slice]]:
        """All slices by key."""
        return self._by_key.items()

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    # --- the reflector's side --------------------------------------------------------------------

    def replace(self, objects: dict[Any, Slice], resource_version: str) -> None:
        """Apply a complete list, prepared by ``lean``; slices that this process wrote after the list was taken stay.

        A list that is older than the last watch event comes from an etcd that was restored from a backup. Then the
        list replaces everything, regardless of versions.
        """
        self.lists += 1
        old = self._by_key
        if self._ahead_of(resource_version):
            log.warning(
                "hub cluster: its resourceVersions went backwards (a restored etcd?); comparing all slices again"
            )
            old = {}
            self._deleted_uids.clear()
            gone = {value.target for key, value in self._by_key.items() if key not in objects}
        else:
            for key, value in old.items():
                if key not in objects and newer(value.resource_version, resource_version):
                    objects[key] = value
            self._deleted_uids &= {value.uid for value in objects.values()}
            gone = {value.target for key, value in old.items() if key not in objects}
        self._listed = self._seen = resource_version
        self._by_key, self._by_target = {}, {}
        changed: set[TargetKey] = gone
        for key, value in objects.items():
            known = old.get(key)
            if known is not None and not newer(value.resource_version, known.resource_version):
                self._put(key, known)
            elif value.uid not in self._deleted_uids:
                self._put(key, self._note_thin(key, value))
                changed.add(value.target)
        self._thin.intersection_update(self._by_key)
        self._notify(changed)

    def knows(self, key: Any, resource_version: str) -> bool:
        """Whether a watch event is the echo of our own last write."""
        self._note(resource_version)
        known = self._by_key.get(key)
        return known is not None and known.resource_version == resource_version

    def defers(self, key: Any, again: Callable[[], None]) -> bool:
        """Whether a watch event must wait for a write under way, since its echo may come before its answer.

        Args:
            key: key of the slice.
            again: handles the event; called when the write has ended.
        """
        waiting = self._deferred.get(key)
        if waiting is None:
            return False
        waiting.append(again)
        return True

    def upsert(self, key: Any, value: Slice, resource_version: str) -> None:
        """Apply a watch event: a slice is new or changed, by this process or by another client."""
        self._note(resource_version)
        known = self._by_key.get(key)
        if self._listed and not newer(resource_version, self._listed):
            return  # the event waited for a write, and a newer list arrived meanwhile
        if value.uid in self._deleted_uids or (
            known is not None and not newer(resource_version, known.resource_version)
        ):
            return
        value = self._pooled(value)
        self._put(key, value)
        self._notify({value.target} if known is None else {value.target, known.target})

    def delete(self, key: Any, value: Slice, resource_version: str) -> None:
        """Apply a watch event: a slice was deleted."""
        self._note(resource_version)
        self._deleted_uids.discard(value.uid)
        if self._listed and not newer(resource_version, self._listed):
            return  # as in upsert: a newer list arrived meanwhile
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._drop(key)
            self._notify({known.target})

    # --- the writer's side -----------------------------------------------------------------------

    @contextmanager
    def writing(self, key: ObjectKey) -> Iterator[None]:
        """Defer watch events on this slice until its write has succeeded or failed."""
        self._deferred[key] = []
        try:
            yield
        finally:
            for again in self._deferred.pop(key):
                again()

    def wrote(self, value: Slice) -> None:
        """Store a slice that the server has accepted; ``value`` has the uid and resourceVersion of the answer."""
        key = ObjectKey(value.namespace, value.name)
        known = self._by_key.get(key)
        # The version is unchanged if a webhook or the server undid the write. The slice is stored nevertheless, so that
        # the hub does not plan the write again.
        stays = known is not None and (known.uid, known.resource_version) == (value.uid, value.resource_version)
        if not stays and self._listed and not newer(value.resource_version, self._listed):
            return  # a newer list arrived meanwhile and shows the result
        self._thin.discard(key)
        self._put(key, value)

    def deleted(self, value: Slice) -> None:
        """Remove a slice that this process has deleted; the watch may have removed it already."""
        key = ObjectKey(value.namespace, value.name)
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._deleted_uids.add(value.uid)
            self._drop(key)

    def reading(self, key: ObjectKey) -> Reading:
        """The present state, for :meth:`read`; call it before the GET of a slice."""
        return Reading(self._by_key.get(key), self._seen)

    def read(self, key: ObjectKey, value: Slice | None, before: Reading) -> None:
        """Store the result of a GET, unless a watch event that came meanwhile is newer.

        Args:
            key: key of the slice.
            value: the slice; None = it does not exist.
            before: the result of :meth:`reading` when the GET began.
        """
        known = self._by_key.get(key)
        if known is not None and known is not before.known:
            if value is None or not newer(value.resource_version, known.resource_version):
                return  # the watch was faster
        elif known is None and value is not None and value.uid not in self._deleted_uids:
            # Whether the watch reports this version, or a later one, after the GET began.
            reported = before.known is not None or (bool(before.seen) and newer(value.resource_version, before.seen))
            if reported and self._ahead_of(value.resource_version):
                return  # the watch has shown the deletion of the slice meanwhile
        if value is None:
            if known is not None:
                self._drop(key)
        else:
            self._put(key, self._pooled(value))

    # --- inside ----------------------------------------------------------------------------------

    def _ahead_of(self, listed: str) -> bool:
        """Whether a newer version than this one has been seen."""
        return bool(self._seen) and newer(self._seen, listed)

    def _note(self, version: str) -> None:
        if not self._seen or newer(version, self._seen):
            self._seen = version

    def _put(self, key: ObjectKey, value: Slice) -> None:
        old = self._by_key.get(key)
        if old is not None and old.target != value.target:
            self._drop(key)
        self._by_key[key] = value
        self._by_target.setdefault(value.target, {})[value.name] = value

    def _drop(self, key: ObjectKey) -> None:
        self._thin.discard(key)
        value = self._by_key.pop(key)
        slices = self._by_target[value.target]
        del slices[value.name]
        if not slices:
            del self._by_target[value.target]

    def _pooled(self, value: Slice) -> Slice:
        return self._note_thin(ObjectKey(value.namespace, value.name), self._leaned(value))

    def _leaned(self, value: Slice) -> Slice:
        """The slice as it is kept: thin, or with shared endpoints."""
        if _is_thin(value) or not self._keeps(value):
            return self._thinned(value)
        pool = self._pool
        return msgspec.structs.replace(
            value, endpoints=tuple([pool.get(endpoint) or pool.put(endpoint, endpoint) for endpoint in value.endpoints])
        )

    def _note_thin(self, key: ObjectKey, value: Slice) -> Slice:
        """Note whether the slice is thin, and return it as it is kept."""
        if _is_thin(value) or not self._keeps(value):
            self._thin.add(key)
            return value if _is_thin(value) else self._thinned(value)
        self._thin.discard(key)
        return value

    def _keeps(self, value: Slice) -> bool:
        return self._whole is None or self._whole(value.target)

    def _thinned(self, value: Slice) -> Slice:
        """The slice with number and conditions of its endpoints only; reading an address raises IndexError."""
        blank = self._blank
        plain = [
            blank.setdefault(endpoint.conditions, Endpoint((), endpoint.conditions)) for endpoint in value.endpoints
        ]
        return msgspec.structs.replace(value, endpoints=tuple(plain))

    def _notify(self, targets: Iterable[TargetKey]) -> None:
        for target in targets:
            self._on_change(target)


class ServiceStore:
    """Services of the hub cluster by key.

    Args:
        on_change: called with the key of a Service that is new, changed or deleted.

    Attributes:
        lists: complete lists so far.
    """

    def __init__(self, on_change: Callable[[TargetKey], None]) -> None:
        self._on_change = on_change
        self._services: dict[TargetKey, Service] = {}
        self.lists = 0

    def get(self, target: TargetKey) -> Service | None:
        """One Service."""
        return self._services.get(target)

    def replace(self, objects: dict[Any, Service], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a complete list."""
        self.lists += 1
        old = self._services
        self._services = {
            TargetKey(*key): kept if (kept := old.get(TargetKey(*key))) == value else value
            for key, value in objects.items()
        }
        for key in old.keys() | self._services.keys():
            if old.get(key) is not self._services.get(key):
                self._on_change(key)

    def upsert(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: a Service is new or changed."""
        target = TargetKey(*key)
        old = self._services.get(target)
        self._services[target] = value
        if old is None or msgspec.structs.replace(old, resource_version="") != msgspec.structs.replace(
            value, resource_version=""
        ):
            self._on_change(target)

    def delete(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: a Service was deleted."""
        if self._services.pop(TargetKey(*key), None) is not None:
            self._on_change(TargetKey(*key))
