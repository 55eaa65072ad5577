"""The rules of ip-address-controller, unedited, on the hub's metrics: each alert fires for its reason, and stops."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from hub.allocating.metrics_catalog import PREFIX
from tests.monitoring.test_allocation_alerts import CASES, CORDONED, ORIGINAL, REPLICAS
from tests.support import ip_address_controller
from tests.support.alerts import Case
from tests.support.prometheus import program

OWN = (
    Case("ControllerDown", {"up": "1x10 0x20 1x10"}, (10,), 17, 32),
    Case("NoLeader", {'controller_is_leader{pod_name="a",@0}': "1x10 0x20 1x10"}, (10,), 17, 32),
    Case("LeaderChanged", {'controller_is_leader{pod_name="a",@0}': "1x10 0 1 0 1 0 1x30"}, (10,), 15, 32),
    Case("NodeCordonedWithIP", CORDONED, (10,), 17, 43),
    Case(
        "HighReconcileErrorRate",
        {'reconcile_total{crd_name="web",status="error",@0}': "0x10 1+1x19 20x40"},
        (10,),
        20,
        43,
    ),
    Case(
        "AvailabilitySLOBreach",
        {'reserved_ips_total{crd_name="web",@0}': "2x40", 'attached_ips_total{crd_name="web",@0}': "2x10 1x20 2x10"},
        (10,),
        17,
        32,
    ),
)
"""Alerts whose expressions differ much from those of the chart: they know neither clusters nor spare addresses."""
NEVER = "ReconcileLatencySLOBreach"
"""It asks for a quantile above 60 s, but the highest bucket of its histogram ends at 60 s, so it cannot fire."""


def case_of(alert: str) -> Case:
    """The case of an alert: that of the chart's alert of the same name, unless there is one of its own."""
    return next(case for case in (*OWN, *CASES) if case.alert == alert)


def series(text: str) -> str:
    """A series of a case as promtool reads it."""
    if text == "up":
        return 'up{job="ip-address-controller"}'
    for word, labels in REPLICAS.items():
        text = text.replace(word, labels)
    return PREFIX + text


@pytest.mark.parametrize("alert", ORIGINAL)
def test_alert_of_ip_address_controller_fires_and_stops(alert: str, tmp_path: Path) -> None:
    """It is quiet, fires after its time, and is quiet again; one of the 16 can never fire."""
    case = case_of(alert)
    firing = f'count(ALERTS{{alertname="NetIPAllocation{alert}",alertstate="firing"}} > 0) > bool 0 or vector(0)'
    expected = {case.quiet[0]: 0, case.fires: alert != NEVER, case.over: 0}
    test = {
        "interval": "1m",
        "input_series": [{"series": series(text), "values": values} for text, values in case.series.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": int(value)}]}
            for minute, value in expected.items()
        ],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": ip_address_controller.rules()}))
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
