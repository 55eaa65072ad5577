"""Measures the hub on a fleet of simulated clusters and a real hub cluster: ``make bench-scale``.

    make bench-scale                                      500 clusters × 100 nodes, 2,000 Services: half an hour
    make bench-scale ARGS="--row 20x10x2 --seconds 20"    a small fleet
    make bench-scale ARGS=--growth                        50, 100, 200 and 500 clusters, 3 runs each: an hour
    make bench-scale ARGS=--constants                     what docs/fleet-size.md is computed from: ten minutes
    make bench-scale ARGS=--write-docs                    put the result into docs/

The hub has a core of its own; the simulated clusters, the API server, etcd and the harness share the others.
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
from benchmarks.scale.run import SILENCE, Effort, Run, watched
from benchmarks.world import Row
from tests.support.apiserver import binaries

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "images" / "scale-growth.svg"
DATA = {each: DOCS / "data" / f"scale-{each}.json" for each in ("fleet", "growth", "constants")}
"""Where the figures are kept."""
ROW = Row(500, 100, 4)
GROWTH = (50, 100, 200, 500)
ROUNDS = 3
CONSTANTS = (Row(20, 10, 1), Row(200, 10, 1), Row(100, 100, 1), Row(100, 100, 8), Row(50, 400, 1))
"""Fleets that differ in one thing at a time: what clusters, nodes and slices cost."""
LIMITS = Row(1000, 500, 50)
"""Beyond, the remote clusters of this benchmark cannot go: all Nodes on one page, 4,096 addresses for each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line says; 1 where a run failed, or with ``--judge`` where a goal is missed."""
    given = parse(argv)
    os.environ["PYTHONPATH"] = str(ROOT)  # the hub and the remote clusters run this tree
    try:
        found = json.loads(given.source.read_text()) if given.source else asyncio.run(measured(given))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = report.document(found) if given.what == "fleet" else report.growth(found)
    print(f"\n{text}")
    if given.save:
        _save(given.save, found)
    if given.write_docs:
        _write_docs(found, text, given.what)
    failed = not all(report.good(each["phases"]) for each in found["runs"])
    missed = (
        given.judge
        and given.what == "fleet"
        and any(line.met is False for line in report.goals(found["runs"][0]["phases"]))
    )
    return 1 if failed or missed else 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", type=row, default=ROW, metavar="CLUSTERSxNODESxSERVICES", help=f"default: {ROW}")
    parser.add_argument("--seconds", type=between(1, 3600), help="of each phase; default 120, with --growth 60")
    parser.add_argument("--silence", type=between(1, 3600), default=int(SILENCE), help="dead clusters: at least")
    parser.add_argument("--least", type=between(0, 100), default=0, help="nodes replaced per second, at least")
    parser.add_argument("--growth", action="store_true", help="start-up, memory and CPU at several sizes")
    parser.add_argument("--constants", action="store_true", help="the same for fleets that differ in one thing each")
    parser.add_argument("--sizes", type=sizes, default=GROWTH, metavar="N,N,…", help="clusters, with --growth")
    parser.add_argument("--rounds", type=between(1, 20), default=ROUNDS, help="runs of each size, with --growth")
    parser.add_argument("--hub-flag", action="append", default=[], help="a further flag of hub run; may be repeated")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of hub and API server there")
    parser.add_argument("--judge", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the figures")
    parser.add_argument("--write-docs", action="store_true", help="figures, table and picture into docs/")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing, use saved figures")
    given = parser.parse_args(argv)
    if given.growth and given.constants:
        parser.error("--growth or --constants, one after the other")
    given.what = "growth" if given.growth else "constants" if given.constants else "fleet"
    given.seconds = given.seconds or {"fleet": 120, "growth": 60, "constants": 30}[given.what]
    return given


def row(text: str) -> Row:
    """``500x100x4``."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 500x100x4")
    found = Row(*map(int, match.groups()))
    within = [1 <= getattr(found, each) <= getattr(LIMITS, each) for each in ("clusters", "nodes", "services")]
    if not all(within):
        raise argparse.ArgumentTypeError(
            f"{text!r} is outside 1x1x1 to {LIMITS.clusters}x{LIMITS.nodes}x{LIMITS.services}"
        )
    return found


def sizes(text: str) -> tuple[int, ...]:
    """``50,100``."""
    found = tuple(map(int, text.split(",")))
    if not all(1 <= each <= LIMITS.clusters for each in found):
        raise argparse.ArgumentTypeError(f"{text!r}: 1 to {LIMITS.clusters} clusters")
    return found


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """All runs that the command line asks for.

    Raises:
        KitUnavailable: there are no API servers, and none can be built.
    """
    grown = tuple(Row(each, given.row.nodes, given.row.services) for each in given.sizes)
    wanted = {"fleet": (given.row,), "growth": grown, "constants": CONSTANTS}[given.what]
    runs: list[dict[str, Any]] = []
    for each in wanted:
        with _folder(given.logs, each) as folder:
            _say(f"{each}: starting")
            async with fleet(each, folder, given.hub_flag) as filled:
                for number in range(given.rounds if given.what == "growth" else 1):
                    async with watched(filled) as ledger:
                        run = Run(filled, ledger, Effort(given.seconds, given.silence, least=given.least), _say)
                        phases = await (run.all() if given.what == "fleet" else run.growth())
                    runs.append(
                        {
                            "clusters": each.clusters,
                            "nodes": each.nodes,
                            "services": each.services,
                            "round": number,
                            "seconds": given.seconds,
                            "phases": phases,
                        }
                    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": date, "machine": machine("not used"), "pinned": str(cores()), "runs": runs}


@contextmanager
def _folder(kept: Path | None, each: Row) -> Iterator[Path]:
    """Where the processes of one fleet have their files; it stays where somebody wants their logs."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="hub-scale-") as passing:
            yield Path(passing)
        return
    folder = kept.resolve() / f"{each.clusters}x{each.nodes}x{each.services}"
    folder.mkdir(parents=True)
    yield folder


def _say(text: str) -> None:
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
