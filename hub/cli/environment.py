"""The registry that ``hub run`` uses: a file, or the result of importing this process's environment variables."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from hub.errors import RegistryError

if TYPE_CHECKING:
    from hub.cli.importers.allocator import Allocator
    from hub.cli.importers.document import Document

PSEUDO_FILE: Final = "environment"
"""Takes the place of the file name in messages and paths."""


class Environment(msgspec.Struct, frozen=True):
    """A registry to run.

    Attributes:
        registry: the file's path; for an imported registry, a made-up name in its folder.
        content: the registry's text if it is not in a file.
        dry_run: write nothing.
        programs: programs that the registry may run.
        allocator: what else the environment of ip-address-controller says; None = it was not imported.
    """

    registry: str
    content: bytes | None = None
    dry_run: bool = False
    programs: tuple[str, ...] = ()
    allocator: Allocator | None = None


def allocator_environment() -> Environment:
    """Import the environment of ip-address-controller as a registry, and check it.

    Raises:
        HubError: the registry is invalid; the message names the variables.
    """
    from hub.cli.importers.allocator import build
    from hub.cli.importers.variables import Variables

    imported = build(Variables(os.environ), enforce=True)
    name = str(Path.cwd() / PSEUDO_FILE)
    return Environment(name, checked(imported.document, name), allocator=imported)


def environment() -> Environment:
    """Import this process's environment variables as a registry, and check it.

    Raises:
        HubError: the registry is invalid; the message names the variables.
    """
    from hub.cli.importers.environment import build
    from hub.cli.importers.variables import Variables

    imported = build(Variables(os.environ), complete=True)
    name = str(Path(imported.folder or Path.cwd()) / PSEUDO_FILE)
    content = checked(imported.document, name)
    program = imported.program
    if program and "/" not in program:
        with suppress(OSError):
            program = shutil.which(program) or program
    return Environment(name, content, imported.dry_run, (program,) if program else ())


def checked(document: Document, name: str) -> bytes:
    """The document's content, checked as a registry.

    Raises:
        HubError: the content is not a valid registry; the message names the variables.
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
