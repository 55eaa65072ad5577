"""Tests of the alerts: each fires for its reason after its time, stops again, and has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hub.events.catalog import REASONS
from hub.report.metrics_catalog import GUARD_REASONS, METRICS, PREFIX
from tests.support.alerts import RUNBOOKS, Case, check_annotations, check_metrics, check_runbook, promtool, rules
from tests.support.prometheus import ALERTS, ALLOCATION_ALERTS, CLOUD_ALERTS, ROOT, program

RULES = rules(ALERTS)
CHART = ROOT / "helm" / "endpointslice-hub"
NAME = "EndpointSliceHub"
ONE = 'job="hub",instance="10.0.0.1:8080",pod="hub-0"'
OTHER = 'job="hub",instance="10.0.0.2:8080",pod="hub-1"'

EU = {"source_cluster": "eu"}
PAYMENTS = {"target": "edge/payments"}
LATENCY = {
    "change_to_publish_seconds_count{one}": "0+2x600",
    'change_to_publish_seconds_bucket{le="5.0",one}': "0+2x100 200+1x60 262+2x440",
}
CASES = [
    Case("Absent", {"build_info{one}": "1x10 _x20 1x10"}, (5, 17), 22, 35, job=False),
    Case("NoLeader", {"leader{one}": "1x10 0x20 0x10", "leader{other}": "0x30 1x10"}, (10, 12), 14, 32),
    Case("NoLeader", {"leader{one}": "1x40", "leader{other}": "0x10 1x20 0x10"}, (10, 12), 14, 33),
    Case("RegistryRejected", {"registry_rejected{one}": "0x10 1x20 0x10"}, (10, 14), 17, 33),
    Case("RegistryBrokenEntries", {"registry_broken_entries{one}": "0x10 2x20 0x10"}, (10, 14), 17, 33),
    Case("PublishLatency", LATENCY, (90,), 130, 300),
    Case("PublishLatency", {"queue_oldest_seconds{one}": "0x5 100 200 400x10 0x10"}, (4, 6), 10, 20),
    Case(
        "ProviderStalled",
        {'provider_suspended{provider="acme",one}': "0x5 1x5 0x10"},
        (4,),
        8,
        14,
        ({"provider": "acme"},),
    ),
    Case(
        "ProviderStalled",
        {'provider_blocked_threads{provider="acme",one}': "0x5 1x5 0x10"},
        (4,),
        8,
        14,
        ({"provider": "acme"},),
    ),
    Case(
        "ProviderStalled",
        {
            'loop_stall_seconds_total{provider="acme",one}': "0x5 5x60",
            'loop_stall_seconds_total{provider="",one}': "0+5x60",
        },
        (4,),
        8,
        30,
        ({"provider": "acme"},),
    ),
    Case(
        "ClusterUnreachable",
        {
            'cluster_state{source_cluster="eu",state="Unreachable",one}': "0x10 1x30 0x10",
            'cluster_state{source_cluster="us",state="Unreachable",one}': "0x10 1x30 0x10",
            'cluster_state{source_cluster="us",state="Unreachable",other}': "0x60",
        },
        (10, 24),
        27,
        43,
        ({**EU, "state": "Unreachable"},),
    ),
    Case(
        "ClusterDegraded",
        {
            'cluster_state{source_cluster="eu",state="Degraded",one}': "0x10 1x30 0x10",
            'cluster_state{source_cluster="us",state="WrongCluster",one}': "0x10 1x30 0x10",
        },
        (10, 24),
        27,
        43,
        ({**EU, "state": "Degraded"},),
    ),
    Case(
        "WrongCluster",
        {
            'cluster_state{source_cluster="eu",state="WrongCluster",one}': "0x10 1x30 0x10",
            'cluster_state{source_cluster="us",state="Degraded",one}': "0x10 1x30 0x10",
        },
        (10, 14),
        17,
        43,
        ({**EU, "state": "WrongCluster"},),
    ),
    Case(
        "SourceStale",
        {'cluster_last_success_timestamp_seconds{source_cluster="eu",one}': "0x1500 90000x100"},
        (60, 1439),
        1445,
        1503,
        (EU,),
    ),
    Case(
        "SourceStale",
        {'source_last_success_timestamp_seconds{provider="acme",scope="",source_cluster="eu",one}': "0x1500 90000x100"},
        (60, 1439),
        1445,
        1503,
        ({**EU, "provider": "acme"},),
    ),
    Case(
        "ProviderFailed",
        {
            'source_failing{provider="ionos",scope="dc-1",source_cluster="a",one}': "0x5 1x20 0x10",
            'source_failing{provider="ionos",scope="dc-1",source_cluster="b",one}': "0x5 1x20 0x10",
            'source_failing{provider="ionos",scope="dc-2",source_cluster="c",one}': "0x5 1x20 0x10",
            'source_failing{provider="acme",scope="",source_cluster="c",one}': "0x60",
        },
        (5, 14),
        17,
        30,
        ({"provider": "ionos", "scope": "dc-1"}, {"provider": "ionos", "scope": "dc-2"}),
    ),
    Case(
        "NodeUnresolved",
        {
            'cluster_nodes{reason="unknown",source_cluster="eu",one}': "_x5 2x20 _x10",
            'cluster_nodes{reason="not-ready",source_cluster="us",one}': "2x60",
        },
        (5, 14),
        17,
        35,
        ({**EU, "reason": "unknown"},),
    ),
    Case(
        "CredentialExpiring",
        {
            # eu: valid for 9 days, renewed after 7. us: renewed every hour. fr: valid for 7 days, renewed after half of
            # them. de: valid for a year.
            'credential_expiry_timestamp_seconds{source_cluster="eu",one}': "777600x10200 31536000x200",
            'credential_expiry_timestamp_seconds{source_cluster="us",one}': "3600+60x10400",
            'credential_expiry_timestamp_seconds{source_cluster="fr",one}': "604800x5039 907200x5039 1209600x320",
            'credential_expiry_timestamp_seconds{source_cluster="de",one}': "31536000x10400",
        },
        (60, 3000, 4900, 10000),
        10130,
        10210,
        (EU,),
    ),
    Case(
        "CredentialExpiring",
        {'credential_expiry_timestamp_seconds{source_cluster="eu",one}': "259200x2950 31536000x200"},  # 3 days
        (60, 2000, 2905),
        2920,
        2960,
        (EU,),
    ),
    *(
        Case(
            reason,
            {
                **{
                    f'guard_withheld_endpoints{{reason="{other}",target="edge/payments",one}}': "0x60"
                    for other in GUARD_REASONS
                    if other != reason
                },
                f'guard_withheld_endpoints{{reason="{reason}",target="edge/payments",one}}': "0x5 9x30 0x10",
            },
            (5, minutes - 1 + 5),
            minutes + 7,
            40,
            ({**PAYMENTS, "reason": reason},),
        )
        for reason, minutes in (("FilteredEmpty", 5), ("RemovalWithheld", 15), ("EmptyResultHeld", 15))
    ),
    Case("RegistryRemovalWithheld", {"registry_withheld_endpoints{one}": "0x5 9x20 0x10"}, (5, 9), 12, 30),
    Case(
        "NothingReady",
        {
            'endpoints{condition="ready",family="IPv4",target="edge/payments",one}': "3x5 0x20 3x10",
            'endpoints{condition="ready",family="IPv4",target="edge/orders",one}': "3x60",
            'endpoints{condition="ready",family="IPv6",target="edge/orders",one}': "0x60",
            'endpoints{condition="ready",family="IPv4",target="edge/new",one}': "0x60",
            'findings{reason="ServiceMissing",target="edge/new",one}': "1x60",
        },
        (5, 9),
        12,
        30,
        (PAYMENTS,),
    ),
    Case(
        "PanicMode",
        {
            'findings{reason="PanicMode",target="edge/payments",one}': "_x5 1x20 _x10",
            'findings{reason="AddressConflict",target="edge/orders",one}': "1x60",
        },
        (4, 6),
        9,
        35,
        ({**PAYMENTS, "reason": "PanicMode"},),
    ),
    Case("OrphanedSlices", {"orphaned_slices{one}": "0x5 4x60 0x10"}, (5, 34), 37, 70),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.alert}" for number, case in enumerate(CASES)])
def test_alert_fires_and_stops(tmp_path: Path, case: Case) -> None:
    """An alert fires not before its time, then with exactly the expected labels, and stops when the problem is over."""
    names = {"one": ONE, "other": OTHER}
    promtool(RULES, case, tmp_path, name=NAME, metrics=PREFIX, replicas=names, job="hub")


def test_every_alert_has_a_case() -> None:
    """Every alert has a case, and every case is of an alert."""
    assert {NAME + case.alert for case in CASES} == {rule["alert"] for rule in RULES}


def test_promtool_accepts_the_rules() -> None:
    """Promtool accepts the rules file."""
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alert_has_summary_severity_and_runbook(rule: dict[str, Any]) -> None:
    """An alert has a summary, a description, a severity, and the absolute URL of its runbook in the repository."""
    assert rule["alert"].startswith(NAME)
    assert rule["labels"]["severity"] in ("critical", "warning")
    check_annotations(rule)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_runbook_has_its_form(rule: dict[str, Any]) -> None:
    """A runbook begins with commands and their output; its PromQL is the alert's; each cause ends in commands."""
    check_runbook(rule)


