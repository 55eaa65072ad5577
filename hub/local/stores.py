"""What is known of the hub cluster: its Services, and slices, as lists, the watch and our own writes tell.

A store is told by a reflector and by the writer, in any order; what is newest counts. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from sys import getrefcount
from typing import Any, NamedTuple

import msgspec

from hub.model import Conditions, Endpoint, ObjectKey, Service, Slice, TargetKey
from hub.spare import room

log = logging.getLogger(__name__)

NO_SLICES: Mapping[str, Slice] = {}


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer; versions of one API server compare as numbers (KEP-5504)."""
    try:
        return int(version) > int(than)
    except ValueError:
        return version != than


def _is_thin(value: Slice) -> bool:
    """Of a slice of the API every endpoint has an address."""
    return bool(value.endpoints) and not value.endpoints[0].addresses


class Reading(NamedTuple):
    """What was known when a slice began to be read again.

    Attributes:
        known: the slice.
        seen: the latest version that list and watch had brought.
    """

    known: Slice | None
    seen: str


class SliceStore:
    """Our slices by target. Equal endpoints exist once, however many slices hold them.

    Args:
        on_change: called with a target whose slices changed.
        whole: whether the slices of a target are kept as they are; others' endpoints, which another replica writes,
            are only counted. None = all are.
    """

    def __init__(
        self, on_change: Callable[[TargetKey], None], whole: Callable[[TargetKey], bool] | None = None
    ) -> None:
        self._on_change = on_change
        self._whole = whole
        self._thin: set[ObjectKey] = set()
        """Slices of which only the number and the conditions of their endpoints are known."""
        self._blank: dict[Conditions, Endpoint] = {}
        self._by_target: dict[TargetKey, dict[str, Slice]] = {}
        self._by_key: dict[ObjectKey, Slice] = {}
        self._buried: set[str] = set()
        """uids of slices this process deleted, until the watch or a list says so too."""
        self._deferred: dict[ObjectKey, list[Callable[[], None]]] = {}
        """Slices with a write under way -> events on them that wait for its end."""
        self._pool: dict[Endpoint, Endpoint] = {}
        self._pool_room = room(0)
        self._writes = 0
        """Of slices, since the pool was swept: each may have replaced what is in it."""
        self._listed = ""
        """resourceVersion of the last list: whatever is not newer is in it, or was gone by then."""
        self._seen = ""
        """The newest resourceVersion that a list or the watch brought."""
        self.lists = 0

    def of(self, target: TargetKey) -> Mapping[str, Slice]:
        """The slices of a target, by name."""
        return self._by_target.get(target, NO_SLICES)

    def targets(self) -> Iterable[TargetKey]:
        """Every target that has slices of ours."""
        return self._by_target.keys()

    def thin(self, target: TargetKey) -> list[ObjectKey]:
        """Slices of a target that have to be read again before anything is decided."""
        if not self._thin:
            return []
        return [key for each in self.of(target).values() if (key := ObjectKey(each.namespace, each.name)) in self._thin]

    def thin_out(self) -> None:
        """Let go of what is not ours to write any more."""
        if self._whole is None:
            return
        for key, value in list(self._by_key.items()):
            if key not in self._thin and not self._keeps(value):
                self._put(key, self._pooled(value))
        self._pool.clear()

    def lean(self, page: dict[Any, Slice]) -> dict[Any, Slice]:
        """A page of a list as ``replace`` wants it: others' slices thinned out, and equal endpoints the same objects.

        All pages together would be the largest thing there is, and the longest piece of work at once.
        """
        return {key: value if value is self._by_key.get(key) else self._leaned(value) for key, value in page.items()}

    def in_state(self, key: ObjectKey, resource_version: str, listed: str) -> Slice | None:
        """A slice in this very state, if it is here; ``listed`` is the version of the list that names the state.

        None too where that list lies before what the watch has brought: versions of a restored etcd come twice.
        Large pages are read in a thread, so this may be called there.
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
        """A complete list of pages that went through ``lean``; slices this process wrote after it was taken stay.

        A list that is older than what the watch has brought before comes from an etcd restored from a
        backup: then only the list counts, whatever the versions say.
        """
        self.lists += 1
        old = self._by_key
        if self._ahead_of(resource_version):
            log.warning("hub cluster: its history has gone back; everything is compared anew")
            old = {}
            self._buried.clear()
            gone = {value.target for key, value in self._by_key.items() if key not in objects}
        else:
            for key, value in old.items():
                if key not in objects and newer(value.resource_version, resource_version):
                    objects[key] = value
            self._buried &= {value.uid for value in objects.values()}
            gone = {value.target for key, value in old.items() if key not in objects}
        self._listed = self._seen = resource_version
        self._by_key, self._by_target = {}, {}
        changed: set[TargetKey] = gone
        for key, value in objects.items():
            known = old.get(key)
            if known is not None and not newer(value.resource_version, known.resource_version):
                self._put(key, known)
            elif value.uid not in self._buried:
                self._put(key, self._marked(key, value))
                changed.add(value.target)
        self._thin.intersection_update(self._by_key)
        self._notify(changed)

    def knows(self, key: Any, resource_version: str) -> bool:
        """An echo of what this process wrote last."""
        self._note(resource_version)
        known = self._by_key.get(key)
        return known is not None and known.resource_version == resource_version

    def defers(self, key: Any, again: Callable[[], None]) -> bool:
        """While a write is under way, its echo may come before its answer: it is looked at afterwards."""
        waiting = self._deferred.get(key)
        if waiting is None:
            return False
        waiting.append(again)
        return True

    def upsert(self, key: Any, value: Slice, resource_version: str) -> None:
        """A slice is new or changed, by us or by somebody else."""
        self._note(resource_version)
        known = self._by_key.get(key)
        if self._listed and not newer(resource_version, self._listed):
            return  # held back for a write's sake, and a list came in between
        if value.uid in self._buried or (known is not None and not newer(resource_version, known.resource_version)):
            return
        value = self._pooled(value)
        self._put(key, value)
        self._notify({value.target} if known is None else {value.target, known.target})

    def delete(self, key: Any, value: Slice, resource_version: str) -> None:
        """A slice is gone."""
        self._note(resource_version)
        self._buried.discard(value.uid)
        if self._listed and not newer(resource_version, self._listed):
            return  # as in upsert: the list has what came of it
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._drop(key)
            self._notify({known.target})

    # --- the writer's side -----------------------------------------------------------------------

    @contextmanager
    def writing(self, key: ObjectKey) -> Iterator[None]:
        """Hold back events on this slice until its write has ended, one way or the other."""
        self._deferred[key] = []
        try:
            yield
        finally:
            for again in self._deferred.pop(key):
                again()

    def wrote(self, value: Slice) -> None:
        """The server accepted a write; ``value`` has its uid and resourceVersion."""
        key = ObjectKey(value.namespace, value.name)
        known = self._by_key.get(key)
        # The version stays where the write changes nothing: a webhook or the server undid it. It is planned no more.
        stays = known is not None and (known.uid, known.resource_version) == (value.uid, value.resource_version)
        if not stays and self._listed and not newer(value.resource_version, self._listed):
            return  # a list has come since, and knows what became of it
        self._thin.discard(key)
        self._put(key, value)
        self._writes += 1
        if self._writes > room(len(self._pool)) - len(self._pool):
            self._forget_unused()

    def deleted(self, value: Slice) -> None:
        """This process deleted a slice; where it is not known any more, the watch has said so before."""
        key = ObjectKey(value.namespace, value.name)
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._buried.add(value.uid)
            self._drop(key)

    def reading(self, key: ObjectKey) -> Reading:
        """A slice is read again from now on."""
        return Reading(self._by_key.get(key), self._seen)

    def read(self, key: ObjectKey, value: Slice | None, before: Reading) -> None:
        """A slice was read again after a conflict.

        Args:
            key: which.
            value: as it was read; None = it does not exist.
            before: what :meth:`reading` gave when the reading began.
        """
        known = self._by_key.get(key)
        if known is not None and known is not before.known:
            if value is None or not newer(value.resource_version, known.resource_version):
                return  # the watch was faster
        elif known is None and value is not None and value.uid not in self._buried:
            told = before.known is not None or (bool(before.seen) and newer(value.resource_version, before.seen))
            if told and self._ahead_of(value.resource_version):
                return  # the watch brought it, and its end: one that a finalizer holds is buried
        if value is None:
            if known is not None:
                self._drop(key)
        else:
            self._put(key, self._pooled(value))

    # --- inside ----------------------------------------------------------------------------------

    def _ahead_of(self, listed: str) -> bool:
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
        return self._marked(ObjectKey(value.namespace, value.name), self._leaned(value))

    def _leaned(self, value: Slice) -> Slice:
        """Thinned out, or with endpoints that exist once."""
        if _is_thin(value) or not self._keeps(value):
            return self._thinned(value)
        if len(self._pool) > self._pool_room:
            self._forget_unused()
        pool = self._pool
        return msgspec.structs.replace(
            value, endpoints=tuple([pool.setdefault(each, each) for each in value.endpoints])
        )

    def _marked(self, key: ObjectKey, value: Slice) -> Slice:
        """Note whether all of a slice is known that is going to be kept."""
        if _is_thin(value) or not self._keeps(value):
            self._thin.add(key)
            return value if _is_thin(value) else self._thinned(value)
        self._thin.discard(key)
        return value

    def _forget_unused(self) -> None:
        """Drop the endpoints that nobody but the pool holds: otherwise every address there ever was would stay."""
        # Five references are our own: the pool's two, those of its entry and the argument's.
        for each in [entry[0] for entry in self._pool.items() if getrefcount(entry[0]) <= 5]:
            del self._pool[each]
        self._pool_room = room(len(self._pool))
        self._writes = 0

    def _keeps(self, value: Slice) -> bool:
        return self._whole is None or self._whole(value.target)

    def _thinned(self, value: Slice) -> Slice:
        """Endpoints lose everything but their number and their conditions; whoever asks for an address fails."""
        blank = self._blank
        plain = [blank.setdefault(each.conditions, Endpoint((), each.conditions)) for each in value.endpoints]
        return msgspec.structs.replace(value, endpoints=tuple(plain))

    def _notify(self, targets: Iterable[TargetKey]) -> None:
        for target in targets:
            self._on_change(target)


class ServiceStore:
    """Services of the hub cluster by key. Only those somebody asks for are kept whole."""

    def __init__(self, on_change: Callable[[TargetKey], None]) -> None:
        self._on_change = on_change
        self._services: dict[TargetKey, Service] = {}
        self.lists = 0

    def get(self, target: TargetKey) -> Service | None:
        """One Service."""
        return self._services.get(target)

    def replace(self, objects: dict[Any, Service], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
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
        """New or changed."""
        target = TargetKey(*key)
        old = self._services.get(target)
        self._services[target] = value
        if old is None or msgspec.structs.replace(old, resource_version="") != msgspec.structs.replace(
            value, resource_version=""
        ):
            self._on_change(target)

    def delete(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Gone."""
        if self._services.pop(TargetKey(*key), None) is not None:
            self._on_change(TargetKey(*key))
