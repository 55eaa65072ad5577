"""Hot reload: which changes are noticed, and what is reported."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.errors import Problem, RegistryError
from hub.registry import watch
from hub.registry.file import Loaded
from hub.registry.isolated import Unchecked
from hub.registry.load import load, loads
from hub.registry.watch import CHECK_AGAIN, INTERVAL, RegistryWatcher
from hub.runtime.clock import Clock
from tests.support.clocks import HastyClock, ManualClock

GOOD = "version: 1\nowner: one\n"
OTHER = "version: 1\nowner: two\n"


def follow(
    path: Path,
    seen: str = "",
    *,
    clock: Clock | None = None,
    check: Callable[[bytes, str], Loaded] | None = None,
    told: Callable[[Loaded | RegistryError], None] = lambda _: None,
) -> tuple[RegistryWatcher, list[str]]:
    """A watcher and the list of owners (or "error") that it reported; ``told`` is called before each is added."""
    reported: list[str] = []

    def report(outcome: Loaded | RegistryError) -> None:
        told(outcome)
        reported.append("error" if isinstance(outcome, RegistryError) else outcome.registry.owner)

    return RegistryWatcher(path, clock or HastyClock(), report, seen, check), reported


async def poll(watcher: RegistryWatcher, times: int = 3) -> None:
    """Poll several times."""
    for _ in range(times):
        await watcher.poll()


async def test_change_is_reported_once(tmp_path: Path) -> None:
    """One change is reported once, however often the file is polled."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    watcher, reported = follow(path)
    await poll(watcher)

    path.write_text(OTHER)
    await poll(watcher)

    assert reported == ["one", "two"]


async def test_loaded_content_is_not_reported(tmp_path: Path) -> None:
    """A watcher that gets the digest of the loaded file reports nothing until the content changes."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    watcher, reported = follow(path, load(path).registry.digest)

    await poll(watcher)
    path.touch()
    await poll(watcher)

    assert reported == []


async def test_broken_file_is_reported_and_so_is_its_repair(tmp_path: Path) -> None:
    """A half-written file is reported as an error once, and the same good content after it again."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    watcher, reported = follow(path)
    await poll(watcher)

    path.write_text(GOOD[:-8] + ": [")
    await poll(watcher)
    path.write_text(GOOD)
    await poll(watcher)

    assert reported == ["one", "error", "one"]


async def test_file_that_could_not_be_checked_is_checked_again(tmp_path: Path) -> None:
    """A file that could not be checked is reported as an error once, and checked again until it can be."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    clock = ManualClock()
    tries: list[bytes] = []

    def check(content: bytes, name: str) -> Loaded:
        tries.append(content)
        if len(tries) < 3:
            raise Unchecked((Problem(name, 0, 0, "", "could not be checked"),))
        return loads(content, name)

    watcher, reported = follow(path, clock=clock, check=check)
    await poll(watcher)
    assert len(tries) == 1
    for _ in range(3):
        clock.time += CHECK_AGAIN
        await poll(watcher)

    assert (len(tries), reported) == (3, ["error", "one"])


@pytest.mark.parametrize("again", [False, True])
async def test_a_change_that_was_lost_on_the_way_is_found_by_the_next_look(tmp_path: Path, again: bool) -> None:
    """After an exception from the check or the callback, the next poll finds the change again."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    clock = ManualClock()
    fail: list[Exception] = [RuntimeError("no thread"), MemoryError(), RuntimeError("not understood")]
    if again:
        fail.insert(0, Unchecked((Problem("clusters.yaml", 0, 0, "", "could not be checked"),)))

    def check(content: bytes, name: str) -> Loaded:
        if len(fail) > 1:
            raise fail.pop(0)
        return loads(content, name)

    def tell(outcome: Loaded | RegistryError) -> None:
        if fail and not isinstance(outcome, RegistryError):
            raise fail.pop()

    watcher, reported = follow(path, clock=clock, check=check, told=tell)
    if again:
        await poll(watcher)
        clock.time += CHECK_AGAIN
    for error in (RuntimeError, MemoryError, RuntimeError):
        with pytest.raises(error):
            await poll(watcher, 1)
    await poll(watcher)

    assert reported == ["error"] * again + ["one"]


async def test_missing_file_is_reported_and_so_is_its_return(tmp_path: Path) -> None:
    """A file that disappears is reported as an error once; its return is reported too."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    watcher, reported = follow(path)
    await poll(watcher)

    path.unlink()
    await poll(watcher)
    path.write_text(GOOD)
    await poll(watcher)

    assert reported == ["one", "error", "one"]


async def test_flipped_symlink_of_a_config_map_is_noticed(tmp_path: Path) -> None:
    """A change of a ConfigMap only switches its ``..data`` symlink, and is noticed."""
    for name, text in (("..1", GOOD), ("..2", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "clusters.yaml").write_text(text)
        os.utime(tmp_path / name / "clusters.yaml", ns=(0, 0))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "clusters.yaml").symlink_to("..data/clusters.yaml")
    watcher, reported = follow(tmp_path / "clusters.yaml")
    await poll(watcher)

    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    await poll(watcher)

    assert reported == ["one", "two"]


async def test_write_that_leaves_no_trace_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second write that leaves size and time unchanged is noticed."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    watcher, reported = follow(path)
    monkeypatch.setattr(watch, "_signature", lambda _: ("same tick of the file system's clock",))

    await watcher.poll()
    path.write_text(OTHER)
    await watcher.poll()

    assert reported == ["one", "two"]


async def test_run_looks_every_second(tmp_path: Path) -> None:
    """The watcher polls once per second."""
    path = tmp_path / "clusters.yaml"
    path.write_text(GOOD)
    reported: asyncio.Queue[object] = asyncio.Queue()
    clock = HastyClock()
    task = asyncio.create_task(RegistryWatcher(path, clock, reported.put_nowait).run())

    async with asyncio.timeout(10):
        await reported.get()
        path.write_text(OTHER)
        await reported.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert set(clock.slept) == {INTERVAL}
    assert INTERVAL <= 1
