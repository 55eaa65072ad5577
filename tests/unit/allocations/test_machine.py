"""A record that an earlier process left: which act comes next."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from msgspec.structs import replace

from hub.allocations.machine import token
from hub.allocations.outcomes import Call, outcome
from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, Entry, Move, Status, stamp
from hub.allocations.view import (
    Account,
    Answer,
    Attach,
    Follow,
    Inspection,
    Label,
    Machine,
    Memories,
    Memory,
    NodeKey,
    Outcome,
    OutcomeError,
    Plan,
    Restore,
    Site,
    View,
)
from hub.cloud.addresses import Done, Free, Held, Pending, Present
from hub.model import LOCAL, Node

NOW = 1_800_000_000.0
ADDRESS = "198.18.0.1"
MOVE = Move("m1", "Drained", "Attaching", "n1", "n3", 1, before_to="nat", operation="op-1", started=stamp(NOW - 5))
TOKEN = token("u1", ADDRESS, "m1", "Attaching", "n3", "1")
UNDO = token("u1", ADDRESS, "m1", "undo", "n3")


def view(last: Outcome | None = None, move: Move = MOVE, **nodes: str) -> View:
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
        outcomes={ADDRESS: last} if last is not None else {},
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


# --- steps that succeed, but have no effect ------------------------------------------------------------


def attached(at: float, first: float, step: str = "attach", operation: str = "") -> Outcome:
    """The last call of the attach ended at ``at`` without an error; the first one began at ``first``."""
    return Outcome(step, TOKEN if step == "attach" else "op-1", at, first, operation=operation, order=TOKEN)


def test_an_attach_that_is_done_is_not_repeated_before_it_is_described() -> None:
    """The cloud's lists may lag behind, so the address is described again for 10 s before the next call."""
    done, without = attached(NOW - 1, NOW - 2), replace(MOVE, operation="")
    found = plan(view(done, without), NOW)
    assert found.acts == ()
    assert found.wake is not None
    assert found.wake <= NOW + 1.0
    later = replace(view(done, without), answers={ADDRESS: Answer(Free(), NOW + 9)})
    assert kinds(plan(later, NOW + 9)) == [Attach]


def test_an_attach_goes_on_at_once_after_its_first_operation() -> None:
    """An operation that has ended may be a part of the attach only, such as the one that made room."""
    assert kinds(plan(view(attached(NOW - 0.1, NOW - 1, "follow")), NOW)) == [Attach]


def test_an_attach_without_effect_gets_another_token_after_40_s() -> None:
    """A cloud may answer a repeated token with the operation of the first call, whatever happened to the address."""
    [entry] = plan(view(attached(NOW - 0.1, NOW - 41, "follow")), NOW).statuses["web"].addresses
    assert entry.move is not None
    assert (entry.move.phase, entry.move.to, entry.move.attempts, entry.move.operation) == ("Attaching", "n3", 2, "")


def detaching(last: Outcome | None, move: Move) -> View:
    """The address, still on n1, with a record that detaches it."""
    return replace(view(last, move), answers={ADDRESS: Answer(Held("i-n1"), NOW)})


def test_a_detach_without_effect_gets_another_token_and_ends() -> None:
    """A detach that succeeds, but leaves the address where it is, is tried under three tokens, and then given up."""
    move = replace(MOVE, phase="Detaching", operation="", started=stamp(NOW - 130))
    first = token("u1", ADDRESS, "m1", "Detaching", "n3", "1")
    [again] = plan(detaching(Outcome("detach", first, NOW - 0.1, NOW - 41, order=first), move), NOW).statuses.values()
    [entry] = again.addresses
    assert entry.move is not None
    assert entry.move.attempts == 2
    last = token("u1", ADDRESS, "m1", "Detaching", "n3", "4")
    done = Outcome("detach", last, NOW - 0.1, NOW - 1, order=last)
    [given_up] = plan(detaching(done, replace(move, attempts=4)), NOW).statuses["web"].addresses
    assert given_up.move is None
    assert given_up.node == "n1"


