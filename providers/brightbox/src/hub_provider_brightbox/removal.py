"""What goes, and what must be waited for before that. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hub.plugin.clouds import Planned, Record, Wait
from hub_provider_brightbox import steps
from hub_provider_brightbox.inventory import Inventory, Kind, clean, holder, mapped, servers_of
from hub_provider_brightbox.ours import ours
from hub_provider_brightbox.shapes import Object
from hub_provider_brightbox.steps import TITLES, UNDONE

LOCKED: Final = 300.0
"""Seconds until a locked balancer is looked at again: only a person unlocks it."""
SETTLING: Final = 5.0
"""Seconds until the cloud is asked again whether it is done."""


def locked(balancer: Object) -> Wait | None:
    """The wait for a locked load balancer, of which the cloud refuses all changes; None if it is not locked."""
    if not balancer.get("locked"):
        return None
    return Wait("LoadBalancerLocked", f"load balancer {balancer['id']} is locked; unlock it", LOCKED)


def settling(cloud_ip: Object) -> Wait | None:
    """A Cloud IP that is still being unmapped cannot be deleted yet."""
    if not cloud_ip.get(UNDONE):
        return None
    return Wait("CloudIPLeaving", f"Cloud IP {cloud_ip['id']} is being unmapped", SETTLING)


def removal(seen: Inventory, record: Record) -> Iterator[Planned]:
    """Everything of ours goes, and nothing else."""
    mine, names = ours(seen, record), (record.name, *record.former_names)
    going: dict[Kind, list[Object]] = {
        kind: [each for each in mine.all(kind) if mine.may_go(kind, each, record)] for kind in TITLES
    }
    if waits := [wait for each in going["load_balancer"] if (wait := locked(each))]:
        yield waits[0]
        return
    leaving = [each["id"] for each in going["load_balancer"] if each.get("status") == "deleting"]
    balancers = {each["id"]: each for each in going["load_balancer"] if each["id"] not in leaving}
    # Once objects are not joined any more, only their names say whose they are.
    strange: list[tuple[Kind, Object]] = [
        (kind, each) for kind in TITLES for each in going[kind] if clean(each.get("name")) not in names
    ]
    yield from (steps.put(kind, each, {"name": record.name}, "rename") for kind, each in strange)
    yield from (steps.act("cloud_ip", each["id"], "unmap", {}) for each in mapped(seen, set(balancers)))
    yield from (steps.delete("load_balancer", each) for each in balancers.values())
    free = [each for each in going["cloud_ip"] if holder(each) in ("", *balancers)]
    yield from (steps.delete("cloud_ip", each) for each in free if not each.get(UNDONE))
    yield from (step for each in going["server_group"] for step in gone("server_group", each))
    yield from (steps.delete("firewall_policy", each) for each in going["firewall_policy"])
    yield from (wait for each in free if (wait := settling(each)))
    if leaving:
        yield Wait("LoadBalancerLeaving", f"load balancer {leaving[0]} is being deleted", SETTLING)


def gone(kind: Kind, each: Object) -> Iterator[Planned]:
    """Delete an object; a server group only after its servers have left it."""
    if kind == "server_group" and (leaving := sorted(servers_of(each))):
        yield steps.members(each["id"], "remove_servers", leaving)
    yield (locked(each) if kind == "load_balancer" else None) or steps.delete(kind, each)
