"""pytest plugin for mutation runs (``make mutants``): runs only relevant tests, with few hypothesis examples.

The first run for a room records which functions each test calls, in the file ``MUTATION_NOTES``. Later runs keep only
the tests in the file ``MUTATION_TESTS``, in its order; a test that takes longer than the file allows ends the process.
Survival of a mutant must not depend on chance, so the examples are always the same; they are few because a survivor
costs a run of all its tests.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

EXAMPLES: Final = 25
_SETTINGS: Final = "_hypothesis_internal_use_settings"
"""The attribute in which ``@settings`` stores them. There is no public way to change a decorator's settings."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Limit the examples of property tests, and keep only the requested tests."""
    for item in items:
        function: Any = getattr(item, "function", None)
        written: settings | None = getattr(function, _SETTINGS, None)
        if written is not None:
            examples = min(written.max_examples, EXAMPLES)
            phases = (Phase.explicit, Phase.generate)  # no shrinking
            few = settings(
                written, max_examples=examples, phases=phases, derandomize=True, database=None, deadline=None
            )
            setattr(function, _SETTINGS, few)
    if "MUTATION_TESTS" in os.environ:
        wanted = _wanted()
        place = {test: number for number, test in enumerate(wanted)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in place])
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


def _wanted() -> dict[str, float]:
    """Test -> seconds that it may take, in order."""
    found: dict[str, float] = json.loads(Path(os.environ["MUTATION_TESTS"]).read_text(encoding="utf-8"))
    return found


class Deadlines:
    """Ends the process when a test takes longer than allowed."""

    def __init__(self, allowed: dict[str, float]) -> None:
        self.allowed = allowed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Dump no traceback, as it would not be read."""
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            faulthandler.dump_traceback_later(self.allowed[item.nodeid], exit=True, file=nowhere)
            try:
                return (yield)
            finally:
                faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins that the environment requests."""
    if "MUTATION_NOTES" in os.environ:
        config.pluginmanager.register(Notes(Path(os.environ["MUTATION_NOTES"]), config.rootpath / "hub"))
    if "MUTATION_TESTS" in os.environ:
        config.pluginmanager.register(Deadlines(_wanted()))


class Notes:
    """Records which functions of the hub each test calls, and how long the test takes."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, f"{folder}{os.sep}"
        self.called: set[CodeType] = set()
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace calls, including those in threads that the test starts."""
        self.called, began = set(), time.monotonic()
        threading.settrace(self._note)
        sys.settrace(self._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            places = sorted(
                f"{code.co_filename.removeprefix(self.folder)}:{code.co_firstlineno}"
                for code in tuple(self.called)  # threads of the test may still add to it
                if code.co_filename.startswith(self.folder)
            )
            self.tests[item.nodeid] = {"calls": places, "seconds": time.monotonic() - began}

    def pytest_sessionfinish(self) -> None:
        """Write the notes."""
        self.file.write_text(json.dumps(self.tests), encoding="utf-8")

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        self.called.add(frame.f_code)
