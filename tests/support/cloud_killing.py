"""``hub cloud-controller`` as a process that is killed at a write to the cloud."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.hub import ROOT

When = Literal["before", "after"]


class KilledController:
    """A controller whose process is killed at a write to the cloud.

    Args:
        folder: of the cluster's kubeconfig ``eu``; the log is written there.
        flags: of the controller.
        variables: of its environment.

    Attributes:
        killed: whether that has happened.
    """

    def __init__(self, folder: Path, flags: Sequence[str], variables: Mapping[str, str]) -> None:
        self.killed = False
        self._folder = folder
        self._flags = flags
        self._variables = variables
        self._child: subprocess.Popen[bytes] | None = None
        self._left = 0
        self._when: When = "before"

    def start(self) -> None:
        """Start the process."""
        argv = [sys.executable, "-m", "hub", "cloud-controller", "--secure-port=0", "--leader-elect=false"]
        argv += [f"--kubeconfig={self._folder / 'eu'}", *self._flags]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, **self._variables, "PYTHONPATH": paths}
        with (self._folder / "log").open("ab") as log:
            self._child = subprocess.Popen(argv, stdout=log, stderr=log, env=variables)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)

    def arm(self, number: int, when: When) -> None:
        """Kill the process at this write from now on."""
        self._left, self._when, self.killed = number, when, False

    def cut(self, _: Any) -> str:
        """Called in the fake's thread with each write."""
        self._left -= 1
        if self._left != 0:
            return ""
        self.kill()
        self.killed = True
        return self._when


def kills(writes: int, sample: set[tuple[int, When]]) -> list[Any]:
    """A kill before and after the answer of each write; those that are not in the sample run nightly."""
    whens: tuple[When, When] = ("before", "after")
    cases = [(number, when) for number in range(1, writes + 1) for when in whens]
    return [pytest.param(*case, marks=() if case in sample else pytest.mark.nightly) for case in cases]
