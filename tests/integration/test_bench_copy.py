"""The benchmark of copied Services runs. What it measures here means nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import service_copy
from benchmarks.report import replace_block

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("server_fleet")  # for its mark, and to be skipped where there are no API servers
def test_quick_benchmark_of_copies_finishes() -> None:
    """A small run of the hub starts its own server, sees every change in the copy, and prints the table."""
    argv = [sys.executable, "benchmarks/service_copy.py", "--quick", "--subjects", "hub"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "| 3 endpoints | change → copy, p50 |" in done.stdout


def test_the_table_compares_medians() -> None:
    """Of each subject over the rounds; the goal is a ratio."""
    machine = {"cores": 2, "python": "3", "go": "1", "kubernetes": "1", "etcd": "3"}
    runs = [
        {"subject": name, "endpoints": 3, "round": number, "p50_ms": p50, "p99_ms": 10.0}
        for name, figures in (("hub", (5.0, 6.0, 9.0)), ("gocopy", (5.0, 5.0, 5.0)))
        for number, p50 in enumerate(figures)
    ]
    text = service_copy.document({"machine": machine, "runs": runs})
    assert "| 3 endpoints | change → copy, p50 | 6.0 ms | 5.0 ms | 1.20 | ≤ 1.2 | met |" in text


def test_the_page_has_a_place_for_it() -> None:
    """The marks that the table goes between."""
    page = service_copy.PAGE.read_text()
    assert "\n\nnew\n\n" in replace_block(page, "new", service_copy.BEGIN, service_copy.END)
