"""What is known of our slices, while writes, their echoes and new lists overtake each other."""

from __future__ import annotations

import msgspec
import pytest

from hub.model import ObjectKey, Slice, TargetKey
from hub.observe.local.stores import SliceStore
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


def test_deletion_held_back_for_a_write_is_dropped_after_a_list(store: SliceStore) -> None:
    """Our label went and came back meanwhile: the list has the slice."""
    old = published(101)
    store.upsert(key(old), old, "101")
    with store.writing(key(old)):
        assert store.defers(key(old), lambda: store.delete(key(old), published(105), "105"))
        store.replace({key(old): published(106)}, "107")

    assert known(store) == {"payments-1": "106"}


@pytest.mark.parametrize("listed", ["100", "105"], ids=["told by the watch", "told by a list"])
def test_write_that_changes_nothing_is_entered(store: SliceStore, listed: str) -> None:
    """Where a webhook undoes it the version stays; the slice counts as written, else it would be for ever."""
    there = published(101)
    store.upsert(key(there), there, "101")
    store.replace({key(there): there}, listed)
    wanted = msgspec.structs.replace(there, annotations={"ours": "alone"})

    store.wrote(wanted)

    assert store.get(key(there)) == wanted


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


def test_state_of_a_restored_etcd_is_another_one(store: SliceStore) -> None:
    """A state is known by its version, but not by that of a list that lies before what the watch has brought."""
    store.upsert(key(published(300)), published(300), "300")
    assert store.in_state(key(published(300)), "300", "320") == published(300)
    assert store.in_state(key(published(300)), "310", "320") is None
    assert store.in_state(key(published(300, name="other")), "300", "320") is None
    store.upsert(key(published(300, name="late")), published(900, name="late"), "900")

    assert store.in_state(key(published(300)), "300", "500") is None


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
    before_read = store.reading(key(before))
    if during is not None:
        store.upsert(key(before), published(during), str(during))

    store.read(key(before), published(read) if read is not None else None, before_read)

    assert known(store) == after


def test_slice_that_is_deleted_while_it_is_read_again_stays_away(store: SliceStore) -> None:
    """The watch was faster: nothing would come any more to take it away."""
    old, read = published(101), published(105)
    store.upsert(key(old), old, "101")
    before = store.reading(key(old))
    store.upsert(key(read), read, "105")
    store.delete(key(read), published(106), "106")

    store.read(key(read), read, before)

    assert known(store) == {}


def test_slice_of_a_restored_server_is_read_again(store: SliceStore) -> None:
    """Its versions lie before those that were seen: that says nothing about whether it exists."""
    other = published(1000, name="other", uid="u2")
    store.replace({key(other): other}, "1000")
    made = published(601)

    store.read(key(made), made, store.reading(key(made)))

    assert known(store) == {"payments-1": "601", "other": "1000"}


def test_slice_that_a_finalizer_holds_is_read_again(store: SliceStore) -> None:
    """This process deleted it and forgot it; it is there all the same, and has its name."""
    old, held, other = published(101), published(105), published(106, name="other", uid="u2")
    store.upsert(key(old), old, "101")
    store.deleted(old)
    store.upsert(key(held), held, "105")
    store.upsert(key(other), other, "106")

    store.read(key(held), held, store.reading(key(held)))

    assert known(store) == {"payments-1": "105", "other": "106"}


# -- what another replica writes --------------------------------------------------------------------------------


def full(version: int) -> Slice:
    """A slice with endpoints."""
    return msgspec.structs.replace(published(version), endpoints=tuple(build.endpoints(3).values()))


class Rights:
    """Whether the target is ours to write."""

    ours = False

    def whole(self, _: TargetKey) -> bool:
        return self.ours


def test_of_others_slices_only_numbers_are_kept() -> None:
    """How many endpoints there are under which conditions; whoever asks for an address of one fails."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    store.upsert(key(value), value, "101")

    [found] = store.of(TARGET).values()

    assert [each.conditions for each in found.endpoints] == [each.conditions for each in value.endpoints]
    assert (found.labels, found.annotations, store.thin(TARGET)) == (value.labels, value.annotations, [key(value)])
    with pytest.raises(IndexError):
        _ = found.endpoints[0].address


def test_a_slice_that_becomes_ours_is_thin_until_it_is_read_again() -> None:
    """Its content is not guessed: it is asked for."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    store.replace({key(value): value}, "101")
    rights.ours = True
    assert store.thin(TARGET) == [key(value)]

    store.read(key(value), value, store.reading(key(value)))

    assert (store.thin(TARGET), store.get(key(value))) == ([], value)


def test_what_is_ours_no_more_is_thinned_out() -> None:
    """Also what we wrote ourselves; nothing is done where every target is everybody's."""
    rights = Rights()
    rights.ours = True
    store, every = SliceStore(lambda _: None, rights.whole), SliceStore(lambda _: None)
    for each in (store, every):
        each.wrote(full(101))
        each.thin_out()
        assert each.thin(TARGET) == []
    rights.ours = False

    store.thin_out()

    assert store.thin(TARGET) == [key(full(101))]
    assert known(store) == {"payments-1": "101"}


def test_a_thin_slice_that_is_written_or_gone_is_not_thin() -> None:
    """Whichever way it comes to an end."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    store.upsert(key(full(101)), full(101), "101")
    store.delete(key(full(101)), full(101), "102")
    assert store.thin(TARGET) == []
    store.upsert(key(full(103)), full(103), "103")
    store.replace({}, "104")
    assert store.thin(TARGET) == []
    store.upsert(key(full(105)), full(105), "105")
    rights.ours = True
    store.wrote(full(106))
    assert store.thin(TARGET) == []


def test_a_page_of_a_list_is_thinned_before_the_next_one_is_read() -> None:
    """What became ours between the page and the end of the list has to be read again, too."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    page = store.lean({key(value): value})
    rights.ours = True

    store.replace(page, "101")

    assert store.thin(TARGET) == [key(value)]
    assert store.lean({key(value): value}) == {key(value): value}


def test_equal_endpoints_of_two_slices_are_one_object(store: SliceStore) -> None:
    """Also after all nodes were replaced, again and again."""
    for version in range(200, 800):
        for name in ("payments-1", "payments-2"):
            endpoints = [build.endpoint(f"10.{version >> 8}.{version & 255}.{number}") for number in range(1, 21)]
            changed = msgspec.structs.replace(published(version, name=name, uid=name), endpoints=tuple(endpoints))
            store.upsert(key(changed), changed, str(version))

    first, second = (store.of(TARGET)[name].endpoints for name in ("payments-1", "payments-2"))
    assert all(one is other for one, other in zip(first, second, strict=True))
