"""From what an account has to what a Service wants: the steps, in order. Pure.

Create and change: address, group, join, policy, rule, balancer, map, unmap, leave, spare, confirm. Each line is skipped
where it is so already. Delete: unmap, balancer, address, leave, group, policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from hub.plugin.clouds import Balancer, Ingress, Notice, Planned, Record, Refused, Step, Wait
from hub_provider_brightbox.instances import PROVIDER_ID
from hub_provider_brightbox.inventory import PATHS, Inventory, Kind, Ours, clean, ours
from hub_provider_brightbox.shapes import Object, as_object, as_objects, ids, part_id

NEW: Final = "(new)"
"""Stands for an id in the text of a step that comes after the one that makes it."""
SOURCE: Final = "10.0.0.0/8"
"""Where the cloud's load balancers send their traffic from."""
SOON: Final = 100
"""Milliseconds; shorter times probably were meant as seconds."""
LIVE: Final = ("creating", "active", "failing")
TIMES: Final = ("listener-idle-timeout", "healthcheck-interval", "healthcheck-timeout")
HEALTH: Final = {
    "healthcheck-interval": ("interval", 5000),
    "healthcheck-timeout": ("timeout", 5000),
    "healthcheck-healthy-threshold": ("threshold_up", 3),
    "healthcheck-unhealthy-threshold": ("threshold_down", 3),
}
"""Setting -> field of the health check, and the cloud's default."""
POLICY, IDLE = "least-connections", 50_000
"""The cloud's defaults of the balancing policy and of the idle timeout in milliseconds."""
NAMES: Final[Mapping[Kind, str]] = {
    "load_balancer": "load balancer",
    "server_group": "server group",
    "firewall_policy": "firewall policy",
    "cloud_ip": "Cloud IP",
}


class _Refusal(Exception):
    """The Service asks for what cannot be."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.planned = Refused(reason, message)


def plan(want: Balancer | None, seen: Inventory, record: Record) -> Sequence[Planned]:
    """See :class:`hub.plugin.clouds.Balancers`."""
    if want is None:
        return tuple(_delete(seen, record))
    try:
        return tuple(_Course(want, seen, record).steps())
    except _Refusal as refusal:
        return (refusal.planned,)


def ingress(want: Balancer, seen: Inventory, record: Record) -> tuple[Ingress, ...]:
    """The names of the Cloud IPs that are mapped to the balancer: reverse DNS, then the Cloud IP's own."""
    del want
    balancer = ours(seen, record).found.get("load_balancer")
    if balancer is None or balancer.get("status") not in LIVE:
        return ()
    found = [each for _, each in sorted(seen.of("cloud_ip").items()) if _mapped_to(each) == balancer["id"]]
    names = [str(each.get(key) or "") for each in found for key in ("reverse_dns", "fqdn")]
    return tuple(Ingress(hostname=name) for name in dict.fromkeys(names) if name)


# --- wanted ----------------------------------------------------------------------------------------------


