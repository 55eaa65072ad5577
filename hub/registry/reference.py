"""Generates the reference of clusters.yaml in Markdown from the JSON Schema.

Run ``python -m hub.registry.reference`` in the repository's root to write both generated files:
docs/reference/clusters-yaml.md and docs/schema/clusters.schema.json. A test checks that they are current.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hub.registry import schema

_INTRO: Final = """\
# clusters.yaml

The registry is one YAML file. It lists the clusters, and the Services of the hub cluster that publish their endpoints.
`clusters.example.yaml` shows every key in use; `hub check clusters.yaml` reports all problems of a file at once;
editors take the schema from `docs/schema/clusters.schema.json` (also `hub schema`). This page is generated from the
models that load the file.

## Rules

- YAML 1.2: `off`, `on`, `yes` and `no` are text. Nothing is coerced: `"5"` is not a number, `5` not a text, also
  in the `config` of the built-in providers.
  Anchors, aliases, tags, repeated keys, keys without a value and further documents are refused; so is a file
  over 4 MiB.
- **Durations** are Go-style: `300ms`, `30s`, `1h30m`. **Percentages** are text: `50%`. **Networks** have no
  bits set outside the mask.
- **Precedence** of `nodes`, `guard`, `unreachable` and `health`: source, service, cluster, `defaults`; key by
  key, so that a source may change `nodes.selector` and keep the cluster's `nodes.notReadyGrace`. Lists replace
  each other; `exclude.nodes` and `exclude.addresses` count as two lists. `health.port` and
  `health.healthCheckNodePort` are alternatives, as are `health.ca` and `health.insecure: true`: the layer that comes
  first in the order above decides. The `zoneMap` that comes first replaces the others; `{}` turns hints off.
- **`clusterSelector`** stands for every cluster that carries all of its labels, in file order. A selector
  skips clusters that another source of the Service names, or that an earlier selector selected. A selector
  that selects nothing is an error.
- **A problem inside one entry** of `clusters` or `services` freezes that entry: its slices stay as they are
  until the entry is repaired. Any other problem rejects the file, and the last good one stays in force: YAML that
  does not parse or uses what is refused above, another version, two entries of one name, an entry without a usable
  name, a problem outside of the entries. Services may name a frozen cluster; it is unknown to them, so nothing is
  removed.
- **Reload**: a changed file takes effect within 2 s, also if it is mounted from a ConfigMap. Only what changed is
  touched.
"""


def text() -> str:
    """The Markdown of the whole page."""
    made = schema.schema()
    defined: dict[str, Any] = made["$defs"]
    parts = [_INTRO, "## The file\n", *_table(made)]
    for name in sorted(defined):
        parts += [f"## {name}\n", f"{defined[name]['description']}\n", *_table(defined[name])]
    return "\n".join(parts).rstrip() + "\n"


def _table(node: dict[str, Any]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key, value in node["properties"].items():
        needed = "**required**" if key in node.get("required", ()) else _default(value)
        yield f"| `{key}` | {_type(value)} | {needed} | {value.get('description', '').replace('|', '&#124;')} |"
    yield ""


def _default(value: dict[str, Any]) -> str:
    if "default" not in value:
        return ""
    written = value["default"]
    return f"`{written}`" if isinstance(written, str) and written else f"`{json.dumps(written)}`"


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"])
    match value.get("type"):
        case "array":
            return f"list of {_type(value['items'])}"
        case "integer":
            return f"{value.get('minimum', '')}–{value.get('maximum', '')}"
        case "boolean":
            return "`true`, `false`"
        case "object":
            return "mapping"
        case _:
            example = value.get("examples", [""])[0]
            return f"text, such as `{example}`" if example else "text"


def main() -> None:
    """Write the generated files below the current folder."""
    Path("docs/reference/clusters-yaml.md").write_text(text(), encoding="utf-8")
    Path("docs/schema/clusters.schema.json").write_text(schema.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
