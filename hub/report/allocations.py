"""What the hub knows about allocations, as values; empty where the registry has no ``allocations:``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hub.model import ANNOTATION_PAUSED, LOCAL
from hub.report.held import approving_flags
from hub.report.hub_state import HubState
from hub.report.values import Allocation, Allocations, CloudAccount, ReservedAddress, Step
from hub.runtime.clock import rfc3339

if TYPE_CHECKING:
    from hub.allocating.accounts import Account
    from hub.allocating.run import Allocating
    from hub.allocations.spec import Entry, NetIPAllocation, Status
    from hub.allocations.view import Verdict


def allocations_of(hub: HubState) -> Allocations:
    """All allocations with their addresses, sorted by name."""
    allocating, spec = hub.allocating, hub.registry.allocations
    if allocating is None or spec is None:
        return Allocations()
    accounts = [_account(name, account) for name, account in sorted(allocating.accounts.items())]
    broken = [
        CloudAccount(name, "", (), "broken", problem, frozen=True) for name, problem in sorted(spec.broken.items())
    ]
    providers = {account.name: account.provider for account in accounts}
    # A hub that does not lead stores no status, so its own decisions come first.
    planned = {name: status for plan in allocating.plans.values() for name, status in plan.statuses.items()}
    planned |= allocating.unassigned
    decided = _Decided(allocating.verdicts, approving_flags(hub), allocating.time.now())
    return Allocations(
        "enforce" if spec.enforce else "observe",
        allocating.trouble,
        (*accounts, *broken),
        tuple(
            _allocation(found, planned.get(name, found.status), providers, decided)
            for name, found in sorted(allocating.objects.items())
        ),
    )


class Write(NamedTuple):
    """A change of Kubernetes that a hub in mode enforce would make now, besides moves.

    Attributes:
        kind: label, eviction or finalizer.
        target: the object, such as ``node n1``.
        change: what would be written.
    """

    kind: str
    target: str
    change: str


def writes_of(hub: HubState) -> list[Write]:
    """The changes of labels, evictions and finalizers that are not made because nothing may be changed, sorted."""
    if hub.allocating is None:
        return []
    from hub.allocations.view import Finalize, Label

    found: list[Write] = []
    for plan in hub.allocating.plans.values():
        for act in plan.halted:
            if isinstance(act, Label):
                changes = (key if value is None else f"{key}={value}" for key, value in act.changes)
                signs = ("-" if value is None else "+" for _, value in act.changes)
                found.append(
                    Write("label", f"node {act.node}", " ".join(map("".join, zip(signs, changes, strict=True))))
                )
            elif isinstance(act, Finalize):
                found.append(Write("finalizer", f"allocation {act.allocation}", "added" if act.present else "removed"))
            else:
                verb = "deleted" if act.force else "evicted"
                found.append(
                    Write("eviction", f"Pod {act.pod.namespace}/{act.pod.name}", f"{verb} from node {act.node}")
                )
    return sorted(found)


def allocations_in_status(hub: HubState) -> Allocations | None:
    """The allocations without what changes all the time or may be long; None if the registry has none."""
    found = allocations_of(hub)
    if found.mode == "off":
        return None
    return replace(
        found,
        accounts=tuple(replace(account, described="", calls=0) for account in found.accounts),
        allocations=tuple(
            replace(allocation, addresses=tuple(replace(address, why_not={}) for address in allocation.addresses))
            for allocation in found.allocations
        ),
    )


def _account(name: str, account: Account) -> CloudAccount:
    described = min((answer.at for answer in account.answers.values()), default=0.0)
    return CloudAccount(
        name,
        account.spec.provider.name,
        account.spec.clusters,
        account.status.state,
        account.status.error,
        frozen=bool(account.frozen),
        described=rfc3339(described) if described else "",
        calls=sum(account.calls.values()),
    )


class _Decided(NamedTuple):
    """The decisions, the options that ``hub approve`` needs, and the time."""

    verdicts: Mapping[str, Verdict]
    flags: str
    now: float


def _allocation(
    found: NetIPAllocation, status: Status | None, providers: Mapping[str, str], decided: _Decided
) -> Allocation:
    name, spec = found.metadata.name, found.spec
    paused = ANNOTATION_PAUSED in (found.metadata.annotations or {})
    shown = Allocation(
        name,
        spec.cluster or LOCAL,
        spec.cloud.account,
        spec.cloud.provider,
        reserved=len(spec.reserved_ips or ()),
        paused=paused,
    )
    if status is None:
        return shown
    ready = next((condition for condition in status.conditions if condition.type == "Ready"), None)
    return replace(
        shown,
        account=status.account or shown.account,
        provider=providers.get(status.account) or shown.provider,
        ready=ready.status if ready is not None else "",
        reason=ready.reason if ready is not None else "",
        message=ready.message if ready is not None else "",
        reserved=max(status.reserved, 0),
        attached=max(status.attached, 0),
        addresses=tuple(_address(entry, name, decided) for entry in status.addresses),
    )


def _address(entry: Entry, allocation: str, decided: _Decided) -> ReservedAddress:
    shown = ReservedAddress(
        entry.address, entry.state, entry.reason, entry.message, entry.node, entry.last_node, entry.since
    )
    verdict = decided.verdicts.get(entry.address)
    if verdict is None or verdict.allocation != allocation:  # another allocation has the claim
        return shown
    cause: str = verdict.cause
    if not cause and entry.state != "Attached":
        cause = entry.move.cause if entry.move is not None else "Free" if verdict.to else ""
    return replace(
        shown,
        node=entry.node or verdict.holder,
        cause=cause,
        to=verdict.to,
        waits_until=rfc3339(verdict.wait) if verdict.wait > decided.now else "",
        hash=verdict.hash,
        approve=f"hub approve allocation/{allocation} {verdict.hash}{decided.flags}" if verdict.hash else "",
        why_not=dict(verdict.why_not),
    )


# --- why ---------------------------------------------------------------------------------------------


def reserved_steps(hub: HubState, subject: str) -> tuple[Step, ...]:
    """The decisions about a reserved address, or about a node of the hub's allocations; () if nothing is known."""
    steps: list[Step] = []
    for allocation in allocations_of(hub).allocations:
        for found in allocation.addresses:
            if found.address == subject:
                steps += _of_address(hub, allocation, found)
            elif subject in found.why_not:
                steps.append(Step("candidate", found.address, "no", found.why_not[subject]))
            elif subject and subject == found.node:
                steps.append(Step("address", found.address, found.state, found.message or allocation.name))
    return tuple(steps)


