"""Adds an entry to the file clusters.yaml or removes it; refuses a change that would add problems to the file."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hub.errors import Problem, RegistryError
from hub.onboarding import entry
from hub.onboarding.entry import UnsupportedLayout
from hub.onboarding.remote import Refused
from hub.registry import isolated
from hub.registry.file import read

BY_HAND: Final = "add the entry by hand: without --registry it is printed"


@dataclass(frozen=True, slots=True)
class Registered:
    """A registry file, and the entry of one cluster if the file has it.

    Attributes:
        path: as the user gave it.
        name: of the cluster.
        text: of the file.
        problems: the problems that the file already has.
        line: of the cluster's entry, 1-based; 0 if there is none.
        kubeconfig: the value of the entry's key ``kubeconfig``, of any type; None if it is not written.
    """

    path: str
    name: str
    text: str
    problems: tuple[Problem, ...]
    line: int
    kubeconfig: object

    @classmethod
    def read(cls, path: str, name: str) -> Registered:
        """Read a file. Blocking.

        Raises:
            Refused: the file does not exist.
            RegistryError: the file cannot be used at all.
        """
        if not os.path.lexists(path):
            raise Refused(f"{path} does not exist; check the path, or create it with the line: version: 1")
        content = read(path)
        problems = isolated.loads(content, path).problems
        text = content.decode("utf-8-sig")
        found = entry.by_name(text).get(name, {})
        return cls(path, name, text, problems, entry.line_of(text, name), found.get("kubeconfig"))

    @property
    def exists(self) -> bool:
        """Whether the file has an entry for the cluster."""
        return self.line > 0

    def check_free(self) -> None:
        """Check that the name is not used for another cluster.

        Raises:
            Refused: the file has an entry of this name whose kubeconfig is not in the Secret of this name.
        """
        if self.exists and not (isinstance(self.kubeconfig, dict) and self.kubeconfig.get("secret") == self.name):
            raise Refused(
                f"{self.path}:{self.line}: there is a cluster {self.name}, with another kubeconfig than "
                f"{{secret: {self.name}}}; choose another NAME, or write that kubeconfig into its entry"
            )

    def text_with_entry(self, item: str) -> str:
        """The text with the entry. Blocking.

        Raises:
            Refused: the entry cannot be added safely; the message says what to do instead.
        """
        if self.exists:
            return self.text
        try:
            text = entry.with_item(self.text, item)
        except UnsupportedLayout as error:
            raise Refused(f"{self.path}: {error}; {BY_HAND}") from error
        self._checked(text, BY_HAND)
        return text

    def add(self, item: str) -> str:
        """Write the entry into the file; returns what was done. Blocking.

        Raises:
            Refused: as for :meth:`text_with_entry`, or the file has changed since it was read, or cannot be written.
        """
        if self.exists:
            return "unchanged"
        self._write(self.text_with_entry(item), BY_HAND)
        return "created"

    def text_without_entry(self) -> str:
        """The text without the entry. Blocking.

        Raises:
            Refused: the entry cannot be removed safely, for example since a Service names the cluster.
        """
        if not self.exists:
            return self.text
        hint = f"remove the entry at line {self.line} by hand"
        try:
            text = entry.without_item(self.text, self.name)
        except UnsupportedLayout as error:
            raise Refused(f"{self.path}: {error}; {hint}") from error
        self._checked(text, hint)
        return text

    def remove(self) -> str:
        """Remove the entry from the file; returns what was done. Blocking.

        Raises:
            Refused: as for :meth:`text_without_entry`, or the file has changed since it was read, or cannot be written.
        """
        if not self.exists:
            return "absent"
        self._write(self.text_without_entry(), f"remove the entry at line {self.line} by hand")
        return "deleted"

    def _write(self, text: str, hint: str) -> None:
        if read(self.path).decode("utf-8-sig", "replace") != self.text:  # requests to the clusters took a while
            raise Refused(f"{self.path} changed meanwhile and was not written: run the command again")
        try:
            _replace(Path(os.path.realpath(self.path)), text)  # keep a symlink: replace the file it leads to
        except OSError as error:
            raise Refused(f"{self.path} cannot be written: {error.strerror}; {hint}") from error

    def _checked(self, text: str, hint: str) -> None:
        """Raise Refused if the new text has a problem that the old one has not."""
        try:
            problems = isolated.loads(text.encode(), self.path).problems
        except RegistryError as error:
            problems = error.problems
        known = {(problem.path, problem.message) for problem in self.problems}
        more = Counter(map(_kind, problems)) - Counter(map(_kind, self.problems))
        worse = [
            problem for problem in problems if (problem.path, problem.message) not in known and _kind(problem) in more
        ]
        if worse:
            raise Refused(f"{self.path} stays as it is: with that change, {worse[0]}; fix this, or {hint}")


def _kind(problem: Problem) -> str:
    """The problem's text without list indexes, since removing an entry changes the indexes of those below it."""
    return re.sub(r"\[[0-9]+\]", "[]", f"{problem.path}: {problem.message}")


def _replace(target: Path, text: str) -> None:
    """Replace a file atomically and keep its mode."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, target.stat().st_mode & 0o7777)  # noqa: PTH101 - a name, not a path
        os.replace(name, target)  # noqa: PTH105 - as above
    except BaseException:
        os.unlink(name)  # noqa: PTH108 - as above
        raise
