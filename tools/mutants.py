"""Tests the tests: changes one detail of the code at a time, in a copy of the tree, and checks that a test fails.

For every change (a *mutant*), only unit tests of the same room run (for ``hub/kube/wire.py``, ``tests/unit/kube``), and
of these only tests that call the changed function, fastest first. Tests on API servers are not used. A mutant that no
test detects *survives* and is printed as a diff. The same seed draws the same mutants from the same code::

    make mutants                                            # 200 mutants of the whole hub
    make mutants ARGS="--rooms kube,observe/remote --sample 40 --seed 7"
    make mutants ARGS="--at hub/decide/guard.py"              # every mutant of one module
    make mutants ARGS="--at hub/decide/guard.py:120"          # of one line

docs/mutation.md explains the kinds of mutants.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import difflib
import json
import os
import py_compile
import queue
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]

SKIPPED: Final = ("hub/__main__.py", "hub/cli/")
"""Files that are excluded unless ``--rooms`` or ``--at`` names them: tests run the command line as a process."""

TESTS: Final = {
    "model": ("tests/unit/test_model.py", "tests/unit/decide"),
    "errors": ("tests/unit/test_errors.py", "tests/unit/registry", "tests/unit/kube"),
    "app": ("tests/unit/app", "tests/unit/test_fleet_size.py"),
}
"""Room -> its tests, for rooms whose tests are not, or not only, in the folder of the room's name."""

LEAST: Final = 85.0
"""Per cent of a sample that must be killed."""

PATIENCE: Final = 3.0
"""A test may take this many times as long as without a mutant, since the machine may be busier than before."""
GRACE_SECONDS: Final = 20.0
"""Seconds that a test may take in addition; a test that takes longer hangs."""
COLLECTION_SECONDS: Final = 120.0
"""Seconds that importing the tests of a room may take."""

