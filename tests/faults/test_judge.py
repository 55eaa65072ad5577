"""Tests of the fault table's judge: a good history passes, and each kind of offence is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.faults.judge import Commit, Set, Truth, accepted, first_with, judge

ONE = Set("edge/payments", "eu")
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
READY = {"ready": True, "serving": True, "terminating": False}


def commit(at: float, *addresses: str, name: str = "payments-0", **more: Any) -> Commit:
    """A commit of a slice of cluster eu with these endpoints."""
    endpoints = [{"addresses": [address], "conditions": more.get("conditions", READY)} for address in addresses]
    meta = {
        "name": name,
        "namespace": "edge",
        "resourceVersion": str(at),
        "generation": at,
        "labels": {"kubernetes.io/service-name": "payments", "multicluster.kubernetes.io/source-cluster": "eu"},
        "annotations": more.get("annotations", {}),
    }
    body = {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 1}]}
    entry = {"at": at, "revision": int(at), "key": f"edge/{name}", "slice": body, "first": more.get("first", False)}
    return Commit.of(entry)


def deleted(at: float, name: str = "payments-0") -> Commit:
    """A commit that deletes a slice."""
    return Commit(at, int(at), f"edge/{name}", None)


def truth(**gone: float) -> Truth:
    """Nodes a, b and c exist from the beginning; those named are removed at a time."""
    made = Truth()
    for name, address in (("a", A), ("b", B), ("c", C)):
        made.node_added(0.0, address, ONE)
        if name in gone:
            made.node_removed(gone[name], address, ONE)
    return made


def kinds(commits: list[Commit], what: Truth) -> list[str]:
    """The kinds of the offences in a history."""
    return [offence.kind for offence in judge(commits, what)]


def test_a_good_history_has_no_offence() -> None:
    """A history in which nodes, slices, addresses and conditions change for a reason has no offence."""
    history = [
        commit(1, A, B),
        commit(2, C, name="payments-1"),
        commit(4, A, conditions={**READY, "ready": False}),
        deleted(5, "payments-1"),
    ]
    assert kinds(history, truth(b=3.0, c=4.5)) == []


@pytest.mark.parametrize(
    ("history", "gone"),
    [
        ([commit(1, A, B), commit(2, A)], {}),
        ([commit(1, A, B), commit(2, A)], {"b": 2.5}),
        ([commit(1, A, B), deleted(2)], {"a": 1.5}),
        ([commit(1, A, B), deleted(2), commit(3, A, B)], {}),
    ],
    ids=["never", "too early", "with its slice", "only for a moment"],
)
def test_a_bad_removal_is_a_loss(history: list[Commit], gone: dict[str, float]) -> None:
    """Removing an address before its node is removed is a loss, even for a moment."""
    assert "lost" in kinds(history, truth(**gone))


def test_loss_names_address_slice_and_set() -> None:
    """The offence names the address, the slice and the set."""
    (found,) = judge([commit(1, A, B), commit(2, A)], truth())
    assert (found.set, found.at) == (ONE, 2)
    assert B in found.text
    assert "edge/payments-0" in found.text


def test_an_address_that_moves_to_another_slice_first_is_there_twice() -> None:
    """An address that is in one slice twice, or in two slices, is an offence."""
    assert kinds([commit(1, A, A)], truth()) == ["twice"]
    assert kinds([commit(1, A), commit(2, A, name="payments-1")], truth()) == ["twice"]


def test_an_address_from_nowhere_is_a_stranger() -> None:
    """An address that no node has, or that no node has yet, is an offence."""
    late = Truth()
    late.node_added(5.0, A, ONE)
    assert kinds([commit(1, "10.9.9.9")], truth()) == ["stranger"]
    assert kinds([commit(1, A)], late) == ["stranger"]


def test_a_write_that_changes_nothing_is_an_offence() -> None:
    """A write that changes nothing, or only an annotation or the order, is an offence."""
    assert "rewrite" in kinds([commit(1, A, B), commit(2, A, B)], truth())
    assert "rewrite" in kinds([commit(1, A, B), commit(2, A, B, annotations={"x": "y"})], truth())
    assert "rewrite" in kinds([commit(1, A, B), commit(2, B, A)], truth())


def test_more_writes_than_changes_are_an_offence() -> None:
    """More writes than changes are an offence."""
    made = Truth()
    made.node_added(0.0, A, ONE)
    history = [commit(1, A), commit(2, A, conditions={**READY, "ready": False}), commit(3, A)]
    assert kinds(history, made) == ["writes"]


def test_initial_state_is_not_a_write() -> None:
    """Slices that exist when the recording begins do not count as writes."""
    made = Truth()
    made.node_added(0.0, A, ONE)
    assert kinds([commit(1, A, first=True)], made) == []


def test_other_sets_are_not_judged() -> None:
    """Sets that the truth does not have are not judged."""
    assert kinds([commit(1, A), deleted(2)], Truth()) == []


def test_an_accepted_write_without_a_commit_is_found() -> None:
    """Three accepted PUTs with two commits are reported."""
    key = "edge/payments-0"
    history = [commit(1, A), commit(2, A, B)]
    assert accepted(history, [key, key]) == []
    assert accepted(history, [key] * 3) == [f"{key}: 3 writes, 2 changes"]


def test_the_first_time_of_a_state_is_found() -> None:
    """The first time is found over all slices of the set."""
    history = [commit(1, A), commit(2, B, name="payments-1"), deleted(3, "payments-1")]
    assert first_with(history, ONE, frozenset({A, B})) == 2
    assert first_with(history, ONE, frozenset({C})) is None
