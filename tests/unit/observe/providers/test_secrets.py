"""Credentials by reference: where they may come from, and that a change is seen."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hub.errors import ApiError, CredentialError
from hub.observe.providers import secrets
from hub.observe.providers.secrets import credential
from hub.plugin import TerminalProviderError
from hub.runtime.files import ConfinedPath
from tests.support.clocks import ManualClock
from tests.unit.observe.providers.virtual import LoopClock


async def test_env_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable is stripped, and a changed one is noticed."""
    monkeypatch.setenv("TOKEN_X", " abc\n")
    value = credential({"env": "TOKEN_X"}, None, None, LoopClock())
    assert value.last() is None
    assert await value.get() == "abc"
    assert value.last() == "abc"
    assert not await value.changed()
    monkeypatch.setenv("TOKEN_X", "def")
    assert await value.changed()
    assert await value.get() == "def"


async def test_a_missing_or_empty_variable_is_a_credential_error() -> None:
    """No credential is not an empty credential."""
    with pytest.raises(CredentialError, match="environment variable NO_SUCH_TOKEN is empty or missing"):
        await credential({"env": "NO_SUCH_TOKEN"}, None, None, LoopClock()).get()


@pytest.mark.parametrize(
    "ref",
    [{}, {"env": "A", "file": "b"}, {"secret": "a"}, {"key": "a"}, {"value": "inline"}, {"file": "a", "key": "b"}],
)
def test_a_reference_names_exactly_one_source(ref: dict[str, str], tmp_path: Path) -> None:
    """Anything else is refused at once, an inline value among it."""
    with pytest.raises(TerminalProviderError, match="a credential is"):
        credential(ref, tmp_path, None, LoopClock())


