"""Which nodes are eligible."""

from __future__ import annotations

import pytest

from hub.decide.eligibility import LEAVING_TAINTS, Eligible, Excluded, eligibility, matches
from hub.model import DRAINING, PUBLISHED, Node
from hub.registry.spec import NodePolicy, SelectorTerm
from tests.support import build

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MASTER = "node-role.kubernetes.io/master"
NO_LB = "node.kubernetes.io/exclude-from-external-load-balancers"
SELECTOR = (SelectorTerm("pool", "in", frozenset({"ingress"})),)


def reason(node: Node, policy: NodePolicy | None = None, not_ready_for: float | None = None) -> str:
    """The reason why a node is excluded; "" if it is eligible."""
    found = eligibility(node, policy or NodePolicy(), not_ready_for)
    return found.reason if isinstance(found, Excluded) else ""


def test_a_plain_ready_node_is_published() -> None:
    """A Ready node without special labels or taints is eligible and published as ready."""
    assert eligibility(build.node(), NodePolicy(), None) == Eligible(PUBLISHED)


@pytest.mark.parametrize(
    ("node", "policy", "expected"),
    [
        (build.node(labels={CONTROL_PLANE: ""}), NodePolicy(), "control-plane"),
        (build.node(labels={MASTER: "true"}), NodePolicy(), "control-plane"),
        (build.node(labels={CONTROL_PLANE: ""}), NodePolicy(control_plane=True), ""),
        (build.node(labels={MASTER: ""}), NodePolicy(control_plane=True), ""),
        (build.node(deleting=True), NodePolicy(), "deleting"),
        (build.node(labels={NO_LB: ""}), NodePolicy(), "label"),
        (build.node(labels={NO_LB: "false"}), NodePolicy(), "label"),
        (build.node(taints=["dedicated"]), NodePolicy(), ""),
        (build.node(labels={"pool": "ingress"}), NodePolicy(selector=SELECTOR), ""),
        (build.node(labels={"pool": "batch"}), NodePolicy(selector=SELECTOR), "selector"),
        (build.node(), NodePolicy(selector=SELECTOR), "selector"),
        (build.node("bad"), NodePolicy(exclude_nodes=frozenset({"bad"})), "excluded"),
        (build.node("good"), NodePolicy(exclude_nodes=frozenset({"bad"})), ""),
        (build.node(unschedulable=True), NodePolicy(), ""),
        (build.node(unschedulable=True), NodePolicy(cordoned="not-ready"), ""),
        (build.node(unschedulable=True), NodePolicy(cordoned="drop"), "cordoned"),
        (build.node(), NodePolicy(cordoned="drop"), ""),
    ],
)
def test_rules(node: Node, policy: NodePolicy, expected: str) -> None:
    """Each rule excludes the nodes that it names, and no others."""
    assert reason(node, policy) == expected


@pytest.mark.parametrize("taint", sorted(LEAVING_TAINTS))
def test_leaving_taints_exclude(taint: str) -> None:
    """Each taint of a node that leaves or is not initialised excludes it, and the message names the taint."""
    found = eligibility(build.node(taints=["other", taint]), NodePolicy(), None)
    assert found == Excluded("taint", f"tainted {taint}")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, ""), (0.0, ""), (29.9, ""), (30.0, "not-ready"), (1e9, "not-ready")]
)
def test_grace_is_a_half_open_interval(seconds: float | None, expected: str) -> None:
    """A node is eligible while it is not Ready for less than the grace period, and excluded from then on."""
    assert reason(build.node(ready=False), NodePolicy(not_ready_grace=30.0), seconds) == expected


def test_no_grace_excludes_at_once() -> None:
    """A grace period of 0 s excludes a node at once."""
    assert reason(build.node(ready=False), NodePolicy(not_ready_grace=0.0), 0.0) == "not-ready"


@pytest.mark.parametrize(("cordoned", "conditions"), [("keep", PUBLISHED), ("not-ready", DRAINING)])
def test_cordoned_nodes_conditions(cordoned: str, conditions: object) -> None:
    """A cordoned node is published as ready or as draining, by policy."""
    found = eligibility(build.node(unschedulable=True), NodePolicy(cordoned=cordoned), None)  # type: ignore[arg-type]
    assert found == Eligible(conditions)  # type: ignore[arg-type]


def test_a_schedulable_node_is_not_draining() -> None:
    """``cordoned: not-ready`` affects only cordoned nodes."""
    assert eligibility(build.node(), NodePolicy(cordoned="not-ready"), None) == Eligible(PUBLISHED)


def test_standing_reasons_come_before_readiness() -> None:
    """A control plane node that is not Ready is excluded as a control plane node."""
    assert reason(build.node(labels={CONTROL_PLANE: ""}), None, 1e9) == "control-plane"


@pytest.mark.parametrize(
    ("term", "labels", "expected"),
    [
        (SelectorTerm("a", "in", frozenset("xy")), {"a": "x"}, True),
        (SelectorTerm("a", "in", frozenset("xy")), {"a": "z"}, False),
        (SelectorTerm("a", "in", frozenset("xy")), {}, False),
        (SelectorTerm("a", "notin", frozenset("xy")), {"a": "x"}, False),
        (SelectorTerm("a", "notin", frozenset("xy")), {"a": "z"}, True),
        (SelectorTerm("a", "notin", frozenset("xy")), {}, True),
        (SelectorTerm("a", "exists"), {"a": ""}, True),
        (SelectorTerm("a", "exists"), {}, False),
        (SelectorTerm("a", "absent"), {}, True),
        (SelectorTerm("a", "absent"), {"a": ""}, False),
    ],
)
def test_selector_terms(term: SelectorTerm, labels: dict[str, str], expected: bool) -> None:
    """Selector terms have the meaning that the API server gives them."""
    assert matches((term,), labels) is expected


def test_all_terms_must_hold() -> None:
    """A selector matches if all terms match; an empty one matches everything."""
    both = (SelectorTerm("a", "exists"), SelectorTerm("b", "exists"))
    assert [matches(both, {"a": ""}), matches(both, {"a": "", "b": ""}), matches((), {})] == [False, True, True]
