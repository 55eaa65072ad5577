"""The scale benchmark runs from beginning to end. What it measures here means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale import report

ROOT = Path(__file__).parents[2]
PHASES = (
    "start",
    "idle",
    report.OFTEN,
    report.REPLACED,
    report.ALL_LIVE,
    *report.DEAD,
    report.BACK,
    report.LIVE_AGAIN,
    report.REPLACED_OFTEN,
    report.EDIT,
    report.EDIT_ALL,
    "restart",
)


@pytest.mark.nightly
@pytest.mark.usefixtures("server_fleet")  # for its mark, and to be skipped where there are no API servers
def test_a_small_fleet_has_all_phases(tmp_path: Path) -> None:
    """20 clusters of 10 nodes: what does not depend on speed is as it should be, however busy the machine."""
    file = tmp_path / "result.json"
    argv = [sys.executable, "-m", "benchmarks.scale", "--row", "20x10x2", "--seconds", "5", "--silence", "5"]
    argv += ["--least", "2", "--save", str(file), "--logs", str(tmp_path / "logs")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    [run] = json.loads(file.read_text())["runs"]
    phases = run["phases"]
    assert tuple(phases) == PHASES
    # Two replacements a second, each a node that comes and one that goes.
    for name in (report.REPLACED, report.ALL_LIVE, *report.DEAD, report.LIVE_AGAIN, report.REPLACED_OFTEN):
        assert phases[name]["changes"] >= 16
        assert (phases[name]["missed"], phases[name].get("wrong", 0)) == (0, 0)
    assert [phases[name]["writes"] for name in ("idle", report.OFTEN, report.EDIT_ALL)] == [0, 0, 0]
    assert phases[report.EDIT]["writes"] == 3
    assert phases["restart"]["rewritten"] == 0
    assert phases["restart"]["changed_services"] >= 2
    # 200 nodes report every 10 s, and the hub's one watch of each cluster is all that is left open.
    assert phases[report.OFTEN]["reports_per_s"] == 20
    assert 20 <= phases[report.OFTEN]["descriptors"] < 100
    assert report.table(report.goals(phases)) in done.stdout
