"""What an approval names: a hash of what is withheld, the same in every replica.

A removal that is withheld may grow or shrink before somebody approves it. So the sets that were withheld lately are
kept by hash, and an approval that comes late still finds what it stands for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec

ISSUED_LIMIT: Final = 8
"""Withheld sets that are remembered."""

Issued = tuple[tuple[str, frozenset[str]], ...]
"""Hash and content of the sets that were withheld lately, oldest first."""


def approval_hash(*what: object) -> str:
    """12 hex digits over what is withheld."""
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:12]


def issue(issued: Issued, name: str, content: frozenset[str]) -> Issued:
    """Remember a set that is withheld now."""
    others = tuple(entry for entry in issued if entry[0] != name)
    return (*others, (name, content))[-ISSUED_LIMIT:]


def approved_of(issued: Issued, approvals: Collection[str]) -> frozenset[str]:
    """What is in the sets that are approved."""
    return frozenset(item for name, content in issued if name in approvals for item in content)
