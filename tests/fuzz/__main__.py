"""Fuzzing from the command line: ``python -m tests.fuzz [TARGET|all [TIMES]]``.

Each target runs in its own process with its own limits, and prints its results as a line of JSON. A target ends with
the first input that violates a check; its line then has the smallest such input that was found. ``TIMES`` multiplies
the number of examples. The examples are the same in every run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.bounds import Stopwatch, limit_memory, peak, reset_peak
from tests.fuzz.servers import LOOP
from tests.fuzz.targets import TARGETS

SHOWN = 4_000
"""Characters of a failing input that are printed."""


def run(name: str, times: int = 1) -> dict[str, Any]:
    """Fuzz one target and return its results.

    Raises:
        BaseException: an input violated a check.
    """
    target = TARGETS[name]
    watch, outcomes = Stopwatch(), Counter[str]()

    # Shrinking has no time limit: it runs only after a failure.
    @settings(
        max_examples=target.examples * times,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(target.inputs)
    def fuzz(inputs: list[Any]) -> None:
        for value in inputs:
            with watch.input():
                outcomes[target.check(value)] += 1

    started, before = time.monotonic(), reset_peak()
    limit_memory()
    try:
        fuzz()
    except BaseException as error:
        error.__notes__ = [note[:SHOWN] for note in getattr(error, "__notes__", ())]
        raise
    missing = target.outcomes - outcomes.keys()
    assert not missing, f"no input was {missing}"
    return {
        "target": name,
        "inputs": outcomes.total(),
        **dict(sorted(outcomes.items())),
        "slowest input [CPU s]": round(watch.slowest, 3),
        "memory [MiB]": round((peak() - before) / 2**20, 1),
        "seconds": round(time.monotonic() - started, 1),
    }


def run_in_child(name: str, times: int) -> bool:
    """Run one target in a forked child process, and print its results; False if it failed."""
    child = os.fork()
    if child == 0:
        try:
            figures = run(name, times)
        except BaseException:  # noqa: BLE001 - whatever it is, the parent reports it
            figures = {"target": name, "failed": traceback.format_exc()[-20_000:]}
        print(json.dumps(figures), flush=True)  # noqa: T201
        os._exit("failed" in figures)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(arguments: list[str]) -> int:
    """Run the targets; returns the exit code."""
    logging.disable()
    asyncio.set_event_loop(LOOP)
    wanted, times = arguments[0] if arguments else "all", int(arguments[1]) if len(arguments) > 1 else 1
    names = list(TARGETS) if wanted == "all" else [wanted]
    ran = [run_in_child(name, times) for name in names]  # all of them, even if one fails
    return 0 if all(ran) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
