"""The OpenAPI description, generated from the types that the API returns.

``python -m hub.report.openapi`` prints it; a test fails if docs/reference/openapi.json is not current.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final

import msgspec

from hub import __version__
from hub.report.values import Allocations, Clouds, ClusterDetail, History, Problem, ServiceDetail, Status, Why

TYPES: Final = (Status, ServiceDetail, ClusterDetail, Why, History, Allocations, Clouds, Problem)
REF: Final = "#/components/schemas/{name}"
NAME: Final = {"type": "string", "pattern": "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "maxLength": 253}

SUBJECT: Final = {
    "name": "subject",
    "in": "query",
    "required": True,
    "description": "an address, the name of a node, or namespace/name of a Service",
    "schema": {"type": "string", "maxLength": 512},
}


CLUSTER: Final = {
    "name": "cluster",
    "in": "query",
    "description": "whose cloud controller explains the subject, a Node or a Service of that cluster",
    "schema": NAME,
}
SERVICE: Final = {
    "name": "service",
    "in": "query",
    "description": "namespace/name of a Service; without it, all Services",
    "schema": {"type": "string", "maxLength": 507},
}


@cache
def document() -> bytes:
    """The document in JSON."""
    return (json.dumps(described(__version__), indent=2) + "\n").encode()


def described(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 description of everything under ``/api/v1``."""
    _, schemas = msgspec.json.schema_components(TYPES, ref_template=REF)
    for type_ in schemas.values():
        _describe(type_)
    part = [_query("offset", "addresses to skip", 0), _query("limit", "addresses to explain, at most 1000", 100)]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "EndpointSlice Hub",
            "version": version,
            "description": "The state of a running hub. Read-only.",
        },
        "paths": {
            "/api/v1/status": _get("The whole hub", Status, []),
            "/api/v1/services/{namespace}/{name}": _get(
                "A Service, with explanations of its addresses",
                ServiceDetail,
                [_path("namespace"), _path("name"), *part],
            ),
            "/api/v1/clusters/{name}": _get("A cluster and its nodes", ClusterDetail, [_path("name")]),
            "/api/v1/why": _get("The explanation of an address, a node or a Service", Why, [SUBJECT, CLUSTER]),
            "/api/v1/history": _get(
                "What happened to a Service, newest last",
                History,
                [SERVICE, _query("limit", "newest entries to return, at most 1000", 100)],
            ),
            "/api/v1/allocations": _get("Reserved addresses on nodes", Allocations, []),
            "/api/v1/clouds": _get("Clusters whose cloud controller the hub is", Clouds, []),
            "/api/v1/endpoints": _views(),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _describe(schema: dict[str, Any]) -> None:
    """Turn a type's docstring in Google style into descriptions of the type and its properties."""
    text, _, attributes = schema.get("description", "").partition("\n\n    Attributes:\n")
    schema["description"] = " ".join(text.split())
    for name, meaning in re.findall(r"^ {8}(\w+): (.+)$", attributes, re.MULTILINE):
        head, *rest = name.rstrip("_").split("_")
        prop = schema["properties"][head + "".join(word.capitalize() for word in rest)]
        if "$ref" not in prop:
            prop["description"] = meaning


def _get(summary: str, type_: type[msgspec.Struct], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    error = {"content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}}
    refused = {"401": "No valid token", "403": "Not allowed", "421": "The Host is not a name of this server"}
    missing = {"404": "Not found"} if parameters else {}
    if any(parameter["in"] == "query" for parameter in parameters):
        missing["400"] = "Invalid parameter"
    return {
        "get": {
            "summary": summary,
            "parameters": parameters,
            "responses": {
                "200": {
                    "description": summary,
                    "content": {"application/json": {"schema": {"$ref": REF.format(name=type_.__name__)}}},
                },
                "304": {"description": "Unchanged since the caller's If-None-Match"},
                **{code: {"description": text, **error} for code, text in (refused | missing).items()},
            },
        }
    }


def _views() -> dict[str, Any]:
    """The path of endpoint views; docs/how-to/endpoint-views.md describes the objects."""
    error = {"content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}}
    words = {"compat": ["dcontroller"], "format": ["ndjson", "sse"]}
    queries = {
        "gather": ({"type": "boolean", "default": False}, "one object for each port of a Service"),
        "compat": ({"type": "string", "enum": words["compat"]}, "the objects of another tool"),
        "format": (
            {"type": "string", "enum": words["format"]},
            "format of the stream; Accept: text/event-stream also selects sse",
        ),
        "resume": ({"type": "string"}, "a resourceVersion; only later events are sent"),
        "watch": ({"type": "boolean", "default": True}, "false: one document instead of a stream"),
    }
    return {
        "get": {
            "summary": "Endpoint views, as a stream: a snapshot, a bookmark, then changes",
            "parameters": [
                {"name": name, "in": "query", "description": what, "schema": schema}
                for name, (schema, what) in queries.items()
            ],
            "responses": {
                "200": {
                    "description": "One JSON object per line or event",
                    "content": {
                        kind: {"schema": {"type": "object"}}
                        for kind in ("application/x-ndjson", "text/event-stream", "application/json")
                    },
                },
                "400": {"description": "Invalid parameter", **error},
                "401": {"description": "No valid token", **error},
                "403": {"description": "Not allowed", **error},
                "404": {"description": "The registry has no views: block", **error},
                "410": {"description": "The resume token is too old: start again without one", **error},
                "503": {"description": "Too many readers", **error},
            },
        }
    }


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": NAME}


def _query(name: str, what: str, default: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 0, "default": default}
    return {"name": name, "in": "query", "description": what, "schema": schema}


if __name__ == "__main__":
    import sys

    sys.stdout.write(document().decode())
