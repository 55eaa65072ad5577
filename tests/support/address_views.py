"""Views for the planner of addresses: Ready nodes, allocations and the cloud's answers at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any, Final

from msgspec.structs import replace

from hub.allocations.claims import Claims, claims
from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, Entry, Status, stamp
from hub.allocations.view import Account, Answer, Inspection, Machine, Plan, Site, View
from hub.cloud.addresses import AddressState, Free, Held, Present
from hub.model import LOCAL, Node

NOW: Final = 1_800_000_000.0
ME: Final = "me"
"""The process that plans, and that has signed the statuses."""
A1, A2, A3, A4, A5 = (f"198.18.0.{number}" for number in range(1, 6))
NETWORK: Final = IPv4Network("198.18.0.0/15")
LABELLED: Final = {LABEL_READY: "true"}


def machine(name: str, since: float = NOW - 900, **node: Any) -> Machine:
    """A node with the instance ``i-NAME``, Ready since then unless ``ready`` says otherwise."""
    found = Node(name, **{"ready": "True", **node})
    ready = found.ready == "True"
    return Machine(found, f"i-{name}", since if ready else 0.0, 0.0 if ready else since)


def site(*machines: Machine, cluster: str = LOCAL) -> dict[str, Site]:
    """A cluster with these nodes."""
    return {cluster: Site(cluster, {found.node.name: found for found in machines})}


def entry(address: str, node: str = "", **more: Any) -> Entry:
    """The stored status of an address: attached to a node, or waiting."""
    state = "Attached" if node else "Pending"
    return Entry(address, **{"state": state, "node": node, "instance": node and f"i-{node}", **more})


def allocation(name: str, *entries: Entry | str, **more: Any) -> Allocation:
    """An allocation that lists these addresses; those that come as an entry have that status."""
    addresses = tuple(found if isinstance(found, str) else found.address for found in entries)
    known = tuple(found for found in entries if isinstance(found, Entry))
    status = Status(
        writer=ME, addresses=tuple(replace(found, since=found.since or stamp(NOW - 1000)) for found in known)
    )
    defaults: dict[str, Any] = {
        "order": (more.get("created", ""), name),
        "min_attached": len(addresses),
        "status": status,
    }
    return Allocation(name=name, uid=name, addresses=addresses, **{**defaults, **more})


def view(sites: Mapping[str, Site], *allocations: Allocation, **more: Any) -> View:
    """A view in which each address is where its status says, each node was inspected, and the hub may act."""
    entries = [found for allocation in allocations for found in allocation.status.addresses]
    states: dict[str, AddressState] = {address: Free() for found in allocations for address in found.addresses}
    states |= {found.address: Held(found.instance) for found in entries if found.node}
    claimed = claims(allocations, Claims(), NOW)
    found = View(
        Account("main", "gcp", tuple(sites), (NETWORK,)),
        sites=sites,
        allocations=allocations,
        holders=claimed.holders,
        conflicts=claimed.conflicts,
        answers={address: Answer(state, NOW) for address, state in states.items()},
        inspections={
            str(one.instance): Inspection(Present(running=True), NOW)
            for each in sites.values()
            for one in each.machines.values()
        },
        label_keys=frozenset({LABEL_READY}),
        identity=ME,
    )
    return replace(found, **more)


def at(found: View, now: float) -> View:
    """The view with the same answers at a later time."""
    return replace(
        found,
        answers={address: Answer(answer.state, now) for address, answer in found.answers.items()},
        inspections={one: Inspection(inspection.state, now) for one, inspection in found.inspections.items()},
    )


def planned(found: View, *later: float) -> Plan:
    """The plan at NOW, or the last one of a process that plans at NOW and again so many seconds later."""
    last = plan(found, NOW)
    for seconds in later:
        last = plan(replace(at(found, NOW + seconds), memory=last.memory), NOW + seconds)
    return last
