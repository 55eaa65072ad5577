"""What the hub knows about allocations, as values; empty where the registry has no ``allocations:``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.report.hub_state import HubState
from hub.report.values import Allocation, Allocations, CloudAccount, ReservedAddress, Step
from hub.runtime.clock import rfc3339

if TYPE_CHECKING:
    from hub.allocating.run import Allocating
    from hub.allocations.spec import Entry, NetIPAllocation
    from hub.allocations.view import Verdict


def allocations_of(hub: HubState) -> Allocations:
    """All allocations with their addresses, sorted by name."""
    allocating, spec = hub.allocating, hub.registry.allocations
    if allocating is None or spec is None:
        return Allocations()
    accounts = [
        CloudAccount(
            name, account.spec.provider.name, account.spec.clusters, account.status.state, account.status.error
        )
        for name, account in sorted(allocating.accounts.items())
    ]
    broken = [CloudAccount(name, "", (), "broken", problem) for name, problem in sorted(spec.broken.items())]
    return Allocations(
        "enforce" if spec.enforce else "observe",
        allocating.trouble,
        (*accounts, *broken),
        tuple(_allocation(allocating, found) for _, found in sorted(allocating.objects.items())),
    )


def _allocation(allocating: Allocating, found: NetIPAllocation) -> Allocation:
    name, spec = found.metadata.name, found.spec
    # A hub that does not lead stores no status, so its own decisions come first.
    planned = [plan.statuses[name] for plan in allocating.plans.values() if name in plan.statuses]
    status = planned[0] if planned else found.status
    cluster = spec.cluster or "local"
    if status is None:
        return Allocation(name, cluster, reserved=len(spec.reserved_ips or ()))
    ready = next((condition for condition in status.conditions if condition.type == "Ready"), None)
    verdicts = allocating.verdicts
    return Allocation(
        name,
        cluster,
        status.account,
        ready.status if ready is not None else "",
        ready.reason if ready is not None else "",
        ready.message if ready is not None else "",
        max(status.reserved, 0),
        max(status.attached, 0),
        "endpointslice-hub/paused" in (found.metadata.annotations or {}),
        tuple(_address(entry, verdicts.get(entry.address), name) for entry in status.addresses),
    )


def _address(entry: Entry, verdict: Verdict | None, allocation: str) -> ReservedAddress:
    if verdict is not None and verdict.allocation != allocation:
        verdict = None  # another allocation has the claim
    return ReservedAddress(
        entry.address,
        entry.state,
        entry.reason,
        entry.message,
        entry.node or (verdict.holder if verdict is not None else ""),
        entry.last_node,
        entry.since,
        verdict.cause if verdict is not None else "",
        verdict.to if verdict is not None else "",
        rfc3339(verdict.wait) if verdict is not None and verdict.wait else "",
        verdict.hash if verdict is not None else "",
        dict(verdict.why_not) if verdict is not None else {},
    )


def reserved_steps(hub: HubState, subject: str) -> tuple[Step, ...]:
    """The decisions about a reserved address, or about a node of the hub's allocations; () if nothing is known."""
    steps: list[Step] = []
    for allocation in allocations_of(hub).allocations:
        for found in allocation.addresses:
            if found.address == subject:
                steps += _of_address(allocation, found)
            elif subject in found.why_not:
                steps.append(Step("candidate", found.address, "no", found.why_not[subject]))
            elif subject and subject == found.node:
                steps.append(Step("address", found.address, found.state, found.message or allocation.name))
    return tuple(steps)


def _of_address(allocation: Allocation, found: ReservedAddress) -> list[Step]:
    where = f"allocation/{allocation.name}"
    account = f"account {allocation.account or 'none'}, cluster {allocation.cluster}"
    steps = [Step("claim", where, "conflict" if found.state == "Conflict" else "yes", account)]
    steps.append(Step("holder", found.node or "nobody", found.state, found.message or found.reason))
    if found.cause:
        wait = f"not before {found.waits_until}" if found.waits_until else ""
        steps.append(Step("cause", found.node, found.cause, wait or found.message))
    if found.to:
        steps.append(Step("candidate", found.to, "yes", f"{found.address} goes there"))
    steps += [Step("candidate", node, "no", why) for node, why in sorted(found.why_not.items())]
    if found.hash:
        steps.append(Step("limits", where, "withheld", f"hub approve {where} {found.hash}"))
    if allocation.paused:
        steps.append(Step("policy", where, "paused", f"hub resume {where}"))
    return steps
