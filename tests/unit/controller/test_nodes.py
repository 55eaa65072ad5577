"""What a Node gets from its machine."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from hub.cloud.instances import Absent, Instance, NodeAddress, Unknown
from hub.controller.nodes import SHUTDOWN, UNINITIALIZED, Verdict, decide, wanted_addresses
from hub.model import Node, Taint
from hub.registry.spec import CloudNodesSpec

PATTERN = re.compile(r"brightbox://(?P<id>srv-[0-9a-z]{5,})")
ID = "brightbox://srv-00001"
NEW = Taint(UNINITIALIZED, "NoSchedule", "true")
OTHER = Taint("example.com/other", "NoExecute")
HOST, FIRST, SECOND = (
    NodeAddress("Hostname", "n1"),
    NodeAddress("ExternalIP", "10.0.0.1"),
    NodeAddress("ExternalIP", "2001:db8::1"),
)
MACHINE = Instance(ID, "running", (HOST, FIRST, SECOND), "gb1-a", "gb1", "1gb.ssd")
LABELS = {"kubernetes.io/hostname": "n1"}
NODE = Node("n1", ready="True", labels=LABELS, addresses=(HOST,), taints=(OTHER, NEW), uid="u1")
DONE = replace(NODE, taints=(OTHER,), provider_id=ID, addresses=MACHINE.addresses)


def look(node: Node, answer: Any = MACHINE, **spec: Any) -> Verdict:
    """The decision about a Node."""
    return decide(node, answer, CloudNodesSpec(**spec), PATTERN)


def patches(found: Verdict) -> dict[str, dict[str, Any]]:
    """Summary of each change -> path -> value of its operations."""
    return {change.summary: {each["path"]: each.get("value") for each in change.patch} for change in found.changes}


def test_a_new_node_gets_its_addresses_before_its_taint_goes() -> None:
    """Addresses come first, on the status; then one patch sets provider ID and labels, and removes the taint."""
    addresses, rest = look(NODE).changes
    assert addresses.status
    assert [entry["address"] for entry in addresses.patch[1]["value"]] == ["n1", "10.0.0.1", "2001:db8::1"]
    assert not rest.status
    assert rest.patch[0] == {"op": "test", "path": "/metadata/uid", "value": "u1"}
    assert rest.patch[1] == {"op": "add", "path": "/spec/providerID", "value": ID}
    labels = {each["path"]: each["value"] for each in rest.patch if each["path"].startswith("/metadata/labels/")}
    assert labels == {
        "/metadata/labels/beta.kubernetes.io~1instance-type": "1gb.ssd",
        "/metadata/labels/node.kubernetes.io~1instance-type": "1gb.ssd",
        "/metadata/labels/failure-domain.beta.kubernetes.io~1zone": "gb1-a",
        "/metadata/labels/topology.kubernetes.io~1zone": "gb1-a",
        "/metadata/labels/failure-domain.beta.kubernetes.io~1region": "gb1",
        "/metadata/labels/topology.kubernetes.io~1region": "gb1",
    }
    assert rest.patch[-3:] == (
        {"op": "test", "path": "/spec/taints/1/key", "value": UNINITIALIZED},
        {"op": "test", "path": "/spec/taints/1/effect", "value": "NoSchedule"},
        {"op": "remove", "path": "/spec/taints/1"},
    )
    assert rest.event == ("Synced", "Node synced successfully")


@pytest.mark.parametrize("answer", [None, Absent("no server"), Unknown("503")])
def test_a_new_node_without_a_machine_keeps_its_taint(answer: Any) -> None:
    """No answer, Absent and Unknown change nothing."""
    assert look(NODE, answer).changes == ()


@pytest.mark.parametrize(
    ("node", "answer", "reason"),
    [
        (NODE, replace(MACHINE, provider_id="srv-00001"), "ProviderIDMismatch"),
        (replace(NODE, provider_id="brightbox://srv-00002"), MACHINE, "ProviderIDMismatch"),
        (replace(NODE, provided_ips="10.9.9.9"), MACHINE, "NodeAddressMismatch"),
        (replace(NODE, provided_ips="10.0.0.1, nonsense"), MACHINE, "NodeAddressMismatch"),
    ],
)
def test_a_node_that_is_not_its_machines_keeps_its_taint(node: Node, answer: Any, reason: str) -> None:
    """Another provider ID, or a node IP that the machine lacks, is a finding."""
    found = look(node, answer)
    assert (found.changes, [finding.reason for finding in found.findings]) == ((), [reason])


def test_an_impossible_label_is_left_out() -> None:
    """A value that cannot be a label's leaves out its pair; reserved and existing labels are left out, too."""
    labels = {"topology.kubernetes.io/rack": "r1", "kubernetes.io/hostname": "x", "example.com/pool": "blue"}
    odd = replace(MACHINE, zone="a/b", instance_type="x" * 64, labels=labels)
    paths = [
        path
        for path in patches(look(NODE, odd))[
            f"3 labels, provider ID brightbox://srv-00001, taint {UNINITIALIZED} removed"
        ]
        if "labels" in path
    ]
    assert sorted(paths) == [
        "/metadata/labels/example.com~1pool",
        "/metadata/labels/failure-domain.beta.kubernetes.io~1region",
        "/metadata/labels/topology.kubernetes.io~1region",
    ]


