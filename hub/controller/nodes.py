"""What a Node gets from its machine: provider ID, labels, addresses, and the taint of a machine that is shut down.

The rules are those of Kubernetes' own cloud node controller (k8s.io/cloud-provider), with two differences: a new Node
gets its addresses before its taint goes, and addresses are compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Literal, NamedTuple

import msgspec

from hub.cloud.instances import Absent, CloudNode, Instance, InstanceAnswer, NodeAddress, Unknown
from hub.model import Finding, Node, Taint
from hub.registry.spec import CloudNodesSpec

UNINITIALIZED: Final = "node.cloudprovider.kubernetes.io/uninitialized"
SHUTDOWN: Final = Taint("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule")
HOSTNAME: Final = "Hostname"

PAIRS: Final = (
    ("instance_type", "beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ("zone", "failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("region", "failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
)
"""Field of an Instance, its old label and its present label."""
_VALUE: Final = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_KEY: Final = re.compile(r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_RESERVED: Final = re.compile(r"(.*\.)?(kubernetes|k8s)\.io/.*")

State = Literal["ready", "working", "waiting", "foreign"]
Aspect = Literal["initialize", "addresses", "labels", "shutdown"]
Address = IPv4Address | IPv6Address
Operation = Mapping[str, Any]
"""One operation of a JSON Patch."""


class Change(msgspec.Struct, frozen=True):
    """One write to a Node.

    Attributes:
        aspect: what of the Node it changes.
        summary: what it does, for an operator.
        patch: a JSON Patch; its first operation tests the Node's UID.
        status: whether it is sent to the subresource ``status``.
        target: what the aspect has afterwards; two changes with the same target make the same write.
        event: reason and message of the Event that follows it; None = none.
    """

    aspect: Aspect
    summary: str
    patch: tuple[Operation, ...]
    status: bool = False
    target: Hashable = ""
    event: tuple[str, str] | None = None


class Verdict(NamedTuple):
    """What is decided about a Node.

    Attributes:
        state: ``foreign`` = it belongs to another cloud and is not touched.
        message: why it waits, or what is changed; "" if there is nothing to do.
        changes: the writes, in order.
        findings: what an operator should know.
    """

    state: State
    message: str = ""
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()


def uninitialized(node: Node) -> bool:
    """Whether the Node waits for its cloud controller."""
    return any(taint.key == UNINITIALIZED for taint in node.taints)


def foreign(node: Node, pattern: re.Pattern[str]) -> bool:
    """Whether the Node's provider ID is another cloud's."""
    return bool(node.provider_id) and pattern.fullmatch(node.provider_id) is None


def question(node: Node) -> CloudNode:
    """The Node as the cloud is asked about it."""
    return CloudNode(node.name, node.provider_id, node.system_uuid, node.addresses)


def decide(node: Node, answer: InstanceAnswer | None, spec: CloudNodesSpec, pattern: re.Pattern[str]) -> Verdict:
    """What a Node needs.

    Args:
        node: the Node, with its UID.
        answer: what the cloud says of its machine; None = it has not been asked yet.
        spec: the cluster's section.
        pattern: matches a whole provider ID of the cloud.
    """
    if foreign(node, pattern):
        return Verdict("foreign", f"its provider ID {node.provider_id[:80]!r} belongs to another cloud")
    if node.deleting:
        return Verdict("waiting", "it is being deleted")
    if uninitialized(node) and spec.initialize:
        return _initialize(node, answer, pattern)
    if uninitialized(node):
        return Verdict("waiting", "initialize is off, and it still has the taint of a new Node")
    return _keep(node, answer, spec)


def _initialize(node: Node, answer: InstanceAnswer | None, pattern: re.Pattern[str]) -> Verdict:
    if answer is None:
        return Verdict("working", "the cloud is being asked")
    if isinstance(answer, Absent):
        return Verdict("waiting", f"the cloud has no machine for it: {answer.reason}")
    if isinstance(answer, Unknown):
        return Verdict("waiting", f"the cloud does not know yet: {answer.reason}")
    problem = _mismatch(node, answer, pattern)
    if problem is not None:
        return Verdict("waiting", problem.message, (), (problem,))
    changes = _addresses(node, answer)
    patch: list[Operation] = [_test(node)]
    said = [f"taint {UNINITIALIZED} removed"]
    if not node.provider_id:
        patch.append({"op": "add", "path": "/spec/providerID", "value": answer.provider_id})
        said.insert(0, f"provider ID {answer.provider_id}")
    labels = _new_labels(node, answer)
    patch += _set_labels(node, labels)
    if labels:
        said.insert(0, f"{len(labels)} labels")
    patch += _untaint(node, UNINITIALIZED)
    event = ("Synced", "Node synced successfully")
    return _working(*changes, Change("initialize", ", ".join(said), tuple(patch), event=event))


def _mismatch(node: Node, instance: Instance, pattern: re.Pattern[str]) -> Finding | None:
    """Why the machine cannot be this Node's; the Node then stays uninitialised."""
    if pattern.fullmatch(instance.provider_id) is None:
        return Finding("ProviderIDMismatch", f"the cloud gives no valid provider ID for Node {node.name}")
    return _other_machine(node, instance) or _address_mismatch(node, instance)


