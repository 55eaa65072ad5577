"""Checks a registry in a separate process.

The file's content is not trusted: everyone who may edit the file could make its check expensive. In a separate process
the check cannot use up the hub's memory or time. Its libraries (YAML and pydantic: 0.25 s to import, 20 MB) do not
delay the start of the hub, which continues on another core, and do not stay in the hub's memory.

    python -m hub.registry.isolated PATH < content > outcome
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from threading import Thread
from typing import Final

from hub.errors import Problem, RegistryError
from hub.registry.file import Loaded, read, refusal

CHECK_TIMEOUT: Final = 30
"""Timeout of the check of one file; 500 clusters and 2,000 services take 1 s."""
CPU_SECONDS: Final = 20
"""Limit of CPU time for one file; below CHECK_TIMEOUT, to tell content that is too expensive from a busy machine."""
CPU_GRACE: Final = 5
"""CPU seconds between SIGXCPU and SIGKILL, so that the process ends by SIGXCPU when it exceeds its CPU time.

So SIGKILL has another cause, most likely that the machine ran out of memory, and says nothing about the content.
"""
REASON_LENGTH: Final = 200
"""Most characters that are quoted of the last line that a failed process wrote to stderr."""
MEMORY_LIMIT: Final = 1 << 30
"""Limit of the process's address space in bytes; 500 clusters and 2,000 services take 200 MB."""


NO_PLUGINS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""Environment of the process: keeps pydantic from searching all installed distributions for plugins, which is slow.
https://docs.pydantic.dev/latest/concepts/plugins/"""


class Unchecked(RegistryError):
    """The file could not be checked for lack of a process, time or memory. It may be valid, so check it again later."""


def _unchecked(path: str, message: str) -> Unchecked:
    return Unchecked(refusal(path, message).problems)


class Check:
    """A check that runs in another process from the constructor on; :meth:`outcome` waits for its result.

    A thread passes the content to the process, so the caller can do other work before it calls :meth:`outcome`.

    Args:
        content: the file's bytes.
        path: the file's name in messages; relative paths in the file start at its folder.

    Raises:
        Unchecked: no process or no thread can be started.
    """

    def __init__(self, content: bytes, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._content = content
        # -P: do not import modules from the current folder.
        command = [sys.executable, "-P", "-m", "hub.registry.isolated", self._path]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=os.environ | NO_PLUGINS,
            )
        except OSError as error:
            reason = f"could not be checked: no process can be started: {error.strerror}"
            raise _unchecked(self._path, reason) from error
        self._answer: Future[tuple[bytes, bytes]] = Future()
        try:
            Thread(target=self._communicate, name=f"checker of {self._path}", daemon=True).start()
        except RuntimeError as error:
            with self._process as process:
                process.kill()
            raise _unchecked(self._path, f"could not be checked: no thread can be started: {error}") from error

    def _communicate(self) -> None:
        """Write the content and read the answer. Runs in a thread, since both block while a pipe is full."""
        try:
            self._answer.set_result(self._process.communicate(self._content, timeout=CHECK_TIMEOUT))
        except BaseException as error:  # noqa: BLE001 - outcome() raises it
            self._answer.set_exception(error)

    def outcome(self) -> Loaded:
        """Wait for the outcome. Blocking.

        Raises:
            Unchecked: there was not enough time or memory to check the file.
            RegistryError: the file cannot be used at all.
        """
        with self._process as process:
            try:
                answer, reason = self._answer.result()
            except subprocess.TimeoutExpired:
                process.kill()
                raise _unchecked(self._path, f"could not be checked within {CHECK_TIMEOUT} s") from None
        if process.returncode == -signal.SIGKILL:
            raise _unchecked(self._path, "could not be checked: the checker was killed, perhaps for lack of memory")
        if process.returncode == -signal.SIGXCPU:
            raise refusal(self._path, f"could not be checked: that takes more than {CPU_SECONDS} s of CPU")
        if process.returncode != 0 or not answer:
            last = (reason.decode(errors="replace").strip().rpartition("\n")[2] or "no reason given")[:REASON_LENGTH]
            message = f"could not be checked: the checker ended with {process.returncode}: {last}"
            raise refusal(self._path, message)
        found: Loaded | tuple[Problem, ...] = pickle.loads(answer)  # noqa: S301 - from our own process  # nosec B301
        if isinstance(found, tuple):
            raise RegistryError(found)
        return replace(found, content=self._content)


def begin(path: str | os.PathLike[str], content: bytes | None = None) -> Check:
    """Start the check of a file.

    Args:
        path: of the file.
        content: the file's bytes; None = read the file.

    Raises:
        RegistryError: the file cannot be read, or no process or thread can be started (Unchecked).
    """
    return Check(read(path) if content is None else content, path)


def loads(content: bytes, path: str | os.PathLike[str]) -> Loaded:
    """Check content in another process and wait for the outcome. Blocking.

    Raises:
        Unchecked: the content could not be checked.
        RegistryError: the file cannot be used at all.
    """
    return Check(content, path).outcome()


def main() -> None:
    """Run as the checking process: read bytes from stdin, write a pickled :class:`Loaded` or tuple of problems."""
    gc.disable()  # the process is short-lived and its memory limited; garbage collection would take a tenth of its time
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + CPU_GRACE))
    from hub.registry import load

    try:
        found: Loaded | tuple[Problem, ...] = load.loads(sys.stdin.buffer.read(), sys.argv[1])
    except RegistryError as error:
        found = error.problems
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
