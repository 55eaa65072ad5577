"""Running programs that misbehave in various ways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hub.runtime.process import (
    Completed,
    ProcessFailedToStart,
    ProcessOutputTooLarge,
    ProcessTimedOut,
    redact,
    run_program,
)

ENV = {"PATH": os.defpath}


async def run(script: str, *, stdin: bytes | None = None, within: float = 20.0, limit: int = 1 << 16) -> Completed:
    """Run a shell script, itself an absolute program with arguments."""
    argv = ["/bin/sh", "-c", script]
    return await run_program(argv, stdin=stdin, env=ENV, timeout=within, stdout_limit=limit, stderr_limit=limit)


def _read(path: str | Path) -> str:
    return Path(path).read_text()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def gone(pid: int) -> bool:
    """Whether a process ends within five seconds; a zombie counts as ended."""
    for _ in range(500):
        try:
            if _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        await asyncio.sleep(0.01)
    return False


async def content(path: Path) -> str:
    """The content of a file, once a program has written it."""
    for _ in range(1000):
        with contextlib.suppress(OSError):
            if text := _read(path).strip():
                return text
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} was never written")


async def test_run_program_returns_exit_code_and_both_outputs() -> None:
    """A program that ends by itself returns its exit code, stdout and stderr."""
    done = await run("echo out; echo err >&2; exit 3")
    assert done == Completed(3, b"out\n", b"err\n")


async def test_run_program_tells_a_signal_from_an_exit_code() -> None:
    """The exit code of a program killed by a signal is the negative signal number."""
    done = await run("kill -TERM $$")
    assert done.exit_code == -15


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_run_program_gives_stdin_to_the_program(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Data for stdin arrives completely, followed by end-of-file; on uvloop too, whose pipes have other classes."""
    data = b"x" * 300_000
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        done = runner.run(run("cat", stdin=data, limit=1 << 20))
    assert done.stdout == data


async def test_run_program_without_stdin_reads_end_of_file() -> None:
    """Without stdin, a program that reads gets end-of-file and does not wait for the terminal."""
    done = await run("cat; echo end")
    assert done.stdout == b"end\n"


async def test_run_program_survives_a_program_that_ignores_stdin() -> None:
    """A program that ends without reading its stdin is not an error."""
    done = await run("exit 0", stdin=b"x" * 1_000_000)
    assert done.exit_code == 0


async def test_run_program_passes_only_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the hub's own environment reaches the program."""
    monkeypatch.setenv("HUB_SECRET", "hunter2")
    argv = [sys.executable, "-S", "-c", "import os; print('HUB_SECRET' in os.environ, os.environ['ONLY'])"]
    done = await run_program(argv, env={"ONLY": "this"}, timeout=20.0, stdout_limit=100, stderr_limit=1000)
    assert done.stdout == b"False this\n"


async def test_run_program_uses_no_shell() -> None:
    """Shell syntax in an argument is data."""
    argv = ["/bin/echo", "$(id); `id` | cat > /dev/full"]
    done = await run_program(argv, env=ENV, timeout=20.0, stdout_limit=100, stderr_limit=100)
    assert done.stdout == b"$(id); `id` | cat > /dev/full\n"


async def test_run_program_drains_both_pipes_at_once() -> None:
    """A program that fills stderr before it writes stdout does not deadlock."""
    done = await run("head -c 400000 /dev/zero >&2; echo done", limit=1 << 20)
    assert (done.stdout, len(done.stderr)) == (b"done\n", 400_000)


@pytest.mark.parametrize("redirect", ["", " >&2"], ids=["stdout", "stderr"])
async def test_run_program_kills_a_flood(redirect: str, tmp_path: Path) -> None:
    """Endless output is cut off by killing the program, on either pipe."""
    started = time.monotonic()
    with pytest.raises(ProcessOutputTooLarge, match="wrote more than 65536 bytes to std"):
        await run(f"echo $$ > {tmp_path}/pid; cat /dev/zero{redirect}")
    assert time.monotonic() - started < 10
    assert await gone(int((tmp_path / "pid").read_text()))


async def test_run_program_accepts_output_of_exactly_the_limit() -> None:
    """The limit itself is allowed, one byte more is not."""
    assert len((await run("head -c 1000 /dev/zero", limit=1000)).stdout) == 1000
    with pytest.raises(ProcessOutputTooLarge):
        await run("head -c 1001 /dev/zero", limit=1000)


