"""The benchmark of copied Services runs to its end. Its figures have no meaning here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import service_copy
from benchmarks.report import replace_block

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("server_fleet")  # brings the apiserver mark, and skips the test where no API server is built
def test_quick_benchmark_of_copies_finishes() -> None:
    """A small run starts its own server, sees every change in the copy, and prints the table."""
    argv = [sys.executable, "benchmarks/service_copy.py", "--quick", "--subjects", "hub"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for when in ("one change after the other", "5 changes a second", "20 changes a second"):
        assert f"| 3 endpoints, {when} | change → copy, p50 |" in done.stdout


@pytest.mark.parametrize(
    ("pace", "line"),
    [
        (0, "one change after the other | change → copy, p50 | 6.5 ms | 5.0 ms | 1.30 | ≤ 1.2 | missed |"),
        (
            20,
            "20 changes a second | change → copy, p50 | 6.5 ms | 5.0 ms | 1.30 | ≤ 1.2 or hub ≤ 60 ms | met |",
        ),
    ],
)
def test_the_table_compares_medians(pace: int, line: str) -> None:
    """The table shows each subject's median over the rounds. The goal is a ratio; at a fixed pace 60 ms are enough."""
    machine = {"cores": 2, "python": "3", "go": "1", "kubernetes": "1", "etcd": "3"}
    runs = [
        {"subject": name, "endpoints": 3, "pace": pace, "round": number, "p50_ms": p50, "p99_ms": 10.0}
        for name, figures in (("hub", (5.0, 6.5, 9.0)), ("gocopy", (5.0, 5.0, 5.0)))
        for number, p50 in enumerate(figures)
    ]
    assert line in service_copy.document({"machine": machine, "runs": runs})


def test_the_page_has_a_place_for_it() -> None:
    """The page contains the marks that enclose the table."""
    page = service_copy.PAGE.read_text()
    assert "\n\nnew\n\n" in replace_block(page, "new", service_copy.BEGIN, service_copy.END)
