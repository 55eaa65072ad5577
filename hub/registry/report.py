"""Collects all problems of one clusters.yaml with their places.

Every check adds its problems to a :class:`Report` and continues. At the end the loader asks the report whether the
whole file is rejected or which entries are broken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hub.errors import Problem, one_line

KeyPath = tuple[str | int, ...]
"""The keys and list indexes that lead to a value: ``("clusters", 2, "provider", "name")``."""

Place = tuple[int, int, int, int]
"""Line and column of a value, then line and column of its key (in a list: of the value again); 1-based."""

MAX_PROBLEMS = 1000
"""Most problems in a report; users do not read more, and a hostile file could fill the memory with them."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(slots=True)
class Report:
    """Problems of one file.

    Attributes:
        file: the path as the user gave it.
        places: the place of each value in the file; the parser fills it.
    """

    file: str
    places: dict[KeyPath, Place] = field(default_factory=dict)
    _found: dict[tuple[KeyPath, str], tuple[Problem, bool]] = field(default_factory=dict)
    _paths: set[KeyPath] = field(default_factory=set)

    def add(self, path: KeyPath, message: str, hint: str = "", *, on_key: bool = False, fatal: bool = False) -> None:
        """Report a problem at ``path``.

        Args:
            path: of the value; line and column are those of the value, or of the nearest enclosing value with a place.
            message: one sentence without a final stop.
            hint: what the user should do; "" = no hint.
            on_key: report the place of the key instead of the value's.
            fatal: reject the whole file even if the problem is inside an entry.
        """
        self.add_at(path, *self._line_and_column(path, on_key=on_key), message, hint, fatal=fatal)

    def _line_and_column(self, path: KeyPath, *, on_key: bool) -> tuple[int, int]:
        """Line and column of a value or its key; of the nearest enclosing value if ``path`` has no place, else 0, 0."""
        known = path
        while known and known not in self.places:
            known = known[:-1]
        if known not in self.places:
            return 0, 0
        value_line, value_column, key_line, key_column = self.places[known]
        return (key_line, key_column) if on_key and known == path else (value_line, value_column)

    def place(self, path: KeyPath) -> str:
        """File, line, column and key of a value, as messages name them."""
        line, column = self._line_and_column(path, on_key=False)
        return f"{self.file}:{line}:{column}: {written(path)}"

    def add_at(
        self, path: KeyPath, line: int, column: int, message: str, hint: str = "", *, fatal: bool = False
    ) -> None:
        """Report a problem at a known place."""
        if len(self._found) >= MAX_PROBLEMS:
            path, line, column, message, hint = (), 0, 0, "has more problems than are listed here", ""
        # Messages quote keys, tags and values of the file, which may contain line breaks.
        problem = Problem(self.file, line, column, one_line(written(path)), one_line(message), one_line(hint))
        self._found.setdefault((path, message), (problem, fatal))
        self._paths.add(path)

    def covers(self, path: KeyPath) -> bool:
        """Whether ``path`` or an enclosing value has a problem already.

        Problems of the whole file or of a whole entry do not count.
        """
        enclosing = (path[: last + 1] for last in range(len(path)))
        return any(part in self._paths and not is_entry(part) for part in enclosing)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems in file order."""
        return tuple(sorted(problem for problem, _ in self._found.values()))

    def broken_entries(self) -> dict[KeyPath, tuple[Problem, ...]]:
        """Path of an entry (``("clusters", 2)``) -> its problems in file order, for all entries that have any."""
        found: dict[KeyPath, list[Problem]] = {}
        for (path, _), (problem, _) in self._found.items():
            if (entry := entry_of(path)) is not None:
                found.setdefault(entry, []).append(problem)
        return {entry: tuple(sorted(problems)) for entry, problems in found.items()}

    @property
    def fatal(self) -> bool:
        """Whether some problem rejects the whole file."""
        return any(fatal or not _inside_entry(path) for (path, _), (__, fatal) in self._found.items())


def entry_of(path: KeyPath) -> KeyPath | None:
    """The path of the entry (a cluster, a service or a cloud account) that a place belongs to; None if to none."""
    depth = 3 if path[:2] == ("allocations", "clouds") else 2
    listed = depth == 3 or path[:1] in (("clusters",), ("services",))
    return path[:depth] if listed and len(path) >= depth and isinstance(path[depth - 1], int) else None


def is_entry(path: KeyPath) -> bool:
    """Whether this is the path of one entry."""
    return entry_of(path) == path


def _inside_entry(path: KeyPath) -> bool:
    """Whether a problem breaks only its entry.

    A problem of the entry's name rejects the whole file, since an entry without a name cannot be frozen.
    """
    entry = entry_of(path)
    if entry is None:
        return False
    return path == entry or path[len(entry)] not in ("name", "namespace")


def written(path: KeyPath) -> str:
    """The path as text for users: ``clusters[2].provider.name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part[:63]}"]'
    return text