COMPARISONS: Final = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
WRITTEN: Final = re.compile(r"(not\s+in|is\s+not|in|is|==|!=|<=|>=|<|>)")


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change of one file: the bytes from ``start`` to ``end`` become ``new``."""

    path: str
    line: int
    start: int
    end: int
    kind: str
    new: str
    function: int
    """The first line of the function around the change, including decorators; 0 = there is no function."""

    @property
    def room(self) -> str:
        """The folder or module of hub/ that contains the file; for hub/observe, the room inside of it."""
        parts = Path(self.path).with_suffix("").parts[1:]
        return "/".join(parts[:2]) if parts[0] == "observe" else parts[0]

    @property
    def place(self) -> str:
        """The function around the change, as the plugin records calls: ``room/file.py:line``."""
        return f"{self.path.removeprefix('hub/')}:{self.function}"

    def apply(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class Finder(ast.NodeVisitor):
    """Collects the mutants of one file.

    Annotations, decorators, assertions and f-strings are not changed (Python 3.11 does not know the positions of the
    parts of an f-string). Neither is ``strict`` of ``zip``, since only a mistake in the code could trigger it.
    """

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Mutant] = []
        self._function = 0
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def visit_Compare(self, node: ast.Compare) -> None:
        """Use another operator, which moves the boundary or negates the result."""
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            start, end = self._between(left, right, WRITTEN)
            for new in COMPARISONS[type(operator)]:
                self._add("comparison", node, start, end, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange ``and`` and ``or``, one at a time."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._add("and, or", left, *self._between(left, right, re.compile(rf"\b({old})\b")), new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Remove a ``not``."""
        if isinstance(node.op, ast.Not):
            self._add("not", node, self._start(node), self._start(node) + len("not "), "")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition; replace an early exit at the end of the body by ``pass``."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._opposite(node.test)
        last = node.body[-1]
        if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
            self._add("early exit", last, self._start(last), self._end(last), "pass")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate the condition."""
        self._opposite(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Negate the condition."""
        if not isinstance(node.test, ast.Constant):
            self._opposite(node.test)
            self.visit(node.test)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions."""
        for test in node.ifs:
            self._opposite(test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Negate a boolean, add one to an integer, double any other number."""
        if isinstance(node.value, bool):
            self._replace("boolean", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("number", node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._replace("number", node, str(node.value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        """Visit all parts except ``strict`` of ``zip``."""
        kept = [word for word in node.keywords if not (word.arg == "strict" and ast.unparse(node.func) == "zip")]
        for child in (node.func, *node.args, *kept):
            self.visit(child)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value, but not the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit the defaults and the body."""
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
        around, self._function = self._function, min(lines)
        for statement in node.body:
            self.visit(statement)
        self._function = around

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body, but not arguments such as `frozen`, whose effect needs no tests here."""
        for child in node.body:
            self.visit(child)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip it."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip it."""

    def _opposite(self, test: ast.expr) -> None:
        """Add ``not`` to a simple condition; comparisons and combined conditions already have their own mutants."""
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.NamedExpr | ast.Constant):
            start, end = self._start(test), self._end(test)
            self._add("not", test, start, end, f"(not {self.source[start:end].decode()})")

    def _replace(self, kind: str, node: ast.expr, new: str) -> None:
        self._add(kind, node, self._start(node), self._end(node), new)

    def _add(self, kind: str, node: ast.expr | ast.stmt, start: int, end: int, new: str) -> None:
        self.found.append(Mutant(self.path, node.lineno, start, end, kind, new, self._function))

    def _between(self, left: ast.expr, right: ast.expr, operator: re.Pattern[str]) -> tuple[int, int]:
        """Start and end of the operator between two operands; parentheses, line ends and comments may be around it."""
        start = self._end(left)
        between = self.source[start : self._start(right)].decode("latin-1")  # one character for each byte
        plain = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), between)
        match = operator.search(plain)
        assert match is not None, between  # noqa: S101
        return start + match.start(), start + match.end()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018, S101
        return self._lines[node.end_lineno - 1] + node.end_col_offset


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in order."""
    finder = Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found)


def diff(mutant: Mutant, source: bytes) -> str:
    """The change as lines of a diff, without context."""
    before, after = (text.decode().splitlines() for text in (source, mutant.apply(source)))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[3:]
    return "\n".join(f"    {line}" for line in lines)


def folders(room: str, tree: Path) -> list[str]:
    """The files and folders with the unit tests of a room."""
    paths = TESTS.get(room, (f"tests/unit/{room}", f"tests/unit/test_{room}.py"))
    return [path for path in paths if (tree / path).exists()]


@dataclass(frozen=True, slots=True)
class Test:
    """A unit test, as recorded in a run without mutants.

    Attributes:
        name: pytest's name of the test.
        seconds: duration of the test.
        calls: the functions that the test calls, each as ``room/file.py:line``.
    """

    name: str
    seconds: float
    calls: frozenset[str]


def relevant(mutant: Mutant, tests: Sequence[Test]) -> list[Test]:
    """The tests to run for a mutant, fastest first: tests that call its function, else its file, else all tests.

    A function that no test calls may be called while modules are imported, or in another process. A change outside of
    functions, such as of a default, can also affect tests that call no function of the file: those run last.
    """
    path, _, _ = mutant.place.partition(":")
    order = sorted(tests, key=lambda test: test.seconds)
    of_file = [test for test in order if any(call.startswith(f"{path}:") for call in test.calls)]
    if not mutant.function:
        return [*of_file, *(test for test in order if test not in of_file)]
    return [test for test in of_file if mutant.place in test.calls] or of_file or order


class Room(NamedTuple):
    """The unit tests of a room, and the functions that are called while its tests are imported."""

    tests: list[Test]
    imports: frozenset[str]


class Copy:
    """A copy of the tree, which has at most one mutant at a time, with a process for the tests of each room."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._processes: dict[str, Tests] = {}
        for name in files():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        # Python compares hashes, since a changed file may have the same time and size as its bytecode.
        compileall.compile_dir(tree / "hub", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def unchanged(self, paths: Sequence[str]) -> Room:
        """Run the tests of a room without a mutant, and return them with durations and calls.

        Raises:
            SystemExit: a test fails.
        """
        notes = self.tree / "mutation-notes.json"
        with tempfile.TemporaryFile("w+") as output:
            running = start(self.tree, paths, output, {"MUTATION_NOTES": str(notes)})
            try:
                code: int | None = running.wait(900)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                stop(running)
            if code != 0:
                output.seek(0)
                raise SystemExit(f"{' '.join(paths)} without any mutant: exit code {code}\n{output.read()}")
        found = json.loads(notes.read_text(encoding="utf-8"))
        tests = [Test(name, of["seconds"], frozenset(of["calls"])) for name, of in found["tests"].items()]
        return Room(tests, frozenset(found["imports"]))

    def outcome(self, mutant: Mutant, room: Room) -> str:
        """Run the tests with a mutant: ``killed``, ``timeout`` (which counts as killed) or ``survived``."""
        tests = {test.name: GRACE_SECONDS + PATIENCE * test.seconds for test in relevant(mutant, room.tests)}
        if mutant.room not in self._processes:
            self._processes[mutant.room] = Tests(self.tree, folders(mutant.room, self.tree))
            self._processes[mutant.room].started()
        file = self.tree / mutant.path
        source = file.read_bytes()
        file.write_bytes(mutant.apply(source))
        try:
            result = "survived"
            if mutant.function:
                result = self._processes[mutant.room].outcome(file, source.decode(), tests)
            if result == "survived" and (not mutant.function or mutant.place in room.imports):
                result = self._imported(file, tests)
        finally:
            file.write_bytes(source)
        return result

    def _imported(self, file: Path, tests: Mapping[str, float]) -> str:
        """The outcome if the file is imported with the mutant."""
        of_them = Tests(self.tree, list(dict.fromkeys(name.partition("::")[0] for name in tests)))
        try:
            of_them.started()
            return of_them.outcome(file, "", tests)
        except Ended:
            return "killed"
        except TimeoutError:
            return "timeout"
        finally:
            of_them.end()

    def end(self) -> None:
        """End the processes."""
        for tests in self._processes.values():
            tests.end()


class Ended(Exception):
    """A process has ended; the message is its output."""


class Tests:
    """A pytest process that has collected tests, and runs those that it is asked for: see tests/support/mutation.py."""

    def __init__(self, tree: Path, paths: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        pipes = {"MUTATION_PIPES": f"{requests},{answers}", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = start(tree, paths, self._output, pipes, (requests, answers))
        os.close(requests)
        os.close(answers)

    def started(self) -> None:
        """Wait until all tests are collected.

        Raises:
            Ended: they cannot be collected.
            TimeoutError: the collection takes too long.
        """
        self._answer(COLLECTION_SECONDS)

    def outcome(self, file: Path, before: str, tests: Mapping[str, float]) -> str:
        """Run tests with the file as it is now. ``before`` = its content when it was imported, "" if it is the same."""
        limit = sum(tests.values())  # ends tests that hang in a place where no deadline reaches them
        os.write(self._requests, f"{json.dumps([str(file), before, dict(tests), limit])}\n".encode())
        return self._answer(limit + GRACE_SECONDS)

    def end(self) -> None:
        """End the process."""
        stop(self._process)
        os.close(self._requests)
        os.close(self._answers)
        self._output.close()

    def _answer(self, timeout: float) -> str:
        if not select.select([self._answers], [], [], timeout)[0]:
            raise TimeoutError
        if line := os.read(self._answers, 100):
            return line.decode().strip()
        self._output.seek(0)
        raise Ended(self._output.read())


def start(
    tree: Path, paths: Sequence[str], output: IO[str], variables: Mapping[str, str], descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start pytest with the plugin tests/support/mutation.py."""
    options = ["-x", "-q", "-m", "not apiserver", "-p", "no:cacheprovider", "-p", "tests.support.mutation"]
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pytest", *options, *paths],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree), **variables}, pass_fds=descriptors,
        stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def stop(running: subprocess.Popen[bytes]) -> None:
    """Kill a run of tests and all its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def files() -> list[str]:
    """The present files of the tree: tracked files, and new files that git does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


def candidates(rooms: Sequence[str], at: str) -> Iterator[Mutant]:
    """All mutants in the rooms, or at the path and line."""
    path, _, line = at.partition(":")
    for file in sorted((ROOT / "hub").rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(path) or (not rooms and not path and name.startswith(SKIPPED)):
            continue
        for mutant in mutants_of(name, file.read_bytes()):
            if (not rooms or mutant.room in rooms) and (not line or mutant.line == int(line)):
                yield mutant


class Run:
    """One run: the mutants, their outcomes, and the printed results."""

    def __init__(self, mutants: Sequence[Mutant], jobs: int) -> None:
        self.mutants, self.jobs = mutants, jobs
        self.outcomes: dict[Mutant, str] = {}

    def run(self) -> None:
        """Test the mutants in the drawn order, ``jobs`` at a time, and print each survivor at once.

        An interrupt (Ctrl-C) ends the run early; the mutants tested until then are a smaller random sample.
        """
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(self.jobs) as threads:
            free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
            sources = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in self.mutants}
            copies = [Copy(Path(folder) / str(number)) for number in range(self.jobs)]
            for copy in copies:
                free.put(copy)

            def unchanged(room: str) -> Room:
                copy = free.get()
                try:
                    return copy.unchanged(folders(room, copy.tree))
                finally:
                    free.put(copy)

            names = sorted({mutant.room for mutant in self.mutants})
            rooms = dict(zip(names, threads.map(unchanged, names), strict=True))

            def attempt(mutant: Mutant) -> str:
                copy = free.get()
                try:
                    return copy.outcome(mutant, rooms[mutant.room])
                finally:
                    free.put(copy)

            outcomes = threads.map(attempt, self.mutants)
            try:
                for mutant, outcome in zip(self.mutants, outcomes, strict=True):
                    self.outcomes[mutant] = outcome
                    if outcome == "survived":
                        say(f"{mutant.path}:{mutant.line}: {mutant.kind}")
                        say(diff(mutant, sources[mutant.path]))
            except KeyboardInterrupt:
                threads.shutdown(cancel_futures=True)
                say(f"stopped after {len(self.outcomes)} mutants")
            finally:
                for copy in copies:
                    copy.end()

    def table(self) -> str:
        """The results of each room, as a table."""
        rooms: dict[str, Counter[str]] = {}
        for mutant, outcome in self.outcomes.items():
            rooms.setdefault(mutant.room, Counter())[outcome] += 1
        lines = ["| room | sampled | killed | of them by timeout | survived | killed, % |", "|---|---|---|---|---|---|"]
        lines += [row(room, rooms[room]) for room in sorted(rooms)]
        return "\n".join([*lines, row("all", Counter(self.outcomes.values()))])


def killed(found: Counter[str]) -> int:
    """The number of mutants that a test detected."""
    return found["killed"] + found["timeout"]


def row(name: str, found: Counter[str]) -> str:
    """One line of the table; per cent are rounded down."""
    of_all = killed(found) * 1000 // max(1, found.total()) / 10
    columns = (found.total(), killed(found), found["timeout"], found.total() - killed(found), of_all)
    return f"| {name} | {' | '.join(map(str, columns))} |"


def say(text: str) -> None:
    """Print without buffering, since a run takes long."""
    print(text, flush=True)  # noqa: T201


def main(arguments: Iterable[str] | None = None) -> int:
    """Run mutants; returns 1 if too few were killed."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Which changes of the code no unit test notices.")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="draws the same sample again (default: any)")
    parser.add_argument("--rooms", default="", help="folders of hub/, such as kube,observe/remote")
    parser.add_argument("--at", default="", metavar="FILE[:LINE]", help="every mutant of a file or of one line")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the sample and try nothing")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    every = list(candidates([room for room in asked.rooms.split(",") if room], asked.at))
    seed = random.randrange(10_000) if asked.seed is None else asked.seed
    drawn = every if asked.at else random.Random(seed).sample(every, min(asked.sample, len(every)))
    say(f"{len(drawn)} mutants" if asked.at else f"{len(drawn)} of {len(every)} mutants, seed {seed}")
    if asked.list:
        for mutant in sorted(drawn):
            say(f"{mutant.path}:{mutant.line}: {mutant.kind}")
            say(diff(mutant, (ROOT / mutant.path).read_bytes()))
        return 0
    run = Run(drawn, asked.jobs)
    run.run()
    say(run.table())
    return 0 if killed(Counter(run.outcomes.values())) * 100 >= LEAST * len(run.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
