"""The tables of reserved addresses: one for each pool, which is a cloud account and a cluster."""

from __future__ import annotations

from typing import Final, NamedTuple

from hub.report.page.flows import KINDS
from hub.report.page.signs import Sign
from hub.report.values import Allocation, Allocations, ReservedAddress

MOST: Final = 500
"""Most rows of a table; the troubled ones come first."""
SIGNS: Final = {
    "Attached": Sign("good", "✓", "attached"),
    "Pending": Sign("idle", "○", "pending"),
    "Unknown": Sign("warn", "?", "unknown"),
    "Leaving": Sign("warn", "!", "leaving"),
    "Invalid": Sign("bad", "✗", "invalid"),
    "Conflict": Sign("bad", "✗", "conflict"),
    "Elsewhere": Sign("bad", "✗", "elsewhere"),
}


class Row(NamedTuple):
    """An address of a pool; ``key`` is what a search finds."""

    found: ReservedAddress
    allocation: str
    sign: Sign
    key: str


class Pool(NamedTuple):
    """The addresses of all allocations of an account in a cluster, ``more`` of which are not shown."""

    title: str
    sign: Sign
    rows: tuple[Row, ...]
    more: int = 0


def address_sign(found: ReservedAddress, allocation: Allocation) -> Sign:
    """The state of an address; one that waits is a problem if its allocation lacks it."""
    sign = SIGNS.get(found.state, Sign("idle", "…", found.state.lower() or "not decided"))
    if found.state == "Pending" and allocation.ready != "True":
        sign = Sign("warn", "!", sign.words)
    return sign._replace(words=f"{sign.words}, paused") if allocation.paused else sign


def pools(found: Allocations | None) -> tuple[Pool, ...]:
    """All pools, by cluster and account; in each, the worst addresses first."""
    members: dict[tuple[str, str], list[Allocation]] = {}
    for allocation in found.allocations if found is not None else ():
        members.setdefault((allocation.cluster, allocation.account), []).append(allocation)
    return tuple(_pool(*names, allocations) for names, allocations in sorted(members.items()))


def _pool(cluster: str, account: str, allocations: list[Allocation]) -> Pool:
    rows = [
        Row(address, allocation.name, address_sign(address, allocation), _key(address, allocation))
        for allocation in allocations
        for address in allocation.addresses
    ]
    rows.sort(key=lambda row: KINDS.index(row.sign.kind))  # the order of the allocations stays
    reserved = sum(allocation.reserved for allocation in allocations)
    words = f"{sum(allocation.attached for allocation in allocations)} of {reserved} attached"
    worst = rows[0].sign if rows else Sign("idle", "○", "")
    title = f"{account or 'no account'} on {cluster}"
    return Pool(title, worst._replace(words=words), tuple(rows[:MOST]), max(0, len(rows) - MOST))


def _key(address: ReservedAddress, allocation: Allocation) -> str:
    return " ".join(filter(None, (address.address, address.node, address.to, allocation.name))).lower()
