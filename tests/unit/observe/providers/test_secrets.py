"""Credentials by reference: allowed sources, and detection of changes."""

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
from tests.support.virtual import LoopClock


async def test_env_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of an environment variable is stripped, and read again at each call."""
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
    """A missing variable is an error, not an empty credential."""
    with pytest.raises(CredentialError, match="environment variable NO_SUCH_TOKEN is empty or missing"):
        await credential({"env": "NO_SUCH_TOKEN"}, None, None, LoopClock()).get()


@pytest.mark.parametrize(
    "ref",
    [{}, {"env": "A", "file": "b"}, {"secret": "a"}, {"key": "a"}, {"value": "inline"}, {"file": "a", "key": "b"}],
)
def test_a_reference_names_exactly_one_source(ref: dict[str, str], tmp_path: Path) -> None:
    """A reference that does not name exactly one source, or has an inline value, is refused."""
    with pytest.raises(TerminalProviderError, match="a credential is"):
        credential(ref, tmp_path, None, LoopClock())


async def test_a_mounted_secret_is_followed_through_its_symlinks(tmp_path: Path) -> None:
    """When Kubernetes moves ``..data`` to a new folder, the next read returns the new token."""
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
    """A rewritten file is read again, even with the same size and modification time."""
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
    """A path that leads out of the folder, also through a symlink, is refused."""
    folder = tmp_path / "creds"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to("../outside")
    with pytest.raises(TerminalProviderError):
        credential({"file": path}, folder, None, LoopClock())


async def test_a_file_that_becomes_a_link_to_elsewhere_is_refused_when_read(tmp_path: Path) -> None:
    """The folder is checked again at every read."""
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


async def test_file_on_a_hung_mount_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the mount hangs, the last value stays in use and the event loop runs; a reload fails in time."""
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
    """Without --credentials-dir, credential files are refused."""
    with pytest.raises(TerminalProviderError, match="--credentials-dir"):
        credential({"file": "token"}, None, None, LoopClock())


async def test_unusable_files_are_credential_errors(tmp_path: Path) -> None:
    """Files that are missing, empty, too large, not text or not regular are errors, and no read hangs."""
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
    """A byte order mark, which some editors write, is removed."""
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbfabc\r\n")
    assert await credential({"file": "token"}, tmp_path, None, LoopClock()).get() == "abc"


async def test_a_secret_is_read_again_after_a_while_or_on_reload() -> None:
    """A Secret is read again after 30 s, or at once with ``reload``."""
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
    """A watched Secret is read again only when its version changes."""
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
    """If the Secret cannot be read, the last value stays in use; a reload fails."""
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


def test_secret_reference_needs_read_secret() -> None:
    """Without ``read_secret``, a reference to a Secret is refused."""
    with pytest.raises(TerminalProviderError, match="can read Secrets"):
        credential({"secret": "s", "key": "k"}, None, None, LoopClock())


async def test_the_largest_credential_has_64_kibibytes(tmp_path: Path) -> None:
    """A credential of 64 KiB is accepted, a longer one is an error."""
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
    """Only a value that differs from the previous one counts as a renewal."""
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
    """A value is reused for 30 s and then read again; ``changed`` is False if the first read fails."""
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
    """A deleted variable has changed; one that was never read has not."""
    value = credential({"env": "TOKEN_X"}, None, None, LoopClock())
    monkeypatch.setenv("TOKEN_X", "abc")
    assert not await value.changed()
    await value.get()
    monkeypatch.delenv("TOKEN_X")
    assert await value.changed()