class _Course:
    """The steps for one balancer that is wanted."""

    def __init__(self, want: Balancer, seen: Inventory, record: Record) -> None:
        self._want = want
        self._seen = seen
        self._record = record
        self._ours = ours(seen, record)
        self._balancer = self._live()
        self._group = self._ours.found.get("server_group")
        self._policy = self._ours.found.get("firewall_policy")
        self._servers = sorted(
            {found["id"] for node in want.nodes if (found := PROVIDER_ID.fullmatch(node.provider_id))}
        )

    def _live(self) -> Object | None:
        found = self._ours.found.get("load_balancer")
        return found if found is not None and found.get("status") in LIVE else None

    def steps(self) -> Iterator[Planned]:
        if self._ours.foreign:
            kind, each = self._ours.foreign[0]
            text = f"{NAMES[kind]} {each['id']} is called {self._want.name} and belongs to another cluster"
            raise _Refusal("CloudNameTaken", f"{text}: give this cluster another clusterName")
        yield from self._notices()
        if self._want.nodes_only:
            yield from self._nodes_only()
            return
        self._check()
        yield from self._replaced()
        address, problem = self._address()
        if problem is not None:
            yield problem
            return
        if address is None:
            yield _create("cloud_ip", self._want.name, {"name": self._want.name})
        elif clean(address.get("name")) in self._want.former_names:
            yield _put("cloud_ip", address, {"name": self._want.name}, "rename")
        yield from self._grouped()
        yield from self._firewall()
        yield from self._balanced(address)
        yield from self._mapped(address)
        yield from self._left()
        yield from self._spare(address)
        yield from self._confirmed(address)

    # --- what is wrong with it -------------------------------------------------------------------------

    def _setting(self, name: str) -> Any:
        return self._want.settings.get(name)

    @property
    def _protocol(self) -> str:
        return str(self._setting("listener-protocol") or "http")

    def _notices(self) -> Iterator[Notice]:
        for kind in self._ours.ignored:
            yield Notice("RecordIgnored", f"the recorded {NAMES[kind]} has another name and does not count")
        for name in TIMES:
            value = self._setting(name)
            if isinstance(value, int) and 0 < value < SOON:
                yield Notice("AnnotationSuspicious", f"{name} is {value} milliseconds; were seconds meant?")
        for kind, each in self._ours.doubles:
            if kind not in self._record.made:
                text = f"there is a second {NAMES[kind]} {each['id']} called {self._want.name}"
                yield Notice("DuplicateCloudObject", f"{text}, which the hub did not make; delete one of them")
        if self._want.source_ranges and self._balancer is not None:
            yield Notice(
                "SourceRangesIgnored", "the cloud has no access lists: loadBalancerSourceRanges have no effect"
            )

    def _check(self) -> None:
        want = self._want
        if want.client_affinity:
            raise _Refusal("AffinityUnsupported", "sessionAffinity must be None on Brightbox")
        if other := next((port for port in want.ports if port.protocol != "TCP"), None):
            raise _Refusal("ProtocolUnsupported", f"port {other.port} is {other.protocol}; only TCP is possible")
        if want.source_ranges and self._balancer is None:
            text = "the cloud has no access lists, so loadBalancerSourceRanges would have no effect"
            raise _Refusal("SourceRangesUnsupported", text)
        domains, ports = self._setting("ssl-domains"), self._setting("ssl-ports")
        for name, value in (("ssl-domains", domains), ("ssl-ports", ports)):
            if value is not None and self._protocol == "tcp":
                raise _Refusal("AnnotationInvalid", f"{name} cannot be combined with listener-protocol tcp")
        if ports is not None and domains is None:
            raise _Refusal("AnnotationInvalid", "ssl-ports needs ssl-domains")
        if (domains is not None or ports is not None) and self._protocol == "http" and 443 not in self._ports():
            raise _Refusal("AnnotationInvalid", "ssl-domains and ssl-ports need port 443 with listener-protocol http")

    def _ports(self) -> set[int]:
        return {port.port for port in self._want.ports}

    def _replaced(self) -> Iterator[Planned]:
        """A failed balancer is deleted once two observations say so; one that is being deleted is waited for."""
        found = self._ours.found.get("load_balancer")
        if found is None or self._balancer is not None:
            return
        if found.get("status") == "failed" and found["id"] in self._seen.failed:
            yield _delete_step("load_balancer", found)
        else:
            yield Wait("LoadBalancerLeaving", f"load balancer {found['id']} is {found.get('status')}")

    # --- the lines -------------------------------------------------------------------------------------

    def _address(self) -> tuple[Object | None, Planned | None]:
        """The Cloud IP to use, None if one is to be made; and what prevents it."""
        ips = self._seen.of("cloud_ip")
        named = self._setting("cloudip-allocations")
        found: Object | None = None
        if named is not None:
            if self._want.address:
                raise _Refusal("AnnotationInvalid", "cloudip-allocations cannot be combined with spec.loadBalancerIP")
            if len(named) != 1:
                raise _Refusal("AnnotationInvalid", "cloudip-allocations must be one id of a Cloud IP")
            found = ips.get(named[0])
            if found is None:
                raise _Refusal("CloudIPNotFound", f"the account has no Cloud IP {named[0][:40]}")
        elif self._want.address:
            found = next((each for each in ips.values() if _public(each) == self._want.address), None)
            if found is None:
                raise _Refusal("CloudIPNotFound", f"the account has no Cloud IP {self._want.address[:45]}")
        else:
            found = self._ours.found.get("cloud_ip") or self._already_mapped()
        if found is not None and _holder(found) not in ("", self._id(self._balancer)):
            text = f"Cloud IP {found['id']} is mapped to {_holder(found)}; unmap it, or name another one"
            return found, Wait("CloudIPInUse", text, 60.0)
        return found, None

    def _already_mapped(self) -> Object | None:
        id_ = self._id(self._balancer)
        return next(
            (each for _, each in sorted(self._seen.of("cloud_ip").items()) if id_ and _mapped_to(each) == id_), None
        )

    @staticmethod
    def _id(each: Object | None) -> str:
        return str(each["id"]) if each is not None else ""

    def _grouped(self) -> Iterator[Step]:
        name = self._want.name
        if self._group is None:
            yield _create("server_group", name, {"name": name, "description": str(self._want.marker)})
        elif clean(self._group.get("name")) != name:
            yield _put("server_group", self._group, {"name": name}, "rename")
        members = ids(self._group, "servers")
        if joining := [server for server in self._servers if server not in members]:
            id_ = self._id(self._group) or NEW
            yield _act(
                "server_group", id_, "add_servers", {"servers": [{"server": each} for each in joining]}, len(joining)
            )

    def _firewall(self) -> Iterator[Step]:
        name, group = self._want.name, self._id(self._group) or NEW
        if self._policy is None:
            yield _create("firewall_policy", name, {"name": name, "server_group": group})
        else:
            if clean(self._policy.get("name")) != name:
                yield _put("firewall_policy", self._policy, {"name": name}, "rename")
            if not part_id(self._policy, "server_group"):
                yield _act("firewall_policy", self._policy["id"], "apply_to", {"server_group": group})
        ports = dict.fromkeys(port.node_port for port in self._want.ports)
        if self._want.local and self._want.health_port:
            ports[self._want.health_port] = None
        wanted = {
            "protocol": "tcp",
            "source": SOURCE,
            "destination_port": ",".join(map(str, ports)),
            "description": name,
        }
        rules = as_objects((self._policy or {}).get("rules"))
        rule = next(
            (each for each in rules if clean(each.get("description")) in (name, *self._want.former_names)), None
        )
        rule = rule or (rules[0] if len(rules) == 1 else None)
        policy = self._id(self._policy) or NEW
        if rule is None:
            body = {"firewall_policy": policy, **wanted}
            request = {"do": "rule", "policy": policy, "method": "POST", "path": "firewall_rules", "body": body}
            yield Step("create-firewall-rule", f"create firewall rule for ports {wanted['destination_port']}", request)
            return
        differs = {key: value for key, value in wanted.items() if _differs(key, rule.get(key), value)}
        if differs:
            path = f"firewall_rules/{rule['id']}"
            request = {"do": "rule", "policy": policy, "method": "PUT", "path": path, "body": differs}
            yield Step(
                "change-firewall-rule", f"change firewall rule {rule['id']}: {', '.join(sorted(differs))}", request
            )

    def _balanced(self, address: Object | None) -> Iterator[Planned]:
        wanted = self._body(address)
        if self._balancer is None:
            if not self._servers:
                wanted.pop("nodes")
            yield _create("load_balancer", self._want.name, wanted)
            return
        has = self._balancer
        if not self._servers:
            wanted.pop("nodes")
        changed = {key: value for key, value in wanted.items() if not _same(key, has.get(key), value)}
        if changed:
            yield _put("load_balancer", has, changed, "change")

    def _body(self, address: Object | None) -> dict[str, Any]:
        want, before = self._want, self._record.set
        secure = {port.port for port in want.ports if self._is_secure(port.port, port.name)}
        idle = self._setting("listener-idle-timeout")
        if idle is None and "listener-idle-timeout" in before:
            idle = IDLE
        listeners: list[Object] = []
        for port in want.ports:
            listener: dict[str, Any] = {
                "protocol": "https" if port.port in secure else self._protocol,
                "in": port.port,
                "out": port.node_port,
            }
            if idle is not None:
                listener["timeout"] = idle
            if (proxy := self._setting("listener-proxy-protocol")) is not None:
                listener["proxy_protocol"] = proxy
            listeners.append(listener)
        found: dict[str, Any] = {
            "name": want.name,
            "nodes": [{"node": server} for server in self._servers],
            "listeners": listeners,
            "healthcheck": self._healthcheck(),
            "https_redirect": bool(secure),
        }
        policy = self._setting("policy") or (POLICY if "policy" in before else None)
        if policy is not None:
            found["policy"] = policy
        if secure and address is not None:
            ready, _ = self._domains(address)
            found["domains"] = ready
        return found

    def _is_secure(self, port: int, name: str) -> bool:
        if self._protocol == "tcp":
            return False
        ports = [text for text in self._setting("ssl-ports") or () if text != "*"]
        return port == 443 or str(port) in ports or (bool(name) and name in ports) or self._protocol == "https"

    def _domains(self, address: Object) -> tuple[list[str], list[str]]:
        """The domains of the certificate that lead to the Cloud IP, and those that do not."""
        own = [str(address.get(key) or "") for key in ("fqdn", "reverse_dns")]
        asked = [str(name) for name in self._setting("ssl-domains") or ()]
        ready = [name for name in asked if _public(address) in self._seen.names.get(name, ())]
        return list(dict.fromkeys([*filter(None, own), *ready])), [name for name in asked if name not in ready]

    def _healthcheck(self) -> dict[str, Any]:
        want = self._want
        port = want.health_port if want.local and want.health_port else want.ports[0].node_port
        by_node = want.local and bool(want.health_port)
        kind = self._setting("healthcheck-protocol") or ("tcp" if self._protocol == "tcp" and not by_node else "http")
        request = "/" if kind == "tcp" else self._setting("healthcheck-request") or "/healthz"
        found: dict[str, Any] = {"type": kind, "port": port, "request": request}
        for name, (key, default) in HEALTH.items():
            value = self._setting(name)
            if value is None and name in self._record.set:
                value = default
            if value is not None:
                found[key] = value
        return found

    def _mapped(self, address: Object | None) -> Iterator[Step]:
        id_ = self._id(self._balancer) or NEW
        if address is None or _mapped_to(address) != id_:
            cloud_ip = self._id(address) or NEW
            yield _act("cloud_ip", cloud_ip, "map", {"destination": id_})
        for each in self._others(address):
            yield _act("cloud_ip", each["id"], "unmap", {})

    def _others(self, address: Object | None) -> list[Object]:
        """Further Cloud IPs that are mapped to the balancer; only those that the hub made or named are unmapped."""
        id_ = self._id(self._balancer)
        found = [each for _, each in sorted(self._seen.of("cloud_ip").items()) if id_ and _mapped_to(each) == id_]
        return [each for each in found if each["id"] != self._id(address)] if address is not None else []

    def _left(self) -> Iterator[Step]:
        leaving = [server for server in sorted(ids(self._group, "servers")) if server not in self._servers]
        if self._group is not None and leaving and self._servers:
            body = {"servers": [{"server": each} for each in leaving]}
            yield _act("server_group", self._group["id"], "remove_servers", body, len(leaving))

    def _spare(self, address: Object | None) -> Iterator[Step]:
        mine = self._ours.found.get("cloud_ip")
        if address is None or mine is None or mine["id"] == address["id"] or "cloud_ip" not in self._record.made:
            return
        if not _holder(mine):
            yield _delete_step("cloud_ip", mine)

    def _confirmed(self, address: Object | None) -> Iterator[Wait]:
        if address is None or self._balancer is None:
            return
        if self._balancer.get("status") == "creating":
            yield Wait("LoadBalancerCreating", f"load balancer {self._balancer['id']} is being created", 5.0)
        for name in self._domains(address)[1] if self._body(address)["https_redirect"] else ():
            text = f"{name} does not lead to Cloud IP {_public(address)}; its certificate waits for that"
            yield Wait("DomainNotReady", text, 60.0)
        for each in as_objects(as_object(self._balancer.get("acme")).get("domains")):
            if each.get("status") not in ("valid", None):
                text = (
                    f"the certificate of {each.get('identifier')} is {each.get('status')}: {each.get('last_message')}"
                )
                yield Wait("CertificatePending", text[:250], 60.0)

    def _nodes_only(self) -> Iterator[Step]:
        """Only the nodes of an existing balancer follow."""
        if self._group is None or self._balancer is None or not self._servers:
            return
        members = ids(self._group, "servers")
        if joining := [server for server in self._servers if server not in members]:
            body = {"servers": [{"server": each} for each in joining]}
            yield _act("server_group", self._group["id"], "add_servers", body, len(joining))
        nodes = [{"node": server} for server in self._servers]
        if not _same("nodes", self._balancer.get("nodes"), nodes):
            yield _put("load_balancer", self._balancer, {"nodes": nodes}, "change")
        yield from self._left()


