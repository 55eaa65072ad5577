"""Which Nodes are deleted: each condition, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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

    def go_down(self, name: str, at: float) -> None:
        """A Node is not Ready from now on."""
        self.nodes[name] = replace(self.nodes[name], ready="False")
        self.watch.note_nodes([self.nodes[name]], (), at)

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


@pytest.mark.parametrize(
    ("world", "now", "missing", "wait"),
    [
        (confirmed("n1"), 100.0, "", 0.0),
        (World("n1"), 100.0, "two answers, 20 s apart", 0.0),
        (confirmed(gone=("n1",)), 100.0, "it is Ready", 0.0),
        (confirmed("n1"), 50.0, "not Ready for 60 s", 10.0),
        (confirmed("n1", deleting=True), 100.0, "being deleted", 0.0),
    ],
    ids=["nothing", "answers", "Ready", "time", "deleting"],
)
def test_what_is_missing_is_named(world: World, now: float, missing: str, wait: float) -> None:
    """The first condition that does not hold, and how long it takes if time alone brings it."""
    found, seconds = world.watch.unripe(world.nodes["n1"], CloudNodesSpec(), PATTERN, now, WALL + now)
    assert (missing in found, bool(found), seconds) == (True, bool(missing), wait)


def test_one_answer_is_not_enough() -> None:
    """A single answer, two within 20 s, a second one that began before the first ended, and two partial ones."""
    once = World("n1")
    once.answer(0.0)
    assert once.decide() == Deletions()
    for second, last, complete in ((15.0, 16.0, True), (15.0, 45.0, True), (30.0, 31.0, False)):
        made = World("n1")
        made.answer(0.0, complete=complete)
        made.answer(second, complete=complete, last=last)
        assert made.decide() == Deletions()
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
    between = World("n1")
    between.answer(0.0)
    between.answer(15.0, n1=Unknown("503"))
    between.answer(30.0)
    assert between.decide().delete == ()
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
    partly = World("n1", gone=("n1", "n2"), count=2)
    partly.answer(0.0)
    partly.answer(30.0, complete=False, n2=Instance("c://n2"))
    assert partly.decide().reason == "WrongAccount"


def test_another_clouds_node_is_never_deleted() -> None:
    """A provider ID that does not match wholly keeps the Node."""
    made = confirmed("n1")
    made.nodes["n1"] = Node("n1", "False", provider_id="c://n1/x", created=OLD)
    assert made.decide().delete == ()


def test_answers_about_a_ready_node_are_no_evidence() -> None:
    """Two answers from before the Node stopped being Ready do not count, however many there were."""
    made = confirmed(gone=("n1",))
    made.go_down("n1", 40.0)
    assert made.decide(200.0).delete == ()
    made.answer(200.0)
    made.answer(230.0)
    assert made.decide(240.0).delete == ("n1",)


def test_a_node_found_by_name_is_never_deleted() -> None:
    """Answers from before the Node had a provider ID do not count."""
    made = World("n1")
    named = replace(made.nodes["n1"], provider_id="")
    made.watch.note_nodes([named], (), 0.0)
    made.answer(0.0)
    made.answer(30.0)
    made.watch.note_nodes([made.nodes["n1"]], (), 40.0)
    assert made.decide(200.0).delete == ()


def test_a_node_registered_anew_under_its_name_lives() -> None:
    """Another UID needs its own time and its own answers, also if the hub never saw the old Node go."""
    made = confirmed("n1")
    made.nodes["n1"] = replace(made.nodes["n1"], uid="another")
    assert made.decide().delete == ()
    made.watch.note_nodes([made.nodes["n1"]], (), 100.0)
    assert made.decide(200.0).delete == ()
    made.answer(200.0)
    made.answer(230.0)
    assert made.decide(240.0).delete == ("n1",)


def test_a_machine_that_is_missing_while_its_kubelet_answers_counts() -> None:
    """A list that lacks half of the machines deletes not even the first Node that is ripe."""
    names = tuple(f"n{number}" for number in range(1, 6))
    found = confirmed("n1", gone=names).decide()
    assert (found.delete, found.withheld, found.reason) == ((), ("n1",), "NodeDeletionWithheld")


def test_as_many_as_the_limit_allows_all_go() -> None:
    """Ten of a hundred are 10 % until the last one is deleted, and then no other goes within the window."""
    names = tuple(f"n{number}" for number in range(1, 11))
    made = confirmed(*names, count=100)
    for at in range(100, 150, 5):
        name = made.decide(float(at)).delete[0]
        made.watch.deleted(name, float(at))
        del made.nodes[name]
        made.watch.note_nodes((), (name,), float(at))
    assert not made.nodes.keys() & set(names)
    made.go_down("n11", 150.0)
    made.gone = ("n11",)
    made.answer(150.0)
    made.answer(180.0)
    assert made.decide(220.0).withheld == ("n11",)


def test_an_approval_lasts_until_all_its_nodes_are_gone() -> None:
    """The Nodes that an operator saw go one after the other; one that he did not see is withheld."""
    made = confirmed("n1", "n2", "n3")
    digest = made.decide().digest
    made.watch.deleted("n1", 100.0)
    del made.nodes["n1"]
    made.go_down("n4", 100.0)
    made.gone = ("n2", "n3", "n4")
    made.answer(100.0)
    made.answer(130.0)
    found = made.decide(170.0, lambda given: given == digest)
    assert (found.delete, found.withheld) == (("n2", "n3"), ("n4",))
    assert found.digest != digest


@pytest.mark.parametrize(("share", "most"), [(0.0, 1), (0.29, 29), (0.1, 10)])
def test_the_limit_is_a_whole_number_of_nodes(share: float, most: int) -> None:
    """At least one Node may go, and no rounding takes one away."""
    names = tuple(f"n{number}" for number in range(1, most + 2))
    assert len(confirmed(*names[:-1], count=100).decide(max_delete=share).delete) == most
    assert confirmed(*names, count=100).decide(max_delete=share).delete == ()


NAMES = st.sampled_from(["n1", "n2"])
ANSWERS = st.tuples(*[st.sampled_from(["here", "gone", "gone", "unknown"]) for _ in range(2)], st.booleans())
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["go_down", "come_up", "register", "delete"]), NAMES),
    st.tuples(st.just("answer"), ANSWERS),
    st.tuples(st.just("answer"), ANSWERS),
    st.tuples(st.just("wait"), st.integers(5, 60)),
)


class History:
    """Events of a cluster of four, and what follows from them for deletions by the rules' own words."""

    def __init__(self) -> None:
        self.world = World(count=4)
        self.now = 0.0
        self.down: dict[str, float] = {}
        self.answers: dict[str, list[tuple[float, bool]]] = {"n1": [], "n2": []}
        self.absent: set[str] = set()
        self.deleted: list[float] = []

    def decide(self) -> Deletions:
        return self.world.decide(self.now, max_delete=0.5, delete_after=30.0)

    def wait(self, seconds: int) -> None:
        self.now += seconds

    def _node(self, name: str, **more: Any) -> None:
        self.world.nodes[name] = replace(self.world.nodes[name], **more)
        self.world.watch.note_nodes([self.world.nodes[name]], (), self.now)

    def go_down(self, name: str) -> None:
        self._node(name, ready="Unknown")
        if name not in self.down:
            self.down[name], self.answers[name] = self.now, []

    def come_up(self, name: str) -> None:
        self._node(name, ready="True")
        self.down.pop(name, None)
        self.answers[name] = []

    def register(self, name: str) -> None:
        self._node(name, ready="Unknown", uid=f"{name} {self.now}")
        self.down[name], self.answers[name] = self.now, []

    def answer(self, told: tuple[str, str, bool]) -> None:
        words: dict[str, InstanceAnswer] = {
            "here": Instance("c://x"),
            "gone": Absent("no server"),
            "unknown": Unknown("503"),
        }
        given = {"n1": words[told[0]], "n2": words[told[1]]}
        if told[2]:
            given |= {"n3": words["here"], "n4": words["unknown"]}
        self.world.watch.note_answers(given, self.now, self.now + 0.5, complete=told[2])
        for name, state in zip(("n1", "n2"), told[:2], strict=True):
            if state != "gone":
                self.absent.discard(name)
                self.answers[name] = []
                continue
            self.absent.add(name)
            if name in self.down:
                self.answers[name].append((self.now, told[2]))

    def delete(self, name: str) -> None:
        if name in self.decide().delete:
            self.world.watch.deleted(name, self.now)
            self.deleted.append(self.now)
            self.absent.discard(name)
            self.answers[name] = []

    def expected(self) -> set[str]:
        """Which Nodes may be deleted."""
        recent = [at for at in self.deleted if self.now - at < 600]
        if len(self.absent) + len(recent) > (4 + len(recent)) // 2:
            return set()
        return {
            name
            for name, since in self.down.items()
            if self.now - since >= 30
            and any(at >= self.answers[name][0][0] + 20.5 for at, _ in self.answers[name])
            and any(complete for _, complete in self.answers[name])
        }


@given(st.lists(EVENTS, max_size=30))
def test_whatever_happens_every_condition_holds(events: list[Any]) -> None:
    """Exactly those Nodes go for which the history says that every condition holds."""
    history = History()
    for kind, value in events:
        history.now += 1.0
        getattr(history, kind)(value)
        assert set(history.decide().delete) == history.expected()
