"""Checks the answers of providers, in the hub and in the conformance suite.

A wrong type anywhere makes the whole answer an error: if one row of a plugin's answer is defective, the others are not
trustworthy either, and an error removes no endpoints.
"""

# pyright: reportUnnecessaryIsInstance=false
# The annotations say what a provider should return; this module checks what it did return.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, cast

from hub.model import (
    Absent,
    Found,
    Hints,
    NamedHint,
    ObjectReference,
    Port,
    Resolution,
    Snapshot,
    SnapshotEndpoint,
    Unknown,
)

MAX_ADDRESSES: Final = 100
"""Most addresses of a node or endpoint; a NIC of the larger clouds has at most 50 in each family."""

MAX_ENDPOINTS: Final = 50_000
"""Most endpoints of a snapshot. It only limits the time of the checks: ``maxEndpoints`` of a registry is far lower."""

MAX_TEXT: Final = 253
"""Most characters of a name or zone, as for names in Kubernetes: they are written with every endpoint."""


def read_answer(names: Iterable[str], answer: object) -> tuple[dict[str, Resolution], int]:
    """The checked resolutions of the requested nodes, and the number of other names in the answer.

    Only the requested names are looked up, so that a huge answer takes no time.

    Args:
        names: of the nodes that were passed to ``resolve``.
        answer: the value that ``resolve`` returned.

    Raises:
        TypeError: the answer is not a mapping, or a value is not a resolution.
        Exception: anything that the plugin's mapping raises.
    """
    if not isinstance(answer, Mapping):
        raise TypeError(f"resolve() returned {type(answer).__name__}, not a mapping")
    answers = cast("Mapping[object, object]", answer)
    resolutions: dict[str, Resolution] = {}
    for name in names:
        value = answers.get(name)
        if value is not None:
            resolutions[name] = _checked(name, value)
        elif name in answers:
            raise TypeError(f"resolve() answered None for {name!r}")
    return resolutions, max(0, len(answers) - len(resolutions))


def _checked(name: str, value: object) -> Resolution:
    if isinstance(value, Found):
        addresses: object = value.addresses
        if not _texts(addresses):
            raise TypeError(f"resolve() answered Found for {name!r} whose addresses are not a tuple of strings")
        if not 0 < len(value.addresses) <= MAX_ADDRESSES:
            raise TypeError(
                f"resolve() answered Found for {name!r} with {len(value.addresses)} addresses (1 to {MAX_ADDRESSES})"
            )
        if not _is_name(value.zone):
            raise TypeError(
                f"resolve() answered Found for {name!r} whose zone is not a string of at most {MAX_TEXT} characters"
            )
        return value
    if isinstance(value, Absent | Unknown):
        if not _is_text(value.reason):
            raise TypeError(f"resolve() answered {type(value).__name__} for {name!r} whose reason is not a string")
        return value
    raise TypeError(f"resolve() answered {type(value).__name__} for {name!r}, not Found, Absent or Unknown")


def read_snapshot(snapshot: object, checked: Mapping[str, SnapshotEndpoint] | None = None) -> Snapshot:
    """Check a provider's snapshot, and return it.

    Args:
        snapshot: the value that ``watch`` yielded.
        checked: endpoints that were checked before, by name; if the snapshot has the same object, it is not checked
            again.

    Raises:
        TypeError: a value is not of the type that the plugin API requires, or a limit is exceeded.
    """
    if not isinstance(snapshot, Snapshot):
        raise TypeError(f"watch() gave {type(snapshot).__name__}, not Snapshot")
    _require(isinstance(snapshot.complete, bool), "a Snapshot whose complete is not a bool")
    _require(_texts(snapshot.problems), "a Snapshot whose problems are not a tuple of strings")
    _require(isinstance(snapshot.copied, bool), "a Snapshot whose copied is not a bool")
    _require(snapshot.ports is None or _are_ports(snapshot.ports), "a Snapshot whose ports are not a tuple of Port")
    _require(
        _tuple_of(snapshot.endpoints, SnapshotEndpoint),
        "a Snapshot whose endpoints are not a tuple of SnapshotEndpoint",
    )
    count = len(snapshot.endpoints)
    if count > MAX_ENDPOINTS:
        raise TypeError(f"watch() gave {count} endpoints, more than {MAX_ENDPOINTS}")
    known = checked or {}
    seen: set[str] = set()
    for endpoint in snapshot.endpoints:
        if known.get(endpoint.name) is not endpoint:
            _check_endpoint(endpoint)
        if endpoint.name in seen:
            raise TypeError(f"watch() gave two endpoints called {endpoint.name!r}")
        seen.add(endpoint.name)
    return snapshot


def _check_endpoint(endpoint: SnapshotEndpoint) -> None:
    texts = (endpoint.name, endpoint.zone, endpoint.hostname, endpoint.node_name)
    _require(all(map(_is_name, texts)), f"an endpoint with a field that is not a string of up to {MAX_TEXT} characters")
    _require(bool(endpoint.name), "an endpoint without a name")
    _require(_texts(endpoint.addresses), f"endpoint {endpoint.name!r} whose addresses are not a tuple of strings")
    _require(
        0 < len(endpoint.addresses) <= MAX_ADDRESSES,
        f"endpoint {endpoint.name!r} with {len(endpoint.addresses)} addresses (1 to {MAX_ADDRESSES})",
    )
    flags = (endpoint.ready, endpoint.serving, endpoint.terminating)
    _require(
        all(isinstance(flag, bool) for flag in flags), f"endpoint {endpoint.name!r} whose conditions are not bools"
    )
    _require(_is_reference(endpoint.target_ref), f"endpoint {endpoint.name!r} with a wrong target_ref")
    _require(_are_hints(endpoint.hints), f"endpoint {endpoint.name!r} with wrong hints")
    _require(
        endpoint.ports is None or _are_ports(endpoint.ports),
        f"endpoint {endpoint.name!r} whose ports are not a tuple of Port",
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise TypeError(f"watch() gave {what}")


def _is_reference(value: object) -> bool:
    return value is None or (
        isinstance(value, ObjectReference) and all(map(_is_name, (value.kind, value.name, value.namespace, value.uid)))
    )


def _are_hints(value: object) -> bool:
    return value is None or (
        isinstance(value, Hints)
        and all(
            _tuple_of(hints, NamedHint) and len(hints) <= MAX_ADDRESSES and all(_is_name(hint.name) for hint in hints)
            for hints in (value.for_zones, value.for_nodes)
        )
    )


def _are_ports(value: object) -> bool:
    return _tuple_of(value, Port) and all(map(_is_port, cast("tuple[Port, ...]", value)))


def _is_port(port: Port) -> bool:
    """Whether the fields have the right types; which port numbers may be published is decided elsewhere."""
    number: object = port.port
    texts = (port.name, port.protocol, "" if port.app_protocol is None else port.app_protocol)
    return all(map(_is_name, texts)) and (number is None or type(number) is int)


def _is_name(value: object) -> bool:
    return _is_text(value) and len(cast("str", value)) <= MAX_TEXT


def _is_text(value: object) -> bool:
    """Whether a value is a string that can be encoded: a str or a str Enum, without lone surrogates.

    JSON can contain lone surrogates. They would fail later, when a slice or a page that contains them is encoded.
    """
    if type(value) is not str and not (isinstance(value, str) and isinstance(value, Enum)):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, cast("tuple[object, ...]", value)))


def _tuple_of(value: object, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in cast("tuple[object, ...]", value))