# --- not wanted ------------------------------------------------------------------------------------------


def _delete(seen: Inventory, record: Record) -> Iterator[Planned]:
    """Everything of ours goes, and nothing else; see :func:`_may_go`."""
    mine = ours(seen, record)
    balancers = [each for each in _all(mine, "load_balancer") if _may_go("load_balancer", each, mine, record)]
    going = {each["id"] for each in balancers}
    mapped = [each for _, each in sorted(seen.of("cloud_ip").items()) if _mapped_to(each) in going]
    yield from (_act("cloud_ip", each["id"], "unmap", {}) for each in mapped)
    yield from (_delete_step("load_balancer", each) for each in balancers if each.get("status") != "deleting")
    spare = [each for each in _all(mine, "cloud_ip") if _may_go("cloud_ip", each, mine, record)]
    yield from (_delete_step("cloud_ip", each) for each in spare if _holder(each) in ("", *going))
    for each in _all(mine, "server_group"):
        if servers := sorted(ids(each, "servers")):
            body = {"servers": [{"server": server} for server in servers]}
            yield _act("server_group", each["id"], "remove_servers", body, len(servers))
        yield _delete_step("server_group", each)
    yield from (_delete_step("firewall_policy", each) for each in _all(mine, "firewall_policy"))
    if waiting := [each["id"] for each in balancers if each.get("status") == "deleting"]:
        yield Wait("LoadBalancerLeaving", f"load balancer {waiting[0]} is being deleted", 5.0)


