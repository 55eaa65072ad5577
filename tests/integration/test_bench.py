"""The benchmark runs to its end. Its figures have no meaning here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("server_fleet")  # brings the apiserver mark, and skips the test where no API server is built
def test_quick_benchmark_has_all_figures(tmp_path: Path) -> None:
    """A small run starts its own servers, measures the hub and the floor, and reports the figures of each row."""
    file = tmp_path / "result.json"
    argv = [sys.executable, "benchmarks/bench.py", "--quick", "--subjects", "hub,floor", "--save", str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(file.read_text())
    assert [(run["subject"], run["services"]) for run in found["runs"]] == [
        ("hub", 4),
        ("floor", 4),
        ("hub", 1),
        ("floor", 1),
    ]
    rolling = {"rolling_writes", "rolling_last_s"}
    paced = {figure.key for figure in report.FIGURES if figure.key.startswith("paced")}
    for run in found["runs"]:
        missing = {figure.key for figure in report.FIGURES} - run.keys()
        assert missing == (rolling if run["subject"] == "floor" else set()) | (paced if run["services"] > 1 else set())
        assert (run["heartbeat_writes"], run["writes_per_flip"]) == (0, 2.0 if run["services"] > 1 else 1.0)
    assert found["machine"]["kubernetes"].startswith("1.")
    assert report.document(found) in done.stdout
