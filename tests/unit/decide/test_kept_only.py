"""A node that is not Ready keeps its published endpoint for a while and never gets a new one."""

from __future__ import annotations

from collections.abc import Mapping

from hub.decide.addresses import AddressPolicy
from hub.decide.sources import SourceInput
from hub.decide.view import ViewBuilder
from hub.model import Found, Node, SourceView, Unknown
from hub.registry.spec import FailoverPolicy, GuardPolicy, NodePolicy
from tests.support import build
from tests.support.build import Pipeline

ALLOWED = build.networks("10.0.0.0/8")
NOW = build.READY_SINCE_WALL
LATE = NOW + 1000.0
"""Every grace is over."""


def world(cluster: str = "eu", policy: NodePolicy | None = None) -> ViewBuilder:
    """A builder of a cluster's views."""
    return ViewBuilder(cluster, policy or NodePolicy(), AddressPolicy(ALLOWED), 5000)


def nodes(ready: str, *unready: str) -> list[Node]:
    """One node per letter, with the letter's address: those in ``ready`` are Ready, those in ``unready`` are not."""
    made = [build.node(name, address(name)) for name in ready]
    return made + [build.node(name, address(name), ready=False) for name in unready]


def address(name: str) -> str:
    """The address of a node."""
    return f"10.0.0.{ord(name) - 96}"


def view(builder: ViewBuilder, ready: str, *unready: str, now: float = NOW) -> SourceView:
    """The view of these nodes."""
    made = {node.name: node for node in nodes(ready, *unready)}
    return builder.build(made, {name: Found((address(name),)) for name in made}, now).view


def names(published: Mapping[str, set[str]], cluster: str = "eu") -> str:
    """The nodes behind the published endpoints of a cluster."""
    return "".join(sorted(chr(int(text.rpartition(".")[2]) + 96) for text in published.get(cluster, ())))


def test_a_node_that_was_never_ready_is_not_published() -> None:
    """A node is not published before it is Ready for the first time."""
    builder, it = world(), Pipeline()
    assert names(it.run(view(builder, "", "a"))) == ""
    assert names(it.run(view(builder, "bc", "a"))) == "bc"
    assert names(it.run(view(builder, "abc"))) == "abc"


def test_the_grace_keeps_what_is_published() -> None:
    """A published node that is not Ready is kept until its grace period ends."""
    builder, it = world(), Pipeline()
    it.run(view(builder, "abc"))
    assert names(it.run(view(builder, "bc", "a"))) == "abc"
    assert names(it.run(view(builder, "bc", "a", now=LATE))) == "bc"


def test_a_restart_keeps_what_is_published_and_adds_nothing() -> None:
    """After a restart the published slices decide which nodes are kept."""
    it = Pipeline()
    it.run(view(world(), "abc"))
    it.restart()
    assert names(it.run(view(world(), "b", "a", "c", "d"))) == "abc"


def test_too_many_nodes_that_are_not_ready_keep_what_is_published_and_add_nothing() -> None:
    """During a disruption published nodes are kept and no new ones are added, even after a restart."""
    builder, it = world(), Pipeline()
    it.run(view(builder, "abcd"))
    assert names(it.run(view(builder, "d", "a", "b", "c", "e", now=LATE))) == "abcd"
    it.restart()
    assert names(it.run(view(world(), "d", "a", "b", "c", "e", now=LATE))) == "abcd"


def test_a_late_answer_of_the_provider_adds_no_node_that_is_not_ready() -> None:
    """A node that is not Ready is not added when its address becomes known."""
    builder, it = world(), Pipeline()
    made = {node.name: node for node in nodes("b", "a")}
    found = {"b": Found((address("b"),))}
    it.run(builder.build(made, {**found, "a": Unknown("no answer yet")}, NOW).view)
    assert names(it.run(builder.build(made, {**found, "a": Found((address("a"),))}, NOW).view)) == "b"


def test_a_node_that_comes_back_not_ready_is_not_published_again() -> None:
    """A Node that was deleted and created again is not published until it is Ready."""
    builder, it = world(), Pipeline()
    it.run(view(builder, "abc"))
    assert names(it.run(view(builder, "bc"))) == "bc"
    assert names(it.run(view(builder, "bc", "a"))) == "bc"
    assert names(it.run(view(builder, "abc"))) == "abc"