def _all(mine: Ours, kind: Kind) -> list[Object]:
    found = [mine.found[kind]] if kind in mine.found else []
    return [*found, *(each for other, each in mine.doubles if other == kind)]


def _may_go(kind: Kind, each: Object, mine: Ours, record: Record) -> bool:
    """Whether an object of our name may be deleted: a Cloud IP, and a double, only if the hub made it.

    Without anything remembered, the name alone says whose it is.
    """
    known = bool(record.ids or record.made or record.intent)
    first = kind in mine.found and mine.found[kind]["id"] == each["id"]
    if kind == "cloud_ip":
        return not known or "cloud_ip" in record.made
    return first or not known or kind in record.made


# --- steps -----------------------------------------------------------------------------------------------


def _create(kind: Kind, name: str, body: Mapping[str, Any]) -> Step:
    request = {"do": "create", "kind": kind, "method": "POST", "path": PATHS[kind], "body": dict(body)}
    return Step(f"create-{_dashed(kind)}", f"create {NAMES[kind]} {name}", request, creates=kind)


def _put(kind: Kind, each: Object, body: Mapping[str, Any], word: str) -> Step:
    request = {"do": "put", "kind": kind, "method": "PUT", "path": f"{PATHS[kind]}/{each['id']}", "body": dict(body)}
    return Step(f"{word}-{_dashed(kind)}", f"{word} {NAMES[kind]} {each['id']}: {', '.join(sorted(body))}", request)


