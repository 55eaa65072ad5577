"""Which Nodes are deleted: each condition, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hub.cloud.instances import Absent, Instance, InstanceAnswer, Unknown
from hub.controller.deletion import Deletions, Watch
from hub.model import Node
from hub.registry.spec import CloudNodesSpec

PATTERN = re.compile(r"c://(?P<id>[0-9a-z]+)")
WALL = 1_800_000_000.0
OLD = "2026-01-01T00:00:00Z"


class World:
    """Nodes n1 to n10 that are all Ready; ``down`` ones are not, and the cloud knows all but the ``gone`` ones."""

    def __init__(self, *down: str, gone: tuple[str, ...] | None = None, count: int = 10, **node: Any) -> None:
        fields = {"created": OLD, **node}
        names = [f"n{number}" for number in range(1, count + 1)]
        self.nodes = {
            name: Node(name, "False" if name in down else "True", provider_id=f"c://{name}", uid=name, **fields)
            for name in names
        }
        self.gone = down if gone is None else gone
        self.watch = Watch()
        self.watch.note_nodes(self.nodes.values(), (), 0.0)

    def answer(self, at: float, *, complete: bool = True, last: float | None = None, **other: InstanceAnswer) -> None:
        """The cloud answers a question that was asked at ``at``."""
        answers: dict[str, InstanceAnswer] = {
            name: Absent("no server") if name in self.gone else Instance(f"c://{name}") for name in self.nodes
        }
        self.watch.note_answers({**answers, **other}, at, at + 1 if last is None else last, complete=complete)

    def decide(
        self,
        now: float = 100.0,
        approved: Callable[[str], bool] = lambda _: False,
        *,
        suspect: bool = False,
        **spec: Any,
    ) -> Deletions:
        """What is decided."""
        section = CloudNodesSpec(**spec)
        return self.watch.decide("eu", self.nodes, section, PATTERN, approved, now, WALL + now, suspect=suspect)


def confirmed(*down: str, **more: Any) -> World:
    """A world in which two complete answers say that these machines are gone."""
    made = World(*down, **more)
    made.answer(0.0)
    made.answer(30.0)
    return made


def test_a_node_goes_if_every_condition_holds() -> None:
    """Not Ready for long enough, old enough, gone in two answers, and others exist."""
    assert confirmed("n1").decide() == Deletions(("n1",))


@pytest.mark.parametrize(
    ("world", "more"),
    [
        (confirmed("n1"), {"delete": "never"}),
        (confirmed("n1"), {"now": 59.0}),
        (confirmed("n1"), {"suspect": True}),
        (confirmed("n1", created="2027-01-15T07:59:00Z"), {}),
        (confirmed("n1", created="yesterday"), {}),
        (confirmed(gone=("n1",)), {}),
    ],
    ids=["never", "not long enough", "suspect", "young", "unreadable age", "Ready"],
)
def test_a_node_stays_if_one_condition_fails(world: World, more: dict[str, Any]) -> None:
    """Each condition alone keeps the Node."""
    assert world.decide(**more).delete == ()


def test_one_answer_is_not_enough() -> None:
    """A single answer, two within 20 s, a second one that began before the first ended, and two partial ones."""
    once = World("n1")
    once.answer(0.0)
    assert once.decide().delete == ()
    for second, complete in ((15.0, True), (30.0, False)):
        made = World("n1")
        made.answer(0.0, complete=complete)
        made.answer(second, complete=complete)
        assert made.decide().delete == ()
    overlapping = World("n1")
    overlapping.answer(0.0, last=25.0)
    overlapping.answer(30.0)
    assert overlapping.decide().delete == ()


def test_what_is_unknown_and_what_is_back_deletes_nothing() -> None:
    """Unknown confirms nothing; a machine that is found again, or a Ready Node, begins anew."""
    unknown = World("n1")
    unknown.answer(0.0, n1=Unknown("503"))
    unknown.answer(30.0, n1=Unknown("503"))
    assert unknown.decide().delete == ()
    back = confirmed("n1")
    back.gone = ()
    back.answer(60.0)
    back.gone = ("n1",)
    back.answer(90.0)
    assert back.decide().delete == ()
    again = confirmed("n1")
    again.watch.note_nodes([Node("n1", "True")], (), 40.0)
    again.watch.note_nodes([again.nodes["n1"]], (), 41.0)
    assert again.decide(200.0).delete == ()


def test_a_cluster_that_was_not_current_counts_anew() -> None:
    """After an outage of the API server a Node is not Ready from then on."""
    made = confirmed("n1")
    made.watch.restart(90.0)
    assert made.decide(149.0) == Deletions(wake=150.0)
    assert made.decide(150.0).delete == ("n1",)


def test_more_than_the_limit_waits_for_approval() -> None:
    """Two of ten are more than 10 %: none goes until an operator approves exactly these."""
    made = confirmed("n1", "n2")
    found = made.decide()
    assert (found.delete, found.withheld, found.reason) == ((), ("n1", "n2"), "NodeDeletionWithheld")
    assert made.decide(approved=lambda digest: digest == found.digest).delete == ("n1", "n2")
    assert confirmed("n1", "n2").decide(max_delete=0.2).delete == ("n1", "n2")


def test_deletions_within_the_window_count() -> None:
    """One deletion uses up the window of a small cluster; after the window the next one may go."""
    made = confirmed("n1")
    made.watch.deleted("n2", 50.0)
    assert made.decide(100.0).withheld == ("n1",)
    assert made.decide(651.0).delete == ("n1",)


def test_the_last_machine_is_never_deleted_by_itself() -> None:
    """An account that knows none of the cluster's machines is probably the wrong one."""
    for count in (1, 10):
        names = tuple(f"n{number}" for number in range(1, count + 1))
        found = confirmed(*names[:1], gone=names, count=count).decide()
        assert (found.delete, found.reason) == ((), "WrongAccount")


def test_another_clouds_node_is_never_deleted() -> None:
    """A provider ID that does not match wholly keeps the Node."""
    made = confirmed("n1")
    made.nodes["n1"] = Node("n1", "False", provider_id="c://n1/x", created=OLD)
    assert made.decide().delete == ()
