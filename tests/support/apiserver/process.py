"""Child processes of the tests, which never outlive the test run.

Every child leads its own process group. A watchdog process learns of each group over a pipe. When the pipe closes,
because the test run ended or was killed, the watchdog kills all remaining groups, even stopped (SIGSTOP) processes.
PR_SET_PDEATHSIG does not work here: it fires when the *thread* that started the child ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WATCHDOG = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Process:
    """A program that tests start, stop, kill, pause and restart."""

    def __init__(self, name: str, argv: list[str], log: Path) -> None:
        self.name = name
        self.argv = argv
        self.log = log
        self.extra: tuple[str, ...] = ()
        """Additional arguments of the present run."""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            RuntimeError: the process was not started.
        """
        if self._child is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended; a paused process is alive."""
        return self._child is not None and self._child.poll() is None

    def start(self, *more: str) -> None:
        """Start it with the additional arguments ``more``. Its output is appended to the log."""
        if self.alive:
            raise RuntimeError(f"{self.name} is already running")
        self._reap()
        self.extra = more
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self.argv, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                start_new_session=True,
            )
        _watchdog().tell(f"+{self._child.pid}")

    def stop(self, grace: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL if it has not ended after ``grace`` seconds. Does nothing if it is not running."""
        if self._child is not None and self.alive:
            self.resume()
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the whole group and wait for its end."""
        if self._child is not None:
            self._signal(signal.SIGKILL)
            self._reap()

    def pause(self) -> None:
        """Send SIGSTOP and wait until it is stopped: connections stay open, but nothing answers."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while self._state() != "T":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not stop")
            time.sleep(0.001)

    def resume(self) -> None:
        """Send SIGCONT: continue after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _state(self) -> str:
        # The second field of stat(5) is the name in parentheses, which may hold anything.
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait(10)
            _watchdog().tell(f"-{self._child.pid}")
            self._child = None


def as_flags(flags: Mapping[str, Any]) -> list[str]:
    """``{"port": 1}`` as command line flags."""
    return [f"--{name}={value}" for name, value in flags.items()]


class _Watchdog:
    """This end of the pipe to the watchdog process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCHDOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C in the terminal does not end it before this process
        )
        atexit.register(self.close)

    def tell(self, line: str) -> None:
        with self._lock:
            if self._child.stdin is None or self._child.stdin.closed:
                return
            self._child.stdin.write(f"{line}\n".encode())
            self._child.stdin.flush()

    def close(self) -> None:
        with self._lock:
            if self._child.stdin is not None:
                self._child.stdin.close()
            self._child.wait(10)


@functools.cache
def _watchdog() -> _Watchdog:
    return _Watchdog()
