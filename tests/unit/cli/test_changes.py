"""The output of ``hub plan``."""

from __future__ import annotations

import json

import pytest

from hub.cli.changes import print_plan, service_change
from hub.decide.decision import Decision
from hub.decide.plan import Plan
from hub.model import DRAINING, FAILED, Finding, Hints, NamedHint, OwnerReference, Port, TargetKey
from tests.support import build

TARGET = TargetKey("edge", "payments")


def replaced(name: str, *endpoints: object, **more: object) -> Plan:
    """A plan that updates one slice."""
    return Plan(updates=(build.slice(name, endpoints, **more),))  # type: ignore[arg-type]


def lines(observed: object, planned: Plan) -> list[str]:
    """The printed lines of one Service's plan."""
    change = service_change(Decision(TARGET, planned, observed=(observed,) if observed else ()))  # type: ignore[arg-type]
    return [*map(str, change.lines), *change.others]


def test_plan_lists_added_removed_and_changed_endpoints() -> None:
    """Added, removed and changed endpoints are listed with address, ports, cluster and node."""
    old = build.slice("a", [build.endpoint("10.0.0.1", "n1"), build.endpoint("10.0.0.2", "n2")])
    new = [build.endpoint("10.0.0.2", "n2", DRAINING), build.endpoint("10.0.0.3", "n3")]

    assert lines(old, replaced("a", *new)) == [
        "- 10.0.0.1:30443  eu/n1",
        "~ 10.0.0.2:30443  eu/n2  ready→draining",
        "+ 10.0.0.3:30443  eu/n3",
    ]


def test_plan_shows_ports_before_and_after() -> None:
    """A change of ports is one line, regardless of the number of endpoints."""
    old = build.slice("a", [build.endpoint("10.0.0.1", "n1")])

    assert lines(old, replaced("a", *old.endpoints, ports=[Port("https", 8443)])) == [
        "ports of eu: https 30443/TCP→https 8443/TCP (a)"
    ]


def test_plan_lists_writes_without_endpoint_changes() -> None:
    """A write that changes no endpoint is listed too."""
    old = build.slice("a", [build.endpoint()], labels={"old": "1"})
    new = build.slice("a", [build.endpoint()], labels={"new": "1"}, uid="another")

    assert new.owners == (OwnerReference("v1", "Service", "payments", "another"),)
    assert lines(old, Plan(updates=(new,))) == ["labels new, old (a)", "owner reference (a)"]


def test_plan_shows_every_detail_of_a_changed_endpoint() -> None:
    """Changes of readiness, node, zone and zone hints are shown."""
    hints = Hints((NamedHint("a"), NamedHint("b")))
    old = build.slice("a", [build.endpoint("10.0.0.1", "n1", FAILED, zone="a", hints=hints)])

    assert lines(old, replaced("a", build.endpoint("10.0.0.1", "n2"))) == [
        "~ 10.0.0.1:30443  eu/n2  not ready→ready, node n1→n2, zone a→none, hint a,b→none"
    ]


def test_plan_writes_ipv6_as_urls_do() -> None:
    """An IPv6 address is in brackets before a port."""
    new = build.slice("a", [build.endpoint("fd00::1", "n1")], family="IPv6")

    assert lines(None, Plan(creates=(new,))) == ["+ [fd00::1]:30443  eu/n1"]


def test_print_plan_of_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A Service without changes is one line, and the result is that nothing would change."""
    assert not print_plan([Decision(TARGET, Plan(unchanged=1)), Decision(TargetKey("a", "b"), status="gone")])

    assert capsys.readouterr().out.splitlines() == [
        "edge/payments: no change",
        "Plan: 0 services to change; 1 unchanged; endpoints: 0 added, 0 removed, 0 changed",
    ]


def test_print_plan_names_unknown_sources_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown sources and findings are printed, each on one printable line."""
    finding = Finding("AddressConflict", "two nodes", tuple(f"n{i}" for i in range(7)))

    changes = print_plan([Decision(TARGET, Plan(), unknown={"us": "dead\n\x1b[2J"}, findings=(finding,))])

    assert not changes
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  ? us: unknown, nothing is removed: dead \\x1b[2J",
        "  ! AddressConflict: two nodes (n0, n1, n2, n3, n4 and 2 more)",
    ]


def test_print_plan_as_json_has_a_stable_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON output has these keys, on which scripts rely."""
    new = build.slice("a", [build.endpoint("10.0.0.1", "n1")])

    assert print_plan([Decision(TARGET, Plan(creates=(new,)), unknown={"us": "dead"})], "json")

    assert json.loads(capsys.readouterr().out) == {
        "apiVersion": "endpointslice-hub/v1",
        "kind": "Plan",
        "changes": True,
        "registry": {"withheld": None},
        "services": [
            {
                "name": "edge/payments",
                "status": "",
                "changes": True,
                "endpoints": [
                    {
                        "change": "added",
                        "cluster": "eu",
                        "family": "IPv4",
                        "address": "10.0.0.1",
                        "ports": [{"name": "https", "port": 30443, "protocol": "TCP"}],
                        "node": "n1",
                        "details": [],
                    }
                ],
                "others": [],
                "slices": {"create": 1, "update": 0, "delete": 0, "unchanged": 0},
                "unknown": [{"cluster": "us", "reason": "dead"}],
                "withheld": [],
                "findings": [],
            }
        ],
    }
