"""How many addresses may move: the brake against a mistake, or a broken source, that would move them all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hub.allocations.spec import Entry, moment
from hub.approval import approval_hash
from hub.registry.spec import AllocationLimits


class Budget(NamedTuple):
    """The moves that one pool has left.

    Attributes:
        left: how many may begin now.
        again: when one more may begin; 0.0 if none was used.
    """

    left: int
    again: float


def budget(entries: Iterable[Entry], attached: int, limits: AllocationLimits, now: float) -> Budget:
    """The budget of a pool: at most ceil(``moves`` x attached), and at least one, in each ``window``.

    Args:
        entries: the stored status of all addresses of the pool.
        attached: how many of them are attached, or about to be.
        limits: limits of the registry.
        now: the time.
    """
    began = sorted(at for entry in entries for at in map(moment, entry.moves) if now - at < limits.window)
    allowed = max(1, math.ceil(limits.moves * attached))
    again = began[max(0, len(began) - allowed)] + limits.window if began else 0.0
    return Budget(max(0, allowed - len(began)), again)


def withheld_hash(account: str, cluster: str, moves: Iterable[tuple[str, str]]) -> str:
    """Identifies withheld moves, as (address, cause) pairs, in an approval; the same in every replica."""
    return approval_hash("allocations", account, cluster, sorted(moves))
