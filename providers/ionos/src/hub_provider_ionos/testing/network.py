"""Network load balancers and IP blocks of a fake account: what a request does to them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from hub_provider_ionos.testing.cloud import PUBLIC, Cloud, Object, Problem, missing

RULES: Final = "forwardingrules"
DEFAULTS: Final = {"weight": 1, "proxyProtocol": "none"}


class FakeNetwork:
    """The part of an account that has to do with load balancers.

    Attributes:
        lag: reads of a list in which an object is shown as it was before its last change.
        limit: most IP blocks; None = no limit.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.lag = 0
        self.limit: int | None = None
        self._cloud = cloud
        self._numbers = itertools.count(1)
        self._old: dict[str, tuple[int, Object | None]] = {}
        """Id -> for how many reads it is shown as it was, and how; None = not at all."""

    # --- looking ---------------------------------------------------------------------------------------

    def balancers(self, name: str = "") -> list[Object]:
        """All load balancers, or those of a name, oldest first."""
        found = [each for datacenter in self._cloud.datacenters.values() for each in datacenter.balancers.values()]
        return [each for each in found if name in ("", each["properties"]["name"])]

    def blocks(self, name: str = "") -> list[Object]:
        """All blocks, or those of a name, oldest first."""
        return [each for each in self._cloud.blocks.values() if name in ("", each["properties"]["name"])]

    def rules(self, balancer: Object) -> list[Object]:
        """The forwarding rules of a load balancer."""
        found: list[Object] = balancer["entities"][RULES]["items"]
        return found

    def named(self, name: str) -> list[str]:
        """The ids of all objects of a name."""
        return [each["id"] for each in (*self.balancers(name), *self.blocks(name))]

    def listed(self, datacenter: str = "") -> list[Object]:
        """A list of blocks, or of a data center's load balancers: the last changes may not be shown yet."""
        cloud = self._cloud
        rows = list(cloud.datacenters[datacenter].balancers.values()) if datacenter else cloud.show_blocks()
        kind = "networkloadbalancer" if datacenter else "ipblock"
        found = {row["id"]: row for row in rows}
        for id_, (left, old) in list(self._old.items()):
            if (old or found.get(id_, {})).get("type") != kind:
                continue
            self._old[id_] = left - 1, old
            if left <= 1:
                del self._old[id_]
            if old is None:
                found.pop(id_, None)
            else:
                found[id_] = old
        return list(found.values())

    def catch_up(self) -> None:
        """Lists show everything as it is."""
        self._old.clear()

    # --- IP blocks -------------------------------------------------------------------------------------

    def create_block(self, body: Object) -> tuple[Object, str]:
        """Reserve addresses."""
        if self.limit is not None and len(self._cloud.blocks) >= self.limit:
            raise Problem(422, "200", "[VDC-5-9] The resource limit of your contract is exceeded")
        asked = _properties(body, "location", "size")
        number = next(self._numbers)
        ips = [f"203.0.114.{number + index}" for index in range(asked["size"])]
        block = _object("ipblock", number, {"name": None, "ips": None, "ipConsumers": None, **asked})
        block["properties"]["ips"] = ips if self._cloud.early else None
        self._cloud.blocks[block["id"]] = block
        self._lag(block["id"], None)

        def end(error: str) -> str:
            block["properties"]["ips"] = ips
            return self._ended(block, error, lambda: self._cloud.blocks.pop(block["id"], None))

        return block, self._cloud.accept("POST", "/ipblocks", end)

    def change_block(self, id_: str, body: Object) -> tuple[Object, str]:
        """Rename a block."""
        return self._change(self._block(id_), body, f"/ipblocks/{id_}")

    def delete_block(self, id_: str) -> tuple[Object, str]:
        """Give back the addresses of a block that nothing uses."""
        block = self._block(id_)
        _check_busy(block)
        if any(self._cloud.consumers(ip) for ip in block["properties"]["ips"] or ()):
            raise Problem(422, "100", "[VDC-5-4] The IP block is in use")
        return self._delete(block, f"/ipblocks/{id_}", lambda: self._cloud.blocks.pop(id_, None))

    def _block(self, id_: str) -> Object:
        if id_ not in self._cloud.blocks:
            raise missing()
        return self._cloud.blocks[id_]

    # --- load balancers --------------------------------------------------------------------------------

    def create_balancer(self, datacenter: str, body: Object) -> tuple[Object, str]:
        """Create a load balancer."""
        asked, number = _properties(body, "name", "listenerLan", "targetLan"), next(self._numbers)
        for lan in (asked["listenerLan"], asked["targetLan"]):
            if lan not in self._cloud.datacenters[datacenter].lans:
                raise Problem(422, "100", f"[VDC-5-5] LAN {lan} does not exist")
        if asked["listenerLan"] != PUBLIC:
            asked = {"ips": [f"10.9.0.{number}"], **asked}
        self._check_ips(asked, datacenter, ())
        balancer = _object("networkloadbalancer", number, {"ips": None, **asked})
        balancer["entities"] = {RULES: {"id": f"{balancer['id']}/{RULES}", "type": "collection", "items": []}}
        owner = self._cloud.datacenters[datacenter].balancers
        owner[balancer["id"]] = balancer
        self._lag(balancer["id"], None)
        path = f"/datacenters/{datacenter}/networkloadbalancers"

        def end(error: str) -> str:
            return self._ended(balancer, error, lambda: owner.pop(balancer["id"], None))

        return balancer, self._cloud.accept("POST", path, end)

    def change_balancer(self, datacenter: str, id_: str, body: Object) -> tuple[Object, str]:
        """Change a load balancer."""
        balancer = self._balancer(datacenter, id_)
        if "ips" in body:
            self._check_ips({**balancer["properties"], **body}, datacenter, balancer["properties"]["ips"] or ())
            for rule in self.rules(balancer):
                if rule["properties"]["listenerIp"] not in body["ips"]:
                    raise Problem(422, "100", f"[VDC-5-6] rule {rule['properties']['name']} uses the IP")
        return self._change(balancer, body, f"/datacenters/{datacenter}/networkloadbalancers/{id_}")

    def delete_balancer(self, datacenter: str, id_: str) -> tuple[Object, str]:
        """Delete a load balancer with its rules."""
        balancer = self._balancer(datacenter, id_)
        _check_busy(balancer)
        path, owner = f"/datacenters/{datacenter}/networkloadbalancers/{id_}", self._cloud.datacenters[datacenter]
        return self._delete(balancer, path, lambda: owner.balancers.pop(id_, None))

    def _balancer(self, datacenter: str, id_: str) -> Object:
        found = self._cloud.datacenters[datacenter].balancers.get(id_)
        if found is None:
            raise missing()
        return found

    def _check_ips(self, asked: Object, datacenter: str, old: Any) -> None:
        """A public load balancer has reserved addresses of its location that nothing else uses."""
        location = self._cloud.datacenters[datacenter].location
        if asked["listenerLan"] == PUBLIC and not asked.get("ips"):
            raise Problem(422, "100", "[VDC-5-7] a public load balancer needs an IP")
        for ip in asked["ips"] if asked["listenerLan"] == PUBLIC else ():
            blocks = [block for block in self.blocks() if ip in (block["properties"]["ips"] or ())]
            if not blocks or blocks[0]["properties"]["location"] != location:
                raise Problem(422, "100", f"[VDC-5-2] IP {ip} is not reserved in this location")
            if ip not in old and self._cloud.consumers(ip):
                raise Problem(422, "100", f"[VDC-5-3] IP {ip} is already in use")

    # --- forwarding rules ------------------------------------------------------------------------------

    def create_rule(self, datacenter: str, id_: str, body: Object) -> tuple[Object, str]:
        """Create a forwarding rule; the load balancer is BUSY meanwhile."""
        balancer = self._balancer(datacenter, id_)
        keys = ("name", "algorithm", "protocol", "listenerIp", "listenerPort", "targets")
        asked, before = _properties(body, *keys), copy.deepcopy(balancer)
        self._check_rule(balancer, asked, None)
        rule = _object("forwarding-rule", next(self._numbers), _filled(asked))
        self.rules(balancer).append(rule)

        def end(error: str) -> str:
            found = self._ended(rule, error, lambda: self.rules(balancer).remove(rule))
            return self._changed(balancer, before, found)

        balancer["metadata"]["state"] = "BUSY"
        path = f"/datacenters/{datacenter}/networkloadbalancers/{id_}/{RULES}"
        return rule, self._cloud.accept("POST", path, end)

    def change_rule(self, datacenter: str, id_: str, rule_id: str, body: Object) -> tuple[Object, str]:
        """Change a forwarding rule."""
        balancer, rule = self._rule(datacenter, id_, rule_id)
        old, new = rule["properties"], _filled({**rule["properties"], **body})
        self._check_rule(balancer, new, rule)
        before = copy.deepcopy(balancer)
        if self._cloud.early:
            rule["properties"] = new

        def end(error: str) -> str:
            rule["properties"] = old if error else new
            return self._changed(balancer, before, self._ended(rule, error, lambda: None))

        balancer["metadata"]["state"] = rule["metadata"]["state"] = "BUSY"
        path = f"/datacenters/{datacenter}/networkloadbalancers/{id_}/{RULES}/{rule_id}"
        return rule, self._cloud.accept("PATCH", path, end)

    def delete_rule(self, datacenter: str, id_: str, rule_id: str) -> tuple[Object, str]:
        """Delete a forwarding rule."""
        balancer, rule = self._rule(datacenter, id_, rule_id)
        _check_busy(balancer)
        before = copy.deepcopy(balancer)

        def end(error: str) -> str:
            if not error:
                self.rules(balancer).remove(rule)
            return self._changed(balancer, before, error)

        balancer["metadata"]["state"] = rule["metadata"]["state"] = "BUSY"
        path = f"/datacenters/{datacenter}/networkloadbalancers/{id_}/{RULES}/{rule_id}"
        return rule, self._cloud.accept("DELETE", path, end)

    def _rule(self, datacenter: str, id_: str, rule_id: str) -> tuple[Object, Object]:
        balancer = self._balancer(datacenter, id_)
        found = [rule for rule in self.rules(balancer) if rule["id"] == rule_id]
        if not found:
            raise missing()
        return balancer, found[0]

    def _check_rule(self, balancer: Object, asked: Object, rule: Object | None) -> None:
        _check_busy(balancer)
        if not asked["targets"]:
            raise Problem(422, "100", "[VDC-5-8] a rule needs a target")
        if asked["listenerIp"] not in (balancer["properties"]["ips"] or ()):
            raise Problem(422, "100", f"[VDC-5-10] {asked['listenerIp']} is no IP of the load balancer")
        for other in self.rules(balancer):
            same = all(other["properties"][key] == asked[key] for key in ("listenerIp", "listenerPort"))
            if other is not rule and same:
                raise Problem(422, "100", f"[VDC-5-11] port {asked['listenerPort']} is in use by another rule")

    # --- all of them -----------------------------------------------------------------------------------

    def _change(self, each: Object, body: Object, path: str) -> tuple[Object, str]:
        _check_busy(each)
        old, before = each["properties"], copy.deepcopy(each)
        if self._cloud.early:
            each["properties"] = {**old, **body}

        def end(error: str) -> str:
            each["properties"] = old if error else {**old, **body}
            return self._changed(each, before, error)

        each["metadata"]["state"] = "BUSY"
        return each, self._cloud.accept("PATCH", path, end)

    def _delete(self, each: Object, path: str, drop: Callable[[], object]) -> tuple[Object, str]:
        before = copy.deepcopy(each)

        def end(error: str) -> str:
            if not error:
                drop()
            return self._changed(each, before, error)

        each["metadata"]["state"] = "BUSY"
        return each, self._cloud.accept("DELETE", path, end)

    def _changed(self, each: Object, before: Object, error: str) -> str:
        """A change has ended; lists may show what was before for some reads."""
        self._lag(each["id"], before)
        return self._ended(each, error, lambda: None)

    def _lag(self, id_: str, before: Object | None) -> None:
        if self.lag:
            self._old[id_] = self.lag, before

    @staticmethod
    def _ended(each: Object, error: str, drop: Callable[[], object]) -> str:
        each["metadata"]["state"] = "AVAILABLE"
        if error:
            drop()
        return error


def _object(kind: str, number: int, properties: Object) -> Object:
    created = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"state": "BUSY", "createdDate": created, "etag": "1"}
    return {"id": str(uuid4()), "type": kind, "metadata": metadata, "properties": properties}


def _properties(body: Object, *required: str) -> Object:
    """The properties of a body."""
    found: Object = body.get("properties") or {}
    if absent := [key for key in required if key not in found]:
        raise Problem(422, "100", f"[VDC-5-12] Attribute '{absent[0]}' is required")
    return copy.deepcopy(found)


def _filled(properties: Object) -> Object:
    """A rule with the defaults that the API fills in."""
    targets = [{**DEFAULTS, **target} for target in properties["targets"]]
    return {"healthCheck": None, **properties, "targets": targets}


def _check_busy(each: Object) -> None:
    if each["metadata"]["state"] == "BUSY":
        raise Problem(422, "200", f"[VDC-5-1] Operation cannot be executed since this {each['type']} is busy")
