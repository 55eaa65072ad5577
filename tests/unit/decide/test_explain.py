"""Explanations contain every decision about an address, a node or a Service, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Check, Watch
from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.explain import Facts, SourceFacts, Step, TargetFacts, explain_address, explain_node, explain_service
from hub.decide.guard import Withheld
from hub.decide.view import ViewBuilder
from hub.model import DRAINING, FAILED, Absent, Finding, Found, Node, Resolution, TargetKey, Unknown
from hub.registry.spec import NodePolicy
from tests.support import build

KEY = TargetKey("edge", "payments")
EU = GroupKey("eu", "IPv4")
POLICY = AddressPolicy(build.networks("10.0.0.0/8"), build.networks("10.66.0.0/16"))
RESOLUTIONS: dict[str, Resolution] = {
    "good": Found(("10.0.0.1",)),
    "twin": Found(("10.0.0.1",)),
    "sick": Found(("10.0.0.2",)),
    "far": Found(("192.0.2.1",)),
    "none": Absent("no NIC"),
    "new": Unknown("not asked yet"),
}


def source(unknown: str | None = None, services: tuple[str, ...] = ("edge/payments",), **more: Any) -> SourceFacts:
    """Source eu, with one node for every possible result."""
    nodes: dict[str, Node] = {name: build.node(name, ready=name != "sick") for name in RESOLUTIONS}
    builder = ViewBuilder("eu", NodePolicy(), POLICY, 100)
    result = builder.build(nodes, RESOLUTIONS, build.READY_SINCE_WALL + 1e6)
    return SourceFacts("eu", services, unknown, result, RESOLUTIONS, nodes, **more)


def target(*addresses: str, **more: Any) -> TargetFacts:
    """The target with these addresses published from eu."""
    slices = (build.slice("s0", [build.endpoint(each, f"was-{each}") for each in addresses]),) if addresses else ()
    return TargetFacts(build.decision(**more), ("eu",), slices)


def facts(*targets: TargetFacts, **more: Any) -> Facts:
    """Facts with one source."""
    return Facts((source(**more),), targets, {"eu": POLICY, "us": AddressPolicy(build.networks("10.1.0.0/16"))})


def of(stage: str, steps: tuple[Step, ...]) -> list[tuple[str, str, str]]:
    """(where, outcome, why) of the steps of a stage."""
    return [(step.where, step.outcome, step.why) for step in steps if step.stage == stage]


def test_an_address_is_followed_from_its_node_to_its_slice() -> None:
    """The steps are node, eligibility, resolution, address and published, in this order."""
    steps = explain_address("10.0.0.1", facts(target("10.0.0.1")))
    mine = [step.stage for step in steps if step.where in ("eu/good", "edge/payments")]
    assert mine == ["node", "eligibility", "resolution", "address", "published"]
    assert of("published", steps) == [("edge/payments", "ready", "10.0.0.1 in slice s0 of eu, node was-10.0.0.1")]
    assert of("policy", steps) == [("eu", "allowed", "inside its allowedCIDRs (10.0.0.0/8)")]


def test_a_node_that_lost_its_address_to_another_is_a_rejected_candidate() -> None:
    """A node that lost its address is shown with the node that has it."""
    steps = explain_address("10.0.0.1", facts())
    assert ("eu/twin", "conflict", "10.0.0.1 is published for node good") in of("address", steps)


@pytest.mark.parametrize(
    ("node", "stage", "outcome", "why"),
    [
        ("sick", "eligibility", "no", "not Ready"),
        ("far", "address", "rejected", "192.0.2.1: outside allowedCIDRs"),
        ("none", "resolution", "absent", "no NIC"),
        ("new", "resolution", "unknown", "not asked yet"),
    ],
)
def test_a_node_is_explained_by_the_decision_that_took_it_out(node: str, stage: str, outcome: str, why: str) -> None:
    """The reason for an exclusion is a step of the stage that excluded the node."""
    [(where, found, text), *_] = of(stage, explain_node(node, facts()))
    assert (where, found) == (f"eu/{node}", outcome)
    assert why.lower() in text.lower()


def test_unknown_node_has_no_steps() -> None:
    """An unknown node has no steps, not even about a source that is unknown."""
    assert explain_node("nosuch", facts(target("10.0.0.1"))) == ()
    assert explain_node("nosuch", facts(unknown="timeout")) == ()


def test_withheld_address_has_a_guard_step() -> None:
    """A withheld address has a guard step with the reason and the command that approves the removal."""
    withheld = Withheld(
        "RemovalWithheld", "abc", ("10.0.0.9",), 0.0, "1 of 1 would go", "hub approve edge/payments abc"
    )
    kept = target("10.0.0.9", withheld={EU: withheld})
    assert of("guard", explain_address("10.0.0.9", facts(kept))) == [
        ("edge/payments", "withheld", "RemovalWithheld: 1 of 1 would go"),
        ("edge/payments", "approve with", "hub approve edge/payments abc"),
    ]


def test_finding_is_a_step_of_the_addresses_that_it_names() -> None:
    """A finding is shown for an address that it names, unless a guard step has the same message."""
    withheld = Withheld("RemovalWithheld", "abc", ("10.0.0.9",), 0.0, "1 of 1 would go", "hub approve …")
    findings = (
        Finding("InvalidAddressSkipped", "10.0.0.9: refused", ("10.0.0.9",)),
        Finding("InvalidAddressSkipped", "10.0.0.8: refused", ("10.0.0.8",)),
        Finding("RemovalWithheld", "1 of 1 would go", ("10.0.0.9",)),
    )
    found = facts(target("10.0.0.9", findings=findings, withheld={EU: withheld}))
    steps = explain_address("10.0.0.9", found)
    assert of("service", steps) == [("edge/payments", "InvalidAddressSkipped", "10.0.0.9: refused")]
    assert of("service", explain_node("was-10.0.0.9", found)) == []


def test_failed_address_is_explained_without_own_probes() -> None:
    """Without probes of its own, the hub shows the conditions on the slice and says so."""
    endpoint = build.endpoint("10.0.0.9", conditions=FAILED)
    watch = Watch(*EU, Check("tcp", 30443), {}, {})
    found = TargetFacts(build.decision(watches=[watch]), ("eu",), (build.slice("s-0", [endpoint]),))
    steps = explain_address("10.0.0.9", facts(found))
    assert [each[1] for each in of("published", steps)] == ["unhealthy"]
    assert of("health", steps) == [
        ("edge/payments", "not probed", "tcp :30443 of 10.0.0.9: the conditions on its slice are used"),
    ]


def test_an_address_stays_while_its_source_is_unknown_or_its_service_paused() -> None:
    """The steps name the unknown source or the paused Service as the reason."""
    unknown = explain_address("10.0.0.9", facts(target("10.0.0.9", unknown={"eu": "timeout"})))
    paused = explain_address("10.0.0.9", facts(target("10.0.0.9", status="paused")))
    assert of("service", unknown) == [("edge/payments", "kept", "eu is unknown: timeout")]
    assert of("service", paused) == [("edge/payments", "kept", "paused")]


@pytest.mark.parametrize(
    ("filtered", "why"),
    [(frozenset[str](), "its node is gone"), (frozenset({"10.0.0.9"}), "its node exists, but does not offer it")],
)
def test_leaving_address_is_explained_as_gone_or_filtered(filtered: frozenset[str], why: str) -> None:
    """A leaving address is explained as gone or as filtered."""
    group = EndpointGroup(EU, {}, removed={"10.0.0.9": build.endpoint("10.0.0.9")}, filtered=filtered)
    steps = explain_address("10.0.0.9", facts(target("10.0.0.9", groups=(group,))))
    assert of("service", steps) == [("edge/payments", "leaving", f"{why}; goes with the next write")]


def test_unpublished_address_is_explained() -> None:
    """An offered address is unpublished until the next write, or because of a status or finding."""
    group = EndpointGroup(EU, {"10.0.0.1": build.endpoint("10.0.0.1")}, added=("10.0.0.1",))
    refused = Finding("PortMismatch", "no such port", ("eu",))
    outcomes = [
        of("service", explain_address("10.0.0.1", facts(each)))[0][1:]
        for each in (target(groups=(group,)), target(status="the Service does not exist"), target(findings=(refused,)))
    ]
    assert outcomes == [
        ("arriving", "10.0.0.1 of eu: published with the next write"),
        ("not published", "the Service does not exist"),
        ("not published", "10.0.0.1 of eu: no such port"),
    ]


def test_unknown_address_is_explained_by_allowed_cidrs() -> None:
    """An unknown address is explained by the clusters whose allowedCIDRs contain it, if any."""
    assert of("policy", explain_address("10.1.2.3", facts())) == [
        ("eu", "allowed", "inside its allowedCIDRs (10.0.0.0/8)"),
        ("us", "allowed", "inside its allowedCIDRs (10.1.0.0/16)"),
    ]
    assert of("policy", explain_address("10.66.0.1", facts())) == [("eu", "denied", "it is in a denied CIDR")]
    assert explain_address("203.0.113.1", facts()) == (
        Step("policy", "every cluster", "denied", "inside no cluster's allowedCIDRs"),
    )


def test_a_service_shows_its_sources_with_counts_by_reason() -> None:
    """A Service's steps count offered and rejected candidates by reason, and show the guard."""
    draining = build.slice("s0", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.9", None, DRAINING)])
    steps = explain_service(KEY, facts(TargetFacts(build.decision(), ("eu",), (draining,))))
    assert steps[0] == Step("service", "edge/payments", "followed", "2 published, 1 ready, in 1 slices")
    assert steps[1] == Step("source", "eu", "offers 1", "of 6 candidates; 2 published, 1 ready")
    assert {(step.outcome.split()[1], step.why) for step in steps if step.stage in ("eligibility", "address")} >= {
        ("absent", "none"),
        ("conflict", "twin"),
        ("unknown", "new"),
        ("rejected", "outside allowedCIDRs: 192.0.2.1 of far"),
    }


def test_service_lists_current_and_former_sources() -> None:
    """Sources come in registry order, then former sources by name."""
    left = build.slice("s1", [build.endpoint("10.1.0.1")], cluster="us")
    found = TargetFacts(build.decision(unknown={"eu": "timeout"}), ("eu",), (left,))
    assert [step[1:] for step in map(tuple_of, explain_service(KEY, facts(found))) if step[0] == "source"] == [
        ("eu", "unknown", "timeout; 0 published, 0 ready, nothing is removed"),
        ("us", "not a source", "1 published, 1 ready; no longer a source of the Service"),
    ]


def tuple_of(step: Step) -> tuple[str, str, str, str]:
    """A step's fields."""
    return step.stage, step.where, step.outcome, step.why


def test_unknown_service_has_no_steps() -> None:
    """An unknown Service has no steps."""
    assert explain_service(TargetKey("edge", "nosuch"), facts(target("10.0.0.1"))) == ()


def test_whole_explanation_of_a_service() -> None:
    """All steps: the counts, each source with its rejected candidates and withheld removals, and other findings."""
    held = Withheld("RemovalWithheld", "abc", ("10.0.0.9",), 0.0, "1 of 3 would go", "hub approve abc")
    findings = (Finding("PortMismatch", "no such port", ("eu",)), Finding("RemovalWithheld", "1 of 3 would go"))
    draining = build.slice("s0", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.9", None, DRAINING)])
    other = build.slice("s1", [build.endpoint("10.1.0.1")], cluster="us")
    decision = build.decision(withheld={EU: held}, findings=findings)
    found = TargetFacts(decision, ("eu", "us"), (draining, other))
    another = SourceFacts("eu", ("edge/other",), "not this one", source().result, {}, {})
    steps = explain_service(KEY, Facts((another, source()), (found,), {}))
    assert list(map(tuple_of, steps)) == [
        ("service", "edge/payments", "followed", "3 published, 2 ready, in 2 slices"),
        ("source", "eu", "offers 1", "of 6 candidates; 2 published, 1 ready"),
        ("address", "eu", "1 absent", "none"),
        ("address", "eu", "1 address", "far"),
        ("address", "eu", "1 conflict", "twin"),
        ("address", "eu", "1 unknown", "new"),
        ("eligibility", "eu", "1 not-ready", "sick"),
        ("address", "eu", "1 rejected", "outside allowedCIDRs: 192.0.2.1 of far"),
        ("guard", "edge/payments", "withheld", "RemovalWithheld: 1 of 3 would go"),
        ("guard", "edge/payments", "approve with", "hub approve abc"),
        ("service", "edge/payments", "PortMismatch", "no such port"),
    ]


def test_whole_explanation_of_an_address_of_an_unknown_source() -> None:
    """An unknown source says that nothing is removed, and that its last good answer had the address."""
    steps = explain_address("10.0.0.1", facts(target("10.0.0.2"), unknown="timeout", services=()))
    assert [step for step in map(tuple_of, steps) if step[0] == "source"] == [
        ("source", "eu", "unknown", "timeout; nothing is removed"),
        ("source", "eu", "unknown", "timeout; its last good answer had 10.0.0.1"),
    ]
    other = explain_address("192.0.2.1", facts(unknown="timeout"))
    assert [step.why for step in other if step.stage == "source"] == ["timeout; nothing is removed"]


def test_an_address_that_only_a_node_object_has_is_explained() -> None:
    """An address that a Node object has, but that no provider resolved, is explained by the steps of its node."""
    node = build.node("idle", "10.0.0.7", "10.0.0.8", ready_since="T", unschedulable=True, deleting=True)
    bare = SourceFacts(
        "eu", (), None, ViewBuilder("eu", NodePolicy(), POLICY, 100).build({}, {}, 0.0), {}, {"idle": node}
    )
    steps = explain_address("10.0.0.7", Facts((bare,), ()))
    details = "since T; cordoned; being deleted; InternalIP 10.0.0.7, InternalIP 10.0.0.8"
    assert steps == (Step("node", "eu/idle", "Ready", details),)
    assert explain_node("idle", Facts((bare,), ())) == steps


def test_a_node_is_explained_with_all_its_endpoints() -> None:
    """A node's steps have each published endpoint of it, and each offered one that is not published."""
    published = build.slice("s0", [build.endpoint("10.0.0.5", "good"), build.endpoint("10.0.0.6", "else")])
    found = TargetFacts(build.decision(status="paused"), ("eu",), (published,))
    steps = [tuple_of(step) for step in explain_node("good", facts(found)) if step.where == "edge/payments"]
    assert steps == [
        ("published", "edge/payments", "ready", "10.0.0.5 in slice s0 of eu, node good"),
        ("service", "edge/payments", "kept", "paused"),
        ("service", "edge/payments", "not published", "paused"),
    ]


@pytest.mark.parametrize(
    ("probed", "expected"),
    [
        (("healthy", ""), ("healthy", "tcp :1 of 10.0.0.9")),
        (("failed", "reset"), ("failed", "tcp :1 of 10.0.0.9: reset")),
    ],
)
def test_probed_address_has_its_verdict(probed: tuple[str, str], expected: tuple[str, str]) -> None:
    """The health step of a probed address has the verdict and its reason, if there is one."""
    decision = build.decision(watches=[Watch(*EU, Check("tcp", 1), {}, {})])
    slices = (build.slice("s-0", [build.endpoint("10.0.0.9")]),)
    found = TargetFacts(decision, ("eu",), slices, {EU: {"10.0.0.9": probed}})
    assert of("health", explain_address("10.0.0.9", facts(found))) == [("edge/payments", *expected)]
