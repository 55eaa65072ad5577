"""From what an account has to what a Service wants: the steps, in order. Pure.

Create and change: IP block, load balancer, rules, old addresses, spare, confirm. Each line is skipped where it is so
already. Delete: load balancer, and once it is gone, the IP block. While anything of the balancer is being changed,
nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any, Final

from hub.plugin.clouds import Balancer, Ingress, Notice, Planned, Record, Refused, Step, Wait
from hub_provider_ionos import steps, wanted
from hub_provider_ionos.config import as_uuid
from hub_provider_ionos.network import TITLES, Block, Network, NetworkBalancer, Object, name_of, state_of
from hub_provider_ionos.ours import ours
from hub_provider_ionos.wanted import Place

SOON: Final = 100
"""Milliseconds; shorter times probably were meant as seconds."""
BUSY: Final = 5.0
"""Seconds until the cloud is asked again whether a change has ended; one takes seconds to minutes."""
PERSON: Final = 60.0
"""Seconds until it is looked at again whether a person has done their part."""
UNLISTED: Final = 15.0
"""Seconds until an object that another one refers to is looked for again in the lists."""
AGAIN: Final = 300.0
"""Seconds until a request that has failed is made again."""


class _Refusal(Exception):
    """The Service asks for what cannot be."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.planned = Refused(reason, message)


def plan(want: Balancer | None, seen: Network, record: Record) -> Sequence[Planned]:
    """See :class:`hub.plugin.clouds.Balancers`."""
    if want is None:
        return tuple(_guarded(_removal(seen, record), seen, record))
    course = _Course(want, seen, record)
    try:
        return tuple(_guarded(course.steps(), seen, record))
    except _Refusal as refusal:
        return (*course.notices(), *_guarded(course.nodes_only(), seen, record), refusal.planned)


def found(seen: Network, record: Record) -> dict[str, str]:
    """Kind -> id of the objects that are the balancer's."""
    mine = ours(seen, record)
    return {kind: each.id for kind in mine.all if (each := mine.first(kind)) is not None}


def ingress(want: Balancer, seen: Network, record: Record) -> tuple[Ingress, ...]:
    """The address of a load balancer that has all its rules; () while anything of it is being changed."""
    has = ours(seen, record).first("load_balancer")
    if not isinstance(has, NetworkBalancer) or state_of(has) != "AVAILABLE" or has.busy:
        return ()
    rules = {rule.port: rule.properties.listener_ip for rule in has.rules}
    found = {rules.get(port.port, "") for port in want.ports}
    if len(found) != 1 or "" in found:
        return ()
    proxied = want.settings.get("proxy-protocol", "none") != "none"
    return (Ingress(ip=found.pop(), ip_mode="Proxy" if proxied else ""),)


def _guarded(planned: Iterable[Planned], seen: Network, record: Record) -> Iterator[Planned]:
    """First what must end before any step; and before a step that the cloud could not make, a pause."""
    mine, names = ours(seen, record), (record.name, *record.former_names)
    asked = seen.asked(names)
    for number, (id_, each) in enumerate(asked, 1):
        gone = any(_undoes(later.step, each.step) for _, later in asked[number:])
        made = each.step.creates and each.status == "DONE" and not gone
        if each.active:
            yield Wait("CloudBusy", f"{each.step.summary}: request {id_} is {each.status}", BUSY)
        elif made and not _listed(each.step, seen, names):
            yield Wait("CloudBusy", f"{each.step.summary}: made, and not listed yet", BUSY)
    for each in (each for objects in mine.all.values() for each in objects):
        if each.busy:
            yield Wait("CloudBusy", f"{each.busy} is being changed", BUSY)
    failed = [(id_, each) for id_, each in asked if each.status == "FAILED"]
    for item in planned:
        for id_, each in failed:
            if each.step == item:
                text = f"{each.step.summary}: request {id_} has failed: {each.message}"
                yield Wait("CloudRequestFailed", text, AGAIN)
        yield item


def _undoes(later: Step, step: Step) -> bool:
    """Whether a step deletes what an earlier one has created."""
    names = (each.request["body"].get("name") for each in (later, step))
    return later.destroys == step.creates and len(set(names)) == 1


def _listed(step: Step, seen: Network, names: Sequence[str]) -> bool:
    """Whether what a step has created is in the lists."""
    request = step.request
    if request["kind"] == "forwarding_rule":
        has = seen.balancers.get(request["path"][1])
        return has is None or any(rule.properties.name == request["body"]["name"] for rule in has.rules)
    return any(name_of(each) in names for each in seen.of(request["kind"]).values())


