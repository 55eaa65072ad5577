"""The check of a registry in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hub.errors import RegistryError
from hub.registry import isolated
from hub.registry.load import loads

GOOD = b"version: 1\nowner: one\n"


def test_outcome_is_that_of_the_check_here() -> None:
    """Content comes back as it would from the check in this process."""
    assert isolated.loads(GOOD, "clusters.yaml") == loads(GOOD, "clusters.yaml")


def test_problems_come_back_with_their_places() -> None:
    """A file that cannot be used is refused with line and column."""
    with pytest.raises(RegistryError, match=r"clusters\.yaml:1:10"):
        isolated.loads(b"version: 7\n", "clusters.yaml")


def test_folder_the_hub_was_started_in_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``hub`` or a ``yaml`` beside the registry is somebody else's."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "__init__.py").write_text("raise SystemExit(3)")
    (tmp_path / "yaml.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)

    assert isolated.loads(GOOD, "clusters.yaml").registry.owner == "one"


def test_end_of_the_checker_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process said last is in the message."""
    monkeypatch.setattr(sys, "executable", "/bin/ls")

    with pytest.raises(RegistryError, match=r"could not be checked: the checker ended with 2: Try '/bin/ls --help'"):
        isolated.loads(GOOD, "clusters.yaml")


def test_check_goes_on_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is with the process at once, more of it than a pipe holds included: it ends by itself."""
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


def test_no_process_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no process the file counts as unchecked, not as wrong."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    with pytest.raises(isolated.Unchecked, match="no process for it: Resource temporarily unavailable"):
        isolated.loads(GOOD, "clusters.yaml")
