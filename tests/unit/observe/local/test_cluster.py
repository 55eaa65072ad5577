"""The slice store, while writes, their watch events and new lists overtake each other."""

from __future__ import annotations

import msgspec
import pytest

from hub.model import ObjectKey, Slice, TargetKey
from hub.observe.local.stores import ServiceStore, SliceStore, newer
from tests.support import build

TARGET = TargetKey("edge", "payments")


@pytest.fixture
def woken() -> list[TargetKey]:
    """The targets that the store has reported as changed."""
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
    """The key of a slice."""
    return ObjectKey(value.namespace, value.name)


def known(store: SliceStore) -> dict[str, str]:
    """Name -> resourceVersion of the stored slices of the target."""
    return {name: slice_.resource_version for name, slice_ in store.of(TARGET).items()}


def test_slice_written_while_a_list_is_read_stays(store: SliceStore) -> None:
    """A list that was taken before our write does not remove the written slice."""
    store.wrote(published(105))

    store.replace({}, "104")

    assert known(store) == {"payments-1": "105"}


def test_slice_deleted_while_a_list_is_read_stays_away(store: SliceStore) -> None:
    """A list that was taken before our deletion does not bring the slice back."""
    old = published(101)
    store.wrote(old)
    store.deleted(old)

    store.replace({key(old): old}, "102")

    assert known(store) == {}


def test_answer_older_than_the_list_changes_nothing(store: SliceStore) -> None:
    """The answer to a write does not replace a newer state from a list."""
    store.upsert(key(published(101)), published(101), "101")
    with store.writing(key(published(101))):
        store.replace({key(published(106)): published(106)}, "107")
        store.wrote(published(105))

    assert known(store) == {"payments-1": "106"}


def test_slice_deleted_by_others_before_the_answer_is_not_there(store: SliceStore) -> None:
    """The answer to a write does not bring back a slice that a newer list lacks."""
    store.upsert(key(published(101)), published(101), "101")
    with store.writing(key(published(101))):
        store.replace({}, "107")
        store.wrote(published(105))

    assert known(store) == {}


def test_event_held_back_for_a_write_is_dropped_after_a_list(store: SliceStore) -> None:
    """A deferred event that is older than the last list does not bring a slice back."""
    changed = published(105)
    with store.writing(key(changed)):
        assert store.defers(key(changed), lambda: store.upsert(key(changed), changed, "105"))
        store.replace({}, "107")

    assert known(store) == {}


def test_deletion_held_back_for_a_write_is_dropped_after_a_list(store: SliceStore) -> None:
    """A deferred deletion that is older than the last list does not remove a slice."""
    old = published(101)
    store.upsert(key(old), old, "101")
    with store.writing(key(old)):
        assert store.defers(key(old), lambda: store.delete(key(old), published(105), "105"))
        store.replace({key(old): published(106)}, "107")

    assert known(store) == {"payments-1": "106"}


@pytest.mark.parametrize("listed", ["100", "105"], ids=["told by the watch", "told by a list"])
def test_write_that_changes_nothing_is_entered(store: SliceStore, listed: str) -> None:
    """A write that a webhook undid is stored as sent although the version is unchanged, so it is not repeated."""
    there = published(101)
    store.upsert(key(there), there, "101")
    store.replace({key(there): there}, listed)
    wanted = msgspec.structs.replace(there, annotations={"ours": "alone"})

    store.wrote(wanted)

    assert store.get(key(there)) == wanted


def test_deletion_is_remembered_until_confirmed(store: SliceStore) -> None:
    """A deletion is remembered only until the watch or a list confirms it."""
    first, second, third = (published(101, name=f"s{n}", uid=f"u{n}") for n in range(3))
    for slice_ in (first, second, third):
        store.wrote(slice_)
    store.deleted(first)
    store.delete(key(first), first, "104")
    store.delete(key(second), second, "105")
    store.deleted(second)
    store.deleted(third)
    store.replace({}, "110")

    assert store._deleted_uids == set()


