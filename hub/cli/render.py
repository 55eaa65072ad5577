"""How values are printed: aligned tables, one-line messages, JSON and YAML.

Texts may come from remote clusters, so terminal control characters are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import click

API_VERSION: Final = "endpointslice-hub/v1"
"""apiVersion of everything printed with ``-o json`` or ``-o yaml``."""

GAP: Final = "   "

Output = Literal["table", "json", "yaml"]


def one_line(text: str) -> str:
    """The text on one line, with terminal control characters escaped."""
    return "".join(char if char.isprintable() else _visible(char) for char in text.strip())


def _visible(char: str) -> str:
    return " " if char.isspace() else f"\\x{ord(char):02x}"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Left-aligned columns under a header, as kubectl prints them; an empty cell is shown as ``-``."""
    cells = [[*headers], *([one_line(str(cell)) or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        indent + GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def document(kind: str, content: Mapping[str, Any], output: Output) -> str:
    """Format a document of the stable machine-readable output."""
    data = {"apiVersion": API_VERSION, "kind": kind, **content}
    if output == "json":
        return json.dumps(data, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True)).rstrip("\n")


def warn(message: str) -> None:
    """Print a warning on one line of stderr; the exit code stays the same."""
    click.echo(f"Warning: {one_line(message)}", err=True)


def count(number: int, what: str, plural: str = "s") -> str:
    """``1 node``, ``2 nodes``; ``plural`` is the ending of several."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"
