"""What an account has: load balancers, server groups, firewall policies and Cloud IPs, as the API states them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from hub.plugin.clouds import Done, Marker, Record, Step
from hub_provider_brightbox.client import Object

Kind = Literal["load_balancer", "server_group", "firewall_policy", "cloud_ip"]
KINDS: Final[tuple[Kind, ...]] = ("load_balancer", "server_group", "firewall_policy", "cloud_ip")
PATHS: Final[Mapping[Kind, str]] = {
    "load_balancer": "load_balancers",
    "server_group": "server_groups",
    "firewall_policy": "firewall_policies",
    "cloud_ip": "cloud_ips",
}
ID: Final = re.compile(r"(srv|lba|cip|grp|fwp|fwr)-[0-9a-z]{5,}")
GONE: Final = ("deleted",)
UNLISTED: Final = "unlisted"
"""Key of an object that the last observation did not have, and the answer to its creation has."""
_SUFFIX: Final = re.compile(r"#type:container\s*$")


class Inventory(msgspec.Struct, frozen=True):
    """One observation.

    Attributes:
        objects: kind -> id -> the object.
        failed: ids of load balancers that were ``failed`` in the observation before, too.
        names: DNS name -> its addresses.
    """

    objects: Mapping[Kind, Mapping[str, Object]]
    failed: frozenset[str] = frozenset()
    names: Mapping[str, tuple[str, ...]] = {}

    def of(self, kind: Kind) -> Mapping[str, Object]:
        """The objects of a kind by id."""
        return self.objects[kind]

    def changed(self, kind: Kind, change: Callable[[dict[str, Object]], object]) -> Inventory:
        """This inventory with a change of the objects of one kind."""
        found = dict(self.objects[kind])
        change(found)
        return msgspec.structs.replace(self, objects={**self.objects, kind: found})


def clean(name: object) -> str:
    """A name without outer blanks and the mark that Brightbox' own tools append to names of containers."""
    return _SUFFIX.sub("", name).strip() if isinstance(name, str) else ""


def inventory(lists: Mapping[Kind, Iterable[Object]], before: Inventory | None) -> Inventory:
    """The inventory of complete lists; objects that are deleted are left out."""
    objects: dict[Kind, dict[str, Object]] = {
        kind: {str(each["id"]): each for each in lists[kind] if each.get("status") not in GONE} for kind in KINDS
    }
    failed = frozenset(
        id_
        for id_, each in objects["load_balancer"].items()
        if each.get("status") == "failed"
        and before is not None
        and before.of("load_balancer").get(id_, {}).get("status") == "failed"
    )
    return Inventory(objects, failed)


class Ours(msgspec.Struct, frozen=True):
    """The objects of one balancer.

    Attributes:
        found: kind -> the object that counts.
        doubles: further objects of its name.
        foreign: objects of its name that carry another cluster's marker.
        ignored: kinds whose recorded id is an object of another name.
    """

    found: Mapping[Kind, Object]
    doubles: tuple[tuple[Kind, Object], ...] = ()
    foreign: tuple[tuple[Kind, Object], ...] = ()
    ignored: tuple[Kind, ...] = ()


def ours(seen: Inventory, record: Record) -> Ours:
    """The objects that belong to a balancer: by the record's id if the object bears its name or marker, and by name."""
    names = {record.name, *record.former_names}
    found: dict[Kind, Object] = {}
    doubles: list[tuple[Kind, Object]] = []
    foreign: list[tuple[Kind, Object]] = []
    ignored: list[Kind] = []
    for kind in KINDS:
        objects = seen.of(kind)
        recorded = objects.get(record.ids.get(kind, ""))
        if recorded is not None and not _bears(recorded, names, record.marker) and kind != "cloud_ip":
            ignored.append(kind)
            recorded = None
        if recorded is not None and kind == "cloud_ip" and clean(recorded.get("name")) not in names:
            recorded = None  # a Cloud IP that an annotation names
        named = [each for each in objects.values() if not each.get("default") and clean(each.get("name")) in names]
        mine = [each for each in named if not _others(each, record.marker)]
        foreign += [(kind, each) for each in named if each not in mine]
        if recorded is None and mine:
            recorded = min(mine, key=_age)
        if recorded is not None:
            found[kind] = recorded
            doubles += [(kind, each) for each in mine if each["id"] != recorded["id"]]
    return Ours(found, tuple(doubles), tuple(foreign), tuple(ignored))


def _bears(each: Object, names: set[str], marker: Marker) -> bool:
    return clean(each.get("name")) in names or Marker.read(str(each.get("description") or "")) == marker


def _others(each: Object, marker: Marker) -> bool:
    """Whether an object carries the marker of another cluster."""
    found = Marker.read(str(each.get("description") or ""))
    return found is not None and found.cluster != marker.cluster


def _age(each: Object) -> tuple[str, str]:
    return str(each.get("created_at") or ""), str(each["id"])


def after(seen: Inventory, step: Step, done: Done) -> Inventory:
    """The inventory once a step is made; its answer is the object that it created or changed."""
    answer: Any = done.answer or {}
    request = step.request
    kind: Any = request.get("kind")
    match request.get("do"):
        case "delete":
            return seen.changed(kind, lambda objects: _deleted(objects, str(request["id"]), answer))
        case "rule":
            policy = str(request["policy"])
            return seen.changed("firewall_policy", lambda objects: _with_rule(objects, policy, answer))
        case "create" if answer.get("id"):
            # A list that has it is newer than the answer; one that has not may be older.
            return seen.changed(kind, lambda objects: objects.setdefault(str(answer["id"]), {**answer, UNLISTED: True}))
        case _ if answer.get("id"):
            return seen.changed(kind, lambda objects: _changed(objects, str(answer["id"]), answer))
    return seen


def _changed(objects: dict[str, Object], id_: str, answer: Object) -> None:
    if id_ in objects:  # else it was deleted since
        objects[id_] = {**answer, UNLISTED: objects[id_].get(UNLISTED, False)}


def _deleted(objects: dict[str, Object], id_: str, answer: Object) -> None:
    if answer.get("status") == "deleting" and id_ in objects and not objects[id_].get(UNLISTED):
        objects[id_] = answer
    else:
        objects.pop(id_, None)


def _with_rule(objects: dict[str, Object], policy: str, rule: Object) -> None:
    if policy in objects and rule.get("id"):
        others = [each for each in objects[policy].get("rules") or [] if each.get("id") != rule["id"]]
        objects[policy] = {**objects[policy], "rules": [*others, rule]}