def test_restored_etcd_is_believed(store: SliceStore, woken: list[TargetKey]) -> None:
    """A list that is older than the last event, as after a restore, replaces everything."""
    store.wrote(published(900))
    assert store.knows(key(published(900)), "900")
    woken.clear()

    store.replace({}, "500")

    assert known(store) == {}
    assert woken == [TARGET]
    store.wrote(published(501))
    assert known(store) == {"payments-1": "501"}


def test_state_of_a_restored_etcd_is_another_one(store: SliceStore) -> None:
    """``stored_at_version`` returns a slice of the same version, unless the list is older than the last event."""
    store.upsert(key(published(300)), published(300), "300")
    assert store.stored_at_version(key(published(300)), "300", "320") == published(300)
    assert store.stored_at_version(key(published(300)), "310", "320") is None
    assert store.stored_at_version(key(published(300, name="other")), "300", "320") is None
    store.upsert(key(published(300, name="late")), published(900, name="late"), "900")

    assert store.stored_at_version(key(published(300)), "300", "500") is None


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
def test_reread_does_not_replace_a_newer_state(
    store: SliceStore, during: int | None, read: int | None, after: dict[str, str]
) -> None:
    """The result of a GET does not replace a newer state from the watch."""
    before = published(101)
    store.upsert(key(before), before, "101")
    before_read = store.reading(key(before))
    if during is not None:
        store.upsert(key(before), published(during), str(during))

    store.read(key(before), published(read) if read is not None else None, before_read)

    assert known(store) == after


def test_slice_that_is_deleted_while_it_is_read_again_stays_away(store: SliceStore) -> None:
    """A GET does not bring back a slice whose deletion the watch reported meanwhile."""
    old, read = published(101), published(105)
    store.upsert(key(old), old, "101")
    before = store.reading(key(old))
    store.upsert(key(read), read, "105")
    store.delete(key(read), published(106), "106")

    store.read(key(read), read, before)

    assert known(store) == {}


def test_slice_of_a_restored_server_is_read_again(store: SliceStore) -> None:
    """The result of a GET is stored even if its version is lower than versions seen before."""
    other = published(1000, name="other", uid="u2")
    store.replace({key(other): other}, "1000")
    made = published(601)

    store.read(key(made), made, store.reading(key(made)))

    assert known(store) == {"payments-1": "601", "other": "1000"}


def test_slice_that_a_finalizer_holds_is_read_again(store: SliceStore) -> None:
    """A slice that this process deleted but a finalizer keeps is stored by a GET."""
    old, held, other = published(101), published(105), published(106, name="other", uid="u2")
    store.upsert(key(old), old, "101")
    store.deleted(old)
    store.upsert(key(held), held, "105")
    store.upsert(key(other), other, "106")

    store.read(key(held), held, store.reading(key(held)))

    assert known(store) == {"payments-1": "105", "other": "106"}


@pytest.mark.parametrize(
    ("version", "than", "is_newer"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("x", "9", True), ("9", "x", True), ("x", "x", False)],
)
def test_versions_are_compared_as_numbers(version: str, than: str, *, is_newer: bool) -> None:
    """Versions are compared as numbers; if one is not a number, a different one is newer."""
    assert newer(version, than) is is_newer


@pytest.mark.parametrize(("version", "after"), [(104, "105"), (105, "105"), (106, "106")])
def test_event_that_is_not_newer_than_the_slice_changes_nothing(
    store: SliceStore, woken: list[TargetKey], version: int, after: str
) -> None:
    """A watch event changes a slice, and wakes its target, only if it is newer than the known state."""
    store.wrote(published(105))

    store.upsert(key(published(version)), published(version), str(version))

    assert (known(store), woken) == ({"payments-1": after}, [TARGET] if version > 105 else [])


