"""Collects everything wrong with one clusters.yaml, each thing with its place.

Every check adds to a :class:`Report` and goes on; the loader decides at the end what a problem costs: the
whole file, or one entry.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hub.errors import Problem, one_line

KeyPath = tuple[str | int, ...]
"""Where a value is: ``("clusters", 2, "provider", "name")``."""

Place = tuple[int, int, int, int]
"""Line and column of a value, then of its key (or of the value again, in a list); 1-based."""

MAX_PROBLEMS = 1000
"""More would not be read, and a hostile file could fill the memory with them."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(slots=True)
class Report:
    """Problems of one file.

    Attributes:
        file: the path as the user gave it.
        places: where each value of the file is; filled by the parser.
    """

    file: str
    places: dict[KeyPath, Place] = field(default_factory=dict)
    _found: dict[tuple[KeyPath, str], tuple[Problem, bool]] = field(default_factory=dict)
    _paths: set[KeyPath] = field(default_factory=set)

    def add(self, path: KeyPath, message: str, hint: str = "", *, on_key: bool = False, fatal: bool = False) -> None:
        """Report what is wrong at ``path``.

        Args:
            path: of the value; the nearest enclosing one that has a place gives line and column.
            message: one sentence without a final stop.
            hint: the next step.
            on_key: point at the key instead of the value.
            fatal: costs the whole file, even inside an entry.
        """
        known = path
        while known and known not in self.places:
            known = known[:-1]
        value_line, value_column, key_line, key_column = self.places.get(known, (0, 0, 0, 0))
        line, column = (key_line, key_column) if on_key and known == path else (value_line, value_column)
        self.add_at(path, line, column, message, hint, fatal=fatal)

    def add_at(self, path: KeyPath, line: int, column: int, message: str, hint: str = "", *, fatal: bool) -> None:
        """Report something at a known place."""
        if len(self._found) >= MAX_PROBLEMS:
            path, line, column, message, hint, fatal = (), 0, 0, "has more problems than are listed here", "", True
        # Keys, tags and values are quoted as they stand in the file.
        problem = Problem(self.file, line, column, one_line(written(path)), one_line(message), one_line(hint))
        self._found.setdefault((path, message), (problem, fatal))
        self._paths.add(path)

    def covers(self, path: KeyPath) -> bool:
        """Something is already reported of ``path`` or of what encloses it (the file and whole entries aside)."""
        enclosing = (path[:length] for length in range(1, len(path) + 1))
        return any(part in self._paths and not is_entry(part) for part in enclosing)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems in file order."""
        return tuple(sorted(problem for problem, _ in self._found.values()))

    def broken_entries(self) -> dict[KeyPath, tuple[Problem, ...]]:
        """Entries (``("clusters", 2)``) that have problems, with these in file order."""
        found: dict[KeyPath, list[Problem]] = {}
        for (path, _), (problem, _) in self._found.items():
            if is_entry(path[:2]):
                found.setdefault(path[:2], []).append(problem)
        return {entry: tuple(sorted(problems)) for entry, problems in found.items()}

    @property
    def fatal(self) -> bool:
        """True when some problem costs the whole file."""
        return any(fatal or not _inside_entry(path) for (path, _), (__, fatal) in self._found.items())


def is_entry(path: KeyPath) -> bool:
    """True for the path of one cluster or service."""
    return len(path) == 2 and path[0] in ("clusters", "services") and isinstance(path[1], int)


def _inside_entry(path: KeyPath) -> bool:
    """Inside, and not in what says which entry it is: an entry without a name could not be frozen."""
    return is_entry(path[:2]) and (len(path) == 2 or path[2] not in ("name", "namespace"))


def written(path: KeyPath) -> str:
    """A path in the user's notation: ``clusters[2].provider.name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part[:63]}"]'
    return text


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """A hint with the closest known word; letter case does not count."""
    folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(str(word)[:NAME_CUT].casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}" if close else otherwise


NAME_CUT = 100
"""Characters of a word that are compared: difflib is quadratic."""
