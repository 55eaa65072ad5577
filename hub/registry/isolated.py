"""Checks a registry in a process of its own.

The content may come from anybody who may edit the file. Here it cannot take the hub's memory or time, and
what checks it (YAML, pydantic: 0.25 s to import, 20 MB) neither delays the start of the hub, which goes on
meanwhile on another core, nor stays in its memory.

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

SECONDS: Final = 30
"""Wait for one file; 500 clusters and 2,000 services take 1 s."""
CPU_SECONDS: Final = 20
"""CPU time for one file: less than the wait, so that content that costs too much and a machine that is too
busy are told apart."""
CPU_GRACE: Final = 5
"""Seconds of it until the kernel, which first says that it was too much (SIGXCPU), kills; as it also does where memory
has run out, which says nothing about the content."""
REASON: Final = 200
"""Characters of the reason the process gave for its end."""
MEMORY: Final = 1 << 30
"""Address space of the process; 500 clusters and 2,000 services take 200 MB."""


NO_PLUGINS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""For the process's environment: pydantic need not look through all installed distributions for plugins of its own.
https://docs.pydantic.dev/latest/concepts/plugins/"""


class Unchecked(RegistryError):
    """The file may be good: there was no process, not enough time or memory to check it."""


def _unchecked(path: str, message: str) -> Unchecked:
    return Unchecked(refusal(path, message).problems)


class Check:
    """A check under way. Start it early, ask for the outcome late: a thread hands over the content meanwhile.

    Args:
        content: the file's bytes.
        path: names them in messages; relative paths in them start at its folder.

    Raises:
        Unchecked: no process can be started, or no thread.
    """

    def __init__(self, content: bytes, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._content = content
        # -P: whoever may write into the folder the hub was started in does not choose what is imported.
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
            raise _unchecked(self._path, f"could not be checked: no process for it: {error.strerror}") from error
        self._answer: Future[tuple[bytes, bytes]] = Future()
        try:
            Thread(target=self._converse, name=f"checker of {self._path}", daemon=True).start()
        except RuntimeError as error:
            with self._process as process:
                process.kill()
            raise _unchecked(self._path, f"could not be checked: no thread for it: {error}") from error

    def _converse(self) -> None:
        """Hand the content over and take the answer; more than a pipe holds would keep either side waiting."""
        try:
            self._answer.set_result(self._process.communicate(self._content, timeout=SECONDS))
        except BaseException as error:  # noqa: BLE001 - is raised where the outcome is asked for
            self._answer.set_exception(error)

    def outcome(self) -> Loaded:
        """Wait for it. Blocking.

        Raises:
            Unchecked: there was no time to check it, or no memory.
            RegistryError: the file cannot be used at all.
        """
        with self._process as process:
            try:
                answer, reason = self._answer.result()
            except subprocess.TimeoutExpired:
                process.kill()
                raise _unchecked(self._path, f"could not be checked within {SECONDS} s") from None
        if process.returncode == -signal.SIGKILL:
            raise _unchecked(self._path, "could not be checked: the checker was killed; is there too little memory?")
        if process.returncode == -signal.SIGXCPU:
            raise refusal(self._path, f"could not be checked: it takes more than {CPU_SECONDS} s of CPU")
        if process.returncode != 0 or not answer:
            last = (reason.decode(errors="replace").strip().rpartition("\n")[2] or "no reason given")[:REASON]
            message = f"could not be checked: the checker ended with {process.returncode}: {last}"
            raise refusal(self._path, message)
        found: Loaded | tuple[Problem, ...] = pickle.loads(answer)  # noqa: S301 - from our own process  # nosec B301
        if isinstance(found, tuple):
            raise RegistryError(found)
        return replace(found, content=self._content)


def begin(path: str | os.PathLike[str], content: bytes | None = None) -> Check:
    """Read a file and start checking it; ``content`` is what stands for a file that is none.

    Raises:
        RegistryError: it cannot be read.
    """
    return Check(read(path) if content is None else content, path)


def loads(content: bytes, path: str | os.PathLike[str]) -> Loaded:
    """Check content and wait for the outcome. Blocking.

    Raises:
        RegistryError: the file cannot be used at all.
    """
    return Check(content, path).outcome()


def main() -> None:
    """The process: bytes on stdin, a pickled :class:`Loaded` or the problems on stdout."""
    gc.disable()  # it ends soon, and its memory is limited: looking for garbage is a tenth of its time
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + CPU_GRACE))
    from hub.registry import load

    try:
        found: Loaded | tuple[Problem, ...] = load.loads(sys.stdin.buffer.read(), sys.argv[1])
    except RegistryError as error:
        found = error.problems
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