def _removal(seen: Network, record: Record) -> Iterator[Planned]:
    """Everything of ours goes, and nothing else."""
    mine, name = ours(seen, record), record.name
    going = [each for kind in mine.all for each in mine.all[kind] if mine.may_go(kind, each, record)]
    # Once objects have no address in common any more, only their names say whose they are.
    strange = [each for each in going if name_of(each) not in (name, *record.former_names)]
    yield from (steps.change(name, each, {"name": name}, "rename") for each in strange)
    balancers = [each for each in going if isinstance(each, NetworkBalancer)]
    yield from (steps.delete(name, each) for each in balancers)
    others = [each for each in seen.balancers.values() if each not in balancers]
    for each in going:
        if isinstance(each, Block):
            yield from _freed(name, each, others, leaving={ip for gone in balancers for ip in gone.ips})


def _freed(name: str, block: Block, others: Iterable[NetworkBalancer], leaving: set[str]) -> Iterator[Planned]:
    """Delete a block that nothing uses; one with several addresses was not made by the hub."""
    if block.properties.size != 1:
        return
    if (user := _user(block, others)) and not leaving & set(block.ips):
        yield Wait("AddressInUse", f"IP block {block.id} is used by {user}", BUSY)
    else:
        yield steps.delete(name, block)


def _user(block: Block, others: Iterable[NetworkBalancer]) -> str:
    """What uses an address of a block besides our load balancer; "" if nothing does."""
    used = [each for each in others if set(each.ips) & set(block.ips)]
    if used:
        return f"network load balancer {used[0].id}"
    return next((str(each) for each in block.properties.ip_consumers or ()), "")


