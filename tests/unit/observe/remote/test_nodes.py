"""Nodes stay the same objects for as long as they are equal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from hub.model import Node
from hub.observe.remote.nodes import NodeStore
from tests.support import build

Change = tuple[list[str], list[str]]


@pytest.fixture
def changes() -> list[Change]:
    """What was reported: names changed, names gone."""
    return []


@pytest.fixture
def store(changes: list[Change]) -> NodeStore:
    """A store that holds n1 and n2."""

    def note(changed: Iterable[Node], gone: Iterable[str]) -> None:
        changes.append((sorted(node.name for node in changed), sorted(gone)))

    made = NodeStore(note)
    made.replace({name: build.node(name, "10.0.0.1") for name in ("n1", "n2")}, "1")
    changes.clear()
    return made


def test_an_equal_node_changes_nothing(store: NodeStore, changes: list[Change]) -> None:
    """A heartbeat decodes to an equal Node: no report, no new version, the old object."""
    before, version = store.nodes["n1"], store.version
    store.upsert("n1", build.node("n1", "10.0.0.1"), "2")
    assert (store.nodes["n1"] is before, store.version, changes) == (True, version, [])


def test_an_equal_list_changes_nothing(store: NodeStore, changes: list[Change]) -> None:
    """A relist of the same nodes keeps every object."""
    before = dict(store.nodes)
    store.replace({name: msgspec.structs.replace(node) for name, node in before.items()}, "3")
    assert all(store.nodes[name] is node for name, node in before.items())
    assert (changes, store.lists) == ([], 2)


@pytest.mark.parametrize("how", ["list", "watch"])
def test_a_changed_node_keeps_what_is_as_it_was(store: NodeStore, how: str) -> None:
    """Its name and addresses are in keys and endpoints that live on."""
    before = store.nodes["n1"]
    name = "".join(["n", "1"])
    after = msgspec.structs.replace(build.node(name, ".".join(["10", "0.0.1"])), ready="False")
    assert after.name is not before.name
    if how == "watch":
        store.upsert(name, after, "2")
    else:
        store.replace({name: after}, "2")
    (key, kept), *_ = store.nodes.items()
    assert (kept.ready, kept == after) == ("False", True)
    assert key is kept.name is before.name
    assert kept.addresses is before.addresses


def test_a_list_reports_what_it_changes(store: NodeStore, changes: list[Change]) -> None:
    """New, changed and gone, once."""
    store.replace({"n2": build.node("n2", "10.0.0.9"), "n3": build.node("n3")}, "3")
    assert changes == [(["n2", "n3"], ["n1"])]


def test_a_deletion_is_reported_once(store: NodeStore, changes: list[Change]) -> None:
    """A second one of the same name is nothing."""
    for _ in range(2):
        store.delete("n1", build.node("n1"), "4")
    assert changes == [([], ["n1"])]


# --- a watch that was behind -----------------------------------------------------------------------------

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def late_store() -> tuple[NodeStore, list[float]]:
    """A store with n1, Ready, at a moment that can be moved."""
    now = [NOW]
    made = NodeStore(lambda *_: None, lambda: now[0])
    made.replace({"n1": build.node("n1", "10.0.0.1")}, "1")
    return made, now


def away(since: str) -> Node:
    """n1, not Ready."""
    return msgspec.structs.replace(build.node("n1", "10.0.0.1"), ready="Unknown", ready_since=since)


def test_grace_of_a_node_told_late_counts_from_its_arrival() -> None:
    """A minute of backlog: what was not Ready for seconds only would be out of its grace on arrival."""
    store, now = late_store()
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "2")
    assert store.nodes["n1"].ready_since == "2026-01-01T00:00:00Z"
    told = store.nodes["n1"]
    now[0] += 20  # heartbeats of the same state, and other changes, do not move it
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "3")
    assert store.nodes["n1"] is told
    store.upsert("n1", build.node("n1", "10.0.0.1"), "4")
    assert store.nodes["n1"].ready == "True"


def test_grace_of_a_node_told_in_time_counts_as_it_says() -> None:
    """A second or two is how long it takes."""
    store, _ = late_store()
    store.upsert("n1", away("2025-12-31T23:59:58Z"), "2")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:58Z"


def test_grace_counts_as_a_list_says() -> None:
    """A list tells how things are now, after a watch told it late as well as before."""
    store, _ = late_store()
    store.replace({"n1": away("2025-12-31T23:59:00Z")}, "2")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:00Z"
    store.upsert("n1", build.node("n1", "10.0.0.1"), "3")
    store.upsert("n1", away("2025-12-31T23:59:10Z"), "4")
    store.replace({"n1": away("2025-12-31T23:59:10Z")}, "5")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:10Z"


@pytest.mark.parametrize("since", ["2025-12-31T23:50:00Z", "2026-01-01T00:00:30Z", "", "yesterday"])
def test_time_that_no_backlog_explains_counts_as_it_says(since: str) -> None:
    """No watch is ten minutes behind, nor ahead."""
    store, _ = late_store()
    store.upsert("n1", away(since), "2")
    assert store.nodes["n1"].ready_since == since


def test_node_that_was_not_ready_before_keeps_its_own_time() -> None:
    """Only what a watch tells of a Node that was Ready is news."""
    store, _ = late_store()
    store.replace({"n1": away("2025-12-31T23:00:00Z")}, "2")
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "3")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:00Z"


def test_the_next_state_of_a_node_told_late_counts_as_it_says() -> None:
    """The arrival of one state says nothing about the next one."""
    store, _ = late_store()
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "2")
    store.upsert("n1", msgspec.structs.replace(away("2025-12-31T23:59:30Z"), ready="False"), "3")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:30Z"