def _act(kind: Kind, id_: str, action: str, body: Mapping[str, Any], count: int = 0) -> Step:
    path = f"{PATHS[kind]}/{id_}/{action}"
    words = f"{action} {NAMES[kind]} {id_}" + (f": {count} servers" if count else "")
    if action == "map":
        words += f" to {body['destination']}"
    request = {"do": action, "kind": kind, "method": "POST", "path": path, "body": dict(body)}
    return Step(action.replace("_", "-"), words.replace("_", " "), request)


def _delete_step(kind: Kind, each: Object) -> Step:
    request = {
        "do": "delete",
        "kind": kind,
        "id": each["id"],
        "method": "DELETE",
        "path": f"{PATHS[kind]}/{each['id']}",
    }
    return Step(f"delete-{_dashed(kind)}", f"delete {NAMES[kind]} {each['id']}", request, destroys=kind)


def _dashed(kind: str) -> str:
    return kind.replace("_", "-")


# --- fields ----------------------------------------------------------------------------------------------


def _mapped_to(cloud_ip: Object) -> str:
    return part_id(cloud_ip, "load_balancer")


def _holder(cloud_ip: Object) -> str:
    """What a Cloud IP is mapped to; "" if it is free."""
    keys = ("load_balancer", "server", "server_group", "interface", "database_server")
    return next((found for key in keys if (found := part_id(cloud_ip, key))), "")


