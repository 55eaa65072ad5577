"""What is published, indexed for comparison with what is wanted.

Observed slices come as whole values; what does not change between two passes is not looked at twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import Final
from weakref import WeakValueDictionary, ref

import msgspec

from hub.groups import Content, Endpoints, GroupKey, PublishedSlice, by_address, same_objects
from hub.model import Endpoint, Slice


class Difference(msgspec.Struct, frozen=True):
    """From what is published to what is wanted.

    Attributes:
        removed: address -> as published.
        changed: address -> (published, wanted).
        added: sorted.
    """

    removed: Mapping[str, Endpoint]
    changed: Mapping[str, tuple[Endpoint, Endpoint]]
    added: tuple[str, ...]


class Contents:
    """What the slices of a group hold, in their order: one for all groups that hold the very same.

    Attributes:
        members: of each slice.
        duplicates: an address appears twice among them.

    Args:
        before: what the group held before, to spare a look at addresses that stayed.
    """

    __slots__ = ("__weakref__", "_compared", "_endpoints", "duplicates", "members")

    def __init__(self, members: tuple[Content, ...] = (), before: Contents | None = None) -> None:
        self.members = members
        self.duplicates: bool = _repeats(members, () if before is None or before.duplicates else before.members)
        self._endpoints: ref[Endpoints] | None = None
        self._compared: tuple[Mapping[str, Endpoint], Difference] | None = None

    @staticmethod
    def of(members: tuple[Content, ...], before: Contents | None = None) -> Contents:
        """Those of these very members; arguments as the class's."""
        key = tuple(map(id, members))
        known = _known.get(key)
        if known is None:
            known = _known[key] = Contents(members, before)
        return known

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Everything in them by address, in their order; the first of duplicates.

        Known for as long as somebody has it, as long as nothing is known of a source, say: each of a fleet's groups
        would keep it for ever otherwise.
        """
        known = self._endpoints() if self._endpoints is not None else None
        if known is None:
            known = Endpoints(by_address(self.members) if self.duplicates else ())
            for each in self.members if not self.duplicates else ():
                known.update(zip(each.addresses, each.endpoints, strict=True))
            self._endpoints = ref(known)
        return known

    def difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare with what is wanted; the last comparison is remembered by the mapping's identity."""
        if self._compared is None or self._compared[0] is not wanted:
            self._compared = (wanted, self._difference(wanted))
        return self._compared[1]

    def _difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Slice by slice: one whose endpoints are all wanted as they are costs 3 µs per hundred."""
        removed: dict[str, Endpoint] = {}
        changed: dict[str, tuple[Endpoint, Endpoint]] = {}
        present = 0
        for each in self.members:
            if each.holds(wanted):
                present += len(each.addresses)
                continue
            found = tuple(map(wanted.get, each.addresses))
            present += len(found) - found.count(None)
            other = map(is_not, found, each.endpoints)
            for address, before, after in compress(zip(each.addresses, each.endpoints, found, strict=True), other):
                if after is None:
                    removed.setdefault(address, before)
                elif after != before:
                    changed.setdefault(address, (before, after))
        return Difference(removed, changed, self._missing(wanted, present))

    def _missing(self, wanted: Mapping[str, Endpoint], present: int) -> tuple[str, ...]:
        """What is wanted and not published, sorted; so many of its addresses are present, counted in every slice.

        Where none is in two of them, the number of what is missing is known. If as many of those that came last
        are missing, these are all of it.
        """
        if present == len(wanted) and not self.duplicates:
            return ()
        published = [each.addresses for each in self.members]
        if isinstance(wanted, Endpoints) and not self.duplicates:
            recent = wanted.changed.intersection(wanted).difference(*published)
            if present + len(recent) == len(wanted):
                return tuple(sorted(recent))
        return tuple(sorted(set(wanted).difference(*published)))


_known: Final[WeakValueDictionary[tuple[int, ...], Contents]] = WeakValueDictionary()
"""By the ids of the members, which they keep for as long as they are in here."""


class Published:
    """The slices of one group.

    Attributes:
        slices: lowest-numbered first.
        contents: what they hold.

    Args:
        before: the group as it was, to spare a look at addresses that stayed.
    """

    __slots__ = ("contents", "slices")

    def __init__(self, slices: tuple[PublishedSlice, ...] = (), before: Published | None = None) -> None:
        self.slices = slices
        members = tuple([each.content for each in slices])
        self.contents: Contents = Contents.of(members, before.contents if before is not None else None)

    @property
    def duplicates(self) -> bool:
        """An address appears twice among them."""
        return self.contents.duplicates

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Everything in them by address, in their order; the first of duplicates."""
        return self.contents.endpoints

    def difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare with what is wanted."""
        return self.contents.difference(wanted)

    def __bool__(self) -> bool:
        """Whether any endpoint is published."""
        return any(each.addresses for each in self.slices)


class Index:
    """Groups the observed slices of one target; remembers what it prepared, by the slices' identity."""

    __slots__ = ("_entries", "_groups", "_names", "_observed", "_order", "_renames")

    def __init__(self) -> None:
        self._entries: dict[str, PublishedSlice] = {}
        self._groups: dict[GroupKey, Published] = {}
        self._observed: tuple[Slice, ...] = ()
        self._names: list[str] = []
        self._order: list[int] = []
        self._renames: Mapping[str, str] = {}

    def groups(self, observed: Sequence[Slice], renames: Mapping[str, str]) -> Mapping[GroupKey, Published]:
        """The published groups.

        Args:
            observed: slices of ours, any order; one that is being deleted is as good as gone.
            renames: a cluster's former name -> today's.
        """
        if same_objects(observed, self._observed) and renames == self._renames:
            return self._groups
        entries: dict[str, PublishedSlice] = {}
        grouped: dict[GroupKey, list[PublishedSlice]] = {}
        for i in self._by_number(observed):
            each = observed[i]
            if each.deleting:
                continue
            entry = self._entries.get(each.name)
            if entry is None or entry.slice is not each:
                entry = prepare(each, entry)
            if entry.content.same is not None:
                entry.content = entry.content.same
            entries[each.name] = entry
            key = GroupKey(renames.get(each.cluster, each.cluster), each.address_type)
            grouped.setdefault(key, []).append(entry)
        self._entries = entries
        self._groups = {key: self._group(key, tuple(members)) for key, members in grouped.items()}
        self._observed, self._renames = tuple(observed), renames
        return self._groups

    def _by_number(self, observed: Sequence[Slice]) -> list[int]:
        """Indices, lowest-numbered slice first."""
        names = [each.name for each in observed]
        if names != self._names:
            self._names, self._order = names, sorted(range(len(names)), key=lambda i: _number(names[i]))
        return self._order

    def _group(self, key: GroupKey, members: tuple[PublishedSlice, ...]) -> Published:
        old = self._groups.get(key)
        return old if old is not None and same_objects(old.slices, members) else Published(members, old)


def prepare(observed: Slice, before: PublishedSlice | None = None) -> PublishedSlice:
    """One slice, ready for comparison; ``before`` it was written, to look only at what is other now."""
    return PublishedSlice(observed, Content.of(observed.endpoints, before.content if before is not None else None))


def _repeats(members: Sequence[Content], before: Sequence[Content]) -> bool:
    """Whether an address appears twice; ``before`` none did, so that only what has come since needs a look."""
    if any(each.duplicates for each in members):
        return True
    gone = {id(each.addresses): each.addresses for each in before}
    stay: list[tuple[str, ...]] = []
    fresh: list[tuple[str, ...]] = []
    for each in members:
        (fresh if gone.pop(id(each.addresses), None) is None else stay).append(each.addresses)
    here = set().union(*fresh)
    come = here.difference(*gone.values())
    return len(here) < sum(map(len, fresh)) or not all(map(come.isdisjoint, stay if come else ()))


def _number(name: str) -> tuple[int, str]:
    digits = name.rpartition("-")[2]
    return (int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 1 << 31, name)
