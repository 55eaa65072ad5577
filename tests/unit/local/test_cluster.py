"""What is known of our slices, while writes, their echoes and new lists overtake each other."""

from __future__ import annotations

import msgspec
import pytest

from hub.local.stores import SliceStore
from hub.model import ObjectKey, Slice, TargetKey
from tests.support import build

TARGET = TargetKey("edge", "payments")


@pytest.fixture
def woken() -> list[TargetKey]:
    """Targets the store has asked a pass for."""
    return []


@pytest.fixture
def store(woken: list[TargetKey]) -> SliceStore:
    """An empty store after its first list, at version 100."""
    made = SliceStore(woken.append)
    made.replace({}, "100")
    return made


def published(version: int, *, name: str = "payments-1", uid: str = "u1") -> Slice:
    """A slice as the API server has it."""
    return msgspec.structs.replace(build.slice(name, resource_version=str(version)), uid=uid)


def key(value: Slice) -> ObjectKey:
    """Its key."""
    return ObjectKey(value.namespace, value.name)


def known(store: SliceStore) -> dict[str, str]:
    """Name and version of what is known of the target."""
    return {name: each.resource_version for name, each in store.of(TARGET).items()}


def test_slice_written_while_a_list_is_read_stays(store: SliceStore) -> None:
    """A list that was taken before a write does not know of it."""
    store.wrote(published(105))

    store.replace({}, "104")

    assert known(store) == {"payments-1": "105"}


def test_slice_deleted_while_a_list_is_read_stays_away(store: SliceStore) -> None:
    """A list that was taken before a deletion still has the slice."""
    old = published(101)
    store.wrote(old)
    store.deleted(old)

    store.replace({key(old): old}, "102")

    assert known(store) == {}


def test_answer_older_than_the_list_changes_nothing(store: SliceStore) -> None:
    """Somebody changed the slice after our write, and a list said so before the write was answered."""
    store.upsert(key(published(101)), published(101), "101")
    with store.writing(key(published(101))):
        store.replace({key(published(106)): published(106)}, "107")
        store.wrote(published(105))

    assert known(store) == {"payments-1": "106"}


def test_slice_deleted_by_others_before_the_answer_is_not_there(store: SliceStore) -> None:
    """Our write was answered after a list that has the slice no more."""
    store.upsert(key(published(101)), published(101), "101")
    with store.writing(key(published(101))):
        store.replace({}, "107")
        store.wrote(published(105))

    assert known(store) == {}


def test_event_held_back_for_a_write_is_dropped_after_a_list(store: SliceStore) -> None:
    """What a list has overtaken does not bring a deleted slice back."""
    changed = published(105)
    with store.writing(key(changed)):
        assert store.defers(key(changed), lambda: store.upsert(key(changed), changed, "105"))
        store.replace({}, "107")

    assert known(store) == {}


def test_deletions_are_remembered_until_they_are_told(store: SliceStore) -> None:
    """Neither order of an answer and its echo leaves anything behind."""
    first, second, third = (published(101, name=f"s{n}", uid=f"u{n}") for n in range(3))
    for each in (first, second, third):
        store.wrote(each)
    store.deleted(first)
    store.delete(key(first), first, "104")
    store.delete(key(second), second, "105")
    store.deleted(second)
    store.deleted(third)
    store.replace({}, "110")

    assert store._buried == set()


def test_restored_etcd_is_believed(store: SliceStore, woken: list[TargetKey]) -> None:
    """After a restore from a backup what was written since is gone, whatever its version says."""
    store.wrote(published(900))
    assert store.knows(key(published(900)), "900")
    woken.clear()

    store.replace({}, "500")

    assert known(store) == {}
    assert woken == [TARGET]
    store.wrote(published(501))
    assert known(store) == {"payments-1": "501"}


@pytest.mark.parametrize(
    ("during", "read", "after"),
    [
        pytest.param(None, 105, {"payments-1": "105"}, id="read"),
        pytest.param(106, 105, {"payments-1": "106"}, id="the watch was faster"),
        pytest.param(104, 105, {"payments-1": "105"}, id="the watch is behind"),
        pytest.param(None, None, {}, id="gone"),
        pytest.param(106, None, {"payments-1": "106"}, id="gone and back"),
    ],
)
def test_reading_again_never_goes_back(
    store: SliceStore, during: int | None, read: int | None, after: dict[str, str]
) -> None:
    """What the watch brings while a slice is read again is newer than the answer, or is in it."""
    before = published(101)
    store.upsert(key(before), before, "101")
    before_read = store.get(key(before))
    if during is not None:
        store.upsert(key(before), published(during), str(during))

    store.read(key(before), published(read) if read is not None else None, before_read)

    assert known(store) == after
