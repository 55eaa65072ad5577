"""Reads the bytes of a registry file, and defines the result of loading one.

This module must not import YAML or pydantic: the running hub checks the content in another process
(:mod:`hub.registry.isolated`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from hub.errors import Problem, RegistryError
from hub.registry.spec import Registry
from hub.runtime.files import TooLarge, read_regular

MAX_BYTES: Final = 4 * 1024 * 1024
"""A larger file is refused without reading it; 10,000 services take about 2 MiB."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An accepted file.

    Attributes:
        registry: the file's content; broken entries are listed in it as broken.
        problems: problems inside entries, in file order; empty if there are none.
        content: the file's bytes; b"" if the loader did not set them.
    """

    registry: Registry
    problems: tuple[Problem, ...] = ()
    content: bytes = field(default=b"", repr=False, compare=False)


def read(path: str | os.PathLike[str]) -> bytes:
    """Read the bytes of a registry file.

    Raises:
        RegistryError: the file cannot be read, is not a regular file, or is larger than 4 MiB.
    """
    file = os.fspath(path)
    try:
        return read_regular(file, MAX_BYTES).data
    except TooLarge as error:
        raise _too_large(file, error.size) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise refusal(file, f"cannot be read: {reason}") from error


def checked_size(content: bytes, file: str) -> bytes:
    """The content.

    Raises:
        RegistryError: it is larger than 4 MiB.
    """
    if len(content) > MAX_BYTES:
        raise _too_large(file, len(content))
    return content


def _too_large(file: str, size: int) -> RegistryError:
    return refusal(file, f"is too large: {size:,} bytes, at most {MAX_BYTES:,} are read")


def refusal(file: str, message: str) -> RegistryError:
    """The error for a file that cannot be used at all."""
    return RegistryError((Problem(file, 0, 0, "", message),))
