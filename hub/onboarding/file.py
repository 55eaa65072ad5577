"""Adds an entry to the file clusters.yaml or removes it, but never leaves a file with more problems than before."""

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
from hub.onboarding.entry import NotHere
from hub.onboarding.remote import Refused
from hub.registry import isolated
from hub.registry.file import read

BY_HAND: Final = "add the entry by hand: without --registry it is printed"


@dataclass(frozen=True, slots=True)
class Registered:
    """A registry file, and the entry of one cluster, if there is one.

    Attributes:
        path: as the user gave it.
        name: the cluster's.
        text: the file's.
        problems: what is wrong with it already.
        line: of the cluster's entry, 1-based; 0 if there is none.
        kubeconfig: the entry's, as written.
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
            RegistryError: it cannot be used as it is.
        """
        content = read(path)
        problems = isolated.loads(content, path).problems
        text = content.decode("utf-8-sig")
        found = entry.names(text).get(name, {})
        return cls(path, name, text, problems, entry.line_of(text, name), found.get("kubeconfig"))

    @property
    def there(self) -> bool:
        """The cluster is in the file."""
        return self.line > 0

    def check_free(self) -> None:
        """Raises Refused if the name belongs to another cluster, whose kubeconfig is not in the Secret of that name."""
        if self.there and not (isinstance(self.kubeconfig, dict) and self.kubeconfig.get("secret") == self.name):
            raise Refused(
                f"{self.path}:{self.line}: there is a cluster {self.name}, with another kubeconfig than "
                f"{{secret: {self.name}}}; choose another NAME, or write that kubeconfig into its entry"
            )

    def with_entry(self, item: str) -> str:
        """The text with the entry. Blocking.

        Raises:
            Refused: it cannot be written safely; the message says what to do instead.
        """
        if self.there:
            return self.text
        try:
            text = entry.added(self.text, item)
        except NotHere as error:
            raise Refused(f"{self.path}: {error}; {BY_HAND}") from error
        self._checked(text, BY_HAND)
        return text

    def add(self, item: str) -> str:
        """Write the entry into the file; returns what was done. Blocking.

        Raises:
            Refused: as of :meth:`with_entry`, or it has changed since it was read, or cannot be written.
        """
        if self.there:
            return "unchanged"
        self._write(self.with_entry(item), BY_HAND)
        return "created"

    def without(self) -> str:
        """The text without the entry. Blocking.

        Raises:
            Refused: it cannot be taken out, as where a Service names it.
        """
        if not self.there:
            return self.text
        hint = f"remove the entry at line {self.line} by hand"
        try:
            text = entry.removed(self.text, self.name)
        except NotHere as error:
            raise Refused(f"{self.path}: {error}; {hint}") from error
        self._checked(text, hint)
        return text

    def remove(self) -> str:
        """Remove the entry from the file; returns what was done. Blocking.

        Raises:
            Refused: as of :meth:`without`, or it has changed since it was read, or cannot be written.
        """
        if not self.there:
            return "absent"
        self._write(self.without(), f"remove the entry at line {self.line} by hand")
        return "deleted"

    def _write(self, text: str, hint: str) -> None:
        if read(self.path).decode("utf-8-sig", "replace") != self.text:  # asking clusters takes time
            raise Refused(f"{self.path} changed meanwhile and was not written: run the command again")
        try:
            _replace(Path(os.path.realpath(self.path)), text)  # a symlink stays one
        except OSError as error:
            raise Refused(f"{self.path} cannot be written: {error.strerror}; {hint}") from error

    def _checked(self, text: str, hint: str) -> None:
        """Raises Refused if the new text has more problems than the old one."""
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
    """The problem without list indexes, since removing an entry moves those below it."""
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
