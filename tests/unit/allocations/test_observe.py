"""What the plan says while nothing may be changed."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, Entry, Status, WorkloadRef, stamp
from hub.allocations.view import (
    Account,
    Answer,
    Evict,
    Finalize,
    Inspection,
    Label,
    Machine,
    NodeKey,
    Plan,
    Pod,
    Pods,
    Site,
    View,
)
from hub.cloud.addresses import Free, Held, Present
from hub.model import LOCAL, Node
from hub.registry.spec import AllocationLimits
from tests.support.address_views import A1, allocation, machine, planned, site, view

NOW = 1_800_000_000.0
FIRST, SECOND = "198.18.0.1", "198.18.0.2"


def drained(approving: str) -> list[str]:
    """What is found about two addresses whose nodes are drained, when no move is left in the budget."""
    nodes = {
        name: Machine(Node(name, ready="True", unschedulable=name in ("n1", "n2")), f"i-{name}", NOW - 900)
        for name in ("n1", "n2", "n3", "n4")
    }
    entries = tuple(
        Entry(address, "Attached", node=node, instance=f"i-{node}", since=stamp(NOW - 1000))
        for address, node in ((FIRST, "n1"), (SECOND, "n2"))
    )
    view = View(
        Account("main", "gcp", (LOCAL,), (IPv4Network("198.18.0.0/15"),)),
        limits=AllocationLimits(moves=0.0),
        sites={LOCAL: Site(LOCAL, nodes)},
        allocations=(
            Allocation("web", "u1", ("", "u1"), (FIRST, SECOND), status=Status(writer="me", addresses=entries)),
        ),
        holders={FIRST: "u1", SECOND: "u1"},
        answers={FIRST: Answer(Held("i-n1"), NOW), SECOND: Answer(Held("i-n2"), NOW)},
        inspections={f"i-{name}": Inspection(Present(running=True), NOW) for name in nodes},
        identity="me",
        approving=approving,
    )
    later = {FIRST: Answer(Held("i-n1"), NOW + 20), SECOND: Answer(Held("i-n2"), NOW + 20)}
    found = plan(replace(view, answers=later, memory=plan(view, NOW).memory), NOW + 20)
    return [finding.message for _, finding in found.findings if finding.reason == "MoveWithheld"]


def test_the_command_that_approves_a_move_fits_the_hub() -> None:
    """The text of MoveWithheld has the options that ``hub approve`` needs where the hub does not use the defaults."""
    assert [text.partition(" lets them")[0][-11:] for text in drained(" --owner me")] == [" --owner me"]


def observed(*nodes: str) -> Plan:
    """The plan for two free addresses of one allocation and these Ready nodes, when two answers have confirmed them."""
    view = View(
        Account("main", "gcp", (LOCAL,), (IPv4Network("198.18.0.0/15"),)),
        sites={LOCAL: Site(LOCAL, {name: Machine(Node(name, ready="True"), f"i-{name}", NOW - 900) for name in nodes})},
        allocations=(Allocation("web", "u1", ("", "u1"), (FIRST, SECOND)),),
        holders={FIRST: "u1", SECOND: "u1"},
        answers={FIRST: Answer(Free(), NOW), SECOND: Answer(Free(), NOW)},
        inspections={f"i-{name}": Inspection(Present(running=True), NOW) for name in nodes},
        halted=("Observe", "nothing is changed in mode observe"),
    )
    answers = {address: Answer(Free(), NOW + 20) for address in (FIRST, SECOND)}
    return plan(replace(view, answers=answers, memory=plan(view, NOW).memory), NOW + 20)


def test_two_addresses_are_never_planned_to_one_node() -> None:
    """In mode observe each address has a node of its own, as it would have in mode enforce."""
    verdicts = observed("n1", "n2").verdicts
    assert {verdicts[FIRST].to, verdicts[SECOND].to} == {"n1", "n2"}


def test_an_address_with_a_node_does_not_say_that_there_is_none() -> None:
    """Of two addresses and one node, only the address without a node says that no node can take it."""
    verdicts = observed("n1").verdicts
    assert verdicts[FIRST].to == "n1"
    assert verdicts[FIRST].reason == "Observe"
    assert "no node" not in verdicts[FIRST].message
    assert verdicts[SECOND].to == ""
    assert "no node can take it" in verdicts[SECOND].message


def labelled(halted: tuple[str, str] | None, labels: dict[str, str]) -> Plan:
    """The plan after a move from n1 to n2: n2 has these labels, a Pod stayed on n1, a finalizer is missing."""
    moved = Entry(FIRST, "Attached", node="n2", instance="i-n2", last_node="n1", moves=(stamp(NOW - 60),))
    workload = WorkloadRef("web")
    allocation = Allocation(
        "web",
        "u1",
        ("", "u1"),
        (FIRST,),
        workload=workload,
        eviction="Evict",
        release=True,
        status=Status(writer="me", addresses=(replace(moved, since=stamp(NOW - 50)),)),
    )
    pod = Pod("edge", "web-1", "p1", created=stamp(NOW - 900))
    machines = {
        name: Machine(Node(name, ready="True", labels=on), f"i-{name}", NOW - 900)
        for name, on in {"n1": {}, "n2": labels}.items()
    }
    view = View(
        Account("main", "gcp", (LOCAL,), (IPv4Network("198.18.0.0/15"),)),
        sites={LOCAL: Site(LOCAL, machines)},
        allocations=(allocation,),
        holders={FIRST: "u1"},
        answers={FIRST: Answer(Held("i-n2"), NOW)},
        pods={(NodeKey(LOCAL, "n1"), workload): Pods((pod,), 1)},
        label_keys=frozenset({LABEL_READY}),
        halted=halted,
        identity="me",
    )
    return plan(view, NOW)


@pytest.mark.parametrize(("labels", "act"), [({}, Label), ({LABEL_READY: "true"}, Evict)], ids=["label", "eviction"])
def test_changes_besides_moves_are_shown_while_nothing_may_change(labels: dict[str, str], act: type) -> None:
    """A halted plan starts nothing, and lists exactly the labels, evictions and finalizers that it would write."""
    assert labelled(None, labels).halted == ()
    shown = labelled(("Observe", "nothing is changed in mode observe"), labels)
    assert shown.acts == ()
    assert shown.halted == labelled(None, labels).acts
    assert [type(found) for found in shown.halted] == [act, Finalize]
    assert shown.memory.labels == {}


def test_an_address_outside_of_the_accounts_addresses_is_never_asked_for_a_node() -> None:
    """Its state is Invalid/NotAllowed with the networks that are allowed; the other address of the allocation moves."""
    outside = "203.0.113.7"
    found = planned(view(site(machine("n1"), machine("n2")), allocation("web", outside, A1)), 20)
    states = {entry.address: (entry.state, entry.reason) for entry in found.statuses["web"].addresses}
    assert states == {outside: ("Invalid", "NotAllowed"), A1: ("Attaching", "Free")}
    assert found.verdicts[outside].message == "it is not in the addresses of account main: 198.18.0.0/15"
    assert [finding.objects for _, finding in found.findings if finding.reason == "AddressInvalid"] == [(outside,)]
