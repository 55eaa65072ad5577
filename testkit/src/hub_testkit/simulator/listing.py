"""Lists, and the parameters that they share with watches: selectors, resourceVersions, pages of one snapshot."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import partial

import msgspec

from hub_testkit.simulator import answers
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.checks import Place
from hub_testkit.simulator.selectors import field_matcher, label_matcher
from hub_testkit.simulator.store import Match, Store, Stored

MATCHES = ("Exact", "NotOlderThan", "")
INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def list_body(store: Store, place: Place, query: Mapping[str, str]) -> bytes:
    """Returns the answer to a list.

    Raises:
        Refusal: 400 or 422 for bad parameters, 410 for an expired version, 504 for one above the current version.
    """
    match = selection(place, query)
    limit = integer(query.get("limit", "") or "0")
    check_list_options(query)
    table = store[place.kind]
    if token := query.get("continue", ""):
        version, start = _decode_token(token, query.get("resourceVersion", ""))
        try:
            objects = table.at(version) if version > 0 else table.objects
        except Refusal as gone:
            raise Refusal(410, INCONSISTENT, metadata={"continue": _token(-1, start)}) from gone
        version = version if version > 0 else store.version
    else:
        start = ""
        version, limit = _snapshot_version(store, query, limit)
        objects = table.objects if version == store.version else table.at(version)
    items = sorted((stored for stored in objects.values() if match(stored)), key=lambda stored: stored.key)
    items = [stored for stored in items if stored.key > start]
    rest = len(items) - limit if 0 < limit < len(items) else 0
    page = items[:limit] if rest else items
    selected = "labelSelector" in query or "fieldSelector" in query
    return _encode(place, version, page, None if selected else rest, more=bool(rest))


def selection(place: Place, query: Mapping[str, str]) -> Match:
    """Returns a predicate for the objects that a list or watch selects.

    Raises:
        Refusal: 400: a selector does not parse.
    """
    fields = field_matcher(query.get("fieldSelector", ""), ("metadata.name", "metadata.namespace", *place.kind.fields))
    labels_text = query.get("labelSelector", "")
    labels = label_matcher(labels_text)
    namespace, name, narrow = place.namespace, place.name, bool(query.get("fieldSelector"))

    def match(stored: Stored) -> bool:
        return (
            (not namespace or stored.namespace == namespace)
            and (not name or stored.name == name)
            and (not labels_text or labels(stored.labels))
            and (not narrow or fields(partial(_field, stored)))
        )

    return match


def _field(stored: Stored, path: str) -> str:
    match path:
        case "metadata.name":
            return stored.name
        case "metadata.namespace":
            return stored.namespace
        case _:
            first, _, second = path.partition(".")
            return str(stored.decode().get(first, {}).get(second, ""))


def integer(text: str) -> int:
    """Parses a number in a query.

    Raises:
        Refusal: 400.
    """
    try:
        return int(text)
    except ValueError as error:
        raise Refusal(400, f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def check_list_options(query: Mapping[str, str]) -> None:
    """Refuses invalid combinations of list parameters (422)."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if "sendInitialEvents" in query:
        raise _options("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if match and not version:
        raise _options("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match not in MATCHES:
        raise answers.invalid_options("ListOptions", answers.unsupported("resourceVersionMatch", match, MATCHES))
    if match == "Exact" and version == "0":
        raise _options("resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def check_watch_options(query: Mapping[str, str]) -> None:
    """Refuses invalid combinations of watch parameters (422)."""
    match = query.get("resourceVersionMatch", "")
    if "sendInitialEvents" not in query:
        if match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise _options("resourceVersionMatch", why)
    elif match != "NotOlderThan":
        raise _options(
            "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )


def _options(field: str, why: str) -> Refusal:
    return answers.invalid_options("ListOptions", answers.forbidden_field(field, why))


def _snapshot_version(store: Store, query: Mapping[str, str], limit: int) -> tuple[int, int]:
    """Returns the version that a new list shows, and its limit: "0" is served from memory, which ignores the limit."""
    text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    if not text:
        return store.version, limit
    if text == "0":
        return store.version, 0
    if not text.isdigit():
        raise Refusal(
            400,
            f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
            "invalid syntax",
        )
    version = int(text)
    if version > store.version:
        raise answers.version_too_large(version, store.version)
    if match == "Exact" or (limit and not match):
        return version, limit
    return store.version, limit


def _encode(place: Place, version: int, page: list[Stored], rest: int | None, *, more: bool) -> bytes:
    meta: dict[str, object] = {"resourceVersion": str(version)}
    if more:
        meta["continue"] = _token(version, page[-1].key)
        if rest is not None:
            meta["remainingItemCount"] = rest
    kind = place.kind
    return b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[%b]}\n' % (
        kind.kind.encode(),
        kind.api_version.encode(),
        msgspec.json.encode(meta),
        b",".join(stored.body for stored in page),
    )


def _token(version: int, start: str) -> str:
    text = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": version, "start": f"{start.rstrip(chr(0))}\0"})
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _decode_token(token: str, version: str) -> tuple[int, str]:
    if version not in ("", "0"):
        raise Refusal(400, "specifying resource version is not allowed when using continue")
    try:
        content = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(content["rv"]), str(content["start"])
    except (binascii.Error, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"invalid continue token: continue key is not valid: {error}") from error
