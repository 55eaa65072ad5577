"""Approvals of withheld removals: an approval names a hash of the removal, which is the same in every replica.

A withheld removal may grow or shrink before an operator approves it. The most recent withheld sets are therefore kept
by hash, so that a late approval still applies to the set that the operator saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec

ISSUED_LIMIT: Final = 8
"""Number of withheld sets that are kept."""

Issued = tuple[tuple[str, frozenset[str]], ...]
"""The most recent withheld sets as (hash, content) pairs, oldest first."""


def approval_hash(*what: object) -> str:
    """12 hex digits of a SHA-256 hash of the withheld removal."""
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:12]


def issue(issued: Issued, name: str, content: frozenset[str]) -> Issued:
    """Add a withheld set as the newest entry, and drop the oldest entries beyond :data:`ISSUED_LIMIT`."""
    others = tuple(entry for entry in issued if entry[0] != name)
    return (*others, (name, content))[-ISSUED_LIMIT:]


def approved_of(issued: Issued, approvals: Collection[str]) -> frozenset[str]:
    """The union of the contents of all approved sets."""
    return frozenset(item for name, content in issued if name in approvals for item in content)
