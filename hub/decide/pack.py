"""Distribute the endpoints of one group over slices, deterministically, in Kubernetes' own three filling steps.

The algorithm is ``reconcileByPortMapping`` in ``reconciler.go`` of kubernetes/endpointslice. Where that takes any
endpoint of a set, this module takes them in order, so that the same input gives the same slices. It differs in two
points: an emptied slice is filled before an unchanged one is changed, because deleting one and updating another would
be two writes; and a group that had slices keeps one empty slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from hub.decide.endpoints import EndpointGroup, GroupKey, PublishedSlice
from hub.model import Endpoint, Port

Endpoints = tuple[Endpoint, ...]


class Packed(msgspec.Struct, frozen=True):
    """The distribution of a group's endpoints over slices.

    Attributes:
        kept: slices that stay, lowest-numbered first, each with its new endpoints; None if they do not change.
        created: the endpoints of each new slice, at least one each.
        deleted: slices to delete.
    """

    kept: tuple[tuple[PublishedSlice, Endpoints | None], ...]
    created: tuple[Endpoints, ...] = ()
    deleted: tuple[PublishedSlice, ...] = ()


def pack(group: EndpointGroup, limit: int, dirty: Collection[str] = ()) -> Packed:
    """Distribute a group's endpoints over its slices.

    Args:
        group: the wanted and the published endpoints.
        limit: maximum number of endpoints per slice. A slice that already has more keeps them.
        dirty: names of slices that are written anyway, because their labels or ports change.
    """
    contents = _in_place(group)
    missing = [group.endpoints[address] for address in group.added]
    slices = group.slices
    unchanged = [slice_.endpoints for slice_ in slices]
    rest = iter(missing)
    left = len(missing)
    changed = [content is not old for content, old in zip(contents, unchanged, strict=True)]

    # Step 2: fill slices that are written anyway, fullest first, except emptied ones.
    for i in sorted(range(len(slices)), key=lambda i: (-len(contents[i]), i)) if left else ():
        if left and contents[i] and (changed[i] or slices[i].slice.name in dirty):
            left -= _fill(group, contents, i, rest, min(left, limit - len(contents[i])))

    # Step 3: fill emptied slices, else the existing slice that the remaining endpoints fill best, else new slices.
    emptied = [i for i, content in enumerate(contents) if not content]
    created: list[Endpoints] = []
    while left:
        if emptied:
            left -= _fill(group, contents, emptied.pop(0), rest, min(left, limit))
        elif left < limit and (fitting := _best_fit(contents, left, limit)) is not None:
            left -= _fill(group, contents, fitting, rest, left)
        else:
            created.append(_take(rest, min(left, limit)))
            left -= len(created[-1])

    # Keep one empty slice if no other slice would remain, unless the group is dropped.
    if emptied and not created and len(emptied) == len(contents) and not group.drop:
        emptied.pop(0)
    gone = set(emptied)
    final = [None if new is old else new for new, old in zip(contents, unchanged, strict=True)]
    return Packed(
        tuple((slice_, final[i]) for i, slice_ in enumerate(slices) if i not in gone),
        tuple(created),
        tuple(slices[i] for i in emptied),
    )


def _in_place(group: EndpointGroup) -> list[Endpoints]:
    """Step 1: keep wanted endpoints in their slices, update changed ones, and remove the others."""
    if not (group.removed or group.changed or group.duplicates):
        return [slice_.endpoints for slice_ in group.slices]
    wanted = group.endpoints
    if not group.duplicates:
        return [slice_.content.kept(wanted) for slice_ in group.slices]
    contents: list[Endpoints] = []
    seen: set[str] = set()
    for slice_ in group.slices:
        addresses = [address for address in dict.fromkeys(slice_.addresses) if address not in seen]
        seen.update(addresses)
        new = tuple([endpoint for endpoint in map(wanted.get, addresses) if endpoint is not None])
        contents.append(slice_.endpoints if new == slice_.endpoints else new)
    return contents


def _fill(group: EndpointGroup, contents: list[Endpoints], i: int, rest: Iterator[Endpoint], room: int) -> int:
    added = _take(rest, room)
    if added:
        contents[i] = group.slices[i].content.intern((*contents[i], *added))
    return len(added)


def _take(rest: Iterator[Endpoint], count: int) -> Endpoints:
    return tuple(next(rest) for _ in range(count))


def _best_fit(contents: Sequence[Endpoints], count: int, limit: int) -> int | None:
    """Index of the slice that is fullest after taking all ``count`` endpoints; None if none has enough room."""
    fitting = [i for i, content in enumerate(contents) if content and len(content) + count <= limit]
    return max(fitting, key=lambda i: (len(contents[i]), -i), default=None)


def names(service: str, owner: str, key: GroupKey, ports: Sequence[Port], taken: AbstractSet[str]) -> Iterator[str]:
    """Generate names for new slices of a group, lowest number first, without the taken ones.

    A name has at most 63 + 1 + 8 + 1 + digits characters, far below the limit of 253, and is a valid DNS name because
    the Service's name is one. Names have no meaning: a slice keeps its name when its ports change.
    """
    content = msgspec.json.encode((owner, key.cluster, key.family, ports))
    prefix = f"{service}-{hashlib.sha256(content).hexdigest()[:8]}-"
    number = 0
    while True:
        if (name := f"{prefix}{number}") not in taken:
            yield name
        number += 1