async def test_run_program_kills_the_whole_group_on_timeout(tmp_path: Path) -> None:
    """A program that hangs is killed together with its children, even if it ignores SIGTERM."""
    with pytest.raises(ProcessTimedOut, match=r"/bin/sh did not end within 0.5 s"):
        await run(f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; wait", within=0.5)
    assert await gone(int(await content(tmp_path / "child")))


async def test_run_program_kills_the_whole_group_on_cancellation(tmp_path: Path) -> None:
    """Cancelling the caller leaves no process behind and is not swallowed."""
    task = asyncio.create_task(run(f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"))
    pids = [int(await content(tmp_path / name)) for name in ("self", "child")]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [await gone(pid) for pid in pids] == [True, True]


async def test_run_program_is_cancelled_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation during the start kills the program and its children, and returns promptly."""
    loop = asyncio.get_running_loop()
    connect, go_on = loop.connect_read_pipe, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await go_on.wait()
        return await connect(*arguments)

    monkeypatch.setattr(loop, "connect_read_pipe", slow)
    task = asyncio.create_task(run(f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"))
    pids = [int(await content(tmp_path / name)) for name in ("self", "child")]
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await task
    assert [await gone(pid) for pid in pids] == [True, True]


async def test_run_program_ends_with_the_program_not_with_its_children(tmp_path: Path) -> None:
    """A child that still holds the pipes does not delay the result, and is killed."""
    started = time.monotonic()
    done = await run(f"sleep 1000 & echo $! > {tmp_path}/child; echo answer")
    assert (done.stdout, time.monotonic() - started < 10) == (b"answer\n", True)
    assert await gone(int((tmp_path / "child").read_text()))


async def test_run_program_closes_its_pipes_when_a_child_leaves_the_group(tmp_path: Path) -> None:
    """A child in another session escapes the kill, but the hub's ends of the pipes are closed."""
    before = _descriptors()
    await run(f"setsid sleep 5 & echo $! > {tmp_path}/child; echo answer")
    await asyncio.sleep(0)
    after = _descriptors()
    os.kill(int(await content(tmp_path / "child")), 9)
    assert after <= before


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/nonexistent/program"], "No such file"),
        (["/etc/passwd"], "Permission denied"),
        (["sh"], "not an absolute path"),
        (["/bin/echo", "a\0b"], "NUL"),
    ],
)
async def test_run_program_names_a_program_that_cannot_start(argv: list[str], reason: str) -> None:
    """A program that cannot be started raises an error that names it."""
    with pytest.raises(ProcessFailedToStart, match=reason):
        await run_program(argv, env=ENV, timeout=1, stdout_limit=1, stderr_limit=1)


def test_completed_hides_output_in_repr() -> None:
    """Output may be a credential, so showing the value shows only sizes."""
    assert "hunter2" not in repr(Completed(0, b"hunter2", b"hunter2"))


@pytest.mark.parametrize(
    "line",
    [
        "token: hunter2",
        "password=hunter2",
        'the "secret": "hunter2" is wrong',
        "Authorization: Bearer hunter2",
        "API_KEY=hunter2",
        "credentials hunter2",
        "passphrase is hunter2",
        "client_secret='hunter2 and more'",
        "AKIAhunter2ABCDEFGH",
        "eyJhbGciOiJIUzI1NiJ9.hunter2.abcdefghijkl",
        "https://user:hunter2@host.example.com/path",
        "\x1b[31mtoken\x1b[0m: hunter2",
    ],
)
def test_redact_masks_likely_secrets(line: str) -> None:
    """Values after words like "token", and long unbroken runs, are masked."""
    assert "hunter2" not in redact(line.encode())


def test_redact_masks_known_values_anywhere() -> None:
    """Values that the caller knows to be secret are masked anywhere in the text."""
    assert redact(b"cannot use abc hunter2 here", ["hunter2", "", "a"]) == "cannot use abc *** here"


def test_redact_keeps_an_ordinary_message() -> None:
    """A message without secrets stays readable."""
    assert redact(b"Unable to locate the profile 'dev'\n") == "Unable to locate the profile 'dev'"


def test_redact_cuts_after_hiding() -> None:
    """A secret at the cut is masked as a whole, and the result is one short printable line."""
    text = redact(b"word " * 50 + b"abc\ndef\x00 " + b"s3cret" * 100)
    assert (len(text) <= 256, text.isprintable(), "s3cret" in text) == (True, True, False)
