"""Alerts about the cloud controller: each fires for its reason after its time, stops again, and has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hub.report.collect_clouds import METRICS, PREFIX, STATES
from tests.support.alerts import Case, Rule, check_annotations, check_metrics, check_runbook, promtool, rules
from tests.support.prometheus import CLOUD_ALERTS, program

RULES = rules(CLOUD_ALERTS)
NAME = "EndpointSliceHub"
REPLICAS = {"@0": 'job="hub",instance="10.0.0.1:8080"', "@1": 'job="hub",instance="10.0.0.2:8080"'}

CASES = [
    Case(
        "CloudDutyElsewhere",
        {'duty{cluster="eu",@0}': "1x10 0x30 1x10", 'duty{cluster="eu",@1}': "0x60", 'duty{cluster="us",@0}': "1x60"},
        (10, 20),
        22,
        43,
        ({"cluster": "eu"},),
    ),
    Case(
        "CloudBalancerFailing",
        {
            'balancers{cluster="eu",state="failing",@0}': "0x10 2x30 0x10",
            'balancers{cluster="us",state="waiting",@0}': "1x60",
        },
        (10, 20),
        22,
        43,
        ({"cluster": "eu"},),
    ),
    Case(
        "CloudNodeUninitialized",
        {
            'nodes_uninitialized{cluster="eu",@0}': "0x10 1x30 0x10",
            'nodes_uninitialized{cluster="us",@0}': "0x60",
            'nodes{cluster="us",state="waiting",@0}': "1x60",
        },
        (10, 15),
        17,
        43,
        ({"cluster": "eu"},),
    ),
    Case(
        "CloudNodeDeletionWithheld",
        {
            'node_deletions_withheld{cluster="eu",@0}': "0x10 3x30 0x10",
            'node_deletions_withheld{cluster="us",@0}': "0x60",
        },
        (10,),
        13,
        43,
        ({"cluster": "eu"},),
    ),
    Case(
        "CloudLeftovers",
        {'leftovers{cluster="eu",@0}': "0x10 1x90 0x10", 'leftovers{cluster="us",@0}': "0x120"},
        (10, 65),
        75,
        105,
        ({"cluster": "eu"},),
    ),
    Case(
        "CloudRateLimited",
        {
            'rate_limited_total{cloud="brightbox",@0}': "0x10 1+1x9 10x60",
            'rate_limited_total{cloud="ionos",@0}': "0x80",
        },
        (10,),
        20,
        50,
        ({"cloud": "brightbox"},),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.alert for case in CASES])
def test_cloud_alert_fires_for_its_reason(tmp_path: Path, case: Case) -> None:
    """It fires after its time, for what it is about only, and stops when the reason is gone."""
    promtool(RULES, case, tmp_path, name=NAME, metrics=PREFIX, replicas=REPLICAS, job="hub")


def test_every_cloud_alert_has_a_case() -> None:
    """Every alert has a case, and every case is of an alert."""
    assert {NAME + case.alert for case in CASES} == {rule["alert"] for rule in RULES}


def test_promtool_accepts_the_cloud_rules() -> None:
    """Promtool accepts the rules file."""
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(CLOUD_ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_cloud_alert_has_its_texts_its_runbook_and_its_metrics(rule: Rule) -> None:
    """An alert has a summary, a description, a severity and a runbook; its metrics, labels and states exist."""
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    check_annotations(rule)
    check_runbook(rule)
    check_metrics(rule, PREFIX, {metric.name: set(metric.labels) for metric in METRICS})
    assert set(re.findall(r'state="(\w+)"', rule["expr"])) <= set(STATES)
