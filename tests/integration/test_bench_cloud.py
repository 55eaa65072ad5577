"""The benchmark of the cloud controller runs to its end. Its figures have no meaning here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cloud
from benchmarks.report import replace_block

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"cores": 2, "python": "3", "go": "1", "kubernetes": "1", "etcd": "3"}


@pytest.mark.nightly
@pytest.mark.usefixtures("server_fleet", "goccm")  # skip the test where nothing can be built
def test_quick_benchmark_of_clouds_finishes() -> None:
    """A small run with the hub and goccm fills all rows but those that need minutes."""
    argv = [sys.executable, "benchmarks/cloud.py", "--quick", "--subjects", "hub,goccm-1"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for figure in cloud.FIGURES:
        title = figure.title.format(**cloud.QUICK._asdict())
        assert (f"| {figure.row} | {title} | " in done.stdout) == (figure.row not in cloud.NOT_QUICK)


def table(key: str, *runs: tuple[str, float]) -> str:
    """The only line of the table for one figure."""
    found: list[dict[str, Any]] = [{"subject": subject, "round": 0, key: value} for subject, value in runs]
    result = {"machine": MACHINE, "rounds": 1, "size": cloud.Size()._asdict(), "runs": found}
    return cloud.document(result).splitlines()[-1]


@pytest.mark.parametrize(
    ("key", "runs", "end"),
    [
        (
            "create_all",
            [("hub", 8.0), ("goccm-1", 60.0), ("goccm-4", 20.0)],
            "8.00 s | 20.00 s | 0.40 | ratio ≤ 0.4 | met |",
        ),
        ("create_all", [("hub", 8.0), ("goccm-4", 19.0)], "8.00 s | 19.00 s | 0.42 | ratio ≤ 0.4 | missed |"),
        ("create_all", [("hub", 8.0)], "8.00 s |  |  | ratio ≤ 0.4 | not compared |"),
        ("create_one", [("hub", 1.5), ("goccm-1", 2.0)], "1.50 s | 2.00 s | 0.75 | ratio ≤ 0.8, ≤ 1.4 s | missed |"),
        ("idle_rss", [("hub", 90.0), ("goccm-1", 70.0)], "90 MiB | 70 MiB | 1.29 | ratio ≤ 1.2, ≤ 90 MiB | missed |"),
        ("start_requests", [("hub", 10), ("goccm-1", 800)], "10 | 800 | 0.01 | ≤ 10 | met |"),
    ],
)
def test_the_table_compares_with_the_better_yardstick(key: str, runs: list[tuple[str, float]], end: str) -> None:
    """The ratio is that to the faster goccm; a goal with two limits is met only if both hold."""
    assert table(key, *runs).endswith(f" | {end}")


def test_the_dead_cloud_is_compared_with_calm() -> None:
    """The p99 while a cloud is dead is compared with the one before, of the hub itself."""
    run = {"subject": "hub", "round": 0, "dead": 1.3, "dead_calm": 1.0}
    result = {"machine": MACHINE, "rounds": 1, "size": cloud.Size()._asdict(), "runs": [run]}
    assert cloud.document(result).endswith("| 1.30 s | 1.00 s | 1.30 | ratio ≤ 1.2 | missed |")


def test_the_page_has_a_place_for_it() -> None:
    """The page contains the marks that enclose the table."""
    page = cloud.PAGE.read_text()
    assert "\n\nnew\n\n" in replace_block(page, "new", cloud.BEGIN, cloud.END)