def test_address_of_another_source_is_not_kept() -> None:
    """An address that only another source publishes is not kept for this source."""
    it = Pipeline(build.target("eu", "us"))
    both = world("eu"), world("us")
    assert it.run(view(both[0], "a"), view(both[1], "", "a")) == {"eu": {address("a")}}
    assert it.run(view(both[0], ""), view(both[1], "", "a")) == {}


def test_each_target_keeps_what_it_publishes_itself() -> None:
    """With a shared view, a target that publishes the node keeps it and another one does not add it."""
    builder, old, new = world(), Pipeline(), Pipeline()
    old.run(view(builder, "ab"))
    shared = view(builder, "b", "a")
    assert names(old.run(shared)) == "ab"
    assert names(new.run(shared)) == "b"


def test_the_last_good_answer_adds_no_node_that_was_not_ready() -> None:
    """From an unknown source, a new target gets only nodes that were Ready."""
    builder, old, new = world(), Pipeline(), Pipeline()
    old.run(view(builder, "ab"))
    last = view(builder, "b", "a")
    unknown = SourceView("eu", "connection refused", last.endpoints, kept_only=last.kept_only)
    assert names(old.run(unknown)) == "ab"
    assert names(new.run(unknown)) == "b"


def test_a_node_that_is_not_ready_helps_to_release_no_removal() -> None:
    """New nodes that are not Ready do not make up for a removal in the guard."""
    policy = NodePolicy(max_not_ready=1.0)
    guard = GuardPolicy(max_removal=0.5)
    it = Pipeline(build.target(sources=(build.source("eu", guard=guard, nodes=policy),)), guarded=True)
    builder = world(policy=policy)
    it.run(view(builder, "abcd"))
    assert names(it.run(view(builder, "a", "u", "v", "w"))) == "abcd"
    assert it.verdicts[next(iter(it.verdicts))].withheld is not None
    assert names(it.run(view(builder, "auvw"))) == "auvw"


def test_failover_does_not_turn_to_nodes_that_were_never_ready() -> None:
    """Failover does not switch to a source whose nodes have never been Ready."""
    it = Pipeline(build.target("eu", "us", strategy="failover", failover=FailoverPolicy(after=10.0)))
    builders = world("eu"), world("us")
    it.run(view(builders[0], "a"), view(builders[1], "", "b"))
    for _ in range(4):
        published = it.run(view(builders[0], "", now=LATE), view(builders[1], "", "b"), after=10.0)
    assert "us" not in published


def test_address_shared_with_a_ready_node_is_published() -> None:
    """An address shared with a Ready node is published for the Ready node."""
    builder = world()
    made = {"a": build.node("a", "10.0.0.1", ready=False), "b": build.node("b", "10.0.0.1")}
    found = {name: Found(("10.0.0.1",)) for name in made}
    assert builder.build(made, found, NOW).view.kept_only == frozenset()
    del made["b"]
    assert builder.build(made, found, NOW).view.kept_only == {"10.0.0.1"}


def test_kept_node_is_reported_as_kept_only() -> None:
    """The report of a kept node says that it is only kept where it is published."""
    builder = world()
    made = {node.name: node for node in nodes("bc", "a")}
    result = builder.build(made, {name: Found((address(name),)) for name in made}, NOW)
    report = result.reports["a"]
    assert (report.eligible, report.reason, report.addresses) == (True, "", ("10.0.0.1",))
    assert (
        report.message
        == "not Ready: its published endpoints stay until nodes.notReadyGrace is over, new ones are not added"
    )


def test_a_ports_problem_of_a_kept_source_changes_nothing() -> None:
    """A source whose ports cannot be determined keeps its endpoints, Ready or not."""
    builder, it = world(), Pipeline()
    it.run(view(builder, "ab"))
    frozen = SourceInput(it.target.sources[0], view(builder, "b", "a", "c"), "frozen")
    assert names(it.run(frozen)) == "ab"