class _Course:
    """The steps for one balancer that is wanted."""

    def __init__(self, want: Balancer, seen: Network, record: Record) -> None:
        self._want = want
        self._seen = seen
        self._record = record
        self._ours = ours(seen, record)
        has = self._ours.first("load_balancer")
        self._has = has if isinstance(has, NetworkBalancer) else None

    def steps(self) -> Iterator[Planned]:
        """All steps.

        Raises:
            _Refusal: The Service asks for what cannot be.
        """
        if self._want.nodes_only:
            yield from self.notices()
            yield from self.nodes_only()
            return
        place = self._check()
        block = self._block(place)
        yield from self.notices()
        if block is not None and (user := self._in_use(block)):
            yield from self.nodes_only()
            text = f"IP block {block.id} is used by {user}; free it, or name another address"
            # Our own block may be used by our load balancer, which no list shows yet.
            yield Wait("AddressInUse", text, PERSON if block not in self._ours.all["ip_block"] else UNLISTED)
            return
        yield from self._replaced()
        yield from self._addressed(place, block)
        address = self._address(block)
        yield from self._balanced(place, address)
        yield from self._ruled(place, address)
        yield from self._moved(address)
        yield from self._spare(block)

    # --- what is wrong with it -------------------------------------------------------------------------

    def notices(self) -> Iterator[Notice]:
        """What an operator should know."""
        for kind, id_ in self._ours.ignored.items():
            yield Notice("RecordIgnored", f"the recorded {TITLES[kind]} {id_} has another name and does not count")
        for name in wanted.MILLISECONDS:
            value = self._want.settings.get(name)
            if isinstance(value, int) and 0 < value < SOON:
                yield Notice("AnnotationSuspicious", f"{name} is {value} milliseconds; were seconds meant?")
        for kind, objects in self._ours.all.items():
            for each in objects[1:]:
                if kind not in self._record.made:
                    text = f"there is a second {TITLES[kind]} {each.id} called {self._want.name}"
                    yield Notice("DuplicateCloudObject", f"{text}, which the hub did not make; delete one of them")
        if self._want.source_ranges and self._has is not None:
            text = "the cloud has no access lists: loadBalancerSourceRanges have no effect"
            yield Notice("SourceRangesIgnored", text)

    def _check(self) -> Place:
        want = self._want
        if "IPv4" not in want.families:
            raise _Refusal("FamilyUnsupported", "network load balancers have IPv4 only; use ipFamilies with IPv4")
        if other := next((port for port in want.ports if port.protocol != "TCP"), None):
            raise _Refusal("ProtocolUnsupported", f"port {other.port} is {other.protocol}; only TCP is possible")
        if missing := next((port for port in want.ports if not port.node_port), None):
            raise _Refusal("NodePortMissing", f"port {missing.port} has no nodePort")
        if want.source_ranges and self._has is None:
            text = "the cloud has no access lists, so loadBalancerSourceRanges would have no effect"
            raise _Refusal("SourceRangesUnsupported", text)
        if want.settings.get("algorithm", wanted.algorithm(want)) != wanted.algorithm(want):
            raise _Refusal("AnnotationInvalid", "sessionAffinity ClientIP needs algorithm SOURCE_IP, or none")
        place = self._place()
        if self._has is not None and self._has.datacenter != place.datacenter:
            text = f"load balancer {self._has.id} is in data center {self._has.datacenter} and cannot be moved"
            raise _Refusal("DatacenterChanged", f"{text}; name that one again, or create the Service anew")
        if self._has is not None and self._has.ips and self._internal == self._is_public():
            text = f"load balancer {self._has.id} is {'public' if self._is_public() else 'internal'} and cannot change"
            raise _Refusal("InternalChanged", f"{text}; undo that, or create the Service anew")
        return place

    def _is_public(self) -> bool:
        """Whether the existing load balancer has a reserved address."""
        ips = set(self._has.ips if self._has is not None else ())
        return any(ips & set(each.ips) for each in self._seen.blocks.values())

    def _place(self) -> Place:
        settings, known = self._want.settings, self._seen.locations
        named = settings.get("datacenter")
        datacenter = as_uuid(named) if named is not None else next(iter(known))
        if datacenter not in known:
            text = f"datacenter {str(named)[:40]!r} is not one of cloud.provider.config.datacenters"
            raise _Refusal("AnnotationInvalid", text)
        lans: list[int] = []
        for index, name in enumerate(("listener-lan", "target-lan")):
            lan = settings.get(name, self._seen.lans[index] if self._seen.lans is not None else 0)
            if not isinstance(lan, int) or lan < 1:
                raise _Refusal("LanMissing", f"no {name}: write lans into cloud.provider.config, or the annotation")
            lans.append(lan)
        return Place(datacenter, *lans)

    # --- the lines -------------------------------------------------------------------------------------

    @property
    def _internal(self) -> bool:
        return bool(self._want.settings.get("internal"))

    def _block(self, place: Place) -> Block | None:
        """The block whose address is used; None if there is none, or if it is to be made."""
        if self._internal:
            return None
        location = self._seen.locations[place.datacenter]
        if not self._want.address:
            mine = [each for each in self._ours.all["ip_block"] if isinstance(each, Block)]
            return next((each for each in mine if each.properties.location == location), None)
        for _, each in sorted(self._seen.blocks.items()):
            if _normal(self._want.address) in each.ips and each.properties.location == location:
                return each
        text = f"the account has no IP block in {location} with the address {self._want.address[:45]!r}"
        raise _Refusal("AddressNotFound", text)

    def _address(self, block: Block | None) -> str:
        """The address of the load balancer; "" as long as it has none."""
        if not self._internal:
            return _normal(self._want.address) or next(iter(block.ips if block is not None else ()), "")
        return _normal(self._want.address) or next(iter(self._has.ips if self._has is not None else ()), "")

    def _in_use(self, block: Block) -> str:
        """What uses the address of a reserved block: it is never taken away."""
        mine = {each.id for each in self._ours.all["load_balancer"]}
        others = [each for each in self._seen.balancers.values() if each.id not in mine]
        used = any(set(each.ips) & set(block.ips) for each in self._ours.all["load_balancer"])
        return "" if used else _user(block, others)

    def _replaced(self) -> Iterator[Planned]:
        """A failed load balancer is deleted once two observations say so."""
        if self._has is None or state_of(self._has) in ("AVAILABLE", "BUSY"):
            return
        if state_of(self._has) == "FAILED" and self._has.id in self._seen.failed:
            yield steps.delete(self._want.name, self._has)
        else:
            yield Wait("LoadBalancerNotReady", f"load balancer {self._has.id} is {state_of(self._has) or 'unknown'}")

    def _addressed(self, place: Place, block: Block | None) -> Iterator[Planned]:
        name = self._want.name
        if self._internal:
            return
        if block is None:
            yield steps.create_block(name, self._seen.locations[place.datacenter])
        elif block in self._ours.all["ip_block"] and name_of(block) != name:
            yield steps.change(name, block, {"name": name}, "rename")
        if block is not None and not block.ips:
            yield Wait("CloudBusy", f"IP block {block.id} has no address yet", BUSY)

    def _balanced(self, place: Place, address: str) -> Iterator[Planned]:
        name, has = self._want.name, self._has
        body: dict[str, Any] = {"name": name, "listenerLan": place.listener, "targetLan": place.target}
        if has is None:
            body |= {"ips": [address]} if address else {}
            yield steps.create_balancer(name, place.datacenter, body)
            return
        fields = has.properties
        now = {"name": name_of(has), "listenerLan": fields.listener_lan, "targetLan": fields.target_lan}
        changes: dict[str, Any] = {key: value for key, value in body.items() if now[key] != value}
        if address and address not in has.ips:
            changes["ips"] = [*has.ips, address]
        if changes:
            yield steps.change(name, has, changes, "rename" if [*changes] == ["name"] else "change")
        if not address:
            yield Wait("CloudBusy", f"load balancer {has.id} has no address yet", BUSY)

    def _ruled(self, place: Place, address: str) -> Iterator[Planned]:
        """A rule for each port; at last, the rules of ports that are gone."""
        name, has = self._want.name, self._has
        targets = wanted.targets(self._want, place, self._seen)
        rules = {rule.port: rule for rule in (has.rules if has is not None else ()) if rule.port}
        if targets.missing:
            text = f"{', '.join(targets.missing[:5])} have no address on LAN {place.target} of {place.datacenter}"
            yield Notice("NodesNotReachable", f"{len(targets.missing)} nodes get no traffic: {text}")
        for port in self._want.ports:
            rule = rules.pop(port.port, None)
            body = wanted.rule(self._want, port, address, wanted.kept(targets, rule))
            if rule is None and not body["targets"]:
                yield Wait("NoTargets", f"no node has an address on LAN {place.target} of {place.datacenter}")
            elif rule is None:
                yield steps.create_rule(name, has, place.datacenter, body)
            elif has is not None and (changes := wanted.changes(rule, body)):
                yield steps.change_rule(name, has, rule, changes)
        if has is not None:
            yield from (steps.delete_rule(name, has, rule) for _, rule in sorted(rules.items()))

    def _moved(self, address: str) -> Iterator[Step]:
        """Addresses that no rule uses any more leave the load balancer."""
        if self._has is None or not address or address not in self._has.ips:
            return
        ports = {port.port for port in self._want.ports}
        used = {rule.properties.listener_ip for rule in self._has.rules if rule.port not in ports}
        kept = [ip for ip in self._has.ips if ip == address or ip in used]
        if kept != [*self._has.ips]:
            yield steps.change(self._want.name, self._has, {"ips": kept})

    def _spare(self, block: Block | None) -> Iterator[Planned]:
        """What the hub made and does not need any more: second objects of the name, another block."""
        name, record, has = self._want.name, self._record, self._has
        if has is None:
            return
        doubles = [each for each in self._ours.all["load_balancer"][1:] if "load_balancer" in record.made]
        yield from (steps.delete(name, each) for each in doubles)
        others = [each for each in self._seen.balancers.values() if each not in doubles]
        for each in self._ours.all["ip_block"]:
            if isinstance(each, Block) and each is not block and "ip_block" in record.made and each.ips:
                leaving = {ip for gone in doubles for ip in _ips(gone)}
                leaving |= set(has.ips) - set(block.ips if block is not None else ())
                yield from _freed(name, each, others, leaving)

    def nodes_only(self) -> Iterator[Planned]:
        """Only the targets of existing rules follow the nodes."""
        has = self._has
        if has is None or has.datacenter not in self._seen.fleets:
            return
        place = Place(has.datacenter, has.properties.listener_lan, has.properties.target_lan)
        targets = wanted.targets(self._want, place, self._seen)
        ports = {port.port: port for port in self._want.ports if port.node_port}
        for rule in has.rules:
            if (port := ports.get(rule.port)) is not None:
                body = wanted.rule(self._want, port, rule.properties.listener_ip, wanted.kept(targets, rule))
                if "targets" in (changes := wanted.changes(rule, body)):
                    yield steps.change_rule(self._want.name, has, rule, {"targets": changes["targets"]})


def _ips(each: Object) -> tuple[str, ...]:
    return each.ips


def _normal(address: str) -> str:
    """An address in its usual form; "" if it is none."""
    try:
        return str(ip_address(address))
    except ValueError:
        return ""
