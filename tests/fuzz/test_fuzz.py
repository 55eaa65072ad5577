"""Every reader of input against damaged input, each in a process of its own with limits of its own.

The same inputs in every run; with ``--nightly`` many times as many. A failure ends with the smallest input that shows
it: copy it into a test of what it broke.
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
"""How many times as many inputs."""
LEAST: Final = 30
"""Inputs of each target."""
MODULES: Final = {"tests.fuzz": ["all"], "tests.fuzz.listener": []}


def fuzz(module: str, times: int, timeout: float) -> None:
    """Run all targets of a module; the figures are printed."""
    command = [sys.executable, "-m", module, *MODULES[module], str(times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    print(done.stdout)  # noqa: T201 - with -s
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
    """No crash, no second of waiting, no 256 MiB; what was accepted can be worked with, what was not is named."""
    fuzz(module, 1, 600)


@pytest.mark.nightly
@pytest.mark.parametrize("module", MODULES)
def test_much_damaged_input_does_so_too(module: str) -> None:
    """The same, with many times as many inputs."""
    fuzz(module, NIGHTLY, 7_200)


def test_a_reader_that_breaks_a_promise_is_found() -> None:
    """The limits hold: one that hangs, takes memory or raises makes the run fail, and the input is shown."""
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
    found = {each["target"]: each["failed"] for each in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert {
        how: next(word for word in ("TooSlow", "MemoryError", "KeyError") if word in text)
        for how, text in found.items()
    } == {"loops": "TooSlow", "grows": "MemoryError", "raises": "KeyError"}
    assert all("inputs=[b'9']" in text for how, text in found.items() if how != "loops")
