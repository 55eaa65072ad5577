"""Stores values by content: equal values are stored once, so a long history with small changes is a small file."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import hub.decide.checks
import hub.model
import hub.registry.removals
import hub.registry.spec
from hub.model import ObjectKey, TargetKey
from tests.model.golden import moments
from tests.model.golden.moments import Step

DATA = Path(__file__).parents[2] / "data" / "golden.json.xz"
MODULES = (hub.model, hub.registry.spec, hub.registry.removals, hub.decide.checks, moments)
STRUCTS: Mapping[str, type[msgspec.Struct]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
}
NAMED_TUPLES: Mapping[str, Any] = {"TargetKey": TargetKey, "ObjectKey": ObjectKey}

WHOLE = frozenset({"Step", "Moment", "Outcome", "SourceView", "Slice", "Service", "TargetSpec", "RegistryMoment"})
"""Kinds of values that a running hub receives as a whole: two of them share no objects, even if they are equal."""


class Writer:
    """Turns values into rows of a table; equal values get one row.

    A row is a list with the kind of value and its parts. A part is a scalar, or a list with the number of a row.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[int, tuple[Any, list[int]]] = {}
        """Rows by the id of their value. The value is kept, so that its id is not reused."""

    def put(self, value: Any) -> Any:
        """Store a value, and return the part that stands for it."""
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if id(value) in self._known:
            return self._known[id(value)][1]
        row = self._row(value)
        content = json.dumps(row)
        number = self._numbers.setdefault(content, len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        self._known[id(value)] = value, [number]
        return [number]

    def _row(self, value: Any) -> list[Any]:
        if isinstance(value, msgspec.Struct):
            row: list[Any] = [type(value).__name__]
            for field in msgspec.structs.fields(value):
                part = getattr(value, field.name)
                if field.default is msgspec.NODEFAULT or part != field.default:
                    row += [field.name, self.put(part)]
            return row
        if isinstance(value, TargetKey | ObjectKey):
            return [type(value).__name__, *value]
        if isinstance(value, tuple | list):
            return ["()", *map(self.put, value)]
        if isinstance(value, frozenset | set):
            return ["{}", *map(self.put, sorted(value))]
        if isinstance(value, Mapping):
            return ["{:}", *(self.put(part) for pair in value.items() for part in pair)]
        raise TypeError(f"a golden value cannot hold {type(value)}")


class Reader:
    """Turns rows back into values.

    Args:
        shared: whether equal values become one object; otherwise only those within one value of ``WHOLE`` do.
    """

    def __init__(self, rows: list[list[Any]], *, shared: bool) -> None:
        self._rows = rows
        self._shared = shared
        self._made: dict[int, Any] = {}

    def get(self, part: Any) -> Any:
        """The value for a part."""
        if not isinstance(part, list):
            return part
        (number,) = part
        if number in self._made:
            return self._made[number]
        row = self._rows[number]
        if not self._shared and row[0] in WHOLE:
            return Reader(self._rows, shared=False)._value(*row)
        made = self._made[number] = self._value(*row)
        return made

    def _value(self, kind: str, *parts: Any) -> Any:
        if kind in STRUCTS:
            return STRUCTS[kind](**{parts[i]: self.get(parts[i + 1]) for i in range(0, len(parts), 2)})
        if kind in NAMED_TUPLES:
            return NAMED_TUPLES[kind](*parts)
        if kind == "()":
            return tuple(map(self.get, parts))
        if kind == "{}":
            return frozenset(map(self.get, parts))
        return {self.get(parts[i]): self.get(parts[i + 1]) for i in range(0, len(parts), 2)}


def save(sequences: Iterable[tuple[str, Iterable[Step]]], path: Path = DATA) -> None:
    """Write named sequences of steps."""
    writer = Writer()
    index = [[name, [writer.put(step) for step in steps]] for name, steps in sequences]
    content = json.dumps({"rows": writer.rows, "sequences": index}, separators=(",", ":"))
    path.write_bytes(lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME))


def load(*, shared: bool = True, path: Path = DATA) -> list[tuple[str, list[Step]]]:
    """All sequences, by name.

    Args:
        shared: as for :class:`Reader`.
        path: the file.
    """
    content = json.loads(lzma.decompress(path.read_bytes()))
    reader = Reader(content["rows"], shared=shared)
    return [(name, [reader.get(part) for part in parts]) for name, parts in content["sequences"]]
