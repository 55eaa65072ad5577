"""Measures the hub on a fleet of simulated clusters and a real hub cluster: ``make bench-scale``.

    make bench-scale                                      500 clusters × 100 nodes, 2,000 Services: half an hour
    make bench-scale ARGS="--row 20x10x2 --seconds 20"    a small fleet
    make bench-scale ARGS=--growth                        50, 100, 200 and 500 clusters, 3 runs each: an hour
    make bench-scale ARGS=--constants                     the constants of docs/fleet-size.md: ten minutes
    make bench-scale ARGS=--write-docs                    write the result to docs/

The hub runs alone on one core; the simulated clusters, the API server, etcd and the harness share the others.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import between, machine
from benchmarks.report import replace_block
from benchmarks.scale import plot, report
from benchmarks.scale.fleet import ROOT, cores, fleet
from benchmarks.scale.run import SILENCE, Effort, Run, slice_ledger
from benchmarks.world import Row
from tests.support.apiserver import binaries

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "images" / "scale-growth.svg"
DATA = {name: DOCS / "data" / f"scale-{name}.json" for name in ("fleet", "growth", "constants")}
"""Files of saved figures."""
ROW = Row(500, 100, 4)
GROWTH = (50, 100, 200, 500)
ROUNDS = 3
CONSTANTS = (Row(20, 10, 1), Row(200, 10, 1), Row(100, 100, 1), Row(100, 100, 8), Row(50, 400, 1))
"""Fleets that differ in one respect at a time, to find the cost of clusters, nodes and slices."""
LIMITS = Row(1000, 500, 50)
"""Limits of the simulated remote clusters: they list all Nodes on one page, and have 4,096 addresses each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if a run failed, or, with ``--judge``, if a goal is missed."""
    args = parse(argv)
    os.environ["PYTHONPATH"] = str(ROOT)  # the hub and the remote clusters import this tree
    try:
        found = json.loads(args.source.read_text()) if args.source else asyncio.run(measure_all(args))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = report.document(found) if args.what == "fleet" else report.growth(found)
    print(f"\n{text}")
    if args.save:
        _save(args.save, found)
    if args.write_docs:
        _write_docs(found, text, args.what)
    failed = not all(report.good(run["phases"]) for run in found["runs"])
    missed = (
        args.judge
        and args.what == "fleet"
        and any(line.met is False for line in report.goals(found["runs"][0]["phases"]))
    )
    return 1 if failed or missed else 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", type=row, default=ROW, metavar="CLUSTERSxNODESxSERVICES", help=f"default: {ROW}")
    parser.add_argument("--seconds", type=between(1, 3600), help="of each phase; default 120, with --growth 60")
    parser.add_argument("--silence", type=between(1, 3600), default=int(SILENCE), help="of dead clusters, at least")
    parser.add_argument("--least", type=between(0, 100), default=0, help="nodes replaced per second, at least")
    parser.add_argument("--growth", action="store_true", help="start-up, memory and CPU at several sizes")
    parser.add_argument("--constants", action="store_true", help="the same for fleets that differ in one respect each")
    parser.add_argument("--sizes", type=sizes, default=GROWTH, metavar="N,N,…", help="clusters, with --growth")
    parser.add_argument("--rounds", type=between(1, 20), default=ROUNDS, help="runs of each size, with --growth")
    parser.add_argument("--hub-flag", action="append", default=[], help="a further flag of hub run; may be repeated")
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="keep the logs of hub and API server in this folder"
    )
    parser.add_argument("--judge", action="store_true", help="exit 1 if a goal is missed")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the figures")
    parser.add_argument("--write-docs", action="store_true", help="write figures, table and picture to docs/")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="use saved figures; measure nothing")
    args = parser.parse_args(argv)
    if args.growth and args.constants:
        parser.error("--growth and --constants cannot be used together")
    args.what = "growth" if args.growth else "constants" if args.constants else "fleet"
    args.seconds = args.seconds or {"fleet": 120, "growth": 60, "constants": 30}[args.what]
    return args


def row(text: str) -> Row:
    """Parse a row such as ``500x100x4``."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 500x100x4")
    found = Row(*map(int, match.groups()))
    within = [1 <= getattr(found, name) <= getattr(LIMITS, name) for name in ("clusters", "nodes", "services")]
    if not all(within):
        raise argparse.ArgumentTypeError(
            f"{text!r} is outside 1x1x1 to {LIMITS.clusters}x{LIMITS.nodes}x{LIMITS.services}"
        )
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Parse sizes such as ``50,100``."""
    found = tuple(map(int, text.split(",")))
    if not all(1 <= size <= LIMITS.clusters for size in found):
        raise argparse.ArgumentTypeError(f"{text!r}: 1 to {LIMITS.clusters} clusters")
    return found


async def measure_all(args: argparse.Namespace) -> dict[str, Any]:
    """Make all runs of the command line.

    Raises:
        KitUnavailable: the API server is missing and cannot be built.
    """
    grown = tuple(Row(size, args.row.nodes, args.row.services) for size in args.sizes)
    rows = {"fleet": (args.row,), "growth": grown, "constants": CONSTANTS}[args.what]
    runs: list[dict[str, Any]] = []
    for size in rows:
        with _folder(args.logs, size) as folder:
            _log(f"{size}: starting")
            async with fleet(size, folder, args.hub_flag) as filled:
                for number in range(args.rounds if args.what == "growth" else 1):
                    async with slice_ledger(filled) as ledger:
                        run = Run(filled, ledger, Effort(args.seconds, args.silence, least=args.least), _log)
                        phases = await (run.all() if args.what == "fleet" else run.growth())
                    runs.append(
                        {
                            "clusters": size.clusters,
                            "nodes": size.nodes,
                            "services": size.services,
                            "round": number,
                            "seconds": args.seconds,
                            "phases": phases,
                        }
                    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": date, "machine": machine("not used"), "pinned": str(cores()), "runs": runs}


@contextmanager
def _folder(logs: Path | None, size: Row) -> Iterator[Path]:
    """Return the folder for the files of a fleet's processes. It is deleted at the end, unless ``--logs`` was given."""
    if logs is None:
        with tempfile.TemporaryDirectory(prefix="hub-scale-") as temporary:
            yield Path(temporary)
        return
    folder = logs.resolve() / f"{size.clusters}x{size.nodes}x{size.services}"
    folder.mkdir(parents=True)
    yield folder


def _log(text: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    print(f"{now:%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _save(file: Path, found: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _write_docs(found: dict[str, Any], text: str, what: str) -> None:
    _save(DATA[what], found)
    if what == "constants":
        print("next: python -m benchmarks.scale.capacity --fit docs/data/scale-*.json --write", file=sys.stderr)
        return
    marks = (report.GROWTH_BEGIN, report.GROWTH_END) if what == "growth" else (report.BEGIN, report.END)
    PAGE.write_text(replace_block(PAGE.read_text(), text, *marks))
    if what == "growth":
        PICTURE.write_text(plot.svg(found))


if __name__ == "__main__":
    sys.exit(main())
