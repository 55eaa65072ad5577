"""Keys of clusters.yaml whose capability this version lacks: reported as such, never ignored.

When a capability is built, its line leaves :data:`NOT_YET`; nothing else changes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hub.registry.report import KeyPath, Report


class NotYet(NamedTuple):
    """Why a key is refused.

    Attributes:
        what: the missing capability, as the subject of a sentence.
        unless: values that are accepted because they ask for nothing.
    """

    what: str
    unless: tuple[object, ...] = ()


NOT_YET: Final[Mapping[str, NotYet]] = {
    "services[].drain": NotYet("draining", unless=("0s", "0")),
}
"""Path of a key (``[]`` = every entry of a list) -> what is missing."""


def refuse(data: Mapping[str, object], report: Report) -> None:
    """Report every written key of :data:`NOT_YET` in a whole file's data."""
    for pattern, missing in NOT_YET.items():
        for path, value in _matches(data, pattern.replace("[]", ".[]").split("."), ()):
            if value not in missing.unless:
                hint = "leave the key out"
                report.add(path, f"{missing.what}: not in this version", hint, on_key=True)


def _matches(value: object, pattern: list[str], path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if not pattern:
        yield path, value
    elif pattern[0] == "[]":
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _matches(item, pattern[1:], (*path, index))
    elif isinstance(value, dict) and pattern[0] in value:
        yield from _matches(value[pattern[0]], pattern[1:], (*path, pattern[0]))
