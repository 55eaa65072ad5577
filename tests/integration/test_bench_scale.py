"""The scale benchmark runs from beginning to end. Its figures have no meaning here."""

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
@pytest.mark.usefixtures("server_fleet")  # brings the apiserver mark, and skips the test where no API server is built
def test_a_small_fleet_has_all_phases(tmp_path: Path) -> None:
    """A run with 20 clusters of 10 nodes has all phases, and figures that do not depend on speed are exact."""
    file = tmp_path / "result.json"
    argv = [sys.executable, "-m", "benchmarks.scale", "--row", "20x10x2", "--seconds", "5", "--silence", "5"]
    argv += ["--least", "2", "--save", str(file), "--logs", str(tmp_path / "logs")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    [run] = json.loads(file.read_text())["runs"]
    phases = run["phases"]
    assert tuple(phases) == PHASES
    # Two replacements a second. Each replacement adds one node and removes another.
    for name in (report.REPLACED, report.ALL_LIVE, *report.DEAD, report.LIVE_AGAIN, report.REPLACED_OFTEN):
        assert phases[name]["changes"] >= 16
        assert (phases[name]["missed"], phases[name].get("wrong", 0)) == (0, 0)
    assert [phases[name]["writes"] for name in ("idle", report.OFTEN, report.EDIT_ALL)] == [0, 0, 0]
    assert phases[report.EDIT]["writes"] == 3
    assert phases["restart"]["rewritten"] == 0
    assert phases["restart"]["changed_services"] >= 2
    # 200 nodes report every 10 s, which is 20 reports/s. The hub keeps only one watch open for each cluster.
    assert phases[report.OFTEN]["reports_per_s"] == 20
    assert 20 <= phases[report.OFTEN]["descriptors"] < 100
    assert report.table(report.goals(phases)) in done.stdout
