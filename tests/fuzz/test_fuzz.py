"""Runs every fuzzing target, each in its own process with its own limits.

The inputs are the same in every run; with ``--nightly`` there are more of them. A failure prints the smallest failing
input: copy it into a test of the reader.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.bounds import MEMORY, SECONDS
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).parents[2]
NIGHTLY: Final = 25
"""Factor for the number of inputs."""
LEAST: Final = 30
"""The least number of inputs of each target."""
MODULES: Final = {"tests.fuzz": ["all"], "tests.fuzz.listener": []}


def fuzz(module: str, times: int, timeout: float) -> None:
    """Run all targets of a module, and print and check the results."""
    command = [sys.executable, "-m", module, *MODULES[module], str(times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    print(done.stdout)  # noqa: T201 - visible with -s
    ran = {}
    for figures in map(json.loads, done.stdout.splitlines()):
        ran[figures["target"]] = figures
        assert "failed" not in figures, figures["failed"]
        assert figures["inputs"] >= LEAST * times, figures
        assert figures["slowest input [CPU s]"] <= SECONDS
        assert figures["memory [MiB]"] <= MEMORY / 2**20
    assert done.returncode == 0, done.stderr[-8_000:]
    assert set(ran) == (set(TARGETS) if module == "tests.fuzz" else {"listener-bytes", "listener-openapi"})


@pytest.mark.parametrize("module", MODULES)
def test_damaged_input_ends_in_a_result_or_an_error_that_names_it(module: str) -> None:
    """No input leads to a crash, takes more than a second or 256 MiB, or is refused without a proper message."""
    fuzz(module, 1, 600)


@pytest.mark.nightly
@pytest.mark.parametrize("module", MODULES)
def test_more_damaged_input_ends_the_same_way(module: str) -> None:
    """Many times as many inputs give the same result."""
    fuzz(module, NIGHTLY, 7_200)


def test_a_reader_that_breaks_a_promise_is_found() -> None:
    """A reader that hangs, takes too much memory or raises makes the run fail, and the input is printed."""
    code = """
import sys
from tests.fuzz import __main__ as fuzz, targets
from hypothesis import strategies as st
def broken(how):
    def check(data):
        if data == b"9":
            while how == "loops": pass
            if how == "grows": return str(len(bytearray(300 << 20)))
            raise KeyError("x")
        return "accepted"
    return targets.Target(st.lists(st.sampled_from([b"9", b"a"]), min_size=1), check, 50, frozenset())
fuzz.TARGETS = {how: broken(how) for how in ("loops", "grows", "raises")}
sys.exit(fuzz.main(["all"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    found = {result["target"]: result["failed"] for result in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert {
        how: next(word for word in ("TooSlow", "MemoryError", "KeyError") if word in text)
        for how, text in found.items()
    } == {"loops": "TooSlow", "grows": "MemoryError", "raises": "KeyError"}
    assert all("inputs=[b'9']" in text for how, text in found.items() if how != "loops")
