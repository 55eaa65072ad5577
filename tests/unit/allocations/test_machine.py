"""A record that an earlier process left: which act comes next."""

from __future__ import annotations

from ipaddress import IPv4Network

from msgspec.structs import replace

from hub.allocations.machine import token
from hub.allocations.plan import plan
from hub.allocations.spec import Allocation, Entry, Move, Status, stamp
from hub.allocations.view import (
    Account,
    Answer,
    Attach,
    Follow,
    Inspection,
    Machine,
    Outcome,
    Plan,
    Restore,
    Site,
    View,
)
from hub.cloud.addresses import Free, Held, Present
from hub.model import LOCAL, Node

NOW = 1_800_000_000.0
ADDRESS = "198.18.0.1"
MOVE = Move("m1", "Drained", "Attaching", "n1", "n3", 1, before_to="nat", operation="op-1", started=stamp(NOW - 5))
TOKEN = token("u1", ADDRESS, "m1", "Attaching", "n3", "1")
UNDO = token("u1", ADDRESS, "m1", "undo", "n3")


def view(outcome: Outcome | None = None, move: Move = MOVE, **nodes: str) -> View:
    """The free address with a record that this process has signed; ``nodes`` -> their Ready condition."""
    entry = Entry(ADDRESS, "Attaching", instance="i-n1", before="nat", move=move)
    allocation = Allocation("web", "u1", ("", "u1"), (ADDRESS,), status=Status(writer="me", addresses=(entry,)))
    ready = {"n1": "True", "n3": "True", **nodes}
    machines = {
        name: Machine(Node(name, ready=state), f"i-{name}", NOW - 100 if state == "True" else 0.0)
        for name, state in ready.items()
    }
    return View(
        Account("main", "gcp", (LOCAL,), (IPv4Network("198.18.0.0/15"),)),
        sites={LOCAL: Site(LOCAL, machines)},
        allocations=(allocation,),
        holders={ADDRESS: "u1"},
        answers={ADDRESS: Answer(Free(), NOW)},
        inspections={f"i-{name}": Inspection(Present(running=True, before="nat"), NOW) for name in ready},
        outcomes={ADDRESS: outcome} if outcome is not None else {},
        identity="me",
    )


def kinds(found: Plan) -> list[type]:
    """The kinds of the acts."""
    return [type(act) for act in found.acts]


def test_an_operation_of_an_earlier_process_is_followed_first() -> None:
    """A recorded operation is followed before anything is called; then the attach goes on."""
    assert plan(view(), NOW).acts == (Follow(ADDRESS, "op-1"),)
    assert kinds(plan(view(Outcome("follow", "op-1", NOW - 1, NOW - 2)), NOW)) == [Attach]


def test_an_attach_that_fails_after_its_first_operation_waits() -> None:
    """The operation that made room is not followed again after a failed call, so the next call waits for its turn."""
    failed = Outcome("attach", TOKEN, NOW - 0.1, NOW - 1, error="transient", message="503", failures=1)
    assert plan(view(failed), NOW).acts == ()
    [again] = plan(replace(view(failed), answers={ADDRESS: Answer(Free(), NOW + 2)}), NOW + 2).acts
    assert isinstance(again, Attach)


def test_a_target_that_is_given_up_gets_back_what_it_had_once() -> None:
    """The target is not Ready after a restart: it gets back what it had, and then the address goes back."""
    made_room = Outcome("follow", "op-1", NOW - 1, NOW - 2)
    assert kinds(plan(view(made_room, n3="False"), NOW)) == [Restore]
    undone = Outcome("restore", UNDO, NOW - 0.1, NOW - 1)
    found = plan(view(undone, n3="False"), NOW)
    assert found.acts == ()
    [entry] = found.statuses["web"].addresses
    assert entry.move is not None
    assert (entry.move.phase, entry.move.to, entry.move.operation) == ("RollingBack", "n1", "")


def test_a_restart_keeps_what_the_target_had() -> None:
    """A new process has inspected no node: what the record says of the target goes on to the next phase."""
    detached = replace(MOVE, phase="Detaching", operation="")
    [entry] = plan(replace(view(move=detached), inspections={}), NOW).statuses["web"].addresses
    assert entry.move is not None
    assert (entry.move.phase, entry.move.before_to) == ("Attaching", "nat")


def test_what_a_holder_had_is_noted_before_the_move() -> None:
    """An address that was attached by hand gets the usual ``before`` when its move begins, not after a restart."""
    base = view()
    entry = Entry(ADDRESS, "Attached", node="n1", instance="i-n1", since=stamp(NOW - 1000))
    [allocation] = base.allocations
    allocation = replace(allocation, status=Status(writer="me", addresses=(entry,)))
    cordoned = Machine(Node("n1", ready="True", unschedulable=True), "i-n1", NOW - 100)
    machines = {**base.sites[LOCAL].machines, "n1": cordoned}
    inspections = {"i-n3": base.inspections["i-n3"]}
    drained = replace(
        base,
        allocations=(allocation,),
        sites={LOCAL: Site(LOCAL, machines)},
        answers={ADDRESS: Answer(Held("i-n1"), NOW)},
        inspections=inspections,
    )
    memory = plan(drained, NOW).memory
    later = replace(drained, answers={ADDRESS: Answer(Held("i-n1"), NOW + 6)}, memory=memory)
    [moving] = plan(later, NOW + 6).statuses["web"].addresses
    assert moving.move is not None
    assert moving.move.phase == "Detaching"
    assert moving.before == "nat"
    assert moving.move.to == "n3"
