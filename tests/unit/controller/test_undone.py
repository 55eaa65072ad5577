"""Writes to Nodes that another writer undoes."""

from __future__ import annotations

from msgspec.structs import replace

from hub.controller.nodes import Change
from hub.controller.undone import Undone

CHANGE = Change("addresses", "2 addresses", (), target=("10.0.0.1", "10.0.0.2"))


def test_the_fourth_equal_write_within_ten_minutes_waits() -> None:
    """Until the first of the last three is ten minutes old."""
    undone = Undone()
    for at in (0.0, 100.0, 200.0):
        assert undone.wait("n1", CHANGE, at) == 0
        undone.made("n1", CHANGE, at)
    assert undone.wait("n1", CHANGE, 250.0) == 350.0
    assert undone.wait("n1", CHANGE, 600.0) == 0
    undone.made("n1", CHANGE, 600.0)
    assert undone.wait("n1", CHANGE, 601.0) == 99.0


def test_only_the_same_write_counts() -> None:
    """Another Node, another aspect, another target and a Node that is gone do not wait."""
    undone = Undone()
    for at in (0.0, 1.0, 2.0):
        undone.made("n1", CHANGE, at)
    other = replace(CHANGE, target=("10.0.0.3",))
    assert undone.wait("n2", CHANGE, 3.0) == 0
    assert undone.wait("n1", replace(CHANGE, aspect="labels"), 3.0) == 0
    assert undone.wait("n1", other, 3.0) == 0
    undone.made("n1", other, 3.0)
    assert undone.wait("n1", CHANGE, 4.0) == 0
    undone.made("n1", other, 4.0)
    undone.made("n1", other, 5.0)
    undone.forget("n1")
    assert undone.wait("n1", other, 6.0) == 0