def test_a_step_has_the_time_of_its_own_first_call() -> None:
    """An operation that was followed in an earlier move says nothing about how long the next step is tried."""
    followed = outcome(None, Call("follow", "op-0", NOW - 900), NOW - 890, Done())
    failed = outcome(followed, Call("attach", TOKEN, NOW - 1), NOW, None, "transient", "503")
    assert (failed.first, failed.failures) == (NOW - 1, 1)


def test_an_operation_belongs_to_the_call_that_began_it() -> None:
    """The calls and the operation of one order have the time of the first call, and each failure counts."""
    failed = outcome(None, Call("attach", TOKEN, NOW - 60), NOW - 59, None, "transient", "503")
    accepted = outcome(failed, Call("attach", TOKEN, NOW - 50), NOW - 49, Pending("op-1"))
    followed = outcome(accepted, Call("follow", "op-1", NOW - 49), NOW - 20, Done())
    called = outcome(followed, Call("attach", TOKEN, NOW - 19), NOW - 18, Done("nat"))
    assert [found.first for found in (failed, accepted, followed, called)] == [NOW - 60] * 4
    assert [found.failures for found in (failed, accepted, followed, called)] == [1, 0, 0, 0]
    assert [found.order for found in (accepted, followed, called)] == [TOKEN] * 3
    assert called.before == "nat"


# --- nodes and labels ----------------------------------------------------------------------------------


def test_the_label_goes_off_a_node_that_is_being_deleted() -> None:
    """A Node that finalizers keep does not keep the address that leaves it: its label is taken off as of any other."""
    base = detaching(None, replace(MOVE, phase="Detaching", cause="OutOfService", operation=""))
    leaving = Node("n1", ready="Unknown", deleting=True, labels={LABEL_READY: "true"})
    machines = {**base.sites[LOCAL].machines, "n1": Machine(leaving, "i-n1", unready_since=NOW - 100)}
    found = plan(replace(base, sites={LOCAL: Site(LOCAL, machines)}, label_keys=frozenset({LABEL_READY})), NOW)
    assert found.acts == (Label(NodeKey(LOCAL, "n1"), ((LABEL_READY, None),)),)


def test_a_planned_node_that_another_record_names_is_not_taken() -> None:
    """An address that was attached to the planned node by hand leaves it, and may have to go back there."""
    base = view(move=replace(MOVE, phase="Detaching", operation=""), n4="True")
    other = Move("m2", "NotReady", "RollingBack", "n3", "n3", 1, started=stamp(NOW - 5))
    [allocation] = base.allocations
    entry = Entry("198.18.0.2", "RollingBack", instance="i-n3", move=other)
    status = replace(allocation.status, addresses=(*allocation.status.addresses, entry))
    both = replace(allocation, addresses=(ADDRESS, "198.18.0.2"), status=status)
    answers = {ADDRESS: Answer(Free(), NOW), "198.18.0.2": Answer(Free(), NOW)}
    holders = {ADDRESS: "u1", "198.18.0.2": "u1"}
    [moving, _] = (
        plan(replace(base, allocations=(both,), answers=answers, holders=holders), NOW).statuses["web"].addresses
    )
    assert moving.move is not None
    assert (moving.move.phase, moving.move.to) == ("Attaching", "n4")