def reserved_unknown(hub: HubState, subject: str) -> tuple[str, ...]:
    """What is unknown about a reserved address, each with the reason."""
    found = allocations_of(hub)
    unknown = (f"allocations: {found.trouble}",) if found.trouble else ()
    return unknown + tuple(
        f"{address.address}: {address.message or address.reason}"
        for allocation in found.allocations
        for address in allocation.addresses
        if (address.address, address.state) == (subject, "Unknown")
    )


def _of_address(hub: HubState, allocation: Allocation, found: ReservedAddress) -> Iterator[Step]:
    """Claim, holder, cause, the nodes, budget and hash."""
    where = f"allocation/{allocation.name}"
    account = f"account {allocation.account or 'none'}, cluster {allocation.cluster}"
    yield Step("claim", where, "conflict" if found.state == "Conflict" else "yes", account)
    since = f"since {found.since}" if found.since else ""
    why = ": ".join(filter(None, (found.reason, found.message)))
    yield Step("holder", found.node or "nobody", found.state, "; ".join(filter(None, (why, since))))
    if found.cause:
        wait = f"not before {found.waits_until}" if found.waits_until else ""
        yield Step("cause", found.node or found.last_node, found.cause, wait)
    if found.to:
        yield Step("candidate", found.to, "yes", f"{found.address} goes there")
    for node, reason in sorted(found.why_not.items()):
        yield Step("candidate", node, "no", reason)
    if found.cause and hub.allocating is not None:
        yield _budget(hub.allocating, allocation)
    if found.approve:
        yield Step("limits", where, "withheld", found.message)
        yield Step("limits", where, "approve with", found.approve)
    if allocation.paused:
        yield Step("policy", where, "paused", f"hub resume {where}")


def _budget(allocating: Allocating, allocation: Allocation) -> Step:
    """How many addresses of the pool may move now."""
    from hub.allocations.budget import budget

    plan = allocating.plans.get(allocation.account)
    pool = [] if plan is None else [status for status in plan.statuses.values() if status.cluster == allocation.cluster]
    entries = [entry for status in pool for entry in status.addresses]
    limits = allocating.spec.limits
    left = budget(entries, sum(status.attached for status in pool), limits, allocating.time.now()).left
    text = f"at most {limits.moves:.0%} of the attached addresses move within {limits.window:g} s"
    return Step("limits", f"account {allocation.account}", f"{left} left", text)
