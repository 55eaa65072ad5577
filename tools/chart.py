"""Keeps the generated parts of the Helm chart current.

``python tools/chart.py`` writes them; ``python tools/chart.py --check`` prints files that are out of date, as a test in
tests/unit/helm does. The generated parts are:

- README.md: the table of values, from the comments of values.yaml that start with ``# --``;
- values.schema.json: descriptions, from the same comments; the keys that must not be null; and the schema of
  ``registry.data``, which is that of clusters.yaml;
- files/netipallocation.yaml: a copy of the hub's CustomResourceDefinition;
- files/cloud-policies.yaml: the admission policies that ``hub cluster add --cloud`` creates.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hub.cli import allocations_crd
from hub.onboarding import policy
from hub.registry import schema

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "endpointslice-hub"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
MARK = "# -- "
NEVER_NULL = ("registry.data", "registry.key", "metrics.prometheusRule.runbookUrl")
"""Values that templates read fields of, write as a key or pass to a function. helm removes keys whose value is null."""


@dataclass(frozen=True, slots=True)
class Value:
    """A documented key of values.yaml.

    Attributes:
        path: the path of the key, such as ``rbac.scope``.
        default: the default as a Python value.
        text: the text of the comment, on one line.
    """

    path: str
    default: Any
    text: str


def values(text: str) -> list[Value]:
    """The documented keys of a values.yaml, in the order of the file."""
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)  # noqa: S101 - a file of this repository
    return list(_documented(root, "", text.splitlines()))


def _documented(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        comment = _comment(lines, key.start_mark.line)
        if comment:
            yield Value(path, yaml.safe_load(yaml.serialize(value)), comment)
        elif isinstance(value, yaml.MappingNode):
            yield from _documented(value, f"{path}.", lines)
        else:
            raise SystemExit(f"values.yaml:{key.start_mark.line + 1}: {path} has no comment that starts with «{MARK}»")


def _comment(lines: list[str], line: int) -> str:
    """The comment directly above a line, from its line with the mark on; "" if there is none."""
    found: list[str] = []
    for above in reversed(lines[:line]):
        text = above.strip()
        if not text.startswith("#"):
            return ""
        found.append(text.removeprefix(MARK).removeprefix("# "))
        if text.startswith(MARK):
            return " ".join(reversed(found))
    return ""


def readme(page: str, found: list[Value]) -> str:
    """The page with a new table."""
    rows = [
        f"| `{value.path}` | {_cell(value.default)} | {value.text.replace('|', chr(92) + '|')} |" for value in found
    ]
    table = "\n".join([BEGIN, "", "| value | default | meaning |", "|---|---|---|", *rows, "", END])
    made, count = re.subn(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: table, page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"README.md must have the marks {BEGIN} and {END} once")
    return made


def _cell(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def values_schema(known: Mapping[str, Any], found: list[Value]) -> dict[str, Any]:
    """The schema with new descriptions, required keys and ``$defs``."""
    made = deepcopy(dict(known))
    for value in found:
        _at(made, value.path)["description"] = value.text
    for section, names in _required(found).items():
        _at(made, section)["required"] = names
    registry = schema.schema()
    definitions = registry.pop("$defs")
    # The chart writes version and owner itself.
    properties = {key: item for key, item in registry["properties"].items() if key not in ("version", "owner")}
    definitions["Registry"] = {
        "type": "object",
        "additionalProperties": False,
        "description": "clusters.yaml without version and owner, which the chart writes.",
        "properties": properties,
    }
    made.pop("$defs", None)
    return {**made, "$defs": {name: definitions[name] for name in sorted(definitions)}}


def _at(node: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of a value or a section; the whole schema for ""."""
    for name in path.split(".") if path else ():
        node = node["properties"][name]
    return node


def _required(found: list[Value]) -> dict[str, list[str]]:
    """Section -> required keys: its own sections, and the values that are never null."""
    sections = {value.path.rpartition(".")[0] for value in found} - {""}
    whole = {parent for section in sections for parent in (section, section.rpartition(".")[0])} - {""}
    made: dict[str, list[str]] = {}
    for path in sorted({*whole, *NEVER_NULL}):
        section, _, name = path.rpartition(".")
        made.setdefault(section, []).append(name)
    return made


def generated() -> dict[Path, str]:
    """Path -> content of every generated or partly generated file."""
    found = values((CHART / "values.yaml").read_text("utf-8"))
    page, known = CHART / "README.md", CHART / "values.schema.json"
    return {
        page: readme(page.read_text("utf-8"), found),
        known: json.dumps(values_schema(json.loads(known.read_text("utf-8")), found), indent=2, ensure_ascii=False)
        + "\n",
        CHART / "files" / "netipallocation.yaml": allocations_crd.text(),
        CHART / "files" / "cloud-policies.yaml": policy.template(),
    }


def outdated() -> list[str]:
    """Paths of the files whose generated parts are out of date, relative to the repository's root."""
    stale = [path for path, text in generated().items() if path.read_text("utf-8") != text]
    return sorted(str(path.relative_to(ROOT)) for path in stale)


def main(arguments: list[str]) -> int:
    """Write the files, or check them; 1 if one is out of date."""
    if "--check" in arguments:
        stale = outdated()
        for name in stale:
            print(f"{name} is out of date: python tools/chart.py")  # noqa: T201
        return bool(stale)
    for path, text in generated().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
