"""The store keeps the same Node object as long as the Node is equal."""

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
    """The reported changes: names of changed nodes, and of deleted ones."""
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
    """An equal Node, as after a heartbeat, keeps the object and the version, and is not reported."""
    before, version = store.nodes["n1"], store.version
    store.upsert("n1", build.node("n1", "10.0.0.1"), "2")
    assert (store.nodes["n1"] is before, store.version, changes) == (True, version, [])


def test_an_equal_list_changes_nothing(store: NodeStore, changes: list[Change]) -> None:
    """A new list of equal nodes keeps every object."""
    before = dict(store.nodes)
    store.replace({name: msgspec.structs.replace(node) for name, node in before.items()}, "3")
    assert all(store.nodes[name] is node for name, node in before.items())
    assert (changes, store.lists) == ([], 2)


@pytest.mark.parametrize("how", ["list", "watch"])
def test_changed_node_shares_equal_fields(store: NodeStore, how: str) -> None:
    """A changed Node shares its equal fields with the old one."""
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
    """A list reports new, changed and deleted nodes in one call."""
    store.replace({"n2": build.node("n2", "10.0.0.9"), "n3": build.node("n3")}, "3")
    assert changes == [(["n2", "n3"], ["n1"])]


def test_a_deletion_is_reported_once(store: NodeStore, changes: list[Change]) -> None:
    """A second deletion of the same node is not reported."""
    for _ in range(2):
        store.delete("n1", build.node("n1"), "4")
    assert changes == [([], ["n1"])]


# --- late watch events ------------------------------------------------------------------------------------

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def late_store() -> tuple[NodeStore, list[float]]:
    """A store with a Ready n1, and the time, which the test can change."""
    now = [NOW]
    made = NodeStore(lambda *_: None, lambda: now[0])
    made.replace({"n1": build.node("n1", "10.0.0.1")}, "1")
    return made, now


def away(since: str) -> Node:
    """The Node n1, not Ready since this time."""
    return msgspec.structs.replace(build.node("n1", "10.0.0.1"), ready="Unknown", ready_since=since)


def test_grace_of_a_late_event_starts_at_its_arrival() -> None:
    """If a watch event is a minute late, ``ready_since`` is its arrival, and later events keep that."""
    store, now = late_store()
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "2")
    assert store.nodes["n1"].ready_since == "2026-01-01T00:00:00Z"
    told = store.nodes["n1"]
    now[0] += 20  # later events of the same state do not change it
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "3")
    assert store.nodes["n1"] is told
    store.upsert("n1", build.node("n1", "10.0.0.1"), "4")
    assert store.nodes["n1"].ready == "True"


def test_grace_of_a_timely_event_starts_at_its_ready_since() -> None:
    """An event that is two seconds late keeps its ``ready_since``."""
    store, _ = late_store()
    store.upsert("n1", away("2025-12-31T23:59:58Z"), "2")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:58Z"


def test_list_keeps_ready_since() -> None:
    """A list keeps its ``ready_since``, even after a late event."""
    store, _ = late_store()
    store.replace({"n1": away("2025-12-31T23:59:00Z")}, "2")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:00Z"
    store.upsert("n1", build.node("n1", "10.0.0.1"), "3")
    store.upsert("n1", away("2025-12-31T23:59:10Z"), "4")
    store.replace({"n1": away("2025-12-31T23:59:10Z")}, "5")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:10Z"


@pytest.mark.parametrize("since", ["2025-12-31T23:50:00Z", "2026-01-01T00:00:30Z", "", "yesterday"])
def test_implausible_ready_since_is_kept(since: str) -> None:
    """A time that is in the future, invalid, or too old for a late event is kept."""
    store, _ = late_store()
    store.upsert("n1", away(since), "2")
    assert store.nodes["n1"].ready_since == since


def test_ready_since_is_kept_if_the_node_was_unready_before() -> None:
    """If the Node was not Ready before, its ``ready_since`` is kept."""
    store, _ = late_store()
    store.replace({"n1": away("2025-12-31T23:00:00Z")}, "2")
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "3")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:00Z"


def test_next_state_of_a_late_node_keeps_its_ready_since() -> None:
    """The next state of a late Node keeps its own ``ready_since``."""
    store, _ = late_store()
    store.upsert("n1", away("2025-12-31T23:59:00Z"), "2")
    store.upsert("n1", msgspec.structs.replace(away("2025-12-31T23:59:30Z"), ready="False"), "3")
    assert store.nodes["n1"].ready_since == "2025-12-31T23:59:30Z"