def _public(cloud_ip: Object) -> str:
    return str(cloud_ip.get("public_ip") or cloud_ip.get("public_ipv4") or "")


def _differs(key: str, has: object, wanted: str) -> bool:
    if key == "destination_port":
        return sorted(str(has or "").replace(" ", "").split(",")) != sorted(wanted.split(","))
    if key == "description":
        return clean(has) != wanted
    return has != wanted


def _same(key: str, has: Any, wanted: Any) -> bool:
    """Whether a field of a balancer is as wanted; only what is set counts, and no order."""
    if key == "name":
        return clean(has) == wanted
    if key == "nodes":
        return {str(each.get("id")) for each in as_objects(has)} == {each["node"] for each in wanted}
    if key == "listeners":
        return _sorted(as_objects(has), wanted) == _sorted(wanted, wanted)
    if key == "healthcheck":
        return all(as_object(has).get(name) == value for name, value in as_object(wanted).items())
    if key == "domains":
        return _domains_of(has) == sorted(wanted)
    return bool(has == wanted)


def _domains_of(has: Any) -> list[str]:
    if not isinstance(has, list):
        return []
    listed = cast("list[Any]", has)
    return sorted(str(as_object(each).get("identifier") or each) for each in listed)


def _sorted(listeners: Sequence[Object], like: Sequence[Object]) -> list[bytes]:
    """Listeners in a form that can be compared: only the fields that are wanted."""
    keys = sorted(like[0]) if like else []
    return sorted(msgspec.json.encode({key: each.get(key) for key in keys}, order="sorted") for each in listeners)
