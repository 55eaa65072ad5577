"""Follows a page of the documentation: writes its files, runs its commands and returns their output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.hub import ROOT

BLOCK = re.compile(r"^( *)```(sh|yaml|text)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def is_values(text: str) -> bool:
    """Whether a yaml block has values for the Helm chart; every other block is a manifest or a registry."""
    return text.startswith("# values.yaml\n")


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of each code block of a page."""
    return [(kind, textwrap.dedent(text)) for _, kind, text in BLOCK.findall(page)]


class Reader:
    """Follows a page from its start, in an empty folder."""

    def __init__(self, folder: Path, page: str) -> None:
        self.folder = folder
        self._blocks: Iterator[tuple[str, str]] = iter(blocks(page))
        self._running: subprocess.Popen[bytes] | None = None

    def next(self, kind: str) -> str:
        """The text of the page's next block, which must be of this kind."""
        found, text = next(self._blocks)
        assert found == kind
        return text

    def commands(self) -> list[str]:
        """The commands of the next block. A backslash at the end of a line continues the command."""
        return self.next("sh").replace("\\\n", " ").splitlines()

    def hub(self, line: str, code: int = 0) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            self._argv(line), cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, line: str) -> None:
        """Start a command that does not end by itself."""
        argv = [*self._argv(line), "--health-probe-bind-address", "0", "--listen", "0"]
        self._running = subprocess.Popen(argv, cwd=self.folder, env=self._environment(), stderr=subprocess.DEVNULL)

    def interrupt(self) -> int:
        """Send Ctrl-C to it and return the exit code."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        return self._running.wait(20)

    def close(self) -> None:
        """Kill a command that still runs."""
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self._running.wait(10)

    @staticmethod
    def _argv(line: str) -> list[str]:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "hub"
        return [sys.executable, "-m", "hub", *arguments]

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/nosuch", "COLUMNS": "120"}
