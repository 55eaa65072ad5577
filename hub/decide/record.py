"""What the annotation ``endpointslice-hub/state`` keeps of the guard, as text.

One record per (target, source cluster, family), on the lowest-numbered slice. It changes only when there
is something else to remember: every change is a write.
"""

from __future__ import annotations

from typing import Final

import msgspec

RECORD_VERSION: Final = 1


class GuardRecord(msgspec.Struct, frozen=True):
    """What must survive a restart.

    Attributes:
        empty: consecutive complete answers so far in which everything was gone.
        hash: of what is withheld, "" for nothing.
        since: Unix time, whole seconds, since when.
        foreign: the text of a record of a later version, which is kept as it is; nothing in it is used.
    """

    empty: int = 0
    hash: str = ""
    since: int = 0
    foreign: str = ""


NO_RECORD: Final = GuardRecord()


def encode(record: GuardRecord) -> str:
    """The annotation's text; "" where there is nothing to remember."""
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

    One of a later version is kept and not understood; one that cannot be read at all counts for nothing
    and is written over. Both make the guard start from the most careful state.
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
