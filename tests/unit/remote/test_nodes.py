"""Nodes stay the same objects for as long as they are equal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from hub.model import Node
from hub.remote.nodes import NodeStore
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
        changes.append((sorted(each.name for each in changed), sorted(gone)))

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


def test_a_list_reports_what_it_changes(store: NodeStore, changes: list[Change]) -> None:
    """New, changed and gone, once."""
    store.replace({"n2": build.node("n2", "10.0.0.9"), "n3": build.node("n3")}, "3")
    assert changes == [(["n2", "n3"], ["n1"])]


def test_a_deletion_is_reported_once(store: NodeStore, changes: list[Change]) -> None:
    """A second one of the same name is nothing."""
    for _ in range(2):
        store.delete("n1", build.node("n1"), "4")
    assert changes == [([], ["n1"])]
