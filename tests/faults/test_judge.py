"""The judge of the fault table, judged: what is right passes, and each thing that must not be is called by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.faults.judge import Commit, Set, Truth, accepted, first_with, judge

ONE = Set("edge/payments", "eu")
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
READY = {"ready": True, "serving": True, "terminating": False}


def commit(at: float, *addresses: str, name: str = "payments-0", **more: Any) -> Commit:
    """A slice of cluster eu with these endpoints."""
    endpoints = [{"addresses": [each], "conditions": more.get("conditions", READY)} for each in addresses]
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
    """It is gone."""
    return Commit(at, int(at), f"edge/{name}", None)


def truth(**gone: float) -> Truth:
    """Nodes a, b and c since the beginning; those named have gone at a time."""
    made = Truth()
    for name, address in (("a", A), ("b", B), ("c", C)):
        made.came(0.0, address, ONE)
        if name in gone:
            made.went(gone[name], address, ONE)
    return made


def kinds(commits: list[Commit], what: Truth) -> list[str]:
    """Of the offences."""
    return [each.kind for each in judge(commits, what)]


def test_a_good_history_has_no_offence() -> None:
    """Nodes come and go, a slice is split in two and goes again, addresses and conditions change."""
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
    """Whatever goes although its node did not go before, be it for a moment."""
    assert "lost" in kinds(history, truth(**gone))


def test_loss_names_address_slice_and_set() -> None:
    """The address, the slice and the set."""
    (found,) = judge([commit(1, A, B), commit(2, A)], truth())
    assert (found.set, found.at) == (ONE, 2)
    assert B in found.text
    assert "edge/payments-0" in found.text


def test_an_address_that_moves_to_another_slice_first_is_there_twice() -> None:
    """In one slice twice, or in two slices at once."""
    assert kinds([commit(1, A, A)], truth()) == ["twice"]
    assert kinds([commit(1, A), commit(2, A, name="payments-1")], truth()) == ["twice"]


def test_an_address_from_nowhere_is_a_stranger() -> None:
    """One that no node ever had, or has not yet."""
    late = Truth()
    late.came(5.0, A, ONE)
    assert kinds([commit(1, "10.9.9.9")], truth()) == ["stranger"]
    assert kinds([commit(1, A)], late) == ["stranger"]


def test_a_write_that_changes_nothing_is_an_offence() -> None:
    """Be it nothing at all, or only an annotation, or only the order."""
    assert "rewrite" in kinds([commit(1, A, B), commit(2, A, B)], truth())
    assert "rewrite" in kinds([commit(1, A, B), commit(2, A, B, annotations={"x": "y"})], truth())
    assert "rewrite" in kinds([commit(1, A, B), commit(2, B, A)], truth())


def test_more_writes_than_changes_are_an_offence() -> None:
    """One node allows one write."""
    made = Truth()
    made.came(0.0, A, ONE)
    history = [commit(1, A), commit(2, A, conditions={**READY, "ready": False}), commit(3, A)]
    assert kinds(history, made) == ["writes"]


def test_initial_state_is_not_a_write() -> None:
    """It is where the history starts."""
    made = Truth()
    made.came(0.0, A, ONE)
    assert kinds([commit(1, A, first=True)], made) == []


def test_other_sets_are_not_judged() -> None:
    """What the test knows nothing of is not its business."""
    assert kinds([commit(1, A), deleted(2)], Truth()) == []


def test_an_accepted_write_without_a_commit_is_found() -> None:
    """Three PUTs, two changes."""
    key = "edge/payments-0"
    history = [commit(1, A), commit(2, A, B)]
    assert accepted(history, [key, key]) == []
    assert accepted(history, [key] * 3) == [f"{key}: 3 writes, 2 changes"]


def test_the_first_time_of_a_state_is_found() -> None:
    """Over all slices of the set."""
    history = [commit(1, A), commit(2, B, name="payments-1"), deleted(3, "payments-1")]
    assert first_with(history, ONE, frozenset({A, B})) == 2
    assert first_with(history, ONE, frozenset({C})) is None
