"""Which objects of an account belong to one balancer.

A name says whose an object is. An id in the record says it only together with a proof, since whoever may edit the
Service may edit its record: the hub's marker, that it is joined to an object which is the balancer's by its name, or
that all its traffic goes to the Service.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hub.plugin.clouds import Marker, Record
from hub_provider_brightbox.inventory import KINDS, LIVE, Inventory, Kind, clean, mapped_to, rule_of, servers_of
from hub_provider_brightbox.shapes import Object, as_objects, ids, part_id


class Ours(msgspec.Struct, frozen=True):
    """The objects of one balancer.

    Attributes:
        found: kind -> the object that counts.
        doubles: further objects of its name.
        taken: a server group of its name that carries another cluster's marker; None if there is none. Then only what
            the record names is the balancer's.
        ignored: kind -> recorded id of an object that is not the balancer's.
    """

    found: Mapping[Kind, Object]
    doubles: tuple[tuple[Kind, Object], ...] = ()
    taken: Object | None = None
    ignored: Mapping[Kind, str] = {}

    def all(self, kind: Kind) -> list[Object]:
        """All objects of a kind, the one that counts first."""
        first = [self.found[kind]] if kind in self.found else []
        return [*first, *(each for other, each in self.doubles if other == kind)]

    def may_go(self, kind: Kind, each: Object, record: Record) -> bool:
        """Whether an object goes with its Service; Cloud IPs and doubles only if the hub made them, or no record."""
        if kind in record.made or not (record.ids or record.made or record.intent):
            return True
        first = self.found[kind]["id"] == each["id"] == record.ids.get(kind, each["id"])
        return kind != "cloud_ip" and first


def ours(seen: Inventory, record: Record) -> Ours:
    """The objects that belong to the balancer of a record."""
    names = {record.name, *record.former_names}
    named: dict[Kind, list[Object]] = {
        kind: [each for each in seen.of(kind).values() if not each.get("default") and clean(each.get("name")) in names]
        for kind in KINDS
    }
    taken = next((each for each in named["server_group"] if _of_another_cluster(each, record.marker)), None)
    found: dict[Kind, Object] = {}
    doubles: list[tuple[Kind, Object]] = []
    ignored: dict[Kind, str] = {}
    addressed = {mapped_to(each) for each in named["cloud_ip"]} - {""}
    for kind in KINDS:
        recorded = seen.of(kind).get(record.ids.get(kind, ""))
        mine = [each for each in named[kind] if taken is None or each is recorded]
        mine = [each for each in mine if each is not taken]
        if recorded is not None and recorded not in mine:
            if _proven(kind, recorded, record, found, addressed):
                mine.append(recorded)
            else:
                ignored[kind] = str(recorded["id"])
        joined = addressed if kind == "load_balancer" else {str(each["id"]) for each in found.values()}
        mine.sort(key=lambda each, kind=kind, joined=joined: _rank(kind, each, record, joined))  # type: ignore[misc]
        if mine:
            found[kind] = mine[0]
            doubles.extend((kind, each) for each in mine[1:] if each.get("status") != "deleting")
    return Ours(found, tuple(doubles), taken, ignored)


def _proven(kind: Kind, each: Object, record: Record, found: Mapping[Kind, Object], addressed: set[str]) -> bool:
    """Whether a recorded object, which has another name, is the balancer's."""
    match kind:
        case "server_group":
            return Marker.read(str(each.get("description") or "")) == record.marker
        case "firewall_policy":
            return "server_group" in found and part_id(each, "server_group") == found["server_group"]["id"]
        case "load_balancer":
            return each["id"] in addressed or _leads_here(each, record, found)
        case "cloud_ip":
            mapped = "load_balancer" in found and mapped_to(each) == found["load_balancer"]["id"]
            return mapped and kind in record.made


def _leads_here(balancer: Object, record: Record, found: Mapping[Kind, Object]) -> bool:
    """Whether all traffic of a balancer goes to the Service: to servers of its group, and to ports of its rule.

    A nodePort belongs to one Service of a cluster, so nobody can get a balancer that does not serve them already. The
    Cloud IP of an annotation proves nothing: anybody may name it.
    """
    names = (record.name, *record.former_names)
    rule = rule_of(found.get("firewall_policy"), names)
    ports = set(str((rule or {}).get("destination_port") or "").replace(" ", "").split(","))
    servers, listeners = ids(balancer, "nodes"), as_objects(balancer.get("listeners"))
    return (
        bool(servers and listeners)
        and servers <= servers_of(found.get("server_group"))
        and all(str(each.get("out")) in ports for each in listeners)
    )


def _rank(kind: Kind, each: Object, record: Record, joined: set[str]) -> tuple[bool, bool, bool, str, str]:
    """Of several objects the first counts: live, recorded, joined to the others, the oldest."""
    live = kind != "load_balancer" or each.get("status") in LIVE
    tie = {"load_balancer": str(each["id"]), "cloud_ip": mapped_to(each)}.get(kind, part_id(each, "server_group"))
    return (
        not live,
        record.ids.get(kind) != each["id"],
        tie not in joined,
        str(each.get("created_at") or ""),
        str(each["id"]),
    )


def _of_another_cluster(each: Object, marker: Marker) -> bool:
    found = Marker.read(str(each.get("description") or ""))
    return found is not None and found.cluster != marker.cluster
