"""Sets of endpoints: the wanted ones, the ones that slices hold, and the differences between them.

Many Services publish the same thousand endpoints of a cluster, so these values are shared, and each caches results of
earlier comparisons: whether a slice holds only wanted endpoints, how a group differs from the wanted endpoints, and
what a set becomes with a few changes. The caches only save work: an equal copy of a value gives an equal result. No
other module compares endpoints by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_, is_not
from typing import Any, Final, NamedTuple, NoReturn
from weakref import WeakValueDictionary, ref

import msgspec

from hub.model import Endpoint, Port, Slice

RECENT: Final = 4
"""Cached results per value: the Services of a cluster seldom want more than this many variants of it."""
NAMES: Final = 1 << 14
"""Slice names whose number is cached; only limits the memory."""


class GroupKey(NamedTuple):
    """The unit of the guard and of packing inside a target: one source cluster and one address family."""

    cluster: str
    family: str


class EndpointSet(dict[str, Endpoint]):
    """Endpoints by address. Immutable; may refer to the set that it was derived from.

    Args:
        content: the endpoints.
        parent: the set that this one was derived from.
        changed: the addresses in which the two may differ.
    """

    __slots__ = ("__weakref__", "_changed", "_overlays", "_parent")

    def __init__(
        self,
        content: Mapping[str, Endpoint] | Iterable[tuple[str, Endpoint]] = (),
        parent: EndpointSet | None = None,
        changed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(content)
        self._parent = None if parent is None else ref(parent)
        self._changed = changed
        self._overlays: tuple[tuple[Mapping[str, Endpoint | None], EndpointSet], ...] = ()

    @staticmethod
    def of(content: Mapping[str, Endpoint]) -> EndpointSet:
        """Convert a mapping to an EndpointSet; an EndpointSet is returned as is."""
        return content if isinstance(content, EndpointSet) else EndpointSet(content)

    def changed_since(self, other: Mapping[str, Endpoint]) -> frozenset[str]:
        """The addresses in which this set may differ from another one; at all other addresses the two are equal."""
        if self is other:
            return frozenset()
        if self._parent is not None and self._parent() is other:
            return self._changed
        changed = compress(self, map(is_not, self.values(), map(other.get, self)))
        return frozenset(changed) | (other.keys() - self.keys())

    def keeps(self, addresses: Iterable[str], parent: Mapping[str, Endpoint]) -> bool:
        """Whether this set was derived from ``parent`` and certainly has the same endpoints at ``addresses``."""
        return self._parent is not None and self._parent() is parent and self._changed.isdisjoint(addresses)

    def overlay(self, changes: Mapping[str, Endpoint | None]) -> EndpointSet:
        """The set with endpoints added, replaced or (if None) removed; the set itself if nothing changes."""
        changes = {address: endpoint for address, endpoint in changes.items() if self.get(address) != endpoint}
        if not changes:
            return self
        for known, made in self._overlays:
            if known == changes:
                return made
        content = {**self, **{address: endpoint for address, endpoint in changes.items() if endpoint is not None}}
        for address, endpoint in changes.items():
            if endpoint is None:
                del content[address]
        made = EndpointSet(content, self, frozenset(changes))
        self._overlays = ((changes, made), *self._overlays[: RECENT - 1])
        return made

    def without(self, addresses: Iterable[str]) -> EndpointSet:
        """The set without some addresses."""
        return self.overlay(dict.fromkeys(addresses))

    def __hash__(self) -> int:  # type: ignore[override]  # immutable, unlike a dict
        return hash(frozenset(self))

    def _immutable(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("an EndpointSet does not change")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _immutable


EMPTY: Final = EndpointSet()


class SliceContent:
    """The endpoints of a slice, prepared for comparison. Slices with equal endpoints share one object.

    Attributes:
        addresses: the endpoints' addresses, in the slice's order.
        endpoints: equal to the slice's endpoints. They are replaced by equal shared objects once those are known, which
            makes comparisons almost free.
        draining: number of terminating endpoints.
        duplicates: whether an address appears twice.
    """

    __slots__ = ("__weakref__", "_held", "_next", "addresses", "draining", "duplicates", "endpoints")

    def __init__(self, endpoints: tuple[Endpoint, ...], before: SliceContent | None = None) -> None:
        self.endpoints = endpoints
        self._held: Mapping[str, Endpoint] | None = None
        """The last compared mapping that contained all these endpoints."""
        self._next: tuple[tuple[Endpoint, ...], ...] = ()
        """Recent results of :meth:`intern`, newest first."""
        self.addresses: tuple[str, ...]
        self.draining: int
        self.duplicates: bool
        if before is not None and (draining := _draining(before, endpoints)) is not None:
            self.addresses, self.draining, self.duplicates = before.addresses, draining, before.duplicates
            return
        self.addresses = tuple([endpoint.addresses[0] if endpoint.addresses else "" for endpoint in endpoints])
        self.draining = sum([bool(endpoint.conditions.terminating) for endpoint in endpoints])
        self.duplicates = len(set(self.addresses)) < len(self.addresses)

    @staticmethod
    def of(endpoints: tuple[Endpoint, ...], before: SliceContent | None = None) -> SliceContent:
        """The shared content object for these endpoints.

        Args:
            endpoints: the endpoints of a slice.
            before: the slice's previous content; saves work for endpoints that did not change.
        """
        if before is not None and before.endpoints == endpoints:
            return before
        made = SliceContent(endpoints, before)
        known = _contents.get(made.addresses)
        if known is not None and known.endpoints == endpoints:
            return known
        _contents[made.addresses] = made
        return made

    def holds(self, wanted: Mapping[str, Endpoint]) -> bool:
        """Whether ``wanted`` contains all these endpoints unchanged."""
        if self._held is wanted:
            return True
        held = self._held
        if held is not None and isinstance(wanted, EndpointSet) and wanted.keeps(self.addresses, held):
            self._held = wanted
            return True
        found: tuple[Endpoint | None, ...] = tuple(map(wanted.get, self.addresses))
        if found != self.endpoints:
            return False
        self.endpoints = found  # type: ignore[assignment]  # equal, so there is no None in it
        self._held = wanted
        return True

    def kept(self, wanted: Mapping[str, Endpoint]) -> tuple[Endpoint, ...]:
        """The wanted endpoints for the addresses in the slice, in the slice's order.

        Returns ``endpoints`` itself if the slice need not change.
        """
        if self.holds(wanted):
            return self.endpoints
        return self.intern(tuple([endpoint for endpoint in map(wanted.get, self.addresses) if endpoint is not None]))

    def intern(self, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """Return the equal object from an earlier call if there is one, so that slices of many Services share it."""
        for known in self._next:
            if known == endpoints:
                return known
        self._next = (endpoints, *self._next[: RECENT - 1])
        return endpoints


_contents: Final[WeakValueDictionary[tuple[str, ...], SliceContent]] = WeakValueDictionary()
"""All contents in use, by their addresses."""


def _draining(before: SliceContent, endpoints: tuple[Endpoint, ...]) -> int | None:
    """The number of terminating endpoints; None if the addresses differ from those of ``before``."""
    if len(endpoints) != len(before.endpoints):
        return None
    draining = before.draining
    others = map(is_not, before.endpoints, endpoints)
    for was, now in compress(zip(before.endpoints, endpoints, strict=True), others):
        if was.addresses[:1] != now.addresses[:1]:
            return None
        draining += bool(now.conditions.terminating) - bool(was.conditions.terminating)
    return draining


class PublishedSlice(msgspec.Struct, frozen=True):
    """One observed slice of ours, with its content prepared for comparison."""

    slice: Slice
    content: SliceContent

    @property
    def addresses(self) -> tuple[str, ...]:
        """The endpoints' addresses, in the slice's order."""
        return self.content.addresses

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Equal to ``slice.endpoints``."""
        return self.content.endpoints