@pytest.mark.parametrize(("version", "after"), [(99, {}), (100, {}), (101, {"payments-1": "101"})])
def test_event_that_is_not_newer_than_the_list_changes_nothing(
    store: SliceStore, version: int, after: dict[str, str]
) -> None:
    """A list includes all events up to its own version."""
    store.upsert(key(published(version)), published(version), str(version))

    assert known(store) == after


@pytest.mark.parametrize(("version", "after"), [(101, {"payments-1": "101"}), (100, {}), (99, {})])
def test_answer_that_is_not_newer_than_the_list_is_not_stored(
    store: SliceStore, version: int, after: dict[str, str]
) -> None:
    """The answer to a write is stored only if it is newer than the last list."""
    store.wrote(published(version))

    assert known(store) == after


def test_event_of_a_slice_that_this_process_deleted_does_not_bring_it_back(
    store: SliceStore, woken: list[TargetKey]
) -> None:
    """Late events of a deleted slice are ignored, but a new slice of the same name is stored."""
    store.wrote(published(101))
    store.deleted(published(101))
    store.upsert(key(published(102)), published(102), "102")
    assert (known(store), woken) == ({}, [])

    store.upsert(key(published(103)), published(103, uid="u2"), "103")

    assert (known(store), woken) == ({"payments-1": "103"}, [TARGET])


def test_deletion_of_an_older_slice_of_the_same_name_changes_nothing(store: SliceStore, woken: list[TargetKey]) -> None:
    """Deletions, by the watch or by this process, remove only the slice with the same uid."""
    store.wrote(published(105, uid="u2"))
    store.wrote(published(106, name="payments-2", uid="u3"))
    store.delete(key(published(101)), published(107), "107")
    store.deleted(published(101))
    assert (known(store), woken) == ({"payments-1": "105", "payments-2": "106"}, [])

    store.delete(key(published(105)), published(108, uid="u2"), "108")

    assert (known(store), woken) == ({"payments-2": "106"}, [TARGET])
    assert list(store.targets()) == [TARGET]


def test_list_wakes_the_targets_whose_slices_differ(woken: list[TargetKey]) -> None:
    """A list wakes the targets of new, changed and missing slices; unchanged slices stay the same objects."""
    store = SliceStore(woken.append)
    same, changed, gone, new = (
        msgspec.structs.replace(build.slice(f"{name}-1", service=name, resource_version="101"), uid=name)
        for name in ("same", "changed", "gone", "new")
    )
    store.replace({key(value): value for value in (same, changed, gone)}, "102")
    woken.clear()
    later = msgspec.structs.replace(changed, resource_version="103")
    kept = store.get(key(same))

    store.replace({key(value): value for value in (msgspec.structs.replace(same), later, new)}, "104")

    assert sorted(woken) == [TargetKey("edge", name) for name in ("changed", "gone", "new")]
    assert store.get(key(same)) is kept
    assert {value.name: value.resource_version for value in store.values()} == {
        "same-1": "101",
        "changed-1": "103",
        "new-1": "101",
    }
    assert store.lists == 2


def test_slice_that_moves_to_another_service_wakes_both(store: SliceStore, woken: list[TargetKey]) -> None:
    """If a slice gets another Service, it leaves the old target, and both are woken."""
    other = TargetKey("edge", "orders")
    moved = msgspec.structs.replace(build.slice("payments-1", service="orders", resource_version="102"), uid="u1")
    store.wrote(published(101))

    store.upsert(key(moved), moved, "102")

    assert sorted(woken) == [other, TARGET]
    assert (known(store), list(store.of(other)), list(store.targets())) == ({}, ["payments-1"], [other])


