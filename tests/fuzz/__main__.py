"""Fuzzing from the command line: ``python -m tests.fuzz [TARGET|all [TIMES]]``.

Each target runs in a process of its own, with its own limits, and prints what was tried as a line of JSON; an input
that breaks a promise ends it, and the line has the smallest such input that was found. ``TIMES`` multiplies the number
of examples. They are the same in every run.
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
"""Characters of the input that is shown."""


def run(name: str, times: int = 1) -> dict[str, Any]:
    """Fuzz one target; the figures.

    Raises:
        BaseException: what an input led to that it must not.
    """
    target = TARGETS[name]
    watch, outcomes = Stopwatch(), Counter[str]()

    # Shrinking may take as long as it likes: there is something to be seen then.
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
        for each in inputs:
            with watch.input():
                outcomes[target.check(each)] += 1

    started, before = time.monotonic(), reset_peak()
    limit_memory()
    try:
        fuzz()
    except BaseException as error:
        error.__notes__ = [note[:SHOWN] for note in getattr(error, "__notes__", ())]
        raise
    missing = target.outcomes - outcomes.keys()
    assert not missing, f"nothing was {missing}: what lies behind was not tried"
    return {
        "target": name,
        "inputs": outcomes.total(),
        **dict(sorted(outcomes.items())),
        "slowest input [CPU s]": round(watch.slowest, 3),
        "memory [MiB]": round((peak() - before) / 2**20, 1),
        "seconds": round(time.monotonic() - started, 1),
    }


def separately(name: str, times: int) -> bool:
    """Run one target in a child that shares the imports and nothing else; False where it failed."""
    child = os.fork()
    if child == 0:
        try:
            figures = run(name, times)
        except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
            figures = {"target": name, "failed": traceback.format_exc()[-20_000:]}
        print(json.dumps(figures), flush=True)  # noqa: T201
        os._exit("failed" in figures)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(arguments: list[str]) -> int:
    """The process; gives its exit code."""
    logging.disable()
    asyncio.set_event_loop(LOOP)
    wanted, times = arguments[0] if arguments else "all", int(arguments[1]) if len(arguments) > 1 else 1
    names = list(TARGETS) if wanted == "all" else [wanted]
    ran = [separately(name, times) for name in names]  # all of them, whichever fails
    return 0 if all(ran) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
