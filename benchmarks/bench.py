"""Measures the hub beside a client-go controller and beside a bare client, on real API servers: ``make bench``.

Prints one JSON line for each run, then a table of medians and ratios. Everything is on loopback. The subjects take
turns in alternating order, since machines are noisy: compare medians of one invocation, not of two.

    make bench                               all rows, 3 rounds of 100 flips: about three quarters of an hour on 2 cores
    make bench ARGS="--rows 4x500x25"        one row only
    make bench ARGS="--save --write-docs"    keep the result, and put it into docs/performance.md
    make bench ARGS=--quick                  does it run? a minute; the figures mean nothing
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, only this folder is there

from benchmarks import measure, report  # noqa: E402
from benchmarks.subjects import GOREF, SUBJECTS, go_version, hub_command  # noqa: E402
from benchmarks.world import Row, world  # noqa: E402
from tests.support.apiserver import binaries  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
COMMAND_RUNS = 5
LIMITS = Row(20, 5000, 200)
"""Beyond, a workstation would be measured, not a hub: 20 API servers take 6 GB."""
TODAY = "today"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line says; 1 where a run failed, whatever the figures are."""
    given = parse(argv)
    os.environ["PYTHONPATH"] = str(ROOT)  # the subjects run this tree, wherever they are started
    try:
        found = json.loads(given.source.read_text()) if given.source else asyncio.run(measured(given))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = report.document(found)
    print(f"\n{text}")
    if given.save:
        file = RESULTS / f"{found['date']}.json" if given.save == TODAY else Path(given.save)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if given.write_docs:
        PAGE.write_text(report.replace_block(PAGE.read_text(), text, report.BEGIN, report.END))
    return 0 if all(map(report.good, found["runs"])) else 1


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with what --quick changes."""
    parser = argparse.ArgumentParser(prog="bench.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=rows, metavar="CLUSTERSxNODESxSERVICES,…", help="default: all with goals")
    parser.add_argument("--subjects", type=subjects, default=list(SUBJECTS), help=f"of {','.join(SUBJECTS)}")
    parser.add_argument("--rounds", type=between(1, 100), default=3)
    parser.add_argument("--flips", type=between(1, 1000), default=100, help="per run")
    parser.add_argument("--heartbeats", type=between(1, 100_000), default=10_000, help="per run, in whole rounds")
    parser.add_argument("--quick", action="store_true", help="a smoke test: tiny rows, 1 round, 3 flips")
    parser.add_argument("--save", nargs="?", const=TODAY, metavar="FILE", help="default: benchmarks/results/DATE.json")
    parser.add_argument("--write-docs", action="store_true", help="put the result into docs/performance.md")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing, use a saved result")
    given = parser.parse_args(argv)
    if given.quick and given.write_docs:
        parser.error("--quick measures nothing that is worth writing down")
    if given.quick:
        given.rows, given.rounds, given.flips, given.heartbeats = list(report.QUICK), 1, 3, 1
    given.rows = given.rows or list(report.ROWS)
    return given


def rows(text: str) -> list[Row]:
    """``4x500x25,10x1000x10``."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is not like 4x500x25")
        row = Row(*map(int, match.groups()))
        if not all(
            1 <= size <= most
            for size, most in zip(
                (row.clusters, row.nodes, row.services), (LIMITS.clusters, LIMITS.nodes, LIMITS.services), strict=True
            )
        ):
            most = f"{LIMITS.clusters}x{LIMITS.nodes}x{LIMITS.services}"
            raise argparse.ArgumentTypeError(f"{part!r} is outside 1x1x1 to {most}")
        found.append(row)
    return found


def subjects(text: str) -> list[str]:
    """``goref,hub``."""
    names = text.split(",")
    for name in names:
        if name not in SUBJECTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SUBJECTS)}")
    return names


def between(least: int, most: int) -> Any:
    """An integer within bounds, for argparse."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Who comes when: the other way round in every other round."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Everything the command line asks for.

    Raises:
        KitUnavailable: there are no API servers or no Go reference, and they cannot be built.
    """
    go = "not used"
    if "goref" in given.subjects:  # built before anything is measured
        go = await asyncio.to_thread(lambda: go_version(binaries.ensure_go_program(GOREF)))
    effort = measure.Effort(
        given.flips,
        given.heartbeats,
        settle=0.5 if given.quick else 2.0,
        rolling=1.0 if given.quick else measure.ROLLING,
        paced=1.0 if given.quick else measure.PACED,
    )
    commands = await asyncio.to_thread(command_times)
    runs = []
    for row in given.rows:
        with tempfile.TemporaryDirectory(prefix="hub-bench-") as folder:
            print(f"{row}: starting API servers", file=sys.stderr, flush=True)
            async with world(row, Path(folder)) as filled:
                for number in range(given.rounds):
                    for name in order(given.subjects, number):
                        run = await measure.run(filled, name, number, effort)
                        print(json.dumps(run, ensure_ascii=False), flush=True)
                        runs.append({"missed": 0} | run)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": date, "machine": machine(go), "commands": commands, "runs": runs}


def machine(go: str) -> dict[str, Any]:
    """What a reader needs to compare, and nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30),
        "arch": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "go": go,
        "kubernetes": program_version("kube-apiserver"),
        "etcd": program_version("etcd"),
    }


def program_version(name: str) -> str:
    """What a program of the test kit says of itself: ``1.35.4``."""
    program = binaries.ensure(name)[name]
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    match = re.search(r"\d+\.\d+\.\d+", answer)
    return match[0] if match else "unknown"


def command_times() -> dict[str, float]:
    """Seconds from start to end of what must feel instant: medians, after one run to warm up."""
    commands = {
        "import hub.cli": [sys.executable, "-c", "import hub.cli"],
        "hub check clusters.example.yaml": [*hub_command(), "check", str(ROOT / "clusters.example.yaml")],
    }
    times = {}
    for name, argv in commands.items():
        taken = []
        for _ in range(1 + COMMAND_RUNS):
            begin = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)
            taken.append(time.perf_counter() - begin)
        times[name] = round(statistics.median(taken[1:]), 3)
    return times


if __name__ == "__main__":
    sys.exit(main())
