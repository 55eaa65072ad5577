"""Between the stages: what is published and what is wanted of one source cluster and family, ready for comparison.

Values of :mod:`hub.model`, grouped, and what was found out about them, which is kept with them. That is a memory and
never a decision: without it everything comes out the same, later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import is_, is_not
from typing import Final, NamedTuple
from weakref import WeakValueDictionary, ref

import msgspec

from hub.model import Endpoint, Port, Slice


class GroupKey(NamedTuple):
    """The unit of the guard and of packing inside a target: one source cluster, one address family."""

    cluster: str
    family: str


class Endpoints(dict[str, Endpoint]):
    """Endpoints by address that may be referenced weakly and know what they were made from.

    Who has compared that with something looks at the rest only.

    Args:
        content: the endpoints.
        before: what they were made from.
        changed: the addresses in which the two differ.
    """

    __slots__ = ("__weakref__", "_before", "_contents", "changed")

    def __init__(
        self,
        content: Mapping[str, Endpoint] | Iterable[tuple[str, Endpoint]] = (),
        before: Endpoints | None = None,
        changed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(content)
        self._before = None if before is None else ref(before)
        self._contents: WeakValueDictionary[tuple[str, ...], Content] | None = None
        self.changed = changed

    def since(self, other: Mapping[str, Endpoint] | None) -> frozenset[str] | None:
        """The addresses in which these differ from others; None where that is not known."""
        return self.changed if self._before is not None and other is not None and self._before() is other else None

    def content(self, known: Content) -> Content:
        """The first content that was found to be of these endpoints, and has the addresses of one that is, too."""
        if self._contents is None:
            self._contents = WeakValueDictionary()
        return self._contents.setdefault(known.addresses, known)


class Content:
    """The endpoints of a slice, prepared for comparison: one for all slices that hold the very same ones.

    The Services of a cluster publish the same view, so what one of them finds out the others need not.

    Attributes:
        addresses: the endpoints' addresses, in the slice's order.
        endpoints: equal to the slice's; replaced by equal, shared objects as they become known, so that the next
            comparison is one of identities.
        draining: how many endpoints are terminating.
        duplicates: an address appears twice in it.
        same: another one, found to be equal to this one, that is to be used instead.

    Args:
        endpoints: the slice's.
        before: what the slice held before, to look only at what is other now.
    """

    __slots__ = (
        "__weakref__",
        "_grown",
        "_held",
        "_kept",
        "_observed",
        "addresses",
        "draining",
        "duplicates",
        "endpoints",
        "same",
    )

    def __init__(self, endpoints: tuple[Endpoint, ...], before: Content | None = None) -> None:
        self.endpoints = self._observed = endpoints
        self.same: Content | None = None
        self._held: Mapping[str, Endpoint] | None = None
        """The mapping that :meth:`holds` last said yes to."""
        self._kept: tuple[ref[Endpoints], tuple[Endpoint, ...]] | None = None
        self._grown: tuple[tuple[Endpoint, ...], tuple[Endpoint, ...], tuple[Endpoint, ...]] | None = None
        self.addresses: tuple[str, ...]
        self.draining: int
        self.duplicates: bool
        if before is not None and (draining := _draining(before, endpoints)) is not None:
            self.addresses, self.draining, self.duplicates = before.addresses, draining, before.duplicates
            return
        self.addresses = tuple([each.addresses[0] if each.addresses else "" for each in endpoints])
        self.draining = sum([bool(each.conditions.terminating) for each in endpoints])
        self.duplicates = len(set(self.addresses)) < len(self.addresses)

    @staticmethod
    def of(endpoints: tuple[Endpoint, ...], before: Content | None = None) -> Content:
        """That of these very endpoints; arguments as the class's."""
        known = _contents.get(id(endpoints))
        if known is None:
            known = _contents[id(endpoints)] = Content(endpoints, before)
        return known

    def holds(self, wanted: Mapping[str, Endpoint]) -> bool:
        """Whether every endpoint in here is wanted exactly as it is (0.03 µs for each, at the first asking)."""
        if self._held is wanted:
            return True
        changed = wanted.since(self._held) if isinstance(wanted, Endpoints) else None
        if changed is not None and changed.isdisjoint(self.addresses):
            self._held = wanted
            return True
        found: tuple[Endpoint | None, ...] = tuple(map(wanted.get, self.addresses))
        if found != self.endpoints:
            return False
        if not same_objects(found, self.endpoints):
            self.endpoints = found  # type: ignore[assignment]  # equal, so there is no None in it
        self._held = wanted
        if isinstance(wanted, Endpoints):
            known = wanted.content(self)
            self.same = known if known is not self else None
            known.same = None  # no circle
        return True

    def kept(self, wanted: Mapping[str, Endpoint]) -> tuple[Endpoint, ...]:
        """What of it is wanted, as it is wanted, in its order; ``endpoints`` itself where that is all of it."""
        if self._kept is not None and self._kept[0]() is wanted:
            return self._kept[1]
        if self.holds(wanted):
            return self.endpoints
        new = tuple([endpoint for endpoint in map(wanted.get, self.addresses) if endpoint is not None])
        if isinstance(wanted, Endpoints):
            self._kept = (ref(wanted), new)
        return new

    def grown(self, rest: tuple[Endpoint, ...], added: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """What is left of it, and others behind that; the same object for the very same ones."""
        known = self._grown
        if known is None or known[0] is not rest or not same_objects(known[1], added):
            known = self._grown = (rest, added, (*rest, *added))
        return known[2]


_contents: Final[WeakValueDictionary[int, Content]] = WeakValueDictionary()
"""By the id of the endpoints, which a content keeps for as long as it is in here."""


def _draining(before: Content, endpoints: tuple[Endpoint, ...]) -> int | None:
    """How many endpoints are terminating, where the addresses are those from before; None where they are not."""
    if len(endpoints) != len(before.endpoints):
        return None
    draining = before.draining
    others = map(is_not, before.endpoints, endpoints)
    for was, now in compress(zip(before.endpoints, endpoints, strict=True), others):
        if was.addresses[:1] != now.addresses[:1]:
            return None
        draining += bool(now.conditions.terminating) - bool(was.conditions.terminating)
    return draining


class PublishedSlice(msgspec.Struct):
    """One observed slice of ours, and its content, prepared for comparison."""

    slice: Slice
    content: Content

    @property
    def addresses(self) -> tuple[str, ...]:
        """The endpoints' addresses, in the slice's order."""
        return self.content.addresses

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Equal to ``slice.endpoints``."""
        return self.content.endpoints


class EndpointGroup(msgspec.Struct, frozen=True):
    """What is wanted and what is published of one source cluster and family of a target.

    Attributes:
        key: cluster (today's name) and family.
        endpoints: wanted, by address. The guard may put back what must not go yet.
        ports: wanted, sorted.
        port_sets: address -> wanted ports, for endpoints whose ports are others than ``ports``; each set has
            slices of its own.
        slices: published, lowest-numbered first.
        duplicates: an address is published twice in here.
        removed: published, not wanted: address -> as published.
        changed: published differently than wanted: address -> (published, wanted).
        added: wanted, not published; sorted.
        known: False where the source made no complete statement.
        filtered: the ``removed`` whose node still exists; the other ones are *gone*.
        exempt: addresses whose removal or change is none of the guard's business: moves, failover,
            ``unreachable`` policies, what the registry dropped.
        drop: leave no empty slice behind: the source or family is no longer part of the target.
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


def by_address(holders: Iterable[Content | PublishedSlice]) -> dict[str, Endpoint]:
    """Their endpoints by address, in their order; the first of duplicates."""
    found: dict[str, Endpoint] = {}
    for each in holders:
        for address, endpoint in zip(each.addresses, each.endpoints, strict=True):
            found.setdefault(address, endpoint)
    return found


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two sequences are of the very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))