async def test_a_mounted_secret_is_followed_through_its_symlinks(tmp_path: Path) -> None:
    """Kubernetes flips ..data to a new folder: the next read sees the new token."""
    for version, text in (("..v1", "old"), ("..v2", "new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(text + "\n")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "token").symlink_to("..data/token")
    value = credential({"file": "token"}, tmp_path, None, LoopClock())
    assert await value.get() == "old"
    (tmp_path / "..new").symlink_to("..v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert await value.changed()
    assert await value.get() == "new"
    assert not await value.changed()


async def test_a_file_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    """Even when its size and modification time stay the same."""
    path = tmp_path / "token"
    path.write_text("one")
    value = credential({"file": str(path)}, tmp_path, None, LoopClock())
    assert await value.get() == "one"
    stamp = path.stat()
    path.write_text("two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert await value.get() == "two"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "link", "sub/../../outside", ".", "", "a\0b"])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    """By path, by parent, or by symlink: what counts is where it ends."""
    folder = tmp_path / "creds"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to("../outside")
    with pytest.raises(TerminalProviderError):
        credential({"file": path}, folder, None, LoopClock())


async def test_a_file_that_becomes_a_link_to_elsewhere_is_refused_when_read(tmp_path: Path) -> None:
    """The check is made at every read, not once."""
    folder = tmp_path / "creds"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "token").write_text("fine")
    value = credential({"file": "token"}, folder, None, LoopClock())
    assert await value.get() == "fine"
    (folder / "token").unlink()
    (folder / "token").symlink_to("../outside")
    with pytest.raises(TerminalProviderError, match="lies outside"):
        await value.get()
    assert not await value.changed()


async def test_a_file_on_a_hung_mount_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read stays in use, a reload says so in time, and the event loop goes on meanwhile."""
    monkeypatch.setattr(secrets, "READ_TIMEOUT", 0.3)
    path, answers, real = tmp_path / "token", threading.Event(), ConfinedPath.real
    path.write_text("one")
    value = credential({"file": "token"}, tmp_path, None, LoopClock())
    assert await value.get() == "one"

    def slow(file: ConfinedPath) -> str:
        answers.wait(10)
        return real(file)

    monkeypatch.setattr(ConfinedPath, "real", slow)
    try:
        async with asyncio.timeout(5):
            asking = asyncio.create_task(value.get())
            await asyncio.sleep(0.01)
            assert not asking.done()
            assert await asking == "one"
            assert not await value.changed()
            with pytest.raises(CredentialError, match=r"credential file .*/token: does not answer within 0.3 s"):
                await value.get(reload=True)
            never_read = credential({"file": "other"}, tmp_path, None, LoopClock())
            with pytest.raises(CredentialError, match=r"credential file .*/other: does not answer within 0.3 s"):
                await never_read.get()
    finally:
        answers.set()


def test_files_need_a_folder() -> None:
    """Without --credentials-dir there are no credential files."""
    with pytest.raises(TerminalProviderError, match="--credentials-dir"):
        credential({"file": "token"}, None, None, LoopClock())


async def test_unusable_files_are_credential_errors(tmp_path: Path) -> None:
    """Missing, empty, too large, not text, a pipe, a folder: each is said, none hangs."""
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "large").write_bytes(b"x" * 65_537)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, says in {
        "missing": "No such file",
        "empty": "empty or missing",
        "large": "larger than 65536 bytes",
        "binary": "not UTF-8",
        "nul": "NUL",
        "folder": "not a regular file",
        "pipe": "not a regular file",
    }.items():
        with pytest.raises(CredentialError, match=says):
            await credential({"file": name}, tmp_path, None, LoopClock()).get()


async def test_a_byte_order_mark_is_no_part_of_a_token(tmp_path: Path) -> None:
    """Editors of some systems write one."""
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbfabc\r\n")
    assert await credential({"file": "token"}, tmp_path, None, LoopClock()).get() == "abc"


async def test_a_secret_is_read_again_after_a_while_or_on_reload() -> None:
    """Thirty seconds of reuse; an answer 401 asks at once."""
    reads: list[tuple[str, str]] = []

    async def read(name: str, key: str) -> bytes:
        reads.append((name, key))
        return f"token-{len(reads)}".encode()

    clock = ManualClock(0.0)
    value = credential({"secret": "ionos", "key": "token"}, None, read, clock)
    assert [await value.get(), await value.get()] == ["token-1", "token-1"]
    assert await value.get(reload=True) == "token-2"
    clock.time = 31
    assert await value.changed()
    assert await value.get() == "token-3"
    assert reads == [("ionos", "token")] * 3


async def test_a_secret_that_is_watched_is_read_when_it_changes() -> None:
    """Not before, however long that takes; and at once then."""
    reads = 0

    async def read(_name: str, _key: str) -> str:
        nonlocal reads
        reads += 1
        return f"token-{reads}"

    clock, versions = ManualClock(0.0), {"ionos": "1"}

    async def version(name: str) -> str | None:
        return versions.get(name)

    value = credential({"secret": "ionos", "key": "token"}, None, read, clock, version)
    assert await value.get() == "token-1"
    clock.time = 3600
    assert not await value.changed()
    versions["ionos"] = "2"
    assert await value.changed()
    assert (await value.get(), reads) == ("token-2", 2)


async def test_a_secret_that_cannot_be_read_keeps_its_last_value() -> None:
    """An API server that is away does not take a good credential with it; a reload says so."""
    fail = False

    async def read(_name: str, _key: str) -> str:
        if fail:
            raise ApiError(503, "Down", "away")
        return "good"

    clock = ManualClock(0.0)
    value = credential({"secret": "s", "key": "k"}, None, read, clock)
    assert await value.get() == "good"
    fail, clock.time = True, 31
    assert await value.get() == "good"
    with pytest.raises(CredentialError, match="Secret s, key k: 503"):
        await value.get(reload=True)


def test_secrets_need_somebody_to_read_them() -> None:
    """A hub without access to Secrets says so."""
    with pytest.raises(TerminalProviderError, match="can read Secrets"):
        credential({"secret": "s", "key": "k"}, None, None, LoopClock())


async def test_the_largest_credential_has_64_kibibytes(tmp_path: Path) -> None:
    """From whatever source."""
    largest = "x" * 65_536
    content = largest

    async def read(_name: str, _key: str) -> str:
        return content

    (tmp_path / "token").write_text(largest)
    of_file = credential({"file": "token"}, tmp_path, None, LoopClock())
    of_secret = credential({"secret": "s", "key": "k"}, None, read, LoopClock())
    assert await of_file.get() == await of_secret.get() == largest
    content += "x"
    with pytest.raises(CredentialError, match="Secret s, key k holds more than 65536 bytes"):
        await of_secret.get(reload=True)


async def test_renewals_are_counted() -> None:
    """Another value than before is one; the first value and the same again are none."""
    values = ["a", "a", "b", "b", "c"]

    async def read(_name: str, _key: str) -> str:
        return values.pop(0)

    value = credential({"secret": "s", "key": "k"}, None, read, LoopClock())
    seen = []
    for _ in range(5):
        await value.get(reload=True)
        seen.append(value.renewals)
    assert seen == [0, 0, 1, 1, 2]


async def test_a_secret_is_fresh_for_thirty_seconds() -> None:
    """It is read again at the end of them, not before; a failed first read is an error."""
    reads = 0

    async def read(_name: str, _key: str) -> str:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise ApiError(503)
        return "token"

    clock = ManualClock(0.0)
    value = credential({"secret": "s", "key": "k"}, None, read, clock)
    assert not await value.changed()
    assert reads == 1
    await value.get()
    clock.time = 29.9
    await value.get()
    assert reads == 2
    clock.time = 30.0
    await value.get()
    assert reads == 3


async def test_a_variable_changes_when_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was never read has not changed."""
    value = credential({"env": "TOKEN_X"}, None, None, LoopClock())
    monkeypatch.setenv("TOKEN_X", "abc")
    assert not await value.changed()
    await value.get()
    monkeypatch.delenv("TOKEN_X")
    assert await value.changed()
