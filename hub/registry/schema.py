"""Generates the JSON Schema of clusters.yaml (draft 2020-12) for editors from the models that load the file.

The schema accepts every file that the loader accepts. Rules across entries (references, unique names) are checked by
the loader only. The schema is written to docs/schema/clusters.schema.json and printed by ``hub schema``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from hub.registry.models import File

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema as plain data."""
    made = File.model_json_schema(by_alias=True, schema_generator=GenerateJsonSchema)
    _tidy(made)
    made["title"] = "clusters.yaml of EndpointSlice Hub"
    return {"$schema": DIALECT, **made}


def text() -> str:
    """The schema as text: indented, keys in order of appearance, with a final newline."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any) -> None:
    """Remove generated titles, and ``null`` as a value or default: the loader accepts no key without a value."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        if node.get("default", ...) is None:
            del node["default"]
        options = node.get("anyOf")
        if isinstance(options, list) and {"type": "null"} in options:
            options.remove({"type": "null"})
            if len(options) == 1:
                del node["anyOf"]
                node.update({**options[0], **node})
        for item in node.values():
            _tidy(item)
