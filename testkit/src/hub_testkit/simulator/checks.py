"""Checks before a write: kind, namespace, resourceVersion and preconditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hub_testkit.simulator import answers
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.kinds import NAMESPACES, Kind
from hub_testkit.simulator.shapes import canonical_metadata
from hub_testkit.simulator.store import Stored

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """The path of a request: a kind, and one of its objects or a collection."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def checked(place: Place, obj: Json) -> Json:
    """Returns a copy with canonical metadata, without kind and apiVersion, which must match ``place`` if given.

    Raises:
        Refusal: 400.
    """
    kind = place.kind
    obj = dict(obj)
    said_kind, said_version = obj.pop("kind", None) or kind.kind, obj.pop("apiVersion", None) or kind.api_version
    if (said_kind, said_version) != (kind.kind, kind.api_version):
        version = said_version.rpartition("/")[2]
        raise Refusal(
            400,
            f'{said_kind} in version "{version}" cannot be handled as a {kind.kind}: no kind "{said_kind}" is '
            f'registered for version "{said_version}" in scheme "pkg/runtime/scheme.go:111"',
        )
    meta = canonical_metadata(obj.pop("metadata", None) or {}, kind.kind)
    if kind.namespaced:
        if meta.get("namespace", place.namespace) != place.namespace:
            raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
        meta["namespace"] = place.namespace
    else:
        meta.pop("namespace", None)
    return {"metadata": meta, **obj}


def check_namespace(namespace: Stored | None, place: Place, name: str) -> None:
    """Refuses creation in a namespace that does not exist (404) or is being deleted (403)."""
    if namespace is None:
        raise not_found(NAMESPACES, place.namespace)
    if "deletionTimestamp" in namespace.decode()["metadata"]:
        kind = place.kind
        details = answers.details_of(name, kind.group, kind.resource)
        details["causes"] = [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {place.namespace} is being terminated",
                "field": "metadata.namespace",
            }
        ]
        raise Refusal(
            403,
            f'{kind.qualified} "{name}" is forbidden: unable to create new content in namespace {place.namespace} '
            "because it is being terminated",
            details=details,
        )


def check_version(kind: Kind, before: Stored, meta: Json) -> None:
    """Refuses to overwrite another version, or another object with the same name (409)."""
    given = meta.get("resourceVersion", "")
    if given and not given.isdigit():
        raise Refusal(500, f'strconv.ParseUint: parsing "{given}": invalid syntax', "")
    if meta.get("uid", before.uid) != before.uid:
        raise conflict(
            kind,
            before.name,
            f"StorageError: invalid object, Code: 4, Key: /registry/{kind.resource}/{before.key}, "
            f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {before.uid}",
        )
    if given not in ("", "0", str(before.version)):
        raise conflict(
            kind,
            before.name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )


def check_preconditions(kind: Kind, before: Stored, preconditions: Mapping[str, Any]) -> None:
    """Refuses to delete if the uid or the resourceVersion is not the one in the preconditions (409)."""
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if uid is not None and uid != before.uid:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({before.uid}). "
            "The object might have been deleted and then recreated"
        )
    elif version is not None and version != str(before.version):
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({before.version}). The object might have been modified"
        )
    else:
        return
    raise Refusal(
        409,
        f'Operation cannot be fulfilled on {_error_kind(kind)} "{before.name}": {why}',
        details=answers.details_of(before.name, error_group(kind), kind.kind),
    )


def error_group(kind: Kind) -> str:
    """Returns the group in 422 and 409 messages: Events count as core objects, whichever API they are sent through."""
    return "" if kind.kind == "Event" else kind.group


def _error_kind(kind: Kind) -> str:
    group = error_group(kind)
    return f"{kind.kind}.{group}" if group else kind.kind


def not_found(kind: Kind, name: str) -> Refusal:
    """Returns the 404 for an object."""
    details = answers.details_of(name, kind.group, kind.resource)
    return Refusal(404, f'{kind.qualified} "{name}" not found', details=details)


def conflict(kind: Kind, name: str, why: str) -> Refusal:
    """Returns the 409 for an update."""
    details = answers.details_of(name, kind.group, kind.resource)
    return Refusal(409, f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}', details=details)