def test_a_cause_begins_again_with_another_claim() -> None:
    """The next claim to an address on a cordoned node waits by itself: its own hold, not that of the claim before."""
    base = view()
    [allocation] = base.allocations
    entry = Entry(ADDRESS, "Attached", node="n1", instance="i-n1", since=stamp(NOW - 1000))
    cordoned = Machine(Node("n1", ready="True", unschedulable=True), "i-n1", NOW - 1000)
    held = replace(
        base,
        allocations=(replace(allocation, status=Status(writer="me", addresses=(entry,))),),
        sites={LOCAL: Site(LOCAL, {**base.sites[LOCAL].machines, "n1": cordoned})},
        answers={ADDRESS: Answer(Held("i-n1"), NOW)},
    )
    drained = Memory("i-n1", NOW - 1000, cause="Drained", cause_since=NOW - 100, claim="u1")
    mine = plan(replace(held, memory=Memories({ADDRESS: drained})), NOW)
    assert mine.statuses["web"].addresses[0].state == "Detaching"
    theirs = plan(replace(held, memory=Memories({ADDRESS: replace(drained, claim="u0")})), NOW)
    assert theirs.statuses["web"].addresses[0].state == "Leaving"
    assert theirs.memory.addresses[ADDRESS].cause_since == NOW


def test_an_inspection_from_before_an_address_left_does_not_refuse_the_node() -> None:
    """A node was inspected while it had the address. Once the address has left, the node is inspected again."""

    def held(by: str, at: float, refused_at: float, memory: Memories) -> Plan:
        """The plan while a node has the address and is cordoned; n1 was inspected and refused."""
        base = view()
        entry = Entry(ADDRESS, "Attached", node=by, instance=f"i-{by}", since=stamp(NOW - 1000))
        machines = {
            name: Machine(Node(name, ready="True", unschedulable=name == by), f"i-{name}", NOW - 1000)
            for name in ("n1", "n3")
        }
        drained = Memory(f"i-{by}", NOW - 900, cause="Drained", cause_since=NOW - 30, claim="u1")
        full = Present(running=True, room=False, why=f"nic0 has the reserved address {ADDRESS}")
        [allocation] = base.allocations
        return plan(
            replace(
                base,
                allocations=(replace(allocation, status=Status(writer="me", addresses=(entry,))),),
                sites={LOCAL: Site(LOCAL, machines)},
                answers={ADDRESS: Answer(Held(f"i-{by}"), at)},
                inspections={"i-n1": Inspection(full, refused_at)},
                memory=replace(memory, addresses={ADDRESS: drained}),
            ),
            at,
        )

    first = held("n1", NOW, NOW - 5, Memories())
    assert first.memory.used["i-n1"] == NOW
    later = held("n3", NOW + 50, NOW - 5, first.memory)
    assert later.questions.inspect == {"i-n1"}
    refused = held("n3", NOW + 60, NOW + 51, later.memory)
    assert refused.questions.inspect == frozenset()
    assert refused.verdicts[ADDRESS].reason == "NoCandidate"


# --- how often and how long a step is tried ----------------------------------------------------------------


def refused(error: OutcomeError, first: float, node: str = "n3") -> Outcome:
    """The last attach to a node failed just now; its first call began then."""
    name = token("u1", ADDRESS, "m1", "Attaching", node, "1")
    return Outcome("attach", name, NOW - 20, first, error, "503", failures=1, order=name)


def next_record(move: Move, last: Outcome) -> tuple[str, str]:
    """Phase and target after a failed attach, with a spare node n4."""
    tried = replace(move, before_to="", operation="")
    [entry] = plan(view(last, tried, n4="True"), NOW).statuses["web"].addresses
    return (entry.move.phase, entry.move.to) if entry.move is not None else (entry.state, "")


@pytest.mark.parametrize(
    ("error", "seconds", "to"),
    [
        ("transient", 39, "n3"),
        ("timeout", 39, "n3"),
        ("transient", 41, "n4"),
        ("unsupported", 21, "n4"),
        ("terminal", 21, "n4"),
        ("conflict", 21, "n4"),
    ],
)
def test_an_attach_that_fails_goes_to_another_node(error: OutcomeError, seconds: float, to: str) -> None:
    """After 40 s of failures that may pass, at once after one that will not."""
    assert next_record(MOVE, refused(error, NOW - seconds)) == ("Attaching", to)