def test_services_that_did_not_change_wake_nobody(woken: list[TargetKey]) -> None:
    """A Service wakes its target when it is new, gone or changed in more than its resourceVersion."""
    store = ServiceStore(woken.append)
    payments, orders = (build.service(name, resource_version="1") for name in ("payments", "orders"))
    store.replace({("edge", "payments"): payments, ("edge", "orders"): orders}, "1")
    assert sorted(woken) == [TargetKey("edge", "orders"), TARGET]
    woken.clear()

    again = build.service("payments", resource_version="1")
    store.replace({("edge", "payments"): again, ("edge", "orders"): orders}, "2")
    store.upsert(("edge", "payments"), build.service("payments", resource_version="3"), "3")
    store.delete(("edge", "other"), orders, "4")
    assert woken == []
    assert store.lists == 2

    store.upsert(("edge", "payments"), build.service("payments", resource_version="5", ports=()), "5")
    store.upsert(("edge", "other"), build.service("other"), "6")
    store.delete(("edge", "other"), build.service("other"), "7")
    store.replace({("edge", "payments"): build.service("payments", resource_version="5", ports=())}, "8")
    assert woken == [TARGET, *[TargetKey("edge", "other")] * 2, TargetKey("edge", "orders")]
    assert store.get(TargetKey("edge", "orders")) is None


# -- slices that another replica writes -------------------------------------------------------------------------


def full(version: int) -> Slice:
    """A slice with endpoints."""
    return msgspec.structs.replace(published(version), endpoints=tuple(build.endpoints(3).values()))


class Rights:
    """Says whether the slices of the target are kept whole."""

    ours = False

    def whole(self, _: TargetKey) -> bool:
        return self.ours


def test_thin_slices_keep_only_counts() -> None:
    """Thin slices keep number and conditions of their endpoints; reading an address raises IndexError."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    store.upsert(key(value), value, "101")

    [found] = store.of(TARGET).values()

    assert [endpoint.conditions for endpoint in found.endpoints] == [
        endpoint.conditions for endpoint in value.endpoints
    ]
    assert (found.labels, found.annotations, store.thin(TARGET)) == (value.labels, value.annotations, [key(value)])
    with pytest.raises(IndexError):
        _ = found.endpoints[0].address


def test_a_slice_that_becomes_ours_is_thin_until_it_is_read_again() -> None:
    """A thin slice stays thin until a GET, even if it is to be kept whole."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    store.replace({key(value): value}, "101")
    rights.ours = True
    assert store.thin(TARGET) == [key(value)]

    store.read(key(value), value, store.reading(key(value)))

    assert (store.thin(TARGET), store.get(key(value))) == ([], value)


def test_slices_no_longer_ours_become_thin() -> None:
    """``thin_out`` makes slices thin that are no longer ours; without ``whole`` it does nothing."""
    rights = Rights()
    rights.ours = True
    store, every = SliceStore(lambda _: None, rights.whole), SliceStore(lambda _: None)
    for one in (store, every):
        one.wrote(full(101))
        one.thin_out()
        assert one.thin(TARGET) == []
    rights.ours = False

    store.thin_out()

    assert store.thin(TARGET) == [key(full(101))]
    assert known(store) == {"payments-1": "101"}


def test_a_thin_slice_that_is_written_or_gone_is_not_thin() -> None:
    """A slice is no longer thin after it was deleted, is missing in a list, or was written."""
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
    """A slice of a thinned page is thin even if its target became ours before the end of the list."""
    rights = Rights()
    store = SliceStore(lambda _: None, rights.whole)
    value = full(101)
    page = store.shrink_page({key(value): value})
    rights.ours = True

    store.replace(page, "101")

    assert store.thin(TARGET) == [key(value)]
    assert store.shrink_page({key(value): value}) == {key(value): value}


def test_equal_endpoints_of_two_slices_are_one_object(store: SliceStore) -> None:
    """Slices share equal endpoints, even after all endpoints were replaced many times."""
    for version in range(200, 800):
        for name in ("payments-1", "payments-2"):
            endpoints = [build.endpoint(f"10.{version >> 8}.{version & 255}.{number}") for number in range(1, 21)]
            changed = msgspec.structs.replace(published(version, name=name, uid=name), endpoints=tuple(endpoints))
            store.upsert(key(changed), changed, str(version))

    first, second = (store.of(TARGET)[name].endpoints for name in ("payments-1", "payments-2"))
    assert all(one is other for one, other in zip(first, second, strict=True))
