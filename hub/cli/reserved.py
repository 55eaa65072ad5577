"""What several commands print about reserved addresses: moves, what is unknown, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from hub.cli.render import count, one_line, table, warn
from hub.report.allocations import Write
from hub.report.values import Allocation, Allocations, ReservedAddress


def warn_of(found: Allocations) -> None:
    """Warn of what keeps allocations from being served."""
    if found.trouble:
        warn(f"allocations: {found.trouble}")
    for account in found.accounts:
        if account.error:
            warn(f"account {account.name}: {account.error}")


def summary(found: Allocations) -> str:
    """All allocations in one line, for ``hub status``."""
    total = sum(allocation.reserved for allocation in found.allocations)
    attached = sum(allocation.attached for allocation in found.allocations)
    parts = [f"{attached} of {count(total, 'address', 'es')} attached"]
    parts += [
        f"{allocation.name}: {allocation.reason or 'no status yet'}"
        for allocation in found.allocations
        if allocation.ready != "True"
    ]
    parts += [f"{account.name}: {account.error}" for account in found.accounts if account.error]
    return one_line(f"allocations ({found.mode}): {found.trouble or '; '.join(parts)}")


def unknown(found: Iterable[Allocation]) -> bool:
    """Whether the state of an address is unknown."""
    return any(address.state == "Unknown" for allocation in found for address in allocation.addresses)


def moves(found: Allocations) -> list[ReservedAddress]:
    """The addresses that move, that an enforcing hub would move now, or that wait before they leave their nodes."""
    return [
        replace(address, to="", reason="Paused") if allocation.paused and _planned(address) else address
        for allocation in found.allocations
        for address in allocation.addresses
        if address.cause and (address.to or address.hash or address.state == "Leaving")
    ]


def _planned(address: ReservedAddress) -> bool:
    """Whether a move would begin, but has not begun."""
    return bool(address.to) and address.state in ("Pending", "Leaving")


def move_lines(found: Sequence[ReservedAddress]) -> Iterable[str]:
    """``ADDRESS  from → to  cause`` of each move, aligned, and the commands that approve those that are withheld."""
    rows = [
        (address.address, f"{address.node or 'free'} → {address.to or _waits(address)}", address.cause)
        for address in found
    ]
    yield from table(rows[0], rows[1:]).splitlines() if rows else ()
    for approve in sorted({address.approve for address in found if address.approve}):
        yield f"  approve with: {approve}"


def write_lines(found: Sequence[Write]) -> Iterable[str]:
    """One aligned line for each change of a label, a Pod or a finalizer."""
    rows = [(write.kind, write.target, write.change) for write in found]
    yield from table(rows[0], rows[1:]).splitlines() if rows else ()


def _waits(address: ReservedAddress) -> str:
    """Why an address stays where it is for now, such as ``waits: Grace``."""
    if address.hash:
        return "withheld"
    return f"waits: {address.reason}"
