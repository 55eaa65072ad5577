"""A soak runs to its end and is judged. Two minutes show no slow leak; what is right and what is lost they do show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak import judge

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.usefixtures("server_fleet")  # for its mark, and to be skipped where there are no API servers
def test_short_soak_loses_nothing_and_ends_right(tmp_path: Path) -> None:
    """Ten clusters, most of them broken once, and the hub's API server killed: nothing lost, all slices right."""
    out = tmp_path / "soak.json"
    size = ["--minutes", "3", "--clusters", "10", "--nodes", "10", "--services", "20", "--times", "50"]
    argv = [sys.executable, "benchmarks/soak.py", *size, "--seed", "3", "--out", str(out)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert out.exists(), done.stdout + done.stderr

    found = json.loads(out.read_text())
    soak, results = judge(found)

    assert (list(soak.lost), list(soak.wrong)) == ([], [])
    assert len({each["what"] for each in found["script"]["faults"]}) >= 5
    assert found["slices_seen"] > 50
    assert found["reports"] > 1000
    assert len(soak.samples) > 25
    assert next(each.found for each in results if each.what.startswith("log lines")).startswith("0 of ")
    assert "| endpoints lost | 0 | 0 | met |" in done.stdout
