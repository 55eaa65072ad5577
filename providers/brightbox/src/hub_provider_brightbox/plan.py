"""From what an account has to what a Service wants: the steps, in order. Pure.

Create and change: address, group, join, policy, rule, balancer, map, unmap, leave, spare, confirm. Each line is skipped
where it is so already. Delete: unmap, balancer, address, leave, group, policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any, Final

from hub.plugin.clouds import Balancer, Ingress, Notice, Planned, Record, Refused, Step, Wait
from hub_provider_brightbox import fields, steps
from hub_provider_brightbox.inventory import (
    LIVE,
    Inventory,
    Kind,
    acme_problems,
    addresses,
    clean,
    holder,
    mapped,
    mapped_to,
    rule_of,
    servers_of,
)
from hub_provider_brightbox.ours import ours
from hub_provider_brightbox.removal import SETTLING, gone, locked, removal, settling
from hub_provider_brightbox.shapes import Object, as_objects, part_id
from hub_provider_brightbox.steps import NEW, TITLES, UNDONE

SOON: Final = 100
"""Milliseconds; shorter times probably were meant as seconds."""
TIMES: Final = ("listener-idle-timeout", "healthcheck-interval", "healthcheck-timeout")
PERSON: Final = 60.0
"""Seconds until it is looked at again whether a person has done their part."""


class _Refusal(Exception):
    """The Service asks for what cannot be."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.planned = Refused(reason, message)


def plan(want: Balancer | None, seen: Inventory, record: Record) -> Sequence[Planned]:
    """See :class:`hub.plugin.clouds.Balancers`."""
    account = record.ids.get("account", "")
    if account and seen.account not in ("", account):
        text = f"the API client belongs to account {seen.account}, and the load balancer to {account}"
        return (Refused("WrongAccount", f"{text}; configure an API client of that account"),)
    if account and not seen.account:
        text = (
            f"the cloud's lists have nothing of account {account}, not even its default server group, so they are "
            "incomplete; nothing is changed until they are complete"
        )
        return (Wait("ListIncomplete", text, PERSON),)
    if want is None:
        return tuple(removal(seen, record))
    course = _Course(want, seen, record)
    try:
        return tuple(course.steps())
    except _Refusal as refusal:
        return (*course.notices(), *course.nodes_only(), refusal.planned)


def ingress(seen: Inventory, record: Record) -> tuple[Ingress, ...]:
    """The names of the Cloud IPs that are mapped to the balancer: reverse DNS, then the Cloud IP's own."""
    balancer = ours(seen, record).found.get("load_balancer")
    if balancer is None or balancer.get("status") not in LIVE:
        return ()
    found = [each for each in mapped(seen, {balancer["id"]}) if not each.get(UNDONE)]
    names = [str(each.get(key) or "") for each in found for key in ("reverse_dns", "fqdn")]
    return tuple(Ingress(hostname=name) for name in dict.fromkeys(names) if name)


def found(seen: Inventory, record: Record) -> dict[str, str]:
    """Kind -> id of the objects that are the balancer's, and with them the account."""
    mine = {str(kind): str(each["id"]) for kind, each in ours(seen, record).found.items()}
    return {**mine, "account": seen.account} if mine and seen.account else mine


def _id(each: Object | None) -> str:
    return str(each["id"]) if each is not None else ""


# --- wanted ----------------------------------------------------------------------------------------------


