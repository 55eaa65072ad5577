"""What a Node gets from its machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hub.cloud.instances import Absent, Instance, NodeAddress, Unknown
from hub.controller.nodes import PAIRS, SHUTDOWN, UNINITIALIZED, Change, Verdict, decide, wanted_addresses
from hub.model import Node, Taint
from hub.registry.spec import CloudNodesSpec
from tests.support.json_patch import patched

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
        (replace(NODE, provided_ips="10.0.0.1,2001:db8::1,10.0.0.1"), MACHINE, "NodeAddressMismatch"),
        (replace(NODE, provided_ips="10.0.0.1,10.0.0.1"), MACHINE, "NodeAddressMismatch"),
    ],
)
def test_a_node_that_is_not_its_machines_keeps_its_taint(node: Node, answer: Any, reason: str) -> None:
    """Another provider ID, or a node IP that the machine lacks, is a finding."""
    found = look(node, answer)
    assert (found.changes, [finding.reason for finding in found.findings]) == ((), [reason])


def test_an_impossible_label_is_left_out() -> None:
    """A value that cannot be a label's leaves out its pair; reserved and existing labels are left out, too."""
    labels = {
        "topology.kubernetes.io/rack": "r1",
        "kubernetes.io/hostname": "x",
        "example.com/pool": "blue",
        "example.com/a/b": "blue",
        "example.com/bad": "a b",
    }
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


def test_the_kubelets_own_addresses_are_compared_as_addresses() -> None:
    """One address of each family, however it is spelled, may be given; both then own their types."""
    node = replace(NODE, provided_ips=" 2001:0db8:0::1 ,10.0.0.1")
    assert look(node).findings == ()
    assert wanted_addresses(node, MACHINE) == (SECOND, FIRST, HOST)
    spelled = NodeAddress("ExternalIP", "2001:DB8:0:0::1")
    assert wanted_addresses(node, replace(MACHINE, addresses=(FIRST, spelled))) == (spelled, FIRST, HOST)


def test_an_initialised_node_keeps_addresses_that_cannot_be_its_own() -> None:
    """A node IP that the machine lacks, or another machine's provider ID, is a finding; nothing is written."""
    moved = replace(MACHINE, addresses=(HOST, NodeAddress("ExternalIP", "10.0.0.9")))
    for node, answer, reason in (
        (replace(DONE, provided_ips="10.0.0.1"), moved, "NodeAddressMismatch"),
        (DONE, replace(moved, provider_id="brightbox://srv-00009"), "ProviderIDMismatch"),
    ):
        found = look(node, answer)
        assert (found.changes, [finding.reason for finding in found.findings]) == ((), [reason])
    other = replace(MACHINE, status="stopped", provider_id="brightbox://srv-00009")
    assert look(replace(DONE, ready="False"), other).changes == ()


def test_all_taints_of_the_key_go() -> None:
    """A Node with two effects of the taint loses both, from the last one."""
    twice = replace(NODE, taints=(NEW, OTHER, replace(NEW, effect="NoExecute")))
    assert apply(twice, look(twice).changes).taints == (OTHER,)


def test_a_ready_node_loses_the_shutdown_taint_whatever_the_cloud_says() -> None:
    """The kubelet answers, so the machine runs; a Node that is not Ready keeps the taint while nothing is known."""
    tainted = replace(DONE, taints=(SHUTDOWN,))
    for answer in (None, Unknown("503"), Absent("no server"), replace(MACHINE, provider_id="brightbox://srv-00009")):
        assert [change.aspect for change in look(tainted, answer).changes] == ["shutdown"]
        assert look(replace(tainted, ready="Unknown"), answer).changes == ()


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


ADDRESSES = st.builds(
    NodeAddress,
    st.sampled_from(["Hostname", "InternalIP", "ExternalIP", "ExternalDNS"]),
    st.sampled_from(["n1", "10.0.0.1", "10.0.0.2", "2001:db8::1", "", "nonsense"]),
)
LISTS = st.lists(ADDRESSES, max_size=5).map(tuple)
TEXTS = st.sampled_from(["", "a", "gb1", "a/b", "x" * 64, "-"])
NODES = st.builds(
    Node,
    st.just("n1"),
    ready=st.sampled_from(["True", "False", "Unknown"]),
    labels=st.dictionaries(st.sampled_from([key for pair in PAIRS for key in pair[1:]]), TEXTS, max_size=3),
    addresses=LISTS,
    provider_id=st.sampled_from(["", ID, "brightbox://srv-00002", "aws:///a/i-1"]),
    taints=st.lists(st.sampled_from([NEW, OTHER, SHUTDOWN]), unique=True).map(tuple),
    uid=st.just("u1"),
    provided_ips=st.sampled_from(["", "10.0.0.1", "10.0.0.1,2001:db8::1", "nonsense", ","]),
)
ANSWERS = st.one_of(
    st.none(),
    st.just(Absent("no server")),
    st.just(Unknown("503")),
    st.builds(
        Instance,
        st.sampled_from([ID, "brightbox://srv-00002", ""]),
        st.sampled_from(["running", "starting", "stopped", "leaving"]),
        LISTS,
        TEXTS,
        TEXTS,
        TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=2),
    ),
)


def apply(node: Node, changes: Iterable[Change]) -> Node:
    """The Node after its JSON Patches."""
    for change in changes:
        meta = {"uid": node.uid, **({"labels": dict(node.labels)} if node.labels else {})}
        taints = [{"key": taint.key, "effect": taint.effect} for taint in node.taints]
        addresses = [{"type": entry.type, "address": entry.address} for entry in node.addresses]
        found = patched(
            {"metadata": meta, "spec": {"taints": taints}, "status": {"addresses": addresses}}, change.patch
        )
        node = replace(
            node,
            labels=found["metadata"].get("labels", {}),
            taints=tuple(Taint(taint["key"], taint["effect"]) for taint in found["spec"]["taints"]),
            provider_id=found["spec"].get("providerID", node.provider_id),
            addresses=tuple(NodeAddress(entry["type"], entry["address"]) for entry in found["status"]["addresses"]),
        )
    return node


@given(NODES, ANSWERS)
def test_changes_converge(node: Node, answer: Any) -> None:
    """After its changes a Node needs nothing more, and what nobody knows for sure changes neither taint nor address."""
    found = look(node, answer)
    if found.state == "foreign":
        assert found.changes == ()
    after = apply(node, found.changes)
    after = apply(after, look(after, answer).changes)  # a new Node may get the taint of a machine that is shut down
    assert look(after, answer).changes == ()
    if not isinstance(answer, Instance):
        assert after.addresses == node.addresses
        assert after.provider_id == node.provider_id
        assert (NEW in after.taints) == (NEW in node.taints)
        assert SHUTDOWN not in after.taints or SHUTDOWN in node.taints
