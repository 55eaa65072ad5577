"""When the cloud is asked about which Nodes."""

from __future__ import annotations

from hub.cloud.instances import Absent, Instance, InstanceAnswer
from hub.controller.asking import NEVER, Question, Timetable
from hub.controller.nodes import UNINITIALIZED
from hub.model import Node, Taint
from hub.registry.spec import CloudNodesSpec

SPEC = CloudNodesSpec()
ABSENT = Absent("no server")
NEW = Node("new", taints=(Taint(UNINITIALIZED, "NoSchedule"),))
DOWN = Node("down", "False")
UP = Node("up", "True")


def asked(table: Timetable, now: float, confirm_at: float = NEVER, new: InstanceAnswer = ABSENT) -> Question | None:
    """The question that is due, after it was answered; ``new`` is the answer about the Node ``new``."""
    question = table.due(SPEC, confirm_at, now)
    if question is not None:
        table.answered(question, {"new": new}, now)
    return question


def begun(*nodes: Node) -> Timetable:
    """A table after the first question, which is about all Nodes, at 0."""
    table = Timetable()
    table.note_nodes(nodes, 0.0)
    assert asked(table, 0.0) == Question(
        frozenset(node.name for node in nodes if node is not UP), everything=True, monitor=True
    )
    return table


def test_nodes_that_are_not_ready_are_asked_about_every_monitor() -> None:
    """An answer about all Nodes counts; a question without an answer does not."""
    table = begun(DOWN, UP)
    assert table.next(SPEC, NEVER) == 20.0
    assert asked(table, 19.0) is None
    assert table.due(SPEC, NEVER, 20.0) == Question(frozenset({"down"}), monitor=True)
    assert asked(table, 21.0) == Question(frozenset({"down"}), monitor=True)
    assert asked(table, 40.0) is None
    table.note_nodes([Node("down", "True")], 41.0)
    assert asked(table, 299.0) is None
    assert asked(table, 300.0) == Question(frozenset(), everything=True, monitor=True)


def test_pauses_about_a_new_node_double() -> None:
    """1 s, 2 s, 4 s, up to 60 s; a Node that appears later is asked about at once."""
    table = begun(NEW)
    times = [at for at in range(1, 200) if asked(table, float(at))]
    assert times == [1, 3, 7, 15, 31, 63, 123, 183]
    table.note_nodes([Node("other", taints=NEW.taints)], 200.0)
    assert asked(table, 200.0) == Question(frozenset({"other"}))


def test_new_nodes_that_are_due_soon_come_along() -> None:
    """Within a quarter of their pause."""
    table = begun(NEW)
    for at in (1.0, 3.0, 7.0):  # it is due at 15
        asked(table, at)
    table.note_nodes([Node("other", taints=NEW.taints)], 12.9)
    assert asked(table, 12.9) == Question(frozenset({"other"}))
    table.note_nodes([Node("third", taints=NEW.taints)], 13.1)
    assert asked(table, 13.9) == Question(frozenset({"new", "other", "third"}))


def test_nodes_that_join_one_by_one_share_questions() -> None:
    """The first is asked about at once; those of the second after it come in one question."""
    table = begun(UP)
    joined = [Node(f"n{number}", taints=NEW.taints) for number in range(4)]
    table.note_nodes(joined[:1], 10.0)
    assert asked(table, 10.0) == Question(frozenset({"n0"}))
    table.note_nodes(joined[1:3], 10.25)
    assert asked(table, 10.25) is None
    assert table.next(SPEC, NEVER) == 11.0
    table.note_nodes(joined[3:], 10.5)
    assert asked(table, 11.0) == Question(frozenset({"n0", "n1", "n2", "n3"}))


def test_a_new_node_with_a_machine_is_not_asked_about_again() -> None:
    """It waits for its writes, unless its answer did not help."""
    table = begun(NEW)
    asked(table, 1.0, new=Instance("c://new"))
    assert table.next(SPEC, NEVER) == 300.0
    table.useless("new", 10.0)
    assert table.next(SPEC, NEVER) == 12.0
    table.useless("new", 11.0)
    assert table.next(SPEC, NEVER) == 12.0
    assert asked(table, 12.0) == Question(frozenset({"new"}))


def test_a_confirmation_asks_about_all_nodes() -> None:
    """Not within 20 s after the last such answer, whatever is still to be confirmed."""
    table = begun(UP)
    assert table.next(SPEC, 5.0) == 20.0
    assert asked(table, 19.0, 5.0) is None
    assert asked(table, 30.0, 25.0) == Question(frozenset(), everything=True, monitor=True)
    assert table.next(SPEC, 25.0) == 50.0


def test_a_node_that_is_gone_is_not_asked_about() -> None:
    """Nor does it wake anybody."""
    table = begun(NEW, DOWN)
    table.forget("new")
    table.forget("down")
    assert table.next(SPEC, NEVER) == 300.0
