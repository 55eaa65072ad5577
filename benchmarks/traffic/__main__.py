"""Sends real requests through real consumers while something fails, and counts those that are lost: ``make traffic``.

    make traffic                              all rows, arms and consumers; writes docs/traffic.md: 25 minutes
    make traffic ARGS="--quick --json"        five rows, two arms: at most five minutes; the last line is JSON
    make traffic ARGS="--rows drain --arms reference,health --consumer envoy"

Exits 0 if all goals are met, 1 if one is missed or a part of the bench failed, 3 if it cannot run here.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from benchmarks.bench import machine
from benchmarks.report import replace_block
from benchmarks.subjects import GOREF, go_version
from benchmarks.traffic import net, report
from benchmarks.traffic.consumers import CONTOUR, CONTOUR_PACKAGE, KUBE_PROXY, BenchBroken
from benchmarks.traffic.figures import ARMS, Arm, ConsumerName, Figures, figures
from benchmarks.traffic.rows import ENVOY_ROWS, QUICK, ROWS, Row
from benchmarks.traffic.stage import SETTLE, Stage
from tests.support.api import ApiRefused
from tests.support.apiserver import binaries

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "traffic.md"
PICTURE = ROOT / "docs" / "images" / "traffic.svg"
DATA = ROOT / "docs" / "data" / "traffic.json"
SAVED = ROOT / "build" / "traffic.json"
CANNOT = 3
"""The exit code where the network or a program cannot be made."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = parse(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        if not args.source and not os.environ.get(net.INSIDE):
            net.check()
            build(args.rows)
            net.enter(arguments)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        result = json.loads(args.source.read_text()) if args.source else measure(args)
    except (net.NetworkUnavailable, binaries.KitUnavailable) as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return CANNOT
    except (RuntimeError, ApiRefused) as error:
        print(f"the bench failed before it had a result: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: all processes are stopped", file=sys.stderr)
        return 130
    return publish(args, result)


def build(consumers: Iterable[ConsumerName]) -> None:
    """Build all programs, since the namespace has no network to fetch their modules."""
    binaries.ensure("etcd", "kube-apiserver")
    binaries.ensure_go_program(GOREF)
    if "kube-proxy" in consumers:
        binaries.ensure_go_program(KUBE_PROXY)
    if "envoy" in consumers:
        binaries.ensure_go_program(CONTOUR, package=CONTOUR_PACKAGE)
        binaries.ensure_envoy()


def publish(args: argparse.Namespace, result: dict[str, Any]) -> int:
    """Print the result, and write the documentation if it is complete. Returns the exit code."""
    found: dict[ConsumerName, report.Found] = {
        consumer: {row: {arm: Figures(**one) for arm, one in arms.items()} for row, arms in rows.items()}
        for consumer, rows in result["rows"].items()
    }
    text = report.document(result, found)
    print(text)
    if args.complete:
        DATA.write_text(json.dumps(result, indent=1) + "\n")
        PICTURE.write_text(report.picture(found["kube-proxy"]))
        PAGE.write_text(replace_block(PAGE.read_text(), text, report.BEGIN, report.END))
    if args.json:
        short: dict[Arm, dict[str, dict[str, int]]] = {}
        for row, figures_by_arm in next(iter(found.values())).items():
            for arm, one in figures_by_arm.items():
                short.setdefault(arm, {})[row] = {"requests": one.requests, "lost": one.lost}
        print(json.dumps(short))
    return 0 if not result["broken"] and all(goal.met for rows in found.values() for goal in report.goals(rows)) else 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, and apply --quick."""
    parser = argparse.ArgumentParser(
        prog="make traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"the rows {', '.join(QUICK)} on reference and health")
    parser.add_argument("--json", action="store_true", help="print one JSON line at the end")
    parser.add_argument("--rows", type=some_of([row.name for row in ROWS]), help="default: all")
    parser.add_argument("--arms", type=some_of(ARMS), help=f"default: all: {', '.join(ARMS)}")
    parser.add_argument("--consumer", choices=get_args(ConsumerName), help="default: kube-proxy")
    parser.add_argument("--save", type=Path, default=SAVED, metavar="FILE", help="default: build/traffic.json")
    parser.add_argument("--old", metavar="REF", help="the version of git that the row 'hub upgrade' replaces")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="use saved figures; measure nothing")
    args = parser.parse_args(argv)
    args.complete = not (args.quick or args.rows or args.arms or args.consumer)
    names = args.rows or (list(QUICK) if args.quick else [row.name for row in ROWS])
    args.rows = {args.consumer or "kube-proxy": names} | ({"envoy": list(ENVOY_ROWS)} if args.complete else {})
    args.arms = args.arms or (["reference", "health"] if args.quick else list(ARMS))
    return args


def some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return an argparse type: some of these names, divided by commas."""

    def parse_names(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",")]
        if wrong := [name for name in given if name not in names]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of: {', '.join(names)}")
        return given

    return parse_names


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Play the rows of the command line. A row in which a part of the bench fails has no figures."""
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(go_version(binaries.ensure_go_program(GOREF))),
        "old": args.old or "",
        "rows": {consumer: {} for consumer in args.rows},
        "broken": [],
    }
    for consumer, names in args.rows.items():
        measure_consumer(consumer, [row for row in ROWS if row.name in names], args, result)
    return result


def measure_consumer(consumer: ConsumerName, rows: list[Row], args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Play rows with one consumer. What was measured is saved after each row."""
    clusters = tuple(dict.fromkeys(cluster for row in rows for cluster in row.clusters))
    while rows:
        left = len(rows)
        with tempfile.TemporaryDirectory(prefix="hub-traffic-") as folder:
            say(f"starting API servers, nodes and {consumer}")
            try:
                old = extracted(args.old, Path(folder) / "old") if args.old else None
                with Stage(Path(folder), consumer, args.arms, clusters, old) as stage:
                    while rows:
                        play(stage, rows.pop(0), result["rows"][consumer])
                        args.save.parent.mkdir(exist_ok=True)
                        args.save.write_text(json.dumps(result, indent=1) + "\n")
                        if rows:
                            stage.settle(SETTLE)
            except (RuntimeError, ApiRefused) as error:  # the next rows get a new stage
                if not any(result["rows"].values()):
                    raise  # not even the first row could be played
                say(str(error))
                result["broken"].append(str(error).partition("\n")[0])
                if left == len(rows):
                    break  # the new stage cannot be started


def extracted(ref: str, folder: Path) -> Path:
    """The source of a version.

    Raises:
        BenchBroken: git does not have it.
    """
    folder.mkdir()
    packed = subprocess.run(["git", "archive", ref, "hub", "providers"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise BenchBroken(f"--old {ref}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def play(stage: Stage, row: Row, rows: dict[str, Any]) -> None:
    """Play one row and keep its figures."""
    say(f"{row.name}: {row.seconds:g} s")
    found = {arm: figures(story) for arm, story in stage.play(row.seconds, row.script).items()}
    for arm, one in found.items():
        say(f"  {arm}: {one.lost} of {one.requests} lost{f', {dict(one.errors)}' if one.errors else ''}")
    rows[row.name] = {arm: asdict(one) for arm, one in found.items()}


def say(text: str) -> None:
    """Tell the user on standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