def test_only_leases_are_held() -> None:
    """Alerts, runbooks, dashboards and Events say that a removal is withheld, and never that something is held."""
    dashboards = (CHART / "files" / "dashboards").glob("*.json")
    events = ROOT / "docs" / "reference" / "events.md"
    for page in (ALERTS, ALLOCATION_ALERTS, CLOUD_ALERTS, *dashboards, events, *RUNBOOKS.glob("*.md")):
        lines = re.findall(r"^.*\b(?:hold|holds|held|holding)\b.*$", page.read_text(), re.MULTILINE | re.IGNORECASE)
        assert [line for line in lines if "Lease" not in line and "duty held" not in line] == [], page


def test_every_runbook_has_an_alert() -> None:
    """Every runbook is about an alert that exists."""
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"index"}
    assert pages == {rule["alert"] for rule in [*RULES, *rules(ALLOCATION_ALERTS), *rules(CLOUD_ALERTS)]}


def test_alert_has_the_name_of_its_event() -> None:
    """An alert about a finding or a state of a cluster has the name of its Event; the other alerts have no Event."""
    for rule in RULES:
        for name in re.findall(r'(?:reason|state)="([A-Z]\w+)"', rule["expr"]):
            assert rule["alert"] == NAME + (name if name in REASONS else f"Cluster{name}")
    assert {rule["alert"].removeprefix(NAME) for rule in RULES} - REASONS.keys() == {
        "Absent",
        "NoLeader",
        "NothingReady",
        "OrphanedSlices",
        "ProviderStalled",
        "PublishLatency",
        "RegistryBrokenEntries",
        "SourceStale",
    }


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alert_uses_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    """Every metric in an expression is in the catalog, with the labels by which it is selected."""
    known = {metric.name: {*metric.labels, *(["le"] if metric.kind == "histogram" else [])} for metric in METRICS}
    check_metrics(rule, PREFIX, known)