def prepare(observed: Slice, before: PublishedSlice | None = None) -> PublishedSlice:
    """Prepare a slice for comparison; ``before`` is its previous version, which saves work if little changed."""
    return PublishedSlice(observed, SliceContent.of(observed.endpoints, before.content if before is not None else None))


class Difference(msgspec.Struct, frozen=True):
    """The difference between published and wanted endpoints.

    Attributes:
        removed: address -> published endpoint, for addresses that are not wanted.
        changed: address -> (published endpoint, wanted endpoint).
        added: wanted addresses that are not published, sorted.
    """

    removed: Mapping[str, Endpoint]
    changed: Mapping[str, tuple[Endpoint, Endpoint]]
    added: tuple[str, ...]


class _Contents:
    """The contents of a group's slices. Groups with equal contents share one object.

    Attributes:
        members: the content of each slice, in the order of the slices.
        duplicates: whether an address appears twice in the group.

    Args:
        before: the group's previous contents; saves work for addresses that stayed.
    """

    __slots__ = ("__weakref__", "_compared", "_endpoints", "duplicates", "members")

    def __init__(self, members: tuple[SliceContent, ...], before: _Contents | None = None) -> None:
        self.members = members
        self.duplicates: bool = _has_duplicates(members, () if before is None or before.duplicates else before.members)
        self._endpoints: ref[EndpointSet] | None = None
        self._compared: tuple[tuple[Mapping[str, Endpoint], Difference], ...] = ()

    @property
    def endpoints(self) -> EndpointSet:
        """All endpoints by address, in the order of the slices; the first of duplicates.

        Cached only while a caller uses the set, because the sets of all groups of a fleet would take too much memory.
        """
        known = self._endpoints() if self._endpoints is not None else None
        if known is None:
            known = EndpointSet(by_address(self.members))
            self._endpoints = ref(known)
        return known

    def difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare with the wanted endpoints."""
        for known, found in self._compared:
            if known is wanted:
                return found
        found = self._difference(wanted)
        self._compared = ((wanted, found), *self._compared[:1])
        return found

    def _difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare slice by slice: a slice whose endpoints are all wanted unchanged costs 3 µs per 100 endpoints."""
        removed: dict[str, Endpoint] = {}
        changed: dict[str, tuple[Endpoint, Endpoint]] = {}
        present = 0
        for content in self.members:
            if content.holds(wanted):
                present += len(content.addresses)
                continue
            found = tuple(map(wanted.get, content.addresses))
            present += len(found) - found.count(None)
            differ = map(is_not, found, content.endpoints)
            for address, before, after in compress(
                zip(content.addresses, content.endpoints, found, strict=True), differ
            ):
                if after is None:
                    removed.setdefault(address, before)
                elif after != before:
                    changed.setdefault(address, (before, after))
        if present == len(wanted) and not self.duplicates:
            return Difference(removed, changed, ())
        added = set(wanted).difference(*[content.addresses for content in self.members])
        return Difference(removed, changed, tuple(sorted(added)))


