"""Compares the hub with a client-go controller and with a minimal client, on real API servers: ``make bench``.

Prints one JSON line for each run, then a table of medians and ratios. Everything runs on loopback. The programs take
turns in alternating order. Machines are noisy, so compare medians of one invocation, not of two.

    make bench                               all rows, 3 rounds of 100 flips: about three quarters of an hour on 2 cores
    make bench ARGS="--rows 4x500x25"        only one row
    make bench ARGS="--save --write-docs"    save the result, and write it to docs/performance.md
    make bench ARGS=--quick                  a smoke test of a minute; the figures mean nothing
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
sys.path.insert(0, str(ROOT))  # when run as a script, sys.path contains only benchmarks/

from benchmarks import measure, report  # noqa: E402
from benchmarks.subjects import GOREF, SUBJECTS, go_version, hub_command  # noqa: E402
from benchmarks.world import Row, world  # noqa: E402
from tests.support.apiserver import binaries  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
COMMAND_RUNS = 5
LIMITS = Row(20, 5000, 200)
"""The largest row. 20 API servers take 6 GB, so a larger row would measure the limits of the machine."""
DEFAULT_FILE = "default"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if a run failed; goals that are missed do not matter."""
    args = parse(argv)
    os.environ["PYTHONPATH"] = str(ROOT)  # the programs import this tree, not an installed hub
    try:
        result = json.loads(args.source.read_text()) if args.source else asyncio.run(measure_all(args))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = report.document(result)
    print(f"\n{text}")
    if args.save:
        file = RESULTS / f"{result['date']}.json" if args.save == DEFAULT_FILE else Path(args.save)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if args.write_docs:
        PAGE.write_text(report.replace_block(PAGE.read_text(), text, report.BEGIN, report.END))
    return 0 if all(map(report.good, result["runs"])) else 1


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and apply --quick."""
    parser = argparse.ArgumentParser(prog="bench.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=rows, metavar="CLUSTERSxNODESxSERVICES,…", help="default: all rows with goals")
    parser.add_argument("--subjects", type=subjects, default=list(SUBJECTS), help=f"some of {','.join(SUBJECTS)}")
    parser.add_argument("--rounds", type=between(1, 100), default=3)
    parser.add_argument("--flips", type=between(1, 1000), default=100, help="per run")
    parser.add_argument("--heartbeats", type=between(1, 100_000), default=10_000, help="per run, in whole rounds")
    parser.add_argument("--quick", action="store_true", help="a smoke test: tiny rows, 1 round, 3 flips")
    parser.add_argument("--save", nargs="?", const=DEFAULT_FILE, metavar="FILE", help="default: results/DATE.json")
    parser.add_argument("--write-docs", action="store_true", help="write the result to docs/performance.md")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="use a saved result; measure nothing")
    args = parser.parse_args(argv)
    if args.quick and args.write_docs:
        parser.error("the figures of --quick mean nothing: use it without --write-docs")
    if args.quick:
        args.rows, args.rounds, args.flips, args.heartbeats = list(report.QUICK), 1, 3, 1
    args.rows = args.rows or list(report.ROWS)
    return args


def rows(text: str) -> list[Row]:
    """Parse rows such as ``4x500x25,10x1000x10``."""
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
    """Parse program names such as ``goref,hub``."""
    names = text.split(",")
    for name in names:
        if name not in SUBJECTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SUBJECTS)}")
    return names


def between(least: int, most: int) -> Any:
    """Return an argparse type: an integer within bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Return the order of the programs in a round: reversed in every other round."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


async def measure_all(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all rows, programs and rounds of the command line.

    Raises:
        KitUnavailable: the API servers or the Go reference are missing and cannot be built.
    """
    go = "not used"
    if "goref" in args.subjects:  # build it before measuring starts
        go = await asyncio.to_thread(lambda: go_version(binaries.ensure_go_program(GOREF)))
    effort = measure.Effort(
        args.flips,
        args.heartbeats,
        settle=0.5 if args.quick else 2.0,
        rolling=1.0 if args.quick else measure.ROLLING_SECONDS,
        paced=1.0 if args.quick else measure.PACED_SECONDS,
    )
    commands = await asyncio.to_thread(command_times)
    runs = []
    for row in args.rows:
        with tempfile.TemporaryDirectory(prefix="hub-bench-") as folder:
            print(f"{row}: starting API servers", file=sys.stderr, flush=True)
            async with world(row, Path(folder)) as filled:
                for number in range(args.rounds):
                    for name in order(args.subjects, number):
                        run = await measure.run(filled, name, number, effort)
                        print(json.dumps(run, ensure_ascii=False), flush=True)
                        runs.append({"missed": 0} | run)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": date, "machine": machine(go), "commands": commands, "runs": runs}


def machine(go: str) -> dict[str, Any]:
    """Describe the machine and the programs' versions, without a host name."""
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
    """Return the version that a program of the test kit prints, such as ``1.35.4``."""
    program = binaries.ensure(name)[name]
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    match = re.search(r"\d+\.\d+\.\d+", answer)
    return match[0] if match else "unknown"


def command_times() -> dict[str, float]:
    """Return the median seconds that short commands take, after one warm-up run."""
    commands = {
        "import hub.cli": [sys.executable, "-c", "import hub.cli"],
        "hub check clusters.example.yaml": [*hub_command(), "check", str(ROOT / "clusters.example.yaml")],
    }
    times = {}
    for name, argv in commands.items():
        seconds = []
        for _ in range(1 + COMMAND_RUNS):
            begin = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)
            seconds.append(time.perf_counter() - begin)
        times[name] = round(statistics.median(seconds[1:]), 3)
    return times


if __name__ == "__main__":
    sys.exit(main())
