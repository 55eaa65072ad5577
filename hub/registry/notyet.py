"""Reports keys of clusters.yaml for features that this version lacks, instead of ignoring the keys.

To implement a feature, remove its line from :data:`NOT_YET`; nothing else changes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hub.registry.report import KeyPath, Report


class NotYet(NamedTuple):
    """Why a key is refused.

    Attributes:
        what: the missing feature, as the subject of a sentence.
        unless: values that are accepted, since they turn the feature off.
    """

    what: str
    unless: tuple[object, ...] = ()


NOT_YET: Final[Mapping[str, NotYet]] = {
    "services[].drain": NotYet("draining", unless=("0s", "0")),
}
"""Path of a key (``[]`` = every item of a list) -> the missing feature."""


def refuse(data: Mapping[str, object], report: Report) -> None:
    """Report every key of :data:`NOT_YET` that is written in the file."""
    for pattern, missing in NOT_YET.items():
        for path, value in _matches(data, pattern.replace("[]", ".[]").split("."), ()):
            if value not in missing.unless:
                hint = "leave the key out"
                report.add(path, f"{missing.what}: not in this version", hint, on_key=True)


def _matches(value: object, pattern: list[str], path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    """Yields path and value of everything below ``value`` that a pattern matches."""
    if not pattern:
        yield path, value
    elif pattern[0] == "[]":
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _matches(item, pattern[1:], (*path, index))
    elif isinstance(value, dict) and pattern[0] in value:
        yield from _matches(value[pattern[0]], pattern[1:], (*path, pattern[0]))
