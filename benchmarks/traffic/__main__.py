"""Sends real requests through real consumers while something fails, and counts those that are lost: ``make traffic``.

    make traffic                              all rows and arms, and docs/traffic.md
    make traffic ARGS="--quick --json"        five rows, two arms: five minutes; the last line is JSON
    make traffic ARGS="--rows drain --arms reference,health"

Exits 0 if all goals are met, 1 if one is missed or a part of the bench failed, 3 if it cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.subjects import GOREF
from benchmarks.traffic import net
from benchmarks.traffic.figures import ARMS, Arm, Figures, figures
from benchmarks.traffic.rows import QUICK, ROWS, Row
from benchmarks.traffic.stage import KUBE_PROXY, RATE, BenchBroken, Stage
from tests.support.apiserver import binaries

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 3
"""The exit code where the network or a program cannot be made."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = parse(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        if not os.environ.get(net.INSIDE):
            if why := net.unavailable():
                raise net.NetworkUnavailable(why)
            binaries.ensure("etcd", "kube-apiserver")
            for program in (GOREF, KUBE_PROXY):
                binaries.ensure_go_program(program)
            return net.enter(arguments)
        found = measure(args)
    except (net.NetworkUnavailable, binaries.KitUnavailable) as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return CANNOT
    except BenchBroken as error:
        print(f"the bench failed, so there is no result: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(found_as_json(found)))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, and apply --quick."""
    parser = argparse.ArgumentParser(
        prog="make traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"the rows {', '.join(QUICK)} on reference and health")
    parser.add_argument("--json", action="store_true", help="print one JSON line at the end")
    parser.add_argument("--rows", type=some_of([row.name for row in ROWS]), help="default: all")
    parser.add_argument("--arms", type=some_of(ARMS), help=f"default: all: {', '.join(ARMS)}")
    args = parser.parse_args(argv)
    args.rows = args.rows or (list(QUICK) if args.quick else [row.name for row in ROWS])
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


Found = dict[Arm, dict[str, Figures]]


def measure(args: argparse.Namespace) -> Found:
    """Play the rows of the command line."""
    found: Found = {arm: {} for arm in args.arms}
    with tempfile.TemporaryDirectory(prefix="hub-traffic-") as folder:
        say("starting API servers, nodes and consumers")
        with Stage(Path(folder), args.arms) as stage:
            for row in ROWS:
                if row.name in args.rows:
                    play(stage, row, found)
    return found


def play(stage: Stage, row: Row, found: Found) -> None:
    """Play one row and keep its figures."""
    say(f"{row.name}: {row.seconds:g} s")
    for arm, story in stage.play(row.seconds, row.script).items():
        found[arm][row.name] = figures(story, RATE)
        say(f"  {arm}: {found[arm][row.name]}")
        if abs(story.jump) > 0.5:
            say(f"  the wall clock jumped by {story.jump:+.1f} s during this row; the figures use the monotonic clock")


def say(text: str) -> None:
    """Tell the user on standard error."""
    print(text, file=sys.stderr, flush=True)


def found_as_json(found: Found) -> dict[str, dict[str, dict[str, int]]]:
    """Return the result of --json."""
    return {
        arm: {row: {"requests": one.requests, "lost": one.lost} for row, one in rows.items()}
        for arm, rows in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
