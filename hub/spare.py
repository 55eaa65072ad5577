"""How much of what nobody else holds a table may keep: finding it means a look at all of it, so that is to be rare."""

from __future__ import annotations

from typing import Final

SPARE: Final = 100
"""Entries that a small table may have too many."""


def room(held: int) -> int:
    """How many entries a table may have before it is swept, after a sweep that left ``held``: a sixteenth more."""
    return held + held // 16 + SPARE
