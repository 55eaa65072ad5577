"""Files that others write, kubeconfigs and credentials: no waiting for what is no file, no reading without end."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, limit: int) -> bytes:
    """Up to ``limit`` bytes of a regular file (symlinks followed); a FIFO or device is not waited for.

    Raises:
        OSError: it cannot be read, is no regular file or is larger; ``strerror`` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(None, f"larger than {limit} bytes", str(path))
    return data