_groups: Final[WeakValueDictionary[tuple[SliceContent, ...], _Contents]] = WeakValueDictionary()
"""All group contents in use, by the contents of their slices."""


class Published:
    """The published slices of one group.

    Attributes:
        slices: lowest-numbered first.
        contents: the contents of the slices.

    Args:
        before: the group's previous slices; saves work for addresses that stayed.
    """

    __slots__ = ("contents", "slices")

    def __init__(self, slices: tuple[PublishedSlice, ...] = (), before: Published | None = None) -> None:
        self.slices = slices
        members = tuple([slice_.content for slice_ in slices])
        known = _groups.get(members)
        if known is None:
            known = _groups[members] = _Contents(members, before.contents if before is not None else None)
        self.contents: _Contents = known

    @property
    def duplicates(self) -> bool:
        """Whether an address appears twice in the group."""
        return self.contents.duplicates

    @property
    def endpoints(self) -> EndpointSet:
        """All endpoints by address, in the order of the slices; the first of duplicates."""
        return self.contents.endpoints

    def difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare with the wanted endpoints."""
        return self.contents.difference(wanted)

    def __bool__(self) -> bool:
        """Whether any endpoint is published."""
        return any(slice_.addresses for slice_ in self.slices)


def published_groups(
    observed: Sequence[Slice], renames: Mapping[str, str], before: Mapping[GroupKey, Published]
) -> Mapping[GroupKey, Published]:
    """Group the observed slices of one target by source cluster and family.

    Args:
        observed: slices of ours, in any order; slices that are being deleted are ignored.
        renames: a cluster's former name -> its current name.
        before: the result of the last call; saves work for slices that did not change.
    """
    known = {slice_.slice.name: slice_ for group in before.values() for slice_ in group.slices}
    grouped: dict[GroupKey, list[PublishedSlice]] = {}
    for slice_ in sorted(observed, key=_number):
        if slice_.deleting:
            continue
        entry = known.get(slice_.name)
        if entry is None or entry.slice is not slice_:
            entry = prepare(slice_, entry)
        key = GroupKey(renames.get(slice_.cluster, slice_.cluster), slice_.address_type)
        grouped.setdefault(key, []).append(entry)
    return {key: _group(tuple(slices), before.get(key)) for key, slices in grouped.items()}


def _group(slices: tuple[PublishedSlice, ...], before: Published | None) -> Published:
    if before is not None and len(slices) == len(before.slices) and all(map(is_, slices, before.slices)):
        return before
    return Published(slices, before)


def _number(value: Slice) -> tuple[int, str]:
    return _number_of(value.name)


@lru_cache(NAMES)
def _number_of(name: str) -> tuple[int, str]:
    digits = name.rpartition("-")[2]
    return (int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 1 << 31, name)


def _has_duplicates(members: Sequence[SliceContent], before: Sequence[SliceContent]) -> bool:
    """Whether an address appears twice. None does in ``before``, so only addresses that were added are checked."""
    if any(content.duplicates for content in members):
        return True
    gone = set(before)
    unchanged: list[tuple[str, ...]] = []
    changed: list[tuple[str, ...]] = []
    for content in members:
        if content in gone:
            gone.discard(content)
            unchanged.append(content.addresses)
        else:
            changed.append(content.addresses)
    addresses = set().union(*changed)
    added = addresses.difference(*[content.addresses for content in gone])
    return len(addresses) < sum(map(len, changed)) or not all(map(added.isdisjoint, unchanged if added else ()))


def by_address(holders: Iterable[SliceContent | PublishedSlice]) -> dict[str, Endpoint]:
    """The endpoints of slices by address, in the order of the slices; the first of duplicates."""
    found: dict[str, Endpoint] = {}
    for holder in holders:
        for address, endpoint in zip(holder.addresses, holder.endpoints, strict=True):
            found.setdefault(address, endpoint)
    return found


NOTHING_PUBLISHED: Final = Published()


class EndpointGroup(msgspec.Struct, frozen=True):
    """The wanted and the published endpoints of one source cluster and family of a target.

    Attributes:
        key: cluster (current name) and family.
        endpoints: address -> wanted endpoint. The guard adds endpoints whose removal it withholds.
        ports: wanted ports, sorted.
        port_sets: address -> wanted ports, for endpoints whose ports differ from ``ports``; each port set has its own
            slices.
        slices: published slices, lowest-numbered first.
        duplicates: whether an address is published twice in the group.
        removed: address -> published endpoint, for addresses that are not wanted.
        changed: address -> (published endpoint, wanted endpoint), for endpoints that differ.
        added: wanted addresses that are not published, sorted.
        known: False if the source is unknown.
        filtered: addresses in ``removed`` whose node still exists; the other ones are *gone*.
        exempt: addresses whose removal or change the guard ignores: moves, failover, ``unreachable`` policies, and
            sources or families that the registry dropped.
        drop: whether no empty slice remains, because the source or family is no longer part of the target.
    """

    key: GroupKey
    endpoints: Mapping[str, Endpoint]
    ports: tuple[Port, ...] = ()
    slices: tuple[PublishedSlice, ...] = ()
    duplicates: bool = False
    removed: Mapping[str, Endpoint] = {}
    changed: Mapping[str, tuple[Endpoint, Endpoint]] = {}
    added: tuple[str, ...] = ()
    known: bool = True
    filtered: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()
    drop: bool = False
    port_sets: Mapping[str, tuple[Port, ...]] = {}