def test_another_clouds_node_is_never_touched() -> None:
    """A provider ID of another form makes the Node foreign, also while it is new."""
    for text in ("aws:///eu-west-1a/i-1", "brightbox://srv-../x", "brightbox://srv-00001/"):
        assert look(replace(NODE, provider_id=text))[0] == "foreign"
        assert look(replace(NODE, provider_id=text)).changes == ()


def test_a_node_that_is_as_its_machine_is_left_alone() -> None:
    """Nothing is written to a Node with two ExternalIPs that are the machine's."""
    assert look(DONE) == Verdict("ready")


def test_addresses_follow_the_machine_in_its_order() -> None:
    """A changed order is a change; an empty list is none; a missing Hostname is kept; doubles go."""
    assert patches(look(replace(DONE, addresses=(HOST, SECOND, FIRST)))) != {}
    assert look(DONE, replace(MACHINE, addresses=())).changes == ()
    assert wanted_addresses(DONE, replace(MACHINE, addresses=(FIRST, FIRST))) == (FIRST, HOST)


def test_the_kubelets_own_address_owns_its_type() -> None:
    """The provided address comes first, and other addresses of its type go; other types stay."""
    node = replace(DONE, provided_ips="2001:db8::1")
    assert wanted_addresses(node, MACHINE) == (SECOND, HOST)


def test_a_node_whose_machine_is_shut_down_gets_a_taint() -> None:
    """Not Ready and stopped: added. Ready: removed. Not Ready and running: as it is."""
    down = replace(DONE, ready="False")
    stopped = replace(MACHINE, status="stopped")
    [added] = look(down, stopped).changes
    assert added.patch[-1]["path"] == "/spec/taints/-"
    tainted = replace(down, taints=(OTHER, SHUTDOWN))
    assert look(tainted, stopped).changes == ()
    assert look(tainted).changes == ()
    [removed] = look(replace(tainted, ready="True")).changes
    assert removed.patch[-1] == {"op": "remove", "path": "/spec/taints/1"}
    assert look(down, stopped, shutdown_taint=False).changes == ()


def test_an_old_label_decides_over_the_present_one() -> None:
    """The present label takes the old one's value; a difference to the cloud is a finding and stays."""
    labels = {**LABELS, "failure-domain.beta.kubernetes.io/zone": "gb1-b", "topology.kubernetes.io/zone": "gb1-a"}
    found = look(replace(DONE, labels=labels))
    assert patches(found)["1 labels"]["/metadata/labels/topology.kubernetes.io~1zone"] == "gb1-b"
    drifted = look(replace(DONE, labels={**LABELS, "node.kubernetes.io/instance-type": "8gb"}))
    assert ([each.reason for each in drifted.findings], drifted.changes) == (["NodeLabelDrift"], ())