class _Course:
    """The steps for one balancer that is wanted."""

    def __init__(self, want: Balancer, seen: Inventory, record: Record) -> None:
        self._want = want
        self._seen = seen
        self._record = record
        self._ours = ours(seen, record)
        first = self._ours.found.get("load_balancer")
        self._balancer = first if first is not None and first.get("status") in LIVE else None
        self._group = self._ours.found.get("server_group")
        self._policy = self._ours.found.get("firewall_policy")
        self._servers = fields.servers(want)

    def steps(self) -> Iterator[Planned]:
        """All steps.

        Raises:
            _Refusal: The Service asks for what cannot be.
        """
        if self._ours.taken is not None:
            text = f"server group {self._ours.taken['id']} is called {clean(self._ours.taken.get('name'))}"
            raise _Refusal(
                "CloudNameTaken", f"{text} and belongs to another cluster: give this one another clusterName"
            )
        if self._want.nodes_only:
            yield from self.notices()
            yield from self.nodes_only()
            return
        self._check()
        address = self._address()
        yield from self.notices()
        if (problem := self._unlisted() or self._in_use(address)) is not None:
            yield from self.nodes_only()
            yield problem
            return
        yield from self._replaced()
        yield from self._addressed(address)
        yield from self._grouped()
        yield from self._firewall()
        yield from self._balanced(address)
        yield from self._placed(address)
        yield from self._left()
        yield from self._spare(address)
        yield from self._confirmed(address)

    # --- what is wrong with it -------------------------------------------------------------------------

    def notices(self) -> Iterator[Notice]:
        """What an operator should know."""
        for kind, id_ in self._ours.ignored.items():
            yield Notice("RecordIgnored", f"the recorded {TITLES[kind]} {id_} has another name and does not count")
        for name in TIMES:
            value = self._want.settings.get(name)
            if isinstance(value, int) and 0 < value < SOON:
                yield Notice("AnnotationSuspicious", f"{name} is {value} milliseconds; were seconds meant?")
        for kind, each in self._ours.doubles:
            if not self._made(kind):
                text = f"there is a second {TITLES[kind]} {each['id']} called {self._want.name}"
                yield Notice("DuplicateCloudObject", f"{text}, which the hub did not make; delete one of them")
        if self._balancer is not None and self._balancer.get("status") == "failing":
            text = f"load balancer {self._balancer['id']} is failing; the hub leaves it as it is"
            yield Notice("LoadBalancerFailing", text)
        if self._want.source_ranges and self._balancer is not None:
            text = "the cloud has no access lists: loadBalancerSourceRanges have no effect"
            yield Notice("SourceRangesIgnored", text)

    def _check(self) -> None:
        want = self._want
        if want.client_affinity:
            raise _Refusal("AffinityUnsupported", "sessionAffinity must be None on Brightbox")
        if other := next((port for port in want.ports if port.protocol != "TCP"), None):
            raise _Refusal("ProtocolUnsupported", f"port {other.port} is {other.protocol}; only TCP is possible")
        if missing := next((port for port in want.ports if not port.node_port), None):
            raise _Refusal("NodePortMissing", f"port {missing.port} has no nodePort")
        if want.source_ranges and self._balancer is None:
            text = "the cloud has no access lists, so loadBalancerSourceRanges would have no effect"
            raise _Refusal("SourceRangesUnsupported", text)
        given = [name for name in ("ssl-domains", "ssl-ports") if name in want.settings]
        if given and fields.protocol(want) == "tcp":
            raise _Refusal("AnnotationInvalid", f"{given[0]} cannot be combined with listener-protocol tcp")
        if given == ["ssl-ports"]:
            raise _Refusal("AnnotationInvalid", "ssl-ports needs ssl-domains")
        if given and fields.protocol(want) == "http" and 443 not in {port.port for port in want.ports}:
            raise _Refusal("AnnotationInvalid", "ssl-domains and ssl-ports need port 443 with listener-protocol http")

    # --- the lines -------------------------------------------------------------------------------------

    def _address(self) -> Object | None:
        """The Cloud IP to use; None if one is to be made."""
        ips = self._seen.of("cloud_ip")
        named: Any = self._want.settings.get("cloudip-allocations")
        if named is None and not self._want.address:
            return self._ours.found.get("cloud_ip") or next(iter(self._mapped()), None)
        if named is not None and self._want.address:
            raise _Refusal("AnnotationInvalid", "cloudip-allocations cannot be combined with spec.loadBalancerIP")
        if named is not None and len(named) != 1:
            raise _Refusal("AnnotationInvalid", "cloudip-allocations must be one id of a Cloud IP")
        if named is not None:
            found = ips.get(named[0])
        else:
            found = next((each for _, each in sorted(ips.items()) if _has_address(each, self._want.address)), None)
        if found is None:
            text = str(named[0] if named is not None else self._want.address)[:45]
            raise _Refusal("CloudIPNotFound", f"the account has no Cloud IP {text!r}")
        return found

    def _mapped(self) -> list[Object]:
        return mapped(self._seen, {self._balancer["id"]}) if self._balancer is not None else []

    def _unlisted(self) -> Wait | None:
        """A recorded object that another one refers to, and that no list shows: nothing is made in its place."""
        balancer, address = self._balancer or {}, self._ours.found.get("cloud_ip") or {}
        users: Sequence[tuple[Kind, Object, set[str]]] = (
            ("load_balancer", address, {mapped_to(address)}),
            ("cloud_ip", balancer, {str(each.get("id")) for each in as_objects(balancer.get("cloud_ips"))}),
            ("server_group", self._policy or {}, {part_id(self._policy or {}, "server_group")}),
            ("firewall_policy", self._group or {}, {part_id(self._group or {}, "firewall_policy")}),
        )
        for kind, user, named in users:
            id_ = self._record.ids.get(kind)
            if id_ in named and id_ not in self._seen.of(kind):
                text = (
                    f"{TITLES[kind]} {id_} is missing in the cloud's lists, but {user['id']} still refers to it; no "
                    "new one is made until it is listed, or the reference is removed"
                )
                return Wait("ListIncomplete", text, SETTLING)
        return None

    def _in_use(self, address: Object | None) -> Wait | None:
        """A Cloud IP that is mapped elsewhere is never taken away."""
        mine = {each["id"] for each in self._ours.all("load_balancer")}
        if address is None or holder(address) in ("", *mine):
            return None
        text = f"Cloud IP {address['id']} is mapped to {holder(address)}; unmap it, or name another one"
        return Wait("CloudIPInUse", text, PERSON)

    def _replaced(self) -> Iterator[Planned]:
        """A failed balancer is deleted once two observations say so; one that is being deleted is waited for."""
        has = self._ours.found.get("load_balancer")
        if has is None or self._balancer is not None:
            return
        if has.get("status") != "failed" or has["id"] not in self._seen.failed:
            yield Wait("LoadBalancerLeaving", f"load balancer {has['id']} is {has.get('status')}")
        else:
            yield locked(has) or steps.delete("load_balancer", has)

    def _addressed(self, address: Object | None) -> Iterator[Step]:
        name = self._want.name
        if address is None:
            yield steps.create("cloud_ip", {"name": name})
        elif address["id"] == _id(self._ours.found.get("cloud_ip")) and clean(address.get("name")) != name:
            yield steps.put("cloud_ip", address, {"name": name}, "rename")

    def _grouped(self) -> Iterator[Step]:
        name = self._want.name
        if self._group is None:
            yield steps.create("server_group", {"name": name, "description": str(self._want.marker)})
        elif clean(self._group.get("name")) != name:
            yield steps.put("server_group", self._group, {"name": name}, "rename")
        yield from self._joined()

    def _joined(self) -> Iterator[Step]:
        members = servers_of(self._group)
        if joining := [server for server in self._servers if server not in members]:
            yield steps.members(_id(self._group) or NEW, "add_servers", joining)

    def _firewall(self) -> Iterator[Step]:
        name, group = self._want.name, _id(self._group) or NEW
        if self._policy is None:
            yield steps.create("firewall_policy", {"name": name, "server_group": group})
        else:
            if clean(self._policy.get("name")) != name:
                yield steps.put("firewall_policy", self._policy, {"name": name}, "rename")
            if part_id(self._policy, "server_group") != group:
                yield steps.act("firewall_policy", self._policy["id"], "apply_to", {"server_group": group})
        wanted = fields.rule(self._want)
        has = rule_of(self._policy, (name, *self._want.former_names))
        if changes := fields.rule_changes(has, wanted) if has is not None else wanted:
            yield steps.rule(_id(self._policy) or NEW, has, changes)

    def _balanced(self, address: Object | None) -> Iterator[Planned]:
        has = self._balancer
        wanted = fields.balancer(self._want, self._record, address, has, self._seen)
        if has is None:
            yield steps.create("load_balancer", wanted)
        elif changes := fields.balancer_changes(has, wanted):
            yield locked(has) or steps.put("load_balancer", has, changes)

    def _placed(self, address: Object | None) -> Iterator[Step]:
        """The Cloud IP is mapped to the balancer, and no other one is."""
        id_ = _id(self._balancer)
        if address is None or not id_ or mapped_to(address) != id_:
            if address is not None and holder(address):  # a failed or second balancer of ours
                yield steps.act("cloud_ip", address["id"], "unmap", {})
            yield steps.act("cloud_ip", _id(address) or NEW, "map", {"destination": id_ or NEW})
        if address is not None:
            others = [each for each in self._mapped() if each["id"] != address["id"]]
            yield from (steps.act("cloud_ip", each["id"], "unmap", {}) for each in others)

    def _left(self) -> Iterator[Step]:
        leaving = sorted(servers_of(self._group) - set(self._servers))
        if self._group is not None and leaving and self._servers:
            yield steps.members(self._group["id"], "remove_servers", leaving)

    def _spare(self, address: Object | None) -> Iterator[Planned]:
        """What the hub made and does not need any more: another Cloud IP, second objects of the name."""
        if address is None or self._balancer is None or mapped_to(address) != self._balancer["id"]:
            return
        for kind, each in self._ours.doubles:
            if kind != "cloud_ip" and self._made(kind):
                yield from gone(kind, each)
        for each in self._ours.all("cloud_ip"):
            if each["id"] != address["id"] and self._made("cloud_ip") and not holder(each):
                yield settling(each) or steps.delete("cloud_ip", each)

    def _made(self, kind: Kind) -> bool:
        return kind in self._record.made

    def _confirmed(self, address: Object | None) -> Iterator[Wait]:
        has = self._balancer
        if address is None or has is None:
            return
        if address.get(UNDONE):
            yield Wait("CloudIPMapping", f"Cloud IP {address['id']} is being mapped to {has['id']}", SETTLING)
        if has.get("status") == "creating":
            yield Wait("LoadBalancerCreating", f"load balancer {has['id']} is being created", SETTLING)
        if any(fields.has_tls(self._want, port) for port in self._want.ports):
            for name in fields.domains(self._want, address, has, self._seen)[1]:
                text = f"{name} does not lead to Cloud IP {addresses(address)[0]}; its certificate waits for that"
                yield Wait("DomainNotReady", text, PERSON)
        for name, status, said in acme_problems(has):
            yield Wait("CertificatePending", f"the certificate of {name} is {status}: {said}"[:250], PERSON)

    def nodes_only(self) -> Iterator[Planned]:
        """Only the nodes of an existing balancer follow."""
        has = self._balancer
        if self._group is None or has is None or not self._servers:
            return
        yield from self._joined()
        if changes := fields.balancer_changes(has, {"nodes": [{"node": server} for server in self._servers]}):
            yield locked(has) or steps.put("load_balancer", has, changes)
        yield from self._left()


def _has_address(cloud_ip: Object, address: str) -> bool:
    try:
        asked = ip_address(address)
        return any(ip_address(each) == asked for each in addresses(cloud_ip))
    except ValueError:
        return False