def test_three_nodes_are_tried_before_the_address_goes_back() -> None:
    """Law 8: the third failure is the last one, though a fourth node could take the address."""
    failed = refused("unsupported", NOW - 21)
    assert next_record(replace(MOVE, tried=("n7",)), failed) == ("Attaching", "n4")
    assert next_record(replace(MOVE, tried=("n7", "n8")), failed) == ("RollingBack", "n1")
    assert next_record(replace(MOVE, tried=("n7", "n8"), from_=""), failed) == ("Pending", "")


def test_an_address_goes_back_after_120_s_without_success() -> None:
    """Law 8: the time of the whole phase counts, not that of one node; what was free waits instead."""
    failed = refused("transient", NOW - 41)
    assert next_record(replace(MOVE, started=stamp(NOW - 119)), failed) == ("Attaching", "n4")
    assert next_record(replace(MOVE, started=stamp(NOW - 121)), failed) == ("RollingBack", "n1")
    assert next_record(replace(MOVE, started=stamp(NOW - 121), from_=""), failed) == ("Pending", "")


def test_the_third_node_has_the_time_of_the_first_one() -> None:
    """Another target does not begin the 120 s again."""
    started = stamp(NOW - 60)
    move = replace(MOVE, started=started, before_to="", operation="")
    [entry] = plan(view(refused("unsupported", NOW - 21), move, n4="True"), NOW).statuses["web"].addresses
    assert entry.move is not None
    assert (entry.move.to, entry.move.started, entry.move.tried) == ("n4", started, ("n3",))


def test_failed_moves_are_tried_again_later_and_later() -> None:
    """Law 8: 5 s, doubling up to 60 s, for ever."""
    waits: list[float] = []
    for failures in range(6):
        base = view(refused("unsupported", NOW - 21), replace(MOVE, from_="", tried=("n7", "n8"), operation=""))
        memory = Memories({ADDRESS: Memory(failures=failures, claim="u1")})
        base = replace(base, memory=memory)
        [allocation] = base.allocations
        [entry] = allocation.status.addresses
        assert entry.move is not None
        stored = replace(entry, move=replace(entry.move, before_to=""))
        status = replace(allocation.status, addresses=(stored,))
        found = plan(replace(base, allocations=(replace(allocation, status=status),)), NOW)
        waits.append(found.memory.addresses[ADDRESS].retry - NOW)
    assert waits == [5, 10, 20, 40, 60, 60]


def test_what_a_node_had_is_given_back_ten_times_beside_the_rest() -> None:
    """A node that cannot get back what it had ends the move with a finding; the address is attached meanwhile."""
    move = replace(MOVE, phase="Restoring", before_to="nat", operation="")
    name = token("u1", ADDRESS, "m1", "Restoring", "n3", "1")
    base = replace(view(move=move), answers={ADDRESS: Answer(Held("i-n3"), NOW)})

    def after(failures: int) -> Plan:
        last = Outcome("restore", name, NOW - 20, NOW - 100, "transient", "403: no permission", failures=failures)
        return plan(replace(base, outcomes={ADDRESS: last}), NOW)

    again = after(9)
    assert (kinds(again)[0], again.findings) == (Restore, ())
    assert again.statuses["web"].addresses[0].state == "Attached"
    ended = after(10)
    [entry] = ended.statuses["web"].addresses
    assert Restore not in kinds(ended)
    assert entry.move is None
    [(_, finding)] = ended.findings
    assert (finding.reason, finding.objects) == ("MoveFailed", ("n1",))
    assert finding.message == f"node n1 did not get back what it had before {ADDRESS}: 403: no permission"


def test_a_failed_call_is_repeated_after_a_second_doubling_to_ten() -> None:
    """An error is no progress, so the cloud is not asked again at once."""
    for failures, seconds in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (9, 10)):
        last = Outcome("attach", TOKEN, NOW - 0.1, NOW - 30, "transient", "503", failures=failures, order=TOKEN)
        found = plan(view(last, replace(MOVE, operation="")), NOW)
        assert (found.acts, found.wake) == ((), NOW - 0.1 + seconds)