def _other_machine(node: Node, instance: Instance) -> Finding | None:
    if node.provider_id in ("", instance.provider_id):
        return None
    text = f"Node {node.name} has provider ID {node.provider_id}, and the cloud says {instance.provider_id[:80]!r}"
    return Finding("ProviderIDMismatch", text)


def _address_mismatch(node: Node, instance: Instance) -> Finding | None:
    try:
        provided = _provided(node)
    except ValueError as error:
        text = f"the annotation alpha.kubernetes.io/provided-node-ip of Node {node.name} is not valid: {error}"
        return Finding("NodeAddressMismatch", text)
    has = {_ip(address.address) for address in instance.addresses}
    missing = [str(address) for address in provided if address not in has]
    if not missing:
        return None
    text = f"the kubelet of Node {node.name} was started with --node-ip {missing[0]}, which its machine does not have"
    return Finding("NodeAddressMismatch", text)


def _working(*changes: Change, findings: tuple[Finding, ...] = ()) -> Verdict:
    return Verdict("working", "; ".join(change.summary for change in changes), changes, findings)


def _keep(node: Node, answer: InstanceAnswer | None, spec: CloudNodesSpec) -> Verdict:
    changes = list(_old_labels(node))
    if spec.shutdown_taint:
        changes += _shutdown(node, answer)
    if isinstance(answer, Absent) and node.provider_id:
        return Verdict("waiting", f"the cloud has no machine for it: {answer.reason}", tuple(changes))
    findings: list[Finding] = []
    if isinstance(answer, Instance):
        if (other := _other_machine(node, answer)) is not None:
            return Verdict("waiting", other.message, tuple(changes), (other,))
        findings = _drift(node, answer)
        if spec.addresses and answer.addresses:
            if (problem := _address_mismatch(node, answer)) is not None:
                findings.append(problem)
            else:
                changes += _addresses(node, answer)
    return _working(*changes, findings=tuple(findings)) if changes else Verdict("ready", "", (), tuple(findings))


# --- addresses -----------------------------------------------------------------------------------------


