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


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> Content:
    """Up to ``limit`` bytes of a regular file; a FIFO or device is not waited for.

    Args:
        path: of the file.
        limit: bytes; no more than one more is ever read.
        follow: the path may end in a symlink.

    Raises:
        OSError: it cannot be read, is no regular file (EINVAL) or is larger (EFBIG); ``strerror`` says which.
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
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    finally:
        os.close(descriptor)
