"""What ``hub run`` runs: a registry file, or the registry that this process's variables come to."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from hub.errors import RegistryError

if TYPE_CHECKING:
    from hub.importers.document import Document

PSEUDO_FILE: Final = "environment"
"""Stands for the file in messages and paths."""


class Environment(msgspec.Struct, frozen=True):
    """A registry to be run.

    Attributes:
        registry: its path; a name in its folder where it is in no file.
        content: itself, where it is in no file.
        dry_run: nothing is to be written.
        programs: what may be run for it.
    """

    registry: str
    content: bytes | None = None
    dry_run: bool = False
    programs: tuple[str, ...] = ()


def environment() -> Environment:
    """The registry that this process's variables come to, checked.

    Raises:
        UsageError: it cannot be used; names the variables.
    """
    from hub.importers.environment import build
    from hub.importers.variables import Variables

    imported = build(Variables(os.environ), complete=True)
    name = str(Path(imported.folder or Path.cwd()) / PSEUDO_FILE)
    content = checked(imported.document, name)
    program = imported.program
    if program and "/" not in program:
        with suppress(OSError):
            program = shutil.which(program) or program
    return Environment(name, content, imported.dry_run, (program,) if program else ())


def checked(document: Document, name: str) -> bytes:
    """The document's content.

    Raises:
        UsageError: a registry cannot be this; names the variables.
    """
    from hub.registry import isolated

    content = document.text.encode()
    try:
        problems = isolated.loads(content, name).problems
    except isolated.Unchecked:
        raise
    except RegistryError as error:
        problems = error.problems
    if problems:
        raise document.error(problems)
    return content
