"""What makes an answer of a provider acceptable; used by the hub and by the conformance suite alike.

A wrong type anywhere makes the whole answer an error: a defect in one row of foreign code is no ground to
believe the others, and an error loses nothing.
"""

# pyright: reportUnnecessaryIsInstance=false
# Annotations say what a provider should return; this module is where it is checked.

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
"""Addresses one node or endpoint may have; a NIC of the larger clouds has at most 50 of a family."""

MAX_ENDPOINTS: Final = 50_000
"""Endpoints of one snapshot; a registry's ``maxEndpoints`` is far below, this only bounds the work of checking."""

MAX_TEXT: Final = 253
"""Characters of a name or zone: as many as a name in Kubernetes may have. Each is written with every endpoint."""


def read_answer(names: Iterable[str], answer: object) -> tuple[dict[str, Resolution], int]:
    """The part of a provider's answer that was asked for, and how many names in it were not.

    Looks up the names asked for instead of walking the answer, so that its size costs nothing.

    Raises:
        TypeError: not a mapping, or a value that is no resolution.
        Exception: what a hostile mapping raises.
    """
    if not isinstance(answer, Mapping):
        raise TypeError(f"resolve() returned {type(answer).__name__}, not a mapping")
    answers = cast("Mapping[object, object]", answer)
    said: dict[str, Resolution] = {}
    for name in names:
        value = answers.get(name)
        if value is not None:
            said[name] = _checked(name, value)
        elif name in answers:
            raise TypeError(f"resolve() answered None for {name!r}")
    return said, max(0, len(answers) - len(said))


def _checked(name: str, value: object) -> Resolution:
    if isinstance(value, Found):
        addresses: object = value.addresses
        if not _texts(addresses):
            raise TypeError(f"resolve() answered Found for {name!r} whose addresses are no tuple of strings")
        if not 0 < len(value.addresses) <= MAX_ADDRESSES:
            raise TypeError(
                f"resolve() answered Found for {name!r} with {len(value.addresses)} addresses (1 to {MAX_ADDRESSES})"
            )
        if not _is_name(value.zone):
            raise TypeError(f"resolve() answered Found for {name!r} whose zone is no text of {MAX_TEXT} characters")
        return value
    if isinstance(value, Absent | Unknown):
        if not _is_text(value.reason):
            raise TypeError(f"resolve() answered {type(value).__name__} for {name!r} whose reason is no text")
        return value
    raise TypeError(f"resolve() answered {type(value).__name__} for {name!r}, not Found, Absent or Unknown")


def read_snapshot(snapshot: object, checked: Mapping[str, SnapshotEndpoint] | None = None) -> Snapshot:
    """``snapshot``, where it is what the plugin API asks for.

    Args:
        snapshot: what a provider gave.
        checked: endpoints by name that were checked before: what is the same object is not looked at again.

    Raises:
        TypeError: it is not, and why.
    """
    if not isinstance(snapshot, Snapshot):
        raise TypeError(f"watch() gave {type(snapshot).__name__}, not Snapshot")
    _require(isinstance(snapshot.complete, bool), "a Snapshot whose complete is no bool")
    _require(_texts(snapshot.problems), "a Snapshot whose problems are no tuple of strings")
    _require(isinstance(snapshot.copied, bool), "a Snapshot whose copied is no bool")
    _require(snapshot.ports is None or _are_ports(snapshot.ports), "a Snapshot whose ports are no tuple of Port")
    _require(
        _tuple_of(snapshot.endpoints, SnapshotEndpoint), "a Snapshot whose endpoints are no tuple of SnapshotEndpoints"
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
    _require(all(map(_is_name, texts)), f"an endpoint with a text that is no string of up to {MAX_TEXT} characters")
    _require(bool(endpoint.name), "an endpoint without a name")
    _require(_texts(endpoint.addresses), f"endpoint {endpoint.name!r} whose addresses are no tuple of strings")
    _require(
        0 < len(endpoint.addresses) <= MAX_ADDRESSES,
        f"endpoint {endpoint.name!r} with {len(endpoint.addresses)} addresses (1 to {MAX_ADDRESSES})",
    )
    flags = (endpoint.ready, endpoint.serving, endpoint.terminating)
    _require(all(isinstance(flag, bool) for flag in flags), f"endpoint {endpoint.name!r} whose conditions are no bools")
    _require(_is_reference(endpoint.target_ref), f"endpoint {endpoint.name!r} with a wrong target_ref")
    _require(_are_hints(endpoint.hints), f"endpoint {endpoint.name!r} with wrong hints")
    _require(
        endpoint.ports is None or _are_ports(endpoint.ports),
        f"endpoint {endpoint.name!r} whose ports are no tuple of Port",
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
            _tuple_of(named, NamedHint) and len(named) <= MAX_ADDRESSES and all(_is_name(each.name) for each in named)
            for named in (value.for_zones, value.for_nodes)
        )
    )


def _are_ports(value: object) -> bool:
    return _tuple_of(value, Port) and all(map(_is_port, cast("tuple[Port, ...]", value)))


def _is_port(port: Port) -> bool:
    """Its fields are of their types; which numbers may be published is not decided here."""
    number: object = port.port
    texts = (port.name, port.protocol, "" if port.app_protocol is None else port.app_protocol)
    return all(map(_is_name, texts)) and (number is None or type(number) is int)


def _is_name(value: object) -> bool:
    return _is_text(value) and len(cast("str", value)) <= MAX_TEXT


def _is_text(value: object) -> bool:
    """A string that can be written: neither half a surrogate pair, as JSON may spell it, nor of a class of its own.

    What is not would fail where a slice or a page is encoded, and with it everything else in there.
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
