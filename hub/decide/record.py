"""Encode and decode the guard's record in the annotation ``endpointslice-hub/state``.

One record per (target, source cluster, family) is stored on the lowest-numbered slice. It changes as rarely as
possible, because every change is an API write.
"""

from __future__ import annotations

from typing import Final

import msgspec

RECORD_VERSION: Final = 1


class GuardRecord(msgspec.Struct, frozen=True):
    """The guard's state that must survive a restart.

    Attributes:
        empty: consecutive complete answers without any endpoint.
        hash: hash of the withheld removal; "" if nothing is withheld.
        since: start of the withholding, Unix time in whole seconds.
        foreign: the text of a record of another version, which is kept unchanged and not interpreted.
    """

    empty: int = 0
    hash: str = ""
    since: int = 0
    foreign: str = ""


NO_RECORD: Final = GuardRecord()


def encode(record: GuardRecord) -> str:
    """The annotation's text; "" for an empty record."""
    if record.foreign:
        return record.foreign
    if record == NO_RECORD:
        return ""
    content: dict[str, object] = {"v": RECORD_VERSION}
    if record.empty:
        content["empty"] = record.empty
    if record.hash:
        content["withheld"] = {"hash": record.hash, "since": record.since}
    return msgspec.json.encode(content).decode()


class _Withheld(msgspec.Struct):
    hash: str = ""
    since: int = 0


class _Wire(msgspec.Struct):
    v: int
    empty: int = 0
    withheld: _Withheld | None = None


class _Version(msgspec.Struct):
    v: int


def decode(text: str) -> GuardRecord:
    """Read an annotation.

    A record of another version is kept as ``foreign``; an unreadable record is overwritten. In both cases the guard
    starts from its most careful state.
    """
    if not text:
        return NO_RECORD
    try:
        version = msgspec.json.decode(text, type=_Version).v
        if version != RECORD_VERSION:
            return GuardRecord(foreign=text)
        wire = msgspec.json.decode(text, type=_Wire)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return NO_RECORD
    withheld = wire.withheld or _Withheld()
    return GuardRecord(max(0, wire.empty), withheld.hash, max(0, withheld.since))
