"""Which allocation may have an address, and which account and cluster an allocation belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from hub.allocations.spec import Allocation
from hub.allocations.view import Account

HANDOVER: Final = 30.0
"""Seconds between the end of a claim and the begin of the next one, so that a slip can be taken back."""


class Claims(msgspec.Struct, frozen=True):
    """All claims.

    Attributes:
        holders: address -> UID of the allocation that may have it; "" = nobody yet, because a claim has just ended.
        conflicts: (UID, address) -> name of the allocation that has it, for the claims that lose.
        ended: address -> (UID of the last holder, when its claim ended), until the next claim begins.
        wake: when the next claim begins; None = no claim waits.
    """

    holders: Mapping[str, str] = {}
    conflicts: Mapping[tuple[str, str], str] = {}
    ended: Mapping[str, tuple[str, float]] = {}
    wake: float | None = None


def claims(allocations: Iterable[Allocation], before: Claims, now: float) -> Claims:
    """Give each address to the oldest allocation that lists it; the next one follows :data:`HANDOVER` after its end."""
    wanted: dict[str, list[Allocation]] = {}
    for allocation in sorted(allocations, key=lambda found: found.order):
        for address in allocation.addresses:
            wanted.setdefault(address, []).append(allocation)
    holders: dict[str, str] = {}
    conflicts: dict[tuple[str, str], str] = {}
    ended: dict[str, tuple[str, float]] = {}
    for address, asking in wanted.items():
        oldest = asking[0]
        last, at = before.ended.get(address, (before.holders.get(address, ""), now))
        if last and last not in {found.uid for found in asking} and now < at + HANDOVER:
            holders[address] = ""
            ended[address] = (last, at)
        else:
            holders[address] = oldest.uid
            conflicts.update({(other.uid, address): oldest.name for other in asking[1:]})
    # A claim that ends without a successor is remembered too: the next claim may come within the time.
    for address, uid in before.holders.items():
        if address not in wanted:
            last, at = before.ended.get(address, (uid, now))
            if last and now < at + HANDOVER:
                holders[address], ended[address] = "", (last, at)
    waits = [at + HANDOVER for _, at in ended.values()]
    return Claims(holders, conflicts, ended, min(waits) if waits else None)


def account_of(allocation: Allocation, accounts: Mapping[str, Account]) -> tuple[str, str, str]:
    """The account of an allocation: (name, "", ""), or ("", reason, message) if it has none."""
    if allocation.account:
        account = accounts.get(allocation.account)
        if account is None:
            known = ", ".join(sorted(accounts)) or "none"
            return "", "AccountUnknown", f"allocations.clouds has no account {allocation.account!r} (there: {known})"
        if allocation.provider and account.provider != allocation.provider:
            return (
                "",
                "AccountUnknown",
                f"account {account.name!r} is of provider {account.provider!r}, not {allocation.provider!r}",
            )
        if allocation.cluster not in account.clusters:
            return "", "ClusterUnknown", f"account {account.name!r} does not list cluster {allocation.cluster!r}"
        return account.name, "", ""
    fitting = sorted(
        account.name
        for account in accounts.values()
        if allocation.provider in ("", account.provider) and allocation.cluster in account.clusters
    )
    if len(fitting) > 1:
        return "", "AccountAmbiguous", f"accounts {', '.join(fitting)} fit; name one in spec.cloud.account"
    if not fitting:
        what = f"provider {allocation.provider!r} and " if allocation.provider else ""
        return "", "ProviderUnavailable", f"no account of allocations.clouds fits {what}cluster {allocation.cluster!r}"
    return fitting[0], "", ""
