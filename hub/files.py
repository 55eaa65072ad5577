"""Files that others write, registries and credentials: no waiting for what is no file, no reading without end."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple


class Content(NamedTuple):
    """What was in a file, and what the file was then."""

    data: bytes
    status: os.stat_result


class TooLarge(OSError):
    """EFBIG: a file has more bytes than may be read.

    Attributes:
        size: how many, as far as is known.
    """

    def __init__(self, path: str, limit: int, size: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {limit} bytes", path)
        self.size = size


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> Content:
    """Up to ``limit`` bytes of a regular file; a FIFO or device is not waited for.

    Args:
        path: of the file.
        limit: bytes; no more than one more is ever read.
        follow: the path may end in a symlink.

    Raises:
        TooLarge: it has more bytes.
        OSError: it cannot be read, or is no regular file (EINVAL); ``strerror`` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size <= limit:  # else it is refused unread
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
            if len(data) <= limit:
                return Content(data, status)
        raise TooLarge(str(path), limit, max(status.st_size, limit + 1))
    finally:
        os.close(descriptor)
