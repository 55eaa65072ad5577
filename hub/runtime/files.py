"""Reads files that other programs write, such as registries and credentials.

Reads are safe: they do not block on FIFOs or devices, have a size limit, and can be confined to folders.
"""

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
    """A file is larger than the limit (EFBIG).

    Attributes:
        size: the bytes of the file; a file that grows while it is read may have more.
    """

    def __init__(self, path: str, limit: int, size: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {limit} bytes", path)
        self.size = size


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> Content:
    """Read a regular file; opening a FIFO or a device does not block.

    Args:
        path: the file.
        limit: the largest size of the file, in bytes; at most one byte more is read.
        follow: whether the path may end in a symlink.

    Raises:
        TooLarge: the file is larger than ``limit``.
        OSError: the file cannot be read or is not a regular file (EINVAL); ``strerror`` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size <= limit:
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
            if len(data) <= limit:
                return Content(data, status)
        raise TooLarge(str(path), limit, max(status.st_size, limit + 1))
    finally:
        os.close(descriptor)


class OutsideFolders(OSError):
    """A path leads out of the folders that it must stay in (EACCES); ``strerror`` says how to fix it."""

    def __init__(self, path: str, folders: tuple[Path, ...]) -> None:
        allowed = " and ".join(str(folder) for folder in dict.fromkeys(folders))
        super().__init__(errno.EACCES, f"lies outside {allowed}; move it there or set --credentials-dir", path)


class ConfinedPath:
    """A path whose target must be inside one of the given folders.

    The target is checked at every use, since symlinks may change at any time. Only the final target counts, not the
    symlinks on the way: a mounted Secret is a chain of symlinks inside its folder.

    Args:
        path: absolute, or relative to the first folder.
        folders: the folders that may contain the target; without any, every path is refused.
    """

    def __init__(self, path: str | os.PathLike[str], *folders: Path) -> None:
        self._folders = folders
        self.path = Path(*folders[:1], path)

    def real(self) -> str:
        """The current target of the path, with all symlinks resolved.

        Raises:
            OutsideFolders: the target is outside all folders.
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
        """Read the target with :func:`read_regular`.

        Raises:
            OutsideFolders: the target is outside all folders.
            TooLarge, OSError: see :func:`read_regular`.
        """
        return read_regular(self.real(), limit, follow=False)


def signature(status: os.stat_result) -> tuple[int, ...]:
    """A value that changes when the file is replaced or written, even if the writer resets the modification time."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
