"""Which objects of an account belong to one balancer.

A name says whose an object is; IONOS has no field for a marker. An id in the record says it only together with a proof,
since whoever may edit the Service may edit its record: that the load balancer and the block have an address in common.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hub.plugin.clouds import Record
from hub_provider_ionos.network import KINDS, Kind, Network, NetworkBalancer, Object, created, name_of, state_of


class Ours(msgspec.Struct, frozen=True):
    """The objects of one balancer.

    Attributes:
        all: kind -> its objects; the first counts, the others are doubles.
        ignored: kind -> recorded id of an object that is not the balancer's.
    """

    all: Mapping[Kind, tuple[Object, ...]]
    ignored: Mapping[Kind, str] = {}

    def first(self, kind: Kind) -> Object | None:
        """The object of a kind that counts."""
        return next(iter(self.all[kind]), None)

    def may_go(self, kind: Kind, each: Object, record: Record) -> bool:
        """Whether an object goes with its Service; blocks and doubles only if the hub made them, or no record."""
        if kind in record.made or not (record.ids or record.made or record.intent):
            return True
        return kind == "load_balancer" and each is self.first(kind) and each.id == record.ids.get(kind, each.id)


def ours(seen: Network, record: Record) -> Ours:
    """The objects that belong to the balancer of a record."""
    names = {record.name, *record.former_names}
    named = {kind: [each for each in seen.of(kind).values() if name_of(each) in names] for kind in KINDS}
    found: dict[Kind, tuple[Object, ...]] = {}
    ignored: dict[Kind, str] = {}
    joined = {ip for each in named["ip_block"] for ip in each.ips}
    for kind in KINDS:
        mine = list(named[kind])
        recorded = seen.of(kind).get(record.ids.get(kind, ""))
        if recorded is not None and recorded not in mine:
            if joined & set(recorded.ips) and (kind == "load_balancer" or kind in record.made):
                mine.append(recorded)
            else:
                ignored[kind] = recorded.id
        mine.sort(key=lambda each, kind=kind, joined=joined: _rank(kind, each, record, joined))  # type: ignore[misc]
        found[kind] = tuple(mine)
        joined = {ip for each in mine[:1] for ip in each.ips}
    return Ours(found, ignored)


def _rank(kind: Kind, each: Object, record: Record, joined: set[str]) -> tuple[bool, bool, bool, str, str]:
    """Of several objects the first counts: live, recorded, joined to the others, the oldest."""
    failed = isinstance(each, NetworkBalancer) and state_of(each) == "FAILED"
    return failed, record.ids.get(kind) != each.id, not joined & set(each.ips), created(each), each.id
