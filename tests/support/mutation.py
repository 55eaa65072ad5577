"""pytest plugin for mutation runs (``make mutants``): collects tests once, then runs some of them for each mutant.

The first run for a room records which functions each test calls, in the file ``MUTATION_NOTES``. Later runs get
requests over the pipes ``MUTATION_PIPES``: for each mutant, a child process with the mutant runs only the tests that
are named in the request. A child starts with everything imported, so a mutant costs hardly more than its tests.

Survival of a mutant must not depend on chance, so property tests always have the same examples; they are few because a
survivor costs a run of all its tests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import Phase, settings

EXAMPLES: Final = 25
KILLED: Final = 3
"""The exit code of a child whose test failed. A test that exceeds its time ends the child with exit code 1."""
_SETTINGS: Final = "_hypothesis_internal_use_settings"
"""The attribute in which ``@settings`` stores them. There is no public way to change a decorator's settings."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the examples of property tests."""
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


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Register the plugins that the environment requests, before the first module of the hub is imported."""
    if "MUTATION_NOTES" in os.environ:
        notes = Notes(Path(os.environ["MUTATION_NOTES"]), early_config.rootpath / "hub")
        early_config.pluginmanager.register(notes)
    if "MUTATION_PIPES" in os.environ:
        requests, answers = map(int, os.environ["MUTATION_PIPES"].split(","))
        early_config.pluginmanager.register(Server(requests, answers))


class Notes:
    """Records which functions of the hub each test calls, and how long the test takes; and calls during imports."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, f"{folder}{os.sep}"
        self.called: set[CodeType] = set()
        self.imports: list[str] = []
        self.tests: dict[str, dict[str, Any]] = {}
        sys.settrace(self._note)

    def pytest_collection_finish(self) -> None:
        """End the recording of imports."""
        sys.settrace(None)
        self.imports = self._places()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace calls, including those in threads that the test starts."""
        _clear_caches()
        self.called, began = set(), time.monotonic()
        threading.settrace(self._note)
        sys.settrace(self._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.tests[item.nodeid] = {"calls": self._places(), "seconds": time.monotonic() - began}

    def pytest_sessionfinish(self) -> None:
        """Write the notes."""
        self.file.write_text(json.dumps({"imports": self.imports, "tests": self.tests}), encoding="utf-8")

    def _places(self) -> list[str]:
        """The functions called since the last start, as ``room/file.py:line``."""
        return sorted(
            f"{code.co_filename.removeprefix(self.folder)}:{code.co_firstlineno}"
            for code in tuple(self.called)  # threads of the test may still add to it
            if code.co_filename.startswith(self.folder)
        )

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        self.called.add(frame.f_code)


def _clear_caches() -> None:
    """Forget cached results, so that a test which needs one calls the function itself and is recorded for it."""
    for name, module in tuple(sys.modules.items()):
        if name == "hub" or name.startswith("hub."):
            for value in tuple(vars(module).values()):
                if clear := getattr(value, "cache_clear", None):
                    clear()


class Request(NamedTuple):
    """A mutant and its tests.

    Attributes:
        file: the path of the changed file; its content is the mutant.
        before: the content without the mutant; "" = the file was imported with the mutant.
        tests: names of tests, in order -> seconds that each may take.
        limit: seconds that all together may take.
    """

    file: str
    before: str
    tests: dict[str, float]
    limit: float


class Server:
    """Answers each request with ``survived``, ``killed`` or ``timeout``, after a first line ``ready``."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve requests until the pipe is closed, instead of running all tests."""
        functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        gc.freeze()
        with os.fdopen(self.requests) as requests, os.fdopen(self.answers, "w") as answers:
            print("ready", file=answers, flush=True)
            for line in requests:
                print(_outcome(session, functions, Request(*json.loads(line))), file=answers, flush=True)
        return True


def _outcome(session: pytest.Session, functions: list[FunctionType], request: Request) -> str:
    """Run the tests of a request in a child process."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setsid()
            if request.before:
                _replace(functions, request)
            code = _run(session, request.tests)
        except BaseException:  # noqa: BLE001
            code = KILLED
        finally:
            os._exit(code)
    with contextlib.closing(_File(os.pidfd_open(child))) as ended:
        in_time = bool(select.select([ended], [], [], request.limit)[0])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also ends processes that the tests started
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: "survived", KILLED: "killed"}.get(code, "timeout") if in_time else "timeout"


class _File(NamedTuple):
    """A file descriptor as an object with ``close``."""

    descriptor: int

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        os.close(self.descriptor)


def _run(session: pytest.Session, tests: dict[str, float]) -> int:
    """Run tests in the order of the request until one fails; returns the exit code."""
    named = {item.nodeid: item for item in session.items}
    items = [named[test] for test in tests if test in named]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        for number, item in enumerate(items):
            following = items[number + 1] if number + 1 < len(items) else None
            faulthandler.dump_traceback_later(tests[item.nodeid], exit=True, file=nowhere)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            faulthandler.cancel_dump_traceback_later()
            if session.testsfailed:
                return KILLED
    return 0


def _replace(functions: list[FunctionType], request: Request) -> None:
    """Give all functions of the file the code that they have with the mutant."""
    path = Path(request.file)
    old, new = (compile(text, request.file, "exec") for text in (request.before, path.read_text(encoding="utf-8")))
    changed = {_key(before): after for before, after in zip(_functions(old), _functions(new), strict=True)}
    for function in functions:
        code = function.__code__
        if code.co_filename == request.file and _key(code) in changed:
            function.__code__ = changed[_key(code)]


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module, without those inside of other functions."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_OPTIMIZED:
                yield each
            else:  # the body of a class
                yield from _functions(each)
