"""A short soak test runs to its end. Two minutes do not show slow leaks, but show wrong and lost endpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import judge

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.usefixtures("server_fleet")  # brings the apiserver mark, and skips the test where no API server is built
def test_short_soak_loses_nothing_and_ends_right(tmp_path: Path) -> None:
    """Ten clusters, most of them broken once, and a killed hub API server lead to no lost and no wrong endpoint."""
    out = tmp_path / "soak.json"
    size = ["--minutes", "3", "--clusters", "10", "--nodes", "10", "--services", "20", "--times", "50"]
    argv = [sys.executable, "benchmarks/soak.py", *size, "--seed", "3", "--out", str(out)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert out.exists(), done.stdout + done.stderr

    found = json.loads(out.read_text())
    soak, results = judge(found)

    assert (list(soak.lost), list(soak.wrong)) == ([], [])
    assert len({fault["what"] for fault in found["script"]["faults"]}) >= 5
    assert found["slices_seen"] > 50
    assert found["reports"] > 1000
    assert len(soak.samples) > 25
    assert next(result.found for result in results if result.what.startswith("log lines")).startswith("0 of ")
    assert "| endpoints lost | 0 | 0 | met |" in done.stdout
