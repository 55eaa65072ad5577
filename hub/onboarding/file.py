"""clusters.yaml as a file that one entry is written into, or taken out of. Never a file that is worse than before."""

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
    """A registry file, and one cluster in it or not.

    Attributes:
        path: as the user gave it.
        name: the cluster's.
        text: the file's.
        problems: what is wrong with it already.
        line: of the cluster's entry, 1-based; 0 where it is not in there.
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
        """Look at a file. Blocking.

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
        """Raises Refused where the name is another cluster's: its kubeconfig is not in the Secret of that name."""
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
        """Write the entry into the file; what was done. Blocking.

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
        """Take the entry out of the file; what was done. Blocking.

        Raises:
            Refused: as of :meth:`without`, or it has changed since it was read, or cannot be written.
        """
        if not self.there:
            return "absent"
        self._write(self.without(), f"remove the entry at line {self.line} by hand")
        return "deleted"

    def _write(self, text: str, hint: str) -> None:
        if read(self.path).decode("utf-8-sig", "replace") != self.text:  # asking clusters takes time
            raise Refused(f"{self.path} changed meanwhile, and stays as it is by now: run the command again")
        try:
            _replace(Path(os.path.realpath(self.path)), text)  # a symlink stays one
        except OSError as error:
            raise Refused(f"{self.path} cannot be written: {error.strerror}; {hint}") from error

    def _checked(self, text: str, hint: str) -> None:
        """Raises Refused where the new text is worse than the old one."""
        try:
            problems = isolated.loads(text.encode(), self.path).problems
        except RegistryError as error:
            problems = error.problems
        known = {(each.path, each.message) for each in self.problems}
        more = Counter(map(_kind, problems)) - Counter(map(_kind, self.problems))
        worse = [each for each in problems if (each.path, each.message) not in known and _kind(each) in more]
        if worse:
            raise Refused(f"{self.path} stays as it is: with that change, {worse[0]}; mend it, or {hint}")


def _kind(problem: Problem) -> str:
    """What is wrong, wherever it is in its list: an entry that goes moves those below it."""
    return re.sub(r"\[[0-9]+\]", "[]", f"{problem.path}: {problem.message}")


def _replace(target: Path, text: str) -> None:
    """Replace a file at once, with the mode it had."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, target.stat().st_mode & 0o7777)  # noqa: PTH101 - a name, not a path
        os.replace(name, target)  # noqa: PTH105 - as above
    except BaseException:
        os.unlink(name)  # noqa: PTH108 - as above
        raise
