"""Runs another program so that it cannot harm the hub.

Programs run without a shell, with the given environment only, and with limited output. No process is left behind: a
program runs in a session of its own, and the whole process group is killed on timeout, on too much output and on
cancellation. Processes that an ended program leaves in its group are killed too. Credential plugins and inventory
commands run this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from hub.errors import HubError

QUOTE_LIMIT = 256
"""Characters of a program's stderr that may appear in an error, after redaction."""

PIPE_GRACE = 1.0
"""Seconds that a pipe may stay open after the program has ended, since a child of the program may hold it."""

REAP_TIMEOUT = 5.0
"""Seconds to wait for a killed program; only a program in uninterruptible sleep takes longer than an instant."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")
_LONG = re.compile(r"[A-Za-z0-9_+/=.~%-]{16,}")
_USERINFO = re.compile(r"://[^@/ ]*@")
_WORD = r"(?:token|secret|passw(?:or)?d|passphrase|credential|key|bearer|basic|authorization|auth|pin)s?"
_AFTER_WORD = re.compile(rf"(?i)((?:{_WORD}[\"']? ?(?:(?:is|was)\b)? ?[:=]? ?)+)(\"[^\"]*\"|'[^']*'|[^ ]+)")
_CONSIDERED = 4096
"""Characters of a program's stderr that are searched for a quote."""


class ProcessError(HubError):
    """A program failed. The message names the program, never its arguments or environment."""


class ProcessFailedToStart(ProcessError):
    """The program is missing, not executable or not an absolute path, or the machine lacks resources."""


class ProcessTimedOut(ProcessError):
    """The program did not end in time and was killed with its group."""


class ProcessOutputTooLarge(ProcessError):
    """The program wrote more than allowed and was killed with its group."""


class Completed(msgspec.Struct, frozen=True):
    """The result of a program that ended by itself. Output may hold secrets, so ``repr`` leaves it out.

    Attributes:
        exit_code: the exit code; -N if signal N killed the program.
        stdout: the whole standard output.
        stderr: the whole standard error; quote it only through :func:`redact`.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes

    def __repr__(self) -> str:
        return f"Completed(exit_code={self.exit_code}, stdout={len(self.stdout)} B, stderr={len(self.stderr)} B)"


def redact(output: bytes, known: Iterable[str] = ()) -> str:
    """One printable line of at most 256 characters without anything that looks like a secret.

    Masks ``known`` values of 4 characters or more, the word after a word like "token" or "password", and every unbroken
    run of 16 characters or more. Such runs include long paths: losing a path is cheaper than showing a key.
    """
    text = output.decode("utf-8", "replace")
    for value in sorted({v for v in known if len(v) >= 4}, key=lambda v: (-len(v), v)):
        text = text.replace(value, "***")
    text = _UNPRINTABLE.sub(" ", _ESCAPE.sub("", text)).strip()
    if len(text) > _CONSIDERED:
        text = text[:_CONSIDERED].rpartition(" ")[0]  # do not cut a secret in two
    text = _AFTER_WORD.sub(r"\1***", _USERINFO.sub("://***@", _LONG.sub("***", text)))
    return text if len(text) <= QUOTE_LIMIT else text[: QUOTE_LIMIT - 1] + "…"


async def run_program(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    env: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109 - the deadline decides about a process group, not about an await
    stdout_limit: int,
    stderr_limit: int,
) -> Completed:
    """Run a program and wait until it ends.

    Args:
        argv: the absolute path of the program and its arguments, passed unchanged.
        stdin: the program's standard input; None = /dev/null.
        env: the program's whole environment.
        timeout: seconds after which the program is killed.
        stdout_limit: bytes of stdout above which the program is killed.
        stderr_limit: bytes of stderr above which the program is killed.

    Raises:
        ProcessFailedToStart: the program could not be started.
        ProcessTimedOut: the program, or a child that holds its output, ran longer than ``timeout``.
        ProcessOutputTooLarge: the program wrote more than allowed.
    """
    program = argv[0]
    if not Path(program).is_absolute():
        raise ProcessFailedToStart(f"program {program!r} is not an absolute path")
    loop = asyncio.get_running_loop()
    watcher = _Watcher(loop, {1: stdout_limit, 2: stderr_limit})
    starting = asyncio.ensure_future(
        loop.subprocess_exec(
            lambda: watcher,
            *argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    )
    try:
        transport, _ = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The start is shielded: if it were cancelled, asyncio would kill only the program itself and then wait for
        # ever for pipes that its children hold.
        with contextlib.suppress(OSError, ValueError):
            transport, _ = await starting
            await _end(transport, watcher)
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "an argument or variable holds a NUL character"
        raise ProcessFailedToStart(f"program {program} cannot be started: {reason}") from None
    try:
        if stdin is not None:
            _feed(transport, stdin)
        async with asyncio.timeout(timeout):
            flooded = await watcher.finished
    except TimeoutError:
        raise ProcessTimedOut(f"program {program} did not end within {timeout:g} s and was killed") from None
    finally:
        await _end(transport, watcher)
    if flooded is not None:
        name, limit = ("stdout", stdout_limit) if flooded == 1 else ("stderr", stderr_limit)
        raise ProcessOutputTooLarge(f"program {program} wrote more than {limit} bytes to {name} and was killed")
    return Completed(transport.get_returncode() or 0, bytes(watcher.output[1]), bytes(watcher.output[2]))


class _Watcher(asyncio.SubprocessProtocol):
    """Collects the output of one program.

    Attributes:
        finished: done when the program has ended and its pipes are closed, or ``PIPE_GRACE`` seconds after it ended, or
            when it wrote too much. The result is the descriptor with too much output, or None.
        exited: done when the program has ended.
        output: the bytes read so far, by descriptor.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Mapping[int, int]) -> None:
        self.finished: asyncio.Future[int | None] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.output = {fd: bytearray() for fd in limits}
        self._limits = limits
        self._open = set(limits)
        self._loop = loop

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.finished.done():
            return
        self.output[fd] += data
        if len(self.output[fd]) > self._limits[fd]:
            self.finished.set_result(fd)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        self._open.discard(fd)
        self._check()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
        self._loop.call_later(PIPE_GRACE, self._finish)
        self._check()

    @property
    def drained(self) -> bool:
        """Whether both pipes are closed, so that no process is left that could write to them."""
        return not self._open

    def _check(self) -> None:
        if self.drained and self.exited.done():
            self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    # The pipe exists, since run_program asks for one whenever there is data. The cast is needed because uvloop's
    # transports are not subclasses of asyncio's.
    pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
    pipe.write(data)
    pipe.close()  # closes only after the buffer is written


async def _end(transport: asyncio.SubprocessTransport, watcher: _Watcher) -> None:
    """Kill the rest of the process group, reap the program and close its pipes."""
    if not (watcher.exited.done() and watcher.drained):
        # The system does not reuse a group id while the group has members, so this kills only our processes.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
    try:
        async with asyncio.timeout(REAP_TIMEOUT):
            await asyncio.shield(watcher.exited)
    except TimeoutError:
        pass  # the program is in uninterruptible sleep; the event loop's child watcher reaps it when it wakes
    finally:
        transport.close()
