"""Alerts about allocations: each fires for its reason after its time, stops again, and has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hub.allocating.metrics_catalog import FAMILIES, PREFIX, WAITING_REASONS
from tests.support.alerts import Case, Rule, check_annotations, check_metrics, check_runbook, promtool, rules
from tests.support.prometheus import ALLOCATION_ALERTS, program

RULES = rules(ALLOCATION_ALERTS)
NAME = "NetIPAllocation"
REPLICAS = {
    "@0": 'job="hub",instance="10.0.0.1:9999",pod="hub-0",cluster="eu"',
    "@1": 'job="hub",instance="10.0.0.2:9999",pod="hub-1",cluster="eu"',
    "@us": 'job="hub",instance="10.0.0.1:9999",pod="hub-0",cluster="us"',
}
ORIGINAL = {
    "NoLeader": ("critical", "2m"),
    "CRDUnhealthy": ("critical", "5m"),
    "UnattachedIPsCritical": ("critical", "10m"),
    "ControllerDown": ("critical", "2m"),
    "UnattachedIPsWarning": ("warning", "5m"),
    "HighReconcileErrorRate": ("warning", "5m"),
    "GCPAPIErrors": ("warning", "5m"),
    "SlowReconciliation": ("warning", "10m"),
    "IPDetachFailures": ("warning", "5m"),
    "IPAttachFailures": ("warning", "5m"),
    "NodeCordonedWithIP": ("warning", "5m"),
    "ControllerNotReady": ("warning", "5m"),
    "LeaderChanged": ("info", "1m"),
    "IPReallocated": ("info", "0m"),
    "AvailabilitySLOBreach": ("critical", "5m"),
    "ReconcileLatencySLOBreach": ("warning", "10m"),
}
"""Alert of ip-address-controller 1.1.0 -> its severity and its ``for``."""

EU = {"cluster": "eu"}
WEB = {**EU, "crd_name": "web"}
N1 = {**WEB, "ip": "34.1.2.3", "node": "n1"}
ON_N1 = {'ip_attached{crd_name="web",ip="34.1.2.3",node="n1",@0}': "1x60"}
CORDONED = {**ON_N1, 'node_cordoned{node="n1",@0}': "0x10 1x30 0x10"}
OTHERS = {  # a node of the same name in another cluster, and an allocation without a problem
    'node_cordoned{node="n1",@us}': "1x60",
    'ip_attached{crd_name="api",ip="34.1.2.4",node="n2",@0}': "1x60",
    'node_cordoned{node="n2",@0}': "0x60",
}
UNATTACHED = {
    'unattached_ips_total{crd_name="web",@0}': "0x10 1x30 0x10",
    'unattached_ips_total{crd_name="api",@0}': "0x60",
}


def waits(reason: str, values: str = "0x10 2x30 0x10") -> dict[str, str]:
    """Two addresses of allocation web that wait for a reason, beside others that always wait for all other reasons."""
    others = [other for other in WAITING_REASONS if other != reason]
    return {
        **{f'waiting{{crd_name="web",reason="{other}",@0}}': "1x60" for other in others},
        f'waiting{{crd_name="web",reason="{reason}",@0}}': values,
        f'waiting{{crd_name="api",reason="{reason}",@0}}': "0x60",
    }


def errors(name: str, labels: str) -> dict[str, str]:
    """A counter that grows from minute 10 to 30."""
    return {f"{name}{{{labels},@0}}": "0x10 1+1x19 20x40"}


CASES = [
    Case(
        "NoLeader",
        {
            'controller_is_leader{pod_name="a",@0}': "1x10 0x20 0x10",
            'controller_is_leader{pod_name="b",@1}': "0x30 1x10",
            'controller_is_leader{pod_name="c",@us}': "1x60",
        },
        (10, 12),
        14,
        32,
        (EU,),
    ),
    Case("ControllerDown", {'controller_healthy{pod_name="a",@0}': "1x10 _x20 1x10"}, (5, 16), 18, 35, job=False),
    Case(
        "ControllerNotReady",
        {'controller_ready{pod_name="a",@0}': "1x60", 'controller_ready{pod_name="b",@1}': "1x10 0x20 1x10"},
        (10, 15),
        17,
        32,
        ({**EU, "pod_name": "b"},),
    ),
    Case(
        "LeaderChanged",
        {'controller_is_leader{pod_name="a",@0}': "1x10 0x50", 'controller_is_leader{pod_name="b",@1}': "0x10 1x50"},
        (10, 11),
        13,
        20,
        (EU,),
    ),
    Case(
        "CRDUnhealthy",
        {'crd_status{crd_name="web",@0}': "1x10 0x20 1x10", 'crd_status{crd_name="api",@0}': "1x60"},
        (10, 15),
        17,
        32,
        (WEB,),
    ),
    Case("UnattachedIPsWarning", UNATTACHED, (10, 15), 17, 43, (WEB,)),
    Case("UnattachedIPsCritical", UNATTACHED, (10, 20), 22, 43, (WEB,)),
    Case(
        "AvailabilitySLOBreach",
        {  # web needs 3 of its 5 addresses, api needs both
            'reserved_ips_total{crd_name="web",@0}': "5x60",
            'attached_ips_total{crd_name="web",@0}': "3x10 2x20 3x10",
            'unattached_ips_total{crd_name="web",@0}': "0x10 1x20 0x10",
            'attached_ips_total{crd_name="api",@0}': "2x60",
            'unattached_ips_total{crd_name="api",@0}': "0x60",
            'attached_ips_total{crd_name="api",@us}': "0x60",
            'unattached_ips_total{crd_name="api",@us}': "0x60",
        },
        (10, 15),
        17,
        32,
        (EU,),
    ),
    Case("AllocationsUnknown", waits("Unknown"), (10, 20), 22, 43, (WEB,)),
    Case("AddressConflict", waits("Conflict"), (10, 15), 17, 43, (WEB,)),
    Case("AddressElsewhere", waits("Elsewhere"), (10, 15), 17, 43, (WEB,)),
    Case("NodeCordonedWithIP", {**CORDONED, **OTHERS}, (10, 15), 17, 43, (N1,)),
    Case("NodeCordonedWithIP", {**CORDONED, **OTHERS, **waits("PodsRunning")}, (10, 19), 22, 43, (N1,)),
    Case(
        "NodeCordonedWithIP",  # the Pods have left, and the address has not
        {**CORDONED, **OTHERS, **waits("PodsRunning", "0x10 2x5 0x45")},
        (10, 20),
        23,
        43,
        (N1,),
    ),
    Case("DrainBlocked", {**CORDONED, **OTHERS, **waits("PodsRunning")}, (10, 20), 22, 43, (N1,)),
    Case(
        "MoveStuck",
        {
            'waiting{crd_name="web",reason="Detaching",@0}': "0x10 1x5 0x45",
            'waiting{crd_name="web",reason="Attaching",@0}': "0x15 1x25 0x20",
            'waiting{crd_name="api",reason="Backoff",@0}': "1x60",
            'move_duration_seconds_count{cause="Drained",@0}': "3x60",
            'move_duration_seconds_count{cause="Drained",@us}': "0+1x60",
            'waiting{crd_name="busy",reason="Attaching",@us}': "1x60",
        },
        (10, 20),
        22,
        43,
        (WEB,),
    ),
    Case(
        "MovesWithheld",
        {'withheld{crd_name="web",@0}': "0x10 3x20 0x10", 'withheld{crd_name="api",@0}': "0x60"},
        (10, 15),
        17,
        32,
        (WEB,),
    ),
    *(
        Case(alert, errors(name, labels) | {f"{name}{{{other},@us}}": other_values}, (10, 15), 18, over, (expected,))
        for alert, name, labels, other, other_values, over, expected in (
            (
                "IPAttachFailures",
                "ip_attach_total",
                'crd_name="web",status="error"',
                'crd_name="web",status="success"',
                "0+1x60",
                43,
                WEB,
            ),
            (
                "IPDetachFailures",
                "ip_detach_total",
                'crd_name="web",status="error"',
                'crd_name="web",status="success"',
                "0+1x60",
                43,
                WEB,
            ),
            (
                "CloudAPIErrors",
                "cloud_api_errors_total",
                'provider="aws",operation="attach",error_type="QuotaExceeded"',
                'provider="gcp",operation="attach",error_type="QuotaExceeded"',
                "7x60",
                37,
                {**EU, "provider": "aws", "operation": "attach", "error_type": "QuotaExceeded"},
            ),
            (
                "GCPAPIErrors",
                "gcp_api_errors_total",
                'operation="attach",error_type="api_error"',
                'operation="attach",error_type="api_error"',
                "7x60",
                37,
                {**EU, "operation": "attach", "error_type": "api_error"},
            ),
        )
    ),
    Case(
        "IPReallocated",
        {
            'ip_detach_total{crd_name="web",status="success",@0}': "4x10 5x40",
            'ip_detach_total{crd_name="api",status="error",@0}': "0+1x60",
        },
        (9,),
        12,
        18,
        (WEB,),
    ),
    Case(
        "HighReconcileErrorRate",
        {
            'reconcile_total{crd_name="web",status="success",@0}': "0+2x60",
            'reconcile_total{crd_name="web",status="error",@0}': "0x10 1+1x19 20x40",
            'reconcile_total{crd_name="api",status="success",@0}': "0+20x60",
            'reconcile_total{crd_name="api",status="error",@0}': "0+1x60",
        },
        (10, 15),
        20,
        37,
        (WEB,),
    ),
    Case(
        "SlowReconciliation",
        {
            f'reconcile_duration_seconds_bucket{{crd_name="web",le="{le}",@0}}': values
            for le, values in {
                "0.1": "0+2x10 20+0x30 20+2x40",
                "30.0": "0+2x10 20+0x30 20+2x40",
                "60.0": "0+2x80",
                "+Inf": "0+2x80",
            }.items()
        },
        (10, 20),
        26,
        60,
        (WEB,),
    ),
    Case(
        "ReconcileLatencySLOBreach",
        {
            **{
                f'reconcile_duration_seconds_bucket{{crd_name="web",le="{le}",@0}}': values
                for le, values in {"60.0": "0+100x10 1000+98x30 3940+100x40", "+Inf": "0+100x80"}.items()
            },
            'reconcile_duration_seconds_count{crd_name="web",@0}': "0+100x80",
            'reconcile_duration_seconds_bucket{crd_name="web",le="60.0",@us}': "0+995x80",
            'reconcile_duration_seconds_count{crd_name="web",@us}': "0+1000x80",
        },
        (10, 20),
        36,
        60,
        (EU,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.alert}" for number, case in enumerate(CASES)])
def test_allocation_alert_fires_and_stops(tmp_path: Path, case: Case) -> None:
    """An alert fires not before its time, then with exactly the expected labels, and stops when the problem is over."""
    promtool(RULES, case, tmp_path, name=NAME, metrics=PREFIX, replicas=REPLICAS, job="hub")


def test_every_allocation_alert_has_a_case() -> None:
    """Every alert has a case, and every case is of an alert."""
    assert {NAME + case.alert for case in CASES} == {rule["alert"] for rule in RULES}


def test_allocation_alerts_keep_names_severities_and_times_of_ip_address_controller() -> None:
    """The 16 alerts of ip-address-controller have the same severity and the same time before they fire."""
    found = {rule["alert"].removeprefix(NAME): (rule["labels"]["severity"], rule["for"]) for rule in RULES}
    assert {name: found[name] for name in ORIGINAL} == ORIGINAL


def test_promtool_accepts_the_allocation_rules() -> None:
    """Promtool accepts the rules file."""
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(ALLOCATION_ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_allocation_alert_has_its_texts_and_its_runbook(rule: Rule) -> None:
    """An alert has a summary, a description, a severity and the URL of its runbook, which has the form of all."""
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    check_annotations(rule)
    check_runbook(rule)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_allocation_alert_uses_existing_metrics_and_labels(rule: Rule) -> None:
    """Every metric is in the catalog with the labels by which it is selected; every reason is one of the catalog."""
    known = {family.name: {*family.labels, *(["le"] if family.kind == "histogram" else [])} for family in FAMILIES}
    check_metrics(rule, PREFIX, known)
    reasons = re.findall(r'reason=~?"([\w|]+)"', rule["expr"])
    assert {reason for found in reasons for reason in found.split("|")} <= set(WAITING_REASONS)