def _ip(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _provided(node: Node) -> tuple[Address, ...]:
    """The addresses that the kubelet was started with: none, one, or one of each family.

    Raises:
        ValueError: the annotation has something else.
    """
    if not node.provided_ips.strip():
        return ()
    found = tuple(ip_address(text.strip()) for text in node.provided_ips[:200].split(","))
    if len(found) > 2 or len({address.version for address in found}) != len(found):
        raise ValueError("it must be one address, or one of each family")
    return found


def wanted_addresses(node: Node, instance: Instance) -> tuple[NodeAddress, ...]:
    """The addresses that a Node shall have; those that it has if the cloud names none.

    Raises:
        ValueError: the Node's annotation with its own addresses is not valid.
    """
    if not instance.addresses:
        return node.addresses
    found = list(dict.fromkeys(instance.addresses))
    if not any(address.type == HOSTNAME for address in found):
        found += [address for address in node.addresses if address.type == HOSTNAME]
    if not (provided := _provided(node)):
        return tuple(found)
    first = [address for own in provided for address in found if _ip(address.address) == own]
    owned = {address.type for address in first}
    return tuple(dict.fromkeys([*first, *(address for address in found if address.type not in owned)]))


def _addresses(node: Node, instance: Instance) -> tuple[Change, ...]:
    wanted = wanted_addresses(node, instance)
    if wanted == node.addresses:
        return ()
    value = [{"type": entry.type, "address": entry.address} for entry in wanted]
    patch = (_test(node), {"op": "replace" if node.addresses else "add", "path": "/status/addresses", "value": value})
    return (Change("addresses", f"{len(wanted)} addresses", patch, status=True, target=wanted),)


# --- labels --------------------------------------------------------------------------------------------


def _new_labels(node: Node, instance: Instance) -> dict[str, str]:
    """The labels of a new Node that it does not have yet."""
    wanted: dict[str, str] = {}
    for field, old, new in PAIRS:
        value = getattr(instance, field)
        if _VALUE.fullmatch(value):
            wanted |= {old: value, new: value}
    for key, value in instance.labels.items():
        valid = _KEY.fullmatch(key) and (not value or _VALUE.fullmatch(value))
        if valid and key not in node.labels and not _RESERVED.fullmatch(key):
            wanted[key] = value
    return {key: value for key, value in wanted.items() if node.labels.get(key) != value}


def _old_labels(node: Node) -> tuple[Change, ...]:
    """Bring the present label in line with the old one."""
    wanted = {
        new: node.labels[old]
        for _, old, new in PAIRS
        if old in node.labels and node.labels.get(new) != node.labels[old]
    }
    if not wanted:
        return ()
    patch = (_test(node), *_set_labels(node, wanted))
    return (Change("labels", f"{len(wanted)} labels", patch, target=tuple(sorted(wanted.items()))),)


def _drift(node: Node, instance: Instance) -> list[Finding]:
    """Labels that say something else than the cloud: a machine was resized, for example. They stay as they are."""
    differ = [
        f"{new} is {node.labels[new]}, the cloud says {value}"
        for field, _, new in PAIRS
        if (value := getattr(instance, field)) and _VALUE.fullmatch(value) and node.labels.get(new, value) != value
    ]
    return [Finding("NodeLabelDrift", f"Node {node.name}: {'; '.join(differ)}")] if differ else []


def _set_labels(node: Node, labels: Mapping[str, str]) -> list[Operation]:
    if not labels:
        return []
    if not node.labels:
        return [
            {"op": "test", "path": "/metadata/labels", "value": None},
            {"op": "add", "path": "/metadata/labels", "value": dict(labels)},
        ]
    return [
        {"op": "add", "path": f"/metadata/labels/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
        for key, value in sorted(labels.items())
    ]


# --- taints --------------------------------------------------------------------------------------------


def _shutdown(node: Node, answer: InstanceAnswer | None) -> tuple[Change, ...]:
    """A Ready Node loses the taint whatever the cloud says; only a machine that is shut down gets it."""
    has = any(taint.key == SHUTDOWN.key and taint.effect == SHUTDOWN.effect for taint in node.taints)
    if node.ready == "True" and has:
        patch = (_test(node), *_untaint(node, SHUTDOWN.key, SHUTDOWN.effect))
        return (Change("shutdown", f"taint {SHUTDOWN.key} removed", patch, target=False),)
    stopped = isinstance(answer, Instance) and answer.status == "stopped" and not _other_machine(node, answer)
    if node.ready != "True" and stopped and not has:
        taint = {"key": SHUTDOWN.key, "effect": SHUTDOWN.effect}
        add: Operation = {"op": "add", "path": "/spec/taints/-", "value": taint}
        if not node.taints:
            add = {"op": "add", "path": "/spec/taints", "value": [taint]}
        return (Change("shutdown", f"taint {SHUTDOWN.key} added", (_test(node), add), target=True),)
    return ()


def _untaint(node: Node, key: str, effect: str = "") -> list[Operation]:
    """Remove all taints with a key (and an effect), from the last one, so that the indices stay right."""
    found: list[Operation] = []
    for index in reversed(range(len(node.taints))):
        taint = node.taints[index]
        if taint.key == key and effect in ("", taint.effect):
            found += [
                {"op": "test", "path": f"/spec/taints/{index}/key", "value": key},
                {"op": "test", "path": f"/spec/taints/{index}/effect", "value": taint.effect},
                {"op": "remove", "path": f"/spec/taints/{index}"},
            ]
    return found


def _test(node: Node) -> Operation:
    return {"op": "test", "path": "/metadata/uid", "value": node.uid}
