"""Safe reads of files that other programs write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hub.runtime.files import ConfinedPath, OutsideFolders, TooLarge, read_regular, signature


@pytest.mark.parametrize("size", [0, 9, 10])
def test_a_file_up_to_the_limit_is_read_with_its_status(tmp_path: Path, size: int) -> None:
    """A file of at most ``limit`` bytes is read completely, together with its status."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    content = read_regular(file, 10)
    assert (content.data, content.status.st_size, content.status.st_ino) == (b"x" * size, size, file.stat().st_ino)


@pytest.mark.parametrize("size", [11, 12, 500])
def test_a_file_above_the_limit_is_refused_with_its_size(tmp_path: Path, size: int) -> None:
    """A file of more than ``limit`` bytes is refused; the error has the limit, the path and the size."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    with pytest.raises(TooLarge) as refused:
        read_regular(file, 10)
    error = refused.value
    assert (error.errno, error.strerror, error.filename) == (errno.EFBIG, "larger than 10 bytes", str(file))
    assert error.size == size


def test_a_file_that_states_no_size_is_read_up_to_the_limit() -> None:
    """A file whose status states 0 bytes, such as those of /proc, is refused once more than the limit is read."""
    assert read_regular("/proc/self/stat", 10_000).data
    with pytest.raises(TooLarge) as refused:
        read_regular("/proc/self/stat", 10)
    assert refused.value.size == 11


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """A FIFO, a device and a folder are refused at once, without blocking."""
    path = {"fifo": tmp_path / "fifo", "device": Path("/dev/null"), "folder": tmp_path}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file") as refused:
        read_regular(path, 10)
    assert (refused.value.errno, refused.value.filename) == (errno.EINVAL, str(path))


def test_a_final_symlink_is_followed_unless_forbidden(tmp_path: Path) -> None:
    """A path that ends in a symlink is read, unless ``follow`` is False."""
    (tmp_path / "file").write_bytes(b"x")
    link = tmp_path / "link"
    link.symlink_to("file")
    assert read_regular(link, 10).data == b"x"
    with pytest.raises(OSError, match="link") as refused:
        read_regular(link, 10, follow=False)
    assert refused.value.errno == errno.ELOOP


def test_files_are_closed(tmp_path: Path) -> None:
    """No read leaves a descriptor open, whether it succeeds or not."""
    (tmp_path / "file").write_bytes(b"x" * 11)
    before = sorted(Path("/proc/self/fd").iterdir())
    read_regular(tmp_path / "file", 11)
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(OSError, match=r"larger than|not a regular file"):
            read_regular(path, 10)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_confined_path_is_read_from_any_of_its_folders(tmp_path: Path) -> None:
    """A target inside one of the folders is read, also through symlinks; a relative path starts at the first folder."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "a").write_bytes(b"a")
    (two / "b").write_bytes(b"b")
    (one / "link").symlink_to(two / "b")
    read = [ConfinedPath(path, one, two).read(10).data for path in ("a", one / "a", two / "b", "link", "../two/b")]
    assert read == [b"a", b"a", b"b", b"b", b"b"]
    assert ConfinedPath("link", one, two).real() == str(two / "b")


def test_a_target_outside_of_the_folders_is_refused(tmp_path: Path) -> None:
    """A target outside, a folder with a similar name, the folder itself and a path without folders are refused."""
    inside, similar = tmp_path / "in", tmp_path / "in-side"
    inside.mkdir()
    similar.mkdir()
    for file in (similar / "a", tmp_path / "a"):
        file.write_bytes(b"a")
    (inside / "link").symlink_to(tmp_path / "a")
    for path in ("../a", similar / "a", "link", inside, "/"):
        with pytest.raises(OutsideFolders) as refused:
            ConfinedPath(path, inside, inside).read(10)
        text = f"lies outside {inside}; move it there or set --credentials-dir"
        assert (refused.value.errno, refused.value.strerror) == (errno.EACCES, text)
        assert refused.value.filename == str(inside / path)
    with pytest.raises(OutsideFolders):
        ConfinedPath(tmp_path / "a").read(10)


def test_a_path_with_a_nul_character_is_refused(tmp_path: Path) -> None:
    """A NUL character is an ordinary error, which says what is wrong."""
    with pytest.raises(OSError, match="the path holds a NUL character") as refused:
        ConfinedPath("a\0b", tmp_path).real()
    assert refused.value.errno == errno.EINVAL


def test_the_signature_changes_with_the_file(tmp_path: Path) -> None:
    """A file that is replaced, or written without a new modification time, has another signature."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"x")
    first = file.stat()
    assert signature(first) == signature(file.stat())
    other.write_bytes(b"x")
    os.utime(other, ns=(first.st_atime_ns, first.st_mtime_ns))
    other.replace(file)
    replaced = file.stat()
    file.write_bytes(b"xy")
    os.utime(file, ns=(first.st_atime_ns, first.st_mtime_ns))
    assert len({signature(first), signature(replaced), signature(file.stat())}) == 3
