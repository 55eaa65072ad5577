"""Allocations as values, for the API, the status page and the commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from hub.allocations.budget import budget
from hub.allocations.spec import Condition, Entry, Meta, Move, NetIPAllocation, Spec, Status, stamp
from hub.allocations.view import Answer, Plan, Verdict
from hub.cloud.addresses import Free
from hub.registry.spec import AccountSpec, AllocationsSpec, ProviderRef
from hub.report.allocations import allocations_in_status, allocations_of, reserved_steps, reserved_unknown
from hub.report.values import Allocation, Allocations, CloudAccount, ReservedAddress, Step
from tests.unit.report.still import StillHub, registry

A1, A2 = "34.1.2.1", "34.1.2.2"
SINCE = "2026-01-01T00:00:00Z"
NOW = 1_800_000_000.0
APPROVE = "hub approve allocation/web abc --lease-namespace endpointslice-hub"
STATUS = Status(
    cluster="local",
    account="main",
    reserved=2,
    attached=1,
    conditions=(Condition("Ready", "False", "WaitingForNodes", "1 of 2"),),
    addresses=(
        Entry(A1, "Leaving", "Withheld", "cordoned", node="n1", last_node="n0", since=SINCE, moves=(stamp(NOW - 60),)),
        Entry(A2, "Pending", "Observe", "mode observe"),
    ),
)
VERDICTS = {
    A1: Verdict(A1, "web", "Leaving", holder="n1", cause="Drained", wait=NOW + 60, hash="abc", why_not={"n2": "full"}),
    A2: Verdict(A2, "web", "Pending", to="n3", wait=NOW - 60, why_not={"n2": "full"}),
}
ACCOUNT = SimpleNamespace(
    spec=AccountSpec("main", ProviderRef("gcp"), ()),
    answers={A1: Answer(Free(), NOW - 5), A2: Answer(Free(), NOW - 6)},
    status=SimpleNamespace(state="degraded", error="401"),
    frozen="401",
    calls={("describe", ""): 3, ("attach", "Conflict"): 1},
)


def web(status: Status | None = STATUS, annotations: dict[str, str] | None = None) -> NetIPAllocation:
    """The allocation ``web``."""
    return NetIPAllocation(Meta("web", annotations=annotations), Spec(reserved_ips=(A1, A2)), status)


def hub_with(*objects: NetIPAllocation, plans: dict[str, Plan] | None = None, **more: Any) -> Any:
    """A hub with these allocations and decisions."""
    plans = {"main": Plan(verdicts=VERDICTS)} if plans is None else plans
    allocating = SimpleNamespace(
        accounts={"main": ACCOUNT},
        objects={found.metadata.name: found for found in objects},
        plans=plans,
        spec=AllocationsSpec({}, {"bad": "no provider"}, enforce=True),
        time=SimpleNamespace(now=lambda: NOW),
        trouble="",
        unassigned={},
        verdicts={name: verdict for plan in plans.values() for name, verdict in plan.verdicts.items()},
    )
    vars(allocating).update(more)
    return StillHub(allocating=allocating, registry=registry(allocations=allocating.spec))


def test_hub_without_allocations_shows_none() -> None:
    """The document has mode off, and a Status has no part about allocations."""
    hub: Any = StillHub()
    assert allocations_of(hub) == Allocations()
    assert allocations_in_status(hub) is None
    assert reserved_steps(hub, A1) == ()


def test_accounts_have_their_state_and_their_last_description() -> None:
    """The oldest answer counts; an account whose entry is broken is listed with the problem."""
    found = allocations_of(hub_with())
    assert (found.mode, found.trouble) == ("enforce", "")
    assert found.accounts == (
        CloudAccount("main", "gcp", ("local",), "degraded", "401", frozen=True, described=stamp(NOW - 6), calls=4),
        CloudAccount("bad", "", (), "broken", "no provider", frozen=True),
    )


def test_allocation_has_its_status_and_the_decisions() -> None:
    """A withheld move has its command; a time that has passed is not shown; a free address has the cause Free."""
    [found] = allocations_of(hub_with(web())).allocations
    assert replace(found, addresses=()) == Allocation(
        "web", "local", "main", "gcp", "False", "WaitingForNodes", "1 of 2", 2, 1
    )
    assert found.addresses == (
        ReservedAddress(
            A1,
            "Leaving",
            "Withheld",
            "cordoned",
            "n1",
            "n0",
            SINCE,
            cause="Drained",
            waits_until=stamp(NOW + 60),
            hash="abc",
            approve=APPROVE,
            why_not={"n2": "full"},
        ),
        ReservedAddress(A2, "Pending", "Observe", "mode observe", cause="Free", to="n3", why_not={"n2": "full"}),
    )


def test_own_decisions_come_before_the_stored_status() -> None:
    """A hub that does not lead stores no status, and shows what it decided itself."""
    planned = Plan({"web": replace(STATUS, attached=2)})
    [found] = allocations_of(hub_with(web(), plans={"main": planned})).allocations
    assert found.attached == 2


@pytest.mark.parametrize("paused", ["true", "", "false"])
def test_allocation_without_a_status_is_listed(paused: str) -> None:
    """The spec is shown until there is a status; the annotation pauses whatever its value is."""
    [found] = allocations_of(hub_with(web(None, {"endpointslice-hub/paused": paused}))).allocations
    assert found == Allocation("web", "local", reserved=2, paused=True)


def test_decision_about_another_allocation_is_not_shown() -> None:
    """An allocation that lost the claim shows only its own status."""
    other = NetIPAllocation(Meta("api"), Spec(), Status(addresses=(Entry(A1, "Conflict", "Claimed"),)))
    [found] = allocations_of(hub_with(other)).allocations
    assert found.addresses == (ReservedAddress(A1, "Conflict", "Claimed"),)


def test_move_under_way_has_the_cause_of_its_record() -> None:
    """The cause is that of the record until the address is attached, also while the old node is restored."""
    move = Move("1", "Gone", "Attaching", to="n3")
    entries = (Entry(A1, "Attaching", move=move), Entry(A2, "Attached", node="n3", move=move))
    verdicts = {name: Verdict(name, "web", "", to="n3") for name in (A1, A2)}
    [found] = allocations_of(hub_with(web(Status(addresses=entries)), verdicts=verdicts)).allocations
    assert [(address.cause, address.to) for address in found.addresses] == [("Gone", "n3"), ("", "n3")]


def test_allocation_without_an_account_shows_the_reason_before_it_is_stored() -> None:
    """What this process found out replaces an older status, and makes its addresses unknown."""
    lost = Status(addresses=(Entry(A1, "Unknown", "AccountUnknown", "no account 'mian'"),))
    hub = hub_with(web(STATUS), plans={}, unassigned={"web": lost})
    [found] = allocations_of(hub).allocations
    assert found.addresses == (ReservedAddress(A1, "Unknown", "AccountUnknown", "no account 'mian'"),)
    assert reserved_unknown(hub, A1) == (f"{A1}: no account 'mian'",)
    assert reserved_unknown(hub, A2) == ()
    assert reserved_unknown(hub_with(trouble="no CRD"), A2) == ("allocations: no CRD",)


def test_status_leaves_out_what_changes_all_the_time() -> None:
    """Times of descriptions, numbers of calls and reasons of other nodes are not part of a Status."""
    found = allocations_in_status(hub_with(web()))
    assert found is not None
    assert [(account.described, account.calls) for account in found.accounts] == [("", 0)] * 2
    assert [address.why_not for address in found.allocations[0].addresses] == [{}, {}]
    assert found.allocations[0].addresses[0].approve


def test_why_has_claim_holder_cause_nodes_budget_and_command() -> None:
    """The explanation of an address goes from its claim to the command that approves its move."""
    plan = Plan({"web": STATUS}, verdicts=VERDICTS)
    hub = hub_with(web(), plans={"main": plan})
    left = budget(STATUS.addresses, STATUS.attached, AllocationsSpec({}).limits, NOW).left
    assert left == 0
    assert reserved_steps(hub, A1) == (
        Step("claim", "allocation/web", "yes", "account main, cluster local"),
        Step("holder", "n1", "Leaving", f"Withheld: cordoned; since {SINCE}"),
        Step("cause", "n1", "Drained", f"not before {stamp(NOW + 60)}"),
        Step("candidate", "n2", "no", "full"),
        Step("limits", "account main", "0 left", "at most 50% of the attached addresses move within 600 s"),
        Step("limits", "allocation/web", "withheld", "cordoned"),
        Step("limits", "allocation/web", "approve with", APPROVE),
    )


def test_why_of_a_node_names_its_addresses_and_what_it_cannot_take() -> None:
    """A node is explained by the address it has, and by those that it cannot take."""
    hub = hub_with(web(annotations={"endpointslice-hub/paused": "true"}))
    assert reserved_steps(hub, "n1") == (Step("address", A1, "Leaving", "cordoned"),)
    assert reserved_steps(hub, "n2") == (Step("candidate", A1, "no", "full"), Step("candidate", A2, "no", "full"))
    assert Step("candidate", "n3", "yes", f"{A2} goes there") in reserved_steps(hub, A2)
    assert reserved_steps(hub, A2)[-1] == Step("policy", "allocation/web", "paused", "hub resume allocation/web")
    assert reserved_steps(hub, "") == ()
