"""The single writes, and what an account has after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hub.plugin.clouds import Done, Step
from hub_provider_brightbox.inventory import PATHS, Inventory, Kind, mapped_to
from hub_provider_brightbox.shapes import Object, as_object, as_objects

NEW: Final = "(new)"
"""Stands for an id in the text of a step that comes after the one that makes it."""
TITLES: Final[Mapping[Kind, str]] = {
    "load_balancer": "load balancer",
    "server_group": "server group",
    "firewall_policy": "firewall policy",
    "cloud_ip": "Cloud IP",
}
UNLISTED: Final = "hub:unlisted"
"""Key of an object that the observation does not have, and the answer to its creation has."""
SHOWN: Final = "hub:shown"
"""Key of a Cloud IP whose mapping was changed: the balancer to which the API shows it mapped."""
UNDONE: Final = "hub:undone"
"""Key of a Cloud IP whose mapping was changed: whether neither the observation nor the answer shows the change."""


def create(kind: Kind, body: Mapping[str, Any]) -> Step:
    """Create an object."""
    request = {"do": "create", "kind": kind, "method": "POST", "path": PATHS[kind], "body": dict(body)}
    return Step(f"create-{_dashed(kind)}", f"create {TITLES[kind]} {body['name']}", request, creates=kind)


def put(kind: Kind, each: Object, body: Mapping[str, Any], word: str = "change") -> Step:
    """Change fields of an object."""
    path = f"{PATHS[kind]}/{each['id']}"
    request = {"do": "put", "kind": kind, "id": each["id"], "method": "PUT", "path": path, "body": dict(body)}
    return Step(f"{word}-{_dashed(kind)}", f"{word} {TITLES[kind]} {each['id']}: {', '.join(sorted(body))}", request)


def act(kind: Kind, id_: str, action: str, body: Mapping[str, Any]) -> Step:
    """Map or unmap a Cloud IP, apply a firewall policy."""
    path = f"{PATHS[kind]}/{id_}/{action}"
    words = f"{action} {TITLES[kind]} {id_}" + "".join(f" to {target}" for target in body.values())
    request = {"do": action, "kind": kind, "id": id_, "method": "POST", "path": path, "body": dict(body)}
    return Step(_dashed(action), words.replace("apply_to", "apply"), request)


def members(group: str, action: str, servers: Sequence[str]) -> Step:
    """Add servers to a server group, or remove them."""
    path = f"server_groups/{group}/{action}"
    body = {"servers": [{"server": each} for each in servers]}
    request = {"do": action, "kind": "server_group", "id": group, "method": "POST", "path": path, "body": body}
    words = f"{action.replace('_', ' ')} of server group {group}: {', '.join(servers[:5])}"
    return Step(_dashed(action), words + (f" and {len(servers) - 5} more" if len(servers) > 5 else ""), request)


def delete(kind: Kind, each: Object) -> Step:
    """Delete an object."""
    path = f"{PATHS[kind]}/{each['id']}"
    request = {"do": "delete", "kind": kind, "id": each["id"], "method": "DELETE", "path": path}
    return Step(f"delete-{_dashed(kind)}", f"delete {TITLES[kind]} {each['id']}", request, destroys=kind)


def rule(policy: str, rule: Object | None, body: Mapping[str, Any]) -> Step:
    """Create or change a firewall rule; ``body`` has the fields to set."""
    request: dict[str, Any] = {"do": "rule", "kind": "firewall_rule", "policy": policy}
    if rule is None:
        request |= {"method": "POST", "path": "firewall_rules", "body": {"firewall_policy": policy, **body}}
        text = f"create firewall rule for ports {body['destination_port']}"
        return Step("create-firewall-rule", text, request, creates="firewall_rule")
    request |= {"id": rule["id"], "method": "PUT", "path": f"firewall_rules/{rule['id']}", "body": dict(body)}
    return Step("change-firewall-rule", f"change firewall rule {rule['id']}: {', '.join(sorted(body))}", request)


def _dashed(text: str) -> str:
    return text.replace("_", "-")


# --- afterwards ------------------------------------------------------------------------------------------


def after(seen: Inventory, step: Step, done: Done) -> Inventory:
    """The inventory once a step is made, also if the observation, or the answer, does not show it yet."""
    request, answer = step.request, as_object(done.answer)
    do, kind, body = request["do"], request["kind"], as_object(request.get("body"))
    if do == "rule":
        return seen.changed("firewall_policy", lambda objects: _ruled(objects, request, answer))
    if do == "create":
        # A list that has it is newer than the answer; one that has not may be older.
        made = {**answer, UNLISTED: True}
        return seen.changed(kind, lambda objects: objects.setdefault(str(answer["id"]), made)) if answer else seen
    id_ = str(request["id"])
    has = seen.of(kind).get(id_)
    if has is None:
        return seen  # it is gone since
    if do == "delete":
        stays = answer.get("status") == "deleting" and not has.get(UNLISTED)
        return seen.changed(
            kind, lambda objects: objects.update({id_: {**has, "status": "deleting"}}) if stays else objects.pop(id_)
        )
    return seen.changed(kind, lambda objects: objects.update({id_: _changed(do, has, body, answer)}))


def _changed(do: str, has: Object, body: Object, answer: Object) -> Object:
    """An object after a change: as the request says, since the answer may come before it is made."""
    match do:
        case "map":
            return _mapped(has, str(body["destination"]), answer)
        case "unmap":
            return _mapped(has, "", answer)
        case "apply_to":
            return {**has, "server_group": {"id": body["server_group"]}}
        case "add_servers" | "remove_servers":
            named = {str(each["server"]): {"id": each["server"]} for each in as_objects(body["servers"])}
            servers = {str(each.get("id")): each for each in as_objects(has.get("servers"))}
            kept = {id_: each for id_, each in servers.items() if id_ not in named}
            return {**has, "servers": [*kept.values(), *(named.values() if do == "add_servers" else ())]}
        case _:
            return {**has, **_stated(has, body, answer)}


def _mapped(cloud_ip: Object, to: str, answer: Object) -> Object:
    if mapped_to(cloud_ip) == to:
        return cloud_ip
    shown = str(cloud_ip.get(SHOWN, mapped_to(cloud_ip)))
    holder = {"load_balancer": {"id": to} if to else None}
    return {**cloud_ip, **holder, SHOWN: shown, UNDONE: to not in (shown, mapped_to(answer))}


def _stated(has: Object, body: Object, answer: Object) -> Object:
    """The fields that a PUT set, as the API states them."""
    found = dict(body)
    if "nodes" in body:
        found["nodes"] = [{"id": each["node"]} for each in as_objects(body["nodes"])]
    if "healthcheck" in body:
        found["healthcheck"] = {**as_object(has.get("healthcheck")), **as_object(body["healthcheck"])}
    if "domains" in body:
        known = {each.get("identifier"): each for each in as_objects(as_object(answer.get("acme")).get("domains"))}
        names: list[Any] = found.pop("domains")
        found["acme"] = {"domains": [known.get(name, {"identifier": name}) for name in names]}
    return found


def _ruled(objects: dict[str, Object], request: Mapping[str, Any], answer: Object) -> None:
    policy = objects.get(str(request["policy"]))
    if policy is None:
        return
    rules = {str(each.get("id")): each for each in as_objects(policy.get("rules"))}
    id_ = str(request.get("id") or answer.get("id"))
    rules[id_] = {**rules.get(id_, {"id": id_}), **as_object(request["body"])}
    objects[str(policy["id"])] = {**policy, "rules": list(rules.values())}
