"""The state of a fake Brightbox account, without HTTP, in the shapes of the public SDK's fixtures."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from hub_provider_brightbox.shapes import Object, part_id
from hub_provider_brightbox.testing import shapes

CLIENT, SECRET = "cli-fake1", "fake-secret-1"
LETTERS: Final = {
    "servers": "srv",
    "load_balancers": "lba",
    "server_groups": "grp",
    "firewall_policies": "fwp",
    "firewall_rules": "fwr",
    "cloud_ips": "cip",
}


HOLDERS: Final = ("load_balancer", "server", "server_group", "interface", "database_server")
"""Fields of a Cloud IP that say what it is mapped to."""


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
        reverse_dns: whether new Cloud IPs have a reverse DNS name.
        certificates: status of the domains of new certificates.
        writes: accepted writes, oldest first.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {name: {} for name in LETTERS}
        self.reads = 0
        self.lag = 0
        self.limit: int | None = None
        self.reverse_dns = False
        self.certificates = "valid"
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
        created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=int(id_[4:]))
        made = {"id": id_, "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"), **fields}
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
            "locked": False,
            "started_at": server["created_at"],
            "deleted_at": None,
            "hostname": id_,
            "fqdn": f"{id_}.gb1.brightbox.test",
            "zone": {"id": "zon-00001", "handle": zone},
            "snapshots": [],
            "volumes": [],
            "server_type": {"id": "typ-00001", "handle": "1gb.ssd"},
            "interfaces": [interface],
            "cloud_ips": [],
            "server_groups": [],
        }
        return server

    def remove_server(self, id_: str) -> None:
        """The server is gone: it leaves groups and load balancers."""
        del self.objects["servers"][id_]
        for collection, key in (("server_groups", "servers"), ("load_balancers", "nodes")):
            for each in self.objects[collection].values():
                each[key] = [row for row in each[key] if row["id"] != id_]

    def add_cloud_ip(self, name: str = "") -> Object:
        """Reserve a Cloud IP, and return it."""
        return self._new_cloud_ips({"name": name})

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
        """One object, or the whole list."""
        if not id_:
            keys = [key for key in self.objects[collection] if key not in self._hidden]
            found = [shapes.shown(self.objects, collection, key) for key in keys]
            self.tick()
            return found
        self._get(collection, id_)
        return shapes.shown(self.objects, collection, id_, detail=True)

    def _get(self, collection: str, id_: str) -> Object:
        found = self.objects.get(collection, {}).get(id_)
        if found is None:
            raise Problem(404, "missing_resource", f"Resource {id_} not found")
        return found

    def _shown(self, collection: str, each: Object) -> Object:
        return shapes.shown(self.objects, collection, each["id"], detail=True)

    # --- writing ------------------------------------------------------------------------------------------

    def create(self, collection: str, body: Object) -> Object:
        """Create an object."""
        made = getattr(self, f"_new_{collection}")(body)
        if self.lag:
            self._hidden[made["id"]] = self.lag
        self.writes.append(f"POST {collection}")
        return self._shown(collection, made)

    def _new_cloud_ips(self, body: Object) -> Object:
        made = self._store("cloud_ips", {})
        number = int(made["id"][4:])
        address = f"109.107.{number // 250}.{number % 250 + 1}"
        made |= {
            "name": body.get("name"),
            "status": "unmapped",
            "public_ip": address,
            "public_ipv4": address,
            "public_ipv6": f"2001:db8:ffff::{number:x}",
            "fqdn": f"{made['id']}.gb1.brightbox.test",
            "reverse_dns": f"{made['id']}.reverse.test" if self.reverse_dns else None,
            "mode": "nat",
            "port_translators": [],
            **dict.fromkeys(HOLDERS),
        }
        return made

    def _new_server_groups(self, body: Object) -> Object:
        fields: Object = {"name": body.get("name"), "description": body.get("description")}
        made = self._store("server_groups", {**fields, "default": False, "servers": []})
        made["fqdn"] = f"{made['id']}.gb1.brightbox.test"
        return made

    def _new_firewall_policies(self, body: Object) -> Object:
        group = body.get("server_group")
        if group is not None:
            self._get("server_groups", group)
        fields: Object = {"name": body.get("name"), "description": body.get("description"), "default": False}
        return self._store("firewall_policies", {**fields, "server_group": {"id": group} if group else None})

    def _new_firewall_rules(self, body: Object) -> Object:
        policy = self._get("firewall_policies", body.get("firewall_policy", ""))["id"]
        keys = ("source", "source_port", "destination", "destination_port", "protocol", "icmp_type_name", "description")
        return self._store("firewall_rules", {**dict.fromkeys(keys), **body, "firewall_policy": {"id": policy}})

    def _new_load_balancers(self, body: Object) -> Object:
        if self.limit is not None and len(self.objects["load_balancers"]) >= self.limit:
            raise Problem(403, "Forbidden", "Account limit reached, please contact support for more information")
        for node in body.get("nodes", ()):
            self._get("servers", node["node"])
        fields: Object = {"name": "", "status": "creating", "locked": False, "deleted_at": None, "nodes": []}
        fields |= {"policy": "least-connections", "buffer_size": 4096, "https_redirect": False, "listeners": []}
        fields |= {"healthcheck": {"type": "http", "port": 80}, "acme": {"certificate": None, "domains": []}}
        made = self._store("load_balancers", fields)
        self._fill(made, body)
        self._later(lambda: made.update(status="active") if made["status"] == "creating" else None)
        return made

    def _fill(self, each: Object, body: Object) -> None:
        fields = copy.deepcopy(body)
        if "nodes" in fields:
            if not fields["nodes"]:
                raise Problem(422, "invalid_resource", "nodes cannot be empty")
            fields["nodes"] = [{"id": self._get("servers", node["node"])["id"]} for node in fields["nodes"]]
        if "domains" in fields:
            names = fields.pop("domains")
            before = {row["identifier"]: row for row in each["acme"]["domains"]}
            fresh: Object = {"status": self.certificates, "last_message": None}
            domains = [before.get(name, {"identifier": name, **fresh}) for name in names]
            each["acme"] = {"certificate": None, "domains": domains}
        each.update(fields)

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
        if collection == "cloud_ips" and any(each[key] for key in HOLDERS):
            raise Problem(409, "conflict", f"{id_} is mapped")
        if collection == "server_groups" and each["servers"]:
            raise Problem(409, "conflict", f"{id_} has servers")
        self.writes.append(f"DELETE {collection}")
        if collection == "load_balancers":
            each["status"] = "deleting"
        shown = self._shown(collection, each)
        drop = partial(self._drop, collection, id_)
        if collection == "load_balancers":
            self._later(drop)
        else:
            drop()
        return shown

    def _drop(self, collection: str, id_: str) -> None:
        """The object is gone, and what depends on it."""
        self.objects[collection].pop(id_, None)
        rules = self.objects["firewall_rules"]
        for rule in [key for key, row in rules.items() if row["firewall_policy"]["id"] == id_]:
            del rules[rule]
        for policy in self.objects["firewall_policies"].values():
            if part_id(policy, "server_group") == id_:
                policy["server_group"] = None
        for cloud_ip in self.objects["cloud_ips"].values():
            if part_id(cloud_ip, "load_balancer") == id_:
                cloud_ip.update(status="unmapped", load_balancer=None)

    def act(self, collection: str, id_: str, action: str, body: Object) -> Object:
        """Make an action of an object."""
        each = self._get(collection, id_)
        match collection, action:
            case "cloud_ips", "map":
                target = body.get("destination", "")
                key = "load_balancer" if target.startswith("lba-") else "server"
                self._get(f"{key}s", target)
                if any(each[key] for key in HOLDERS):
                    raise Problem(409, "conflict", f"{id_} is mapped")
                self._later(lambda: each.update({"status": "mapped", key: {"id": target}}))
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
