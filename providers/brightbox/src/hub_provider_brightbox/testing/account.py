"""The state of a fake Brightbox account, without HTTP, in the shapes of the public SDK's fixtures."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

Object = dict[str, Any]

CLIENT, SECRET = "cli-fake1", "fake-secret-1"
LETTERS: Final = {
    "servers": "srv",
    "load_balancers": "lba",
    "server_groups": "grp",
    "firewall_policies": "fwp",
    "firewall_rules": "fwr",
    "cloud_ips": "cip",
}


class Problem(Exception):
    """The API refuses a request.

    Args:
        status: the HTTP status.
        name: the API's ``error_name``.
        message: its words.
    """

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name, self.message = status, name, message


class FakeAccount:
    """One account.

    Attributes:
        objects: collection -> id -> object.
        reads: reads of a list after which a new load balancer is active, a deleted one gone, and a (un)mapping shown.
        lag: reads of a list in which a new object is missing.
        limit: most load balancers; None = no limit.
        writes: accepted writes, oldest first.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {name: {} for name in LETTERS}
        self.reads = 0
        self.lag = 0
        self.limit: int | None = None
        self.writes: list[str] = []
        self._numbers = itertools.count(1)
        self._pending: list[tuple[int, Callable[[], None]]] = []
        self._hidden: dict[str, int] = {}
        self._default()

    def _default(self) -> None:
        """What every account has: a default group, with a default policy."""
        group = self._store("server_groups", {"name": "default", "description": None, "default": True, "servers": []})
        policy: Object = {"name": "default", "description": None, "default": True}
        self._store("firewall_policies", {**policy, "server_group": {"id": group["id"]}})

    def _id(self, collection: str) -> str:
        return f"{LETTERS[collection]}-{next(self._numbers):05d}"

    def _store(self, collection: str, fields: Object) -> Object:
        id_ = self._id(collection)
        made = {"id": id_, "created_at": f"2026-01-01T00:00:{len(self.objects[collection]):02d}Z", **fields}
        self.objects[collection][id_] = made
        return made

    # --- setting the scene -------------------------------------------------------------------------------

    def add_server(self, name: str = "", *, ipv6: bool = True, zone: str = "gb1-a", status: str = "active") -> Object:
        """Create a running server, and return it; its id is the Node's name."""
        server = self._store("servers", {})
        number = len(self.objects["servers"])
        id_ = server["id"]
        interface = {
            "id": f"int-{number:05d}",
            "ipv4_address": f"10.240.{number // 250}.{number % 250 + 1}",
            "ipv6_address": f"2001:db8::{number:x}" if ipv6 else None,
        }
        server |= {
            "name": name or id_,
            "status": status,
            "hostname": id_,
            "fqdn": f"{id_}.gb1.brightbox.test",
            "zone": {"id": "zon-00001", "handle": zone},
            "server_type": {"id": "typ-00001", "handle": "1gb.ssd"},
            "interfaces": [interface],
            "cloud_ips": [],
            "server_groups": [],
        }
        return server

    def find(self, collection: str, name: str) -> list[Object]:
        """All objects of a collection with this name."""
        return [each for each in self.objects[collection].values() if each.get("name") == name]

    def named(self, name: str) -> list[str]:
        """The ids of all objects with this name, but for servers."""
        kinds = [kind for kind in LETTERS if kind not in ("servers", "firewall_rules")]
        return [each["id"] for kind in kinds for each in self.find(kind, name)]

    # --- time ---------------------------------------------------------------------------------------------

    def _later(self, change: Callable[[], None]) -> None:
        """Make a change after :attr:`reads` reads."""
        if self.reads:
            self._pending.append((self.reads, change))
        else:
            change()

    def tick(self) -> None:
        """A list was read."""
        self._hidden = {id_: left - 1 for id_, left in self._hidden.items() if left > 1}
        pending, self._pending = self._pending, []
        for left, change in pending:
            if left <= 1:
                change()
            else:
                self._pending.append((left - 1, change))

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, collection: str, id_: str = "") -> Any:
        """One object, or the whole list; lists lack certificates."""
        if not id_:
            found = [
                self._shown(collection, each)
                for key, each in self.objects[collection].items()
                if key not in self._hidden
            ]
            for each in found:
                each.pop("acme", None)
            self.tick()
            return found
        return self._shown(collection, self._get(collection, id_))

    def _get(self, collection: str, id_: str) -> Object:
        found = self.objects.get(collection, {}).get(id_)
        if found is None:
            raise Problem(404, "missing_resource", f"Resource {id_} not found")
        return found

    def _shown(self, collection: str, each: Object) -> Object:
        shown = copy.deepcopy(each)
        if collection == "load_balancers":
            ips = [ip for ip in self.objects["cloud_ips"].values() if _mapped_to(ip) == each["id"]]
            shown["cloud_ips"] = [{"id": ip["id"], "public_ip": ip["public_ip"]} for ip in ips]
        if collection == "firewall_policies":
            rules = self.objects["firewall_rules"].values()
            shown["rules"] = [copy.deepcopy(rule) for rule in rules if rule["firewall_policy"]["id"] == each["id"]]
        return shown

    # --- writing ------------------------------------------------------------------------------------------

    def create(self, collection: str, body: Object) -> Object:
        """Create an object."""
        made = getattr(self, f"_new_{collection}")(body)
        if self.lag:
            self._hidden[made["id"]] = self.lag
        self.writes.append(f"POST {collection}")
        return self._shown(collection, made)

    def _new_cloud_ips(self, body: Object) -> Object:
        number = len(self.objects["cloud_ips"]) + 1
        fields = {
            "name": body.get("name"),
            "status": "unmapped",
            "public_ip": f"109.107.50.{number}",
            "fqdn": f"cip-109-107-50-{number}.gb1.brightbox.test",
            "reverse_dns": None,
            "load_balancer": None,
            "server": None,
            "server_group": None,
        }
        return self._store("cloud_ips", fields)

    def _new_server_groups(self, body: Object) -> Object:
        fields: Object = {"name": body.get("name"), "description": body.get("description")}
        fields |= {"default": False, "servers": []}
        return self._store("server_groups", fields)

    def _new_firewall_policies(self, body: Object) -> Object:
        group = body.get("server_group")
        if group is not None:
            self._get("server_groups", group)
        fields = {"name": body.get("name"), "default": False, "server_group": {"id": group} if group else None}
        return self._store("firewall_policies", fields)

    def _new_firewall_rules(self, body: Object) -> Object:
        policy = self._get("firewall_policies", body.get("firewall_policy", ""))["id"]
        return self._store("firewall_rules", {**body, "firewall_policy": {"id": policy}})

    def _new_load_balancers(self, body: Object) -> Object:
        if self.limit is not None and len(self.objects["load_balancers"]) >= self.limit:
            raise Problem(403, "account_limit_reached", "Account limit reached")
        made = self._store("load_balancers", {"status": "creating", "policy": "least-connections", "acme": None})
        self._fill(made, body)
        self._later(lambda: made.update(status="active") if made["status"] == "creating" else None)
        return made

    def _fill(self, each: Object, body: Object) -> None:
        fields = copy.deepcopy(body)
        if "nodes" in fields:
            if not fields["nodes"]:
                raise Problem(422, "invalid_resource", "nodes cannot be empty")
            fields["nodes"] = [
                {"id": self._get("servers", node["node"])["id"], "status": "active"} for node in fields["nodes"]
            ]
        if "domains" in fields:
            domains = [{"identifier": name, "status": "valid", "last_message": None} for name in fields.pop("domains")]
            each["acme"] = {"domains": domains}
            each["domains"] = [row["identifier"] for row in domains]
        each.update({"nodes": [], **{key: value for key, value in each.items() if key == "nodes"}, **fields})

    def change(self, collection: str, id_: str, body: Object) -> Object:
        """Change an object."""
        each = self._get(collection, id_)
        self._unlocked(each)
        if collection == "load_balancers":
            self._fill(each, body)
        else:
            each.update(copy.deepcopy(body))
        self.writes.append(f"PUT {collection}")
        return self._shown(collection, each)

    def _unlocked(self, each: Object) -> None:
        if each.get("locked"):
            raise Problem(409, "resource_locked", f"{each['id']} is locked")

    def delete(self, collection: str, id_: str) -> Object:
        """Delete an object."""
        each = self._get(collection, id_)
        self._unlocked(each)
        if collection == "cloud_ips" and any(each[key] for key in ("load_balancer", "server", "server_group")):
            raise Problem(409, "conflict", f"{id_} is mapped")
        if collection == "server_groups" and each["servers"]:
            raise Problem(409, "conflict", f"{id_} has servers")
        self.writes.append(f"DELETE {collection}")
        if collection == "load_balancers":
            each["status"] = "deleting"
            self._later(partial(self._drop, collection, id_))
            return self._shown(collection, each)
        del self.objects[collection][id_]
        if collection == "firewall_policies":
            rules = self.objects["firewall_rules"]
            for rule in [key for key, row in rules.items() if row["firewall_policy"]["id"] == id_]:
                del rules[rule]
        return {**each, "status": "deleted"}

    def _drop(self, collection: str, id_: str) -> None:
        self.objects[collection].pop(id_, None)

    def act(self, collection: str, id_: str, action: str, body: Object) -> Object:
        """Make an action of an object."""
        each = self._get(collection, id_)
        match collection, action:
            case "cloud_ips", "map":
                target = body.get("destination", "")
                self._get("load_balancers" if target.startswith("lba-") else "servers", target)
                if each["load_balancer"] or each["server"]:
                    raise Problem(409, "conflict", f"{id_} is mapped")
                self._later(lambda: each.update(status="mapped", load_balancer={"id": target}))
            case "cloud_ips", "unmap":
                self._later(lambda: each.update(status="unmapped", load_balancer=None, server=None))
            case "server_groups", "add_servers":
                known = {row["id"] for row in each["servers"]}
                new = [self._get("servers", row["server"])["id"] for row in body["servers"]]
                each["servers"] += [{"id": server} for server in new if server not in known]
            case "server_groups", "remove_servers":
                leaving = {row["server"] for row in body["servers"]}
                each["servers"] = [row for row in each["servers"] if row["id"] not in leaving]
            case "firewall_policies", "apply_to":
                each["server_group"] = {"id": self._get("server_groups", body["server_group"])["id"]}
            case _:
                raise Problem(404, "missing_resource", f"no action {action}")
        self.writes.append(f"POST {collection} {action}")
        return self._shown(collection, each)


def _mapped_to(cloud_ip: Object) -> str:
    found: Object = cloud_ip["load_balancer"] or {}
    return str(found.get("id", ""))
