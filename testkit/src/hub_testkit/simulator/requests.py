"""Parses requests: the path, the verb and the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import msgspec
from aiohttp import web

from hub_testkit.simulator import answers, patching
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.api import Mutation
from hub_testkit.simulator.checks import Place
from hub_testkit.simulator.kinds import KINDS, NAMESPACES

Json = dict[str, Any]

MAX_BODY = 3 << 20
"""The largest request body in bytes, as on a real API server (AS/pkg/server/config.go)."""
_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v1|v1alpha1)/(?P<rest>.+)")
_BY_RESOURCE = {(kind.group, kind.resource): kind for kind in KINDS}
_GROUPS = frozenset(kind.group for kind in KINDS)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def place_of(request: web.BaseRequest) -> Place | None:
    """Parses a path; None for a path that is no resource.

    Raises:
        Refusal: 404: an unknown resource of a known group.
    """
    match = _PATH.fullmatch(request.path)
    group = (match["group"] or "") if match else ""
    if match is None or group not in _GROUPS:
        return None
    parts = [unquote(part) for part in match["rest"].split("/")]
    namespace = ""
    if parts[0] == "namespaces" and not group and (len(parts) <= 2 or parts[2] in ("status", "finalize")):
        kind, rest = NAMESPACES, parts[1:]
    else:
        if parts[0] == "namespaces" and len(parts) >= 3:
            namespace, parts = parts[1], parts[2:]
        found = _BY_RESOURCE.get((group, parts[0]))
        if found is None or found.version != match["version"] or (namespace and not found.namespaced):
            raise answers.no_such_path()
        kind, rest = found, parts[1:]
    name, subresource = (*rest, "", "")[:2]
    lacks_namespace = name and kind.namespaced and not namespace
    if lacks_namespace or len(rest) > 2 or (subresource and not (subresource == "status" and kind.status)):
        raise answers.no_such_path()
    return Place(kind, namespace, name, subresource)


def verb_of(request: web.BaseRequest, place: Place | None) -> str:
    """Returns the API's verb for the request's method.

    Raises:
        Refusal: 405.
    """
    if place is None:
        return "get"
    collection = not place.name
    if request.method == "GET":
        if not collection:
            return "get"
        return "watch" if "watch" in request.query and request.query["watch"] not in ("0", "false") else "list"
    verb = _VERBS.get(request.method, "")
    lacks_namespace = place.kind.namespaced and not place.namespace
    if not verb or lacks_namespace or ((verb == "create") != collection and verb != "delete"):
        raise answers.no_such_method()
    return "deletecollection" if verb == "delete" and collection else verb


async def read_body(request: web.BaseRequest) -> bytes:
    """Returns the whole body.

    Raises:
        Refusal: 413.
    """
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refusal(413, f"Request entity too large: limit is {MAX_BODY}", "RequestEntityTooLarge")
    return bytes(body)


def decoded(request: web.BaseRequest, place: Place, body: bytes) -> Json:
    """Returns the object in a body.

    Raises:
        Refusal: 400 or 415.
    """
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise Refusal(
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json, "
            "application/yaml, application/vnd.kubernetes.protobuf",
        )
    try:
        obj = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unrecognised(place, str(error)) from error
    if obj is None:
        return {}
    if not isinstance(obj, dict):
        raise _unrecognised(place, "json: cannot unmarshal into Go value of type struct")
    return cast("Json", obj)


def _unrecognised(place: Place, why: str) -> Refusal:
    text = f"the object provided is unrecognized (must be of type {place.kind.kind}): couldn't get version/kind; "
    return Refusal(400, f"{text}json parse error: {why}")


def mutation(content_type: str, place: Place, body: bytes) -> Mutation:
    """Returns a function that applies a patch to an object.

    Raises:
        Refusal: 400 or 415.
    """
    try:
        patch = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"error decoding patch: {error}") from error
    if content_type == "application/merge-patch+json":
        return lambda obj: patching.merge(obj, patch)
    if content_type == "application/strategic-merge-patch+json":
        merge = patching.merge if place.kind.atomic_lists else patching.strategic
        return lambda obj: merge(obj, patch)
    if content_type == "application/json-patch+json":
        return lambda obj: patching.json_patch(obj, patch)
    raise Refusal(415, "415: Unsupported Media Type", details={})


def is_dry_run(query: Mapping[str, str], verb: str) -> bool:
    """Whether the request is a dry run.

    Raises:
        Refusal: 422.
    """
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        options = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
        cause = answers.Cause("dryRun", "NotSupported", f'Unsupported value: ["{value}"]: supported values: "All"')
        raise answers.invalid_options(options.get(verb, "DeleteOptions"), cause)
    return value == "All"


def delete_options(query: Mapping[str, str], body: bytes) -> Json:
    """Returns DeleteOptions from the query and the body; the body takes precedence.

    Raises:
        Refusal: 400.
    """
    options: Json = {name: query[name] for name in ("propagationPolicy",) if name in query}
    if body:
        try:
            decoded = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refusal(400, f"json: {error}") from error
        if not isinstance(decoded.get("preconditions", {}), dict):
            why = "json: cannot unmarshal string into Go struct field DeleteOptions.preconditions"
            raise Refusal(400, f"{why} of type v1.Preconditions")
        options |= decoded
    return options
