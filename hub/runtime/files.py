"""Reads files that others write, such as registries and credentials: bounded in time, size and place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Content(NamedTuple):
    """The content of a file, and its status when it was read."""

    data: bytes
    status: os.stat_result


class TooLarge(OSError):
    """EFBIG: a file has more bytes than may be read.

    Attributes:
        size: its bytes; a file that grows while it is read may have more.
    """

    def __init__(self, path: str, limit: int, size: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {limit} bytes", path)
        self.size = size


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> Content:
    """Read a regular file; opening a FIFO or a device does not block.

    Args:
        path: the file.
        limit: the most bytes that the file may have; at most one more is read.
        follow: whether the path may end in a symlink.

    Raises:
        TooLarge: the file has more bytes.
        OSError: the file cannot be read or is not a regular file (EINVAL); ``strerror`` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size <= limit:  # a larger file is not read at all
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
            if len(data) <= limit:
                return Content(data, status)
        raise TooLarge(str(path), limit, max(status.st_size, limit + 1))
    finally:
        os.close(descriptor)


class OutsideFolders(OSError):
    """EACCES: a path leads out of the folders that it must stay in; ``strerror`` says what to do."""

    def __init__(self, path: str, folders: tuple[Path, ...]) -> None:
        allowed = " and ".join(str(folder) for folder in dict.fromkeys(folders))
        super().__init__(errno.EACCES, f"lies outside {allowed}; move it there or set --credentials-dir", path)


class ConfinedPath:
    """A path that must end inside one of some folders whenever it is used, since symlinks may change at any time.

    Only where the path ends counts: a mounted Secret is a chain of symlinks inside its folder.

    Args:
        path: absolute, or relative to the first folder.
        folders: where it may end; none = nowhere.
    """

    def __init__(self, path: str | os.PathLike[str], *folders: Path) -> None:
        self._folders = folders
        self.path = Path(*folders[:1], path)

    def real(self) -> str:
        """Where the path ends now, without symlinks.

        Raises:
            OutsideFolders: outside of all folders.
            OSError: the path holds a NUL character (EINVAL).
        """
        if "\0" in str(self.path):
            raise OSError(errno.EINVAL, "the path holds a NUL character")
        real = os.path.realpath(self.path)
        for folder in map(os.path.realpath, self._folders):
            if real != folder and os.path.commonpath((real, folder)) == folder:
                return real
        raise OutsideFolders(str(self.path), self._folders)

    def read(self, limit: int) -> Content:
        """As :func:`read_regular`.

        Raises:
            OutsideFolders: outside of all folders.
            OSError: as :func:`read_regular`.
        """
        return read_regular(self.real(), limit, follow=False)


def signature(status: os.stat_result) -> tuple[int, ...]:
    """Differs once a file was replaced or written, even by a writer that sets the modification time back."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
