"""The check of a registry in another process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hub.errors import RegistryError
from hub.registry import isolated
from hub.registry.load import loads

ROOT = Path(__file__).parents[3]
GOOD = b"version: 1\nowner: one\n"


def test_outcome_is_that_of_the_check_here() -> None:
    """The check in another process returns the same result as the check in this process."""
    assert isolated.loads(GOOD, "clusters.yaml") == loads(GOOD, "clusters.yaml")


def test_problems_come_back_with_their_places() -> None:
    """Problems from the other process have their line and column."""
    with pytest.raises(RegistryError, match=r"clusters\.yaml:1:10"):
        isolated.loads(b"version: 7\n", "clusters.yaml")


def test_folder_the_hub_was_started_in_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process does not import a ``hub`` or ``yaml`` from the current folder."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "__init__.py").write_text("raise SystemExit(3)")
    (tmp_path / "yaml.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)

    assert isolated.loads(GOOD, "clusters.yaml").registry.owner == "one"


def test_checker_failure_quotes_the_last_stderr_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process fails, the message quotes the last line of its stderr."""
    monkeypatch.setattr(sys, "executable", "/bin/ls")

    with pytest.raises(RegistryError, match=r"could not be checked: the checker ended with 2: Try '/bin/ls --help'"):
        isolated.loads(GOOD, "clusters.yaml")


def test_checker_gets_all_content_before_the_outcome_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gets all of the content, even more than a pipe holds, before the outcome is asked for."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remembering(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = start(*args, **kwargs)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", remembering)
    check = isolated.Check(GOOD + b"# filled up\n" * 20_000, "clusters.yaml")

    assert started[0].wait(timeout=60) == 0
    assert check.outcome().registry.owner == "one"


def test_file_is_unchecked_if_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, the file counts as unchecked, not as wrong."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    with pytest.raises(isolated.Unchecked, match="no process can be started: Resource temporarily unavailable"):
        isolated.loads(GOOD, "clusters.yaml")


def test_file_is_unchecked_if_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the file counts as unchecked, and the process is killed."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remembering(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **kwargs))
        return started[-1]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", remembering)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(isolated.Unchecked, match="no thread can be started: can't start new thread"):
        isolated.loads(GOOD, "clusters.yaml")
    assert started[0].returncode == -signal.SIGKILL


def instead(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replace the checking process by a shell script."""
    (folder / "checker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "checker").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "checker"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "the checker ended with 0: no reason given"),
        ("echo answer; exit 3", "the checker ended with 3: no reason given"),
        ("echo one >&2; echo 'two ' >&2; exit 3", "the checker ended with 3: two"),
    ],
)
def test_answer_of_a_failed_checker_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    """A process that fails, or that writes no answer, is an error of the file."""
    instead(tmp_path, monkeypatch, script)

    with pytest.raises(RegistryError) as caught:
        isolated.loads(GOOD, "clusters.yaml")
    assert str(caught.value) == f"clusters.yaml: could not be checked: {message}"
    assert not isinstance(caught.value, isolated.Unchecked)


def test_checker_has_a_session_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the hub's terminal does not end the process."""
    instead(tmp_path, monkeypatch, "cut -d' ' -f1,6 /proc/$$/stat >&2; exit 1")

    with pytest.raises(RegistryError, match=r"ended with 1: (\d+) \1$"):
        isolated.loads(GOOD, "clusters.yaml")


def test_check_reads_the_file_unless_it_gets_the_content(tmp_path: Path) -> None:
    """``begin`` reads the file, or checks the content that it gets."""
    path = tmp_path / "clusters.yaml"
    path.write_bytes(GOOD)

    read, given = isolated.begin(path), isolated.begin(path, b"version: 1\nowner: two\n")

    assert (read.outcome().registry.owner, read.outcome().content) == ("one", GOOD)
    assert given.outcome().registry.owner == "two"


def test_file_is_unchecked_if_the_checker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process is killed, for example for lack of memory, the file counts as unchecked."""
    instead(tmp_path, monkeypatch, "kill -9 $$")

    with pytest.raises(isolated.Unchecked, match="the checker was killed"):
        isolated.loads(GOOD, "clusters.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("while True: pass", "that takes more than 20 s of CPU"),
        ("bytes(1 << 40)", "the checker ended with 1: MemoryError"),
    ],
)
def test_content_that_costs_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    """Content that exceeds the process's own limits of CPU time or memory is refused, not checked again."""
    code = f"""
from hub.registry import isolated, load

def costly(*_):
    {content}

isolated.CPU_SECONDS, load.loads = 1, costly
isolated.main()
"""
    (tmp_path / "code.py").write_text(code)
    instead(tmp_path, monkeypatch, f'PYTHONPATH={ROOT} exec {sys.executable} {tmp_path / "code.py"} "$@"')

    with pytest.raises(RegistryError, match=message) as refused:
        isolated.loads(GOOD, "clusters.yaml")
    assert not isinstance(refused.value, isolated.Unchecked)
