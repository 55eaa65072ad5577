"""Pure functions that turn a JSON document into a Snapshot.

A record is {"name": str, "private_ip": str, "ready": bool, "worker": bool, "zone"?: str, "ips"?: [str]}. Unknown keys
are ignored, so that inventories written for other tools can be used. A record with a mistake is rejected with a reason;
a snapshot with rejected records is incomplete and therefore removes no endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NoReturn, cast

from hub.plugin import ProviderError, Snapshot, SnapshotEndpoint

MAX_ADDRESSES: Final = 50
"""The most addresses a record may have; a record with more is rejected."""

MAX_PROBLEMS: Final = 20
"""The most rejected records listed one by one; a last line counts the others."""

_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


class InventoryError(ProviderError):
    """The inventory as a whole cannot be used."""


class _Rejected(Exception):
    """A record is rejected; the message is the reason."""


def parse(name: str, document: bytes) -> list[object]:
    """Returns the records of a document, not yet validated.

    Args:
        name: The document's name, for error messages.
        document: JSON in UTF-8, with or without a byte order mark.

    Raises:
        InventoryError: The document is not UTF-8, not JSON or not an array. The message gives the position of the
            mistake, but no content.
    """
    try:
        value: object = json.loads(document.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InventoryError(f"{name}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InventoryError(f"{name}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise InventoryError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise InventoryError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, list):
        raise InventoryError(f"{name}: must be a JSON array of records, not {_kind(value)}")
    return cast("list[object]", value)


def snapshot(name: str, records: Sequence[object]) -> Snapshot:
    """Returns the endpoints of all valid records, sorted by name; ``problems`` has the reasons of the rejected ones.

    A valid record with ``worker: false`` produces no endpoint.

    Raises:
        InventoryError: There are records, and all of them are rejected.
    """
    endpoints: dict[str, SnapshotEndpoint] = {}
    problems: list[str] = []
    seen: set[str] = set()
    for index, record in enumerate(records):
        try:
            endpoint, worker = _endpoint(record)
            _unseen(endpoint.name, seen)
        except _Rejected as reason:
            problems.append(f"record {index}{_label(record)}: {reason}")
            continue
        if worker:
            endpoints[endpoint.name] = endpoint
    if records and len(problems) == len(records):
        raise InventoryError(f"{name}: all {len(records)} records are rejected; {problems[0]}")
    listed = problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        listed.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return Snapshot(tuple(endpoints[key] for key in sorted(endpoints)), complete=not problems, problems=tuple(listed))


def _unseen(name: str, seen: set[str]) -> None:
    if name in seen:
        raise _Rejected("another record has the same name")
    seen.add(name)


def _endpoint(record: object) -> tuple[SnapshotEndpoint, bool]:
    if not isinstance(record, Mapping):
        raise _Rejected(f"must be an object, not {_kind(record)}")
    fields = cast("Mapping[str, object]", record)
    name = _text(fields, "name")
    ready, worker = _flag(fields, "ready"), _flag(fields, "worker")
    zone = _text(fields, "zone") if fields.get("zone") not in (None, "") else ""
    endpoint = SnapshotEndpoint(name, _addresses(fields), ready=ready, serving=ready, zone=zone)
    return endpoint, worker


def _addresses(fields: Mapping[str, object]) -> tuple[str, ...]:
    more = fields.get("ips")
    if more is None:
        more = []
    if not isinstance(more, list):
        raise _Rejected("ips must be an array")
    listed = cast("list[object]", more)
    given = [fields["private_ip"], *listed] if fields.get("private_ip") is not None else listed
    if not given:
        raise _Rejected("private_ip is missing")
    if len(given) > MAX_ADDRESSES:
        raise _Rejected(f"has more than {MAX_ADDRESSES} addresses")
    return tuple(dict.fromkeys(_address(item) for item in given))


def _address(value: object) -> str:
    if not isinstance(value, str):
        raise _Rejected(f"an address must be a string, not {_kind(value)}")
    try:
        parsed = ip_address(value)
    except ValueError:
        raise _Rejected(f"{value[:64]!r} is not an IP address") from None
    if "%" in value:
        raise _Rejected(f"{value[:64]!r} has a zone: only this host would understand it")
    return str(parsed)


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is None:
        raise _Rejected(f"{key} is missing")
    if not isinstance(value, str) or not value.strip() or len(value) > 253 or not value.isprintable():
        raise _Rejected(f"{key} must be a text of 1 to 253 printable characters")
    return value


def _flag(fields: Mapping[str, object], key: str) -> bool:
    value = fields.get(key)
    if value is None:
        raise _Rejected(f"{key} is missing")
    if not isinstance(value, bool):
        raise _Rejected(f"{key} must be true or false, not {_kind(value)}")
    return value


def _label(record: object) -> str:
    name = cast("Mapping[str, object]", record).get("name") if isinstance(record, Mapping) else None
    return f" ({name[:64]!r})" if isinstance(name, str) else ""


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")
