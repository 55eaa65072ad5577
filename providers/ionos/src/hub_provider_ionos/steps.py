"""The single writes, and what the cloud has after each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hub.plugin.clouds import Done, Step
from hub_provider_ionos.network import (
    TITLES,
    Asked,
    BalancerFields,
    Block,
    BlockFields,
    Kind,
    Network,
    NetworkBalancer,
    Object,
    Rule,
    RuleFields,
)


def create_block(name: str, location: str) -> Step:
    """Reserve an address."""
    body = {"name": name, "location": location, "size": 1}
    return _step(name, "post", "ip_block", (), body, f"create IP block {name} in {location}")


def create_balancer(name: str, datacenter: str, body: Mapping[str, Any]) -> Step:
    """Create a network load balancer."""
    text = f"create network load balancer {name} in data center {datacenter}"
    return _step(name, "post", "load_balancer", (datacenter,), body, text)


def create_rule(name: str, balancer: NetworkBalancer | None, datacenter: str, body: Mapping[str, Any]) -> Step:
    """Create a forwarding rule; without a balancer only for its text: it does not exist yet."""
    text = f"create forwarding rule {body['name']} with {len(body['targets'])} targets"
    path = (datacenter, balancer.id if balancer is not None else "")
    return _step(name, "post", "forwarding_rule", path, body, text)


def change(name: str, each: Object, body: Mapping[str, Any], word: str = "change") -> Step:
    """Change fields of an IP block or a load balancer."""
    kind: Kind = "load_balancer" if isinstance(each, NetworkBalancer) else "ip_block"
    text = f"{word} {TITLES[kind]} {each.id}: {', '.join(sorted(body))}"
    return _step(name, "patch", kind, _path(each), body, text, word)


def change_rule(name: str, balancer: NetworkBalancer, rule: Rule, body: Mapping[str, Any]) -> Step:
    """Change fields of a forwarding rule."""
    text = f"change forwarding rule {rule.properties.name} of {balancer.id}: {', '.join(sorted(body))}"
    return _step(name, "patch", "forwarding_rule", (*_path(balancer), rule.id), body, text)


def delete(name: str, each: Object) -> Step:
    """Delete an IP block or a load balancer."""
    kind: Kind = "load_balancer" if isinstance(each, NetworkBalancer) else "ip_block"
    return _step(name, "delete", kind, _path(each), {"name": name}, f"delete {TITLES[kind]} {each.id}")


def delete_rule(name: str, balancer: NetworkBalancer, rule: Rule) -> Step:
    """Delete a forwarding rule."""
    text = f"delete forwarding rule {rule.properties.name} of {balancer.id}"
    return _step(name, "delete", "forwarding_rule", (*_path(balancer), rule.id), {"name": rule.properties.name}, text)


def _path(each: Object) -> tuple[str, ...]:
    return (each.datacenter, each.id) if isinstance(each, NetworkBalancer) else (each.id,)


def _step(
    name: str, verb: str, kind: str, path: tuple[str, ...], body: Mapping[str, Any], text: str, word: str = ""
) -> Step:
    """A step; its request has whose balancer it is for, and the ids that make up the path. A deletion sends no body."""
    word = word or {"post": "create", "patch": "change", "delete": "delete"}[verb]
    request = {"of": name, "verb": verb, "kind": kind, "path": list(path), "body": dict(body)}
    return Step(
        f"{word}-{kind.replace('_', '-')}",
        text,
        request,
        creates=kind if verb == "post" else "",
        destroys=kind if verb == "delete" else "",
    )


# --- afterwards ------------------------------------------------------------------------------------------


def after(seen: Network, step: Step, done: Done) -> Network:
    """The observation once a step is made.

    A request that the observation does not know yet is running. One that has ended well counts as made, also if a list
    does not show it yet; one that has failed changed nothing.
    """
    if done.answer is None:
        return _made(seen, step)  # the object to delete was gone
    asked = seen.requests.get(str(done.answer))
    if asked is None:
        return msgspec.structs.replace(seen, requests={**seen.requests, str(done.answer): Asked(step)})
    return _made(seen, step) if asked.status == "DONE" else seen


def _made(seen: Network, step: Step) -> Network:
    request = step.request
    kind, verb, path, body = request["kind"], request["verb"], request["path"], request["body"]
    if verb == "post":
        return seen  # the plan waits until it is listed
    if kind == "ip_block":
        blocks = dict(seen.blocks)
        _changed(blocks, path[0], verb, body)
        return msgspec.structs.replace(seen, blocks=blocks)
    balancers = dict(seen.balancers)
    if kind == "load_balancer":
        _changed(balancers, path[1], verb, body)
    elif (found := balancers.get(path[1])) is not None:
        rules = {rule.id: rule for rule in found.rules}
        _changed(rules, path[2], verb, body)
        balancers[found.id] = found.with_rules(rules.values())
    return msgspec.structs.replace(seen, balancers=balancers)


def _changed(objects: dict[str, Any], id_: str, verb: str, body: Mapping[str, Any]) -> None:
    """Change or delete one of some objects."""
    has: Block | NetworkBalancer | Rule | None = objects.get(id_)
    if has is None:
        return
    if verb == "delete":
        del objects[id_]
        return
    fields: BalancerFields | BlockFields | RuleFields = has.properties
    new = msgspec.convert({**msgspec.to_builtins(fields), **body}, type(fields))
    objects[id_] = msgspec.structs.replace(has, properties=new)
