"""The board: which listeners are called, and what adds and removes views."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from hub.model import LABEL_SERVICE_NAME, ObjectKey, Service, Slice
from hub.views.board import ALL, BATCH, Board, Content, Owner, ServicesStore, SlicesStore
from hub.views.join import Views
from tests.support import build
from tests.unit.views.support import World


class Heard(dict[Owner, Views]):
    """A listener that keeps the last state of each Service and counts calls."""

    calls = 0

    def __call__(self, owner: Owner, views: Views) -> None:
        self.calls += 1
        self[owner] = views

    def addresses(self, name: str, cluster: str = "local") -> list[str]:
        """The addresses of one Service."""
        return sorted(view.addresses[0] for view in self.get(Owner(cluster, "edge", name), {}).values())


async def test_listener_gets_each_change_once() -> None:
    """Listeners are called only for changes; a new listener gets all present views."""
    world, heard, late = World(), Heard(), Heard()
    world.board.listen(heard)
    world.put("a", "10.0.0.1")
    world.put("b", "10.0.0.9")
    await world.settle()
    before = heard.calls
    world.put("a", "10.0.0.1")
    world.put("b", "10.0.0.9", "10.0.0.8")
    await world.settle()
    world.board.listen(late)

    assert (before, heard.calls) == (2, 3)
    assert heard.addresses("b") == ["10.0.0.8", "10.0.0.9"]
    assert dict(late) == dict(heard)


async def test_cluster_has_no_views_before_both_lists() -> None:
    """A cluster has no views before both its Services and its slices are listed completely."""
    world, heard = World(), Heard()
    world.board.listen(heard)
    content = world.board.cluster("eu")
    content.services[ALL].replace({}, "1")
    world.put("a", "10.0.0.1", cluster="eu")
    await world.settle()
    assert heard.calls == 0
    content.slices[ALL].replace({}, "1")
    world.put("a", "10.0.0.1", cluster="eu")
    await world.settle()
    assert heard.addresses("a", "eu") == ["10.0.0.1"]


async def test_a_slice_may_change_its_service() -> None:
    """If a slice changes its Service, both Services change; deleting an unknown slice has no effect."""
    world, heard = World(), Heard()
    world.put("a", "10.0.0.1")
    world.put("b")
    await world.settle()
    world.board.listen(heard)
    slices = world.content().slices[ALL]
    [value] = slices.of(ObjectKey("edge", "a"))
    moved = Slice("edge", "a", "IPv4", value.endpoints, value.ports, {LABEL_SERVICE_NAME: "b"})
    slices.upsert(ObjectKey("edge", "a"), moved, "3")
    slices.delete(ObjectKey("edge", "unknown"), moved, "4")
    await world.settle()

    assert heard.addresses("a") == []
    assert heard.addresses("b") == ["10.0.0.1"]


async def test_complete_list_removes_missing_objects() -> None:
    """A complete list removes the Services and slices that are missing in it."""
    world, heard = World(), Heard()
    world.board.listen(heard)
    for name in ("a", "b", "c"):
        world.put(name, "10.0.0.1")
    await world.settle()
    content = world.content()
    services, key = dict(content.services[ALL].by_key), ObjectKey("edge", "a")
    del services[key]
    content.services[ALL].replace(services, "9")
    [kept] = content.slices_of(ObjectKey("edge", "b"))
    content.slices[ALL].replace({ObjectKey("edge", "b"): kept}, "9")
    await world.settle()

    assert [heard.addresses(name) for name in ("a", "b", "c")] == [[], ["10.0.0.1"], []]


async def test_stale_cluster_keeps_and_marks_its_views() -> None:
    """A stale cluster keeps its views, marked as stale; other clusters do not change."""
    world, heard = World("local", "eu"), Heard()
    world.put("a", "10.0.0.1")
    world.put("a", "10.1.0.1", cluster="eu")
    await world.settle()
    world.board.listen(heard)
    heard.calls = 0
    world.board.mark_stale("eu", stale=True)
    world.board.mark_stale("eu", stale=True)
    await world.settle()

    assert heard.calls == 1
    assert [view.stale for view in heard[Owner("eu", "edge", "a")].values()] == [True]
    assert heard.addresses("a", "eu") == ["10.1.0.1"]


async def test_views_of_an_unfollowed_cluster_are_removed() -> None:
    """The views of a cluster that is no longer followed are removed."""
    world, heard = World("local", "eu"), Heard()
    world.put("a", "10.1.0.1", cluster="eu")
    await world.settle()
    world.board.listen(heard)
    world.board.forget("eu")
    await world.settle()
    assert heard.addresses("a", "eu") == []
    assert world.board.views == {}


async def test_other_services_may_be_chosen() -> None:
    """A new selection applies to the known Services at once."""
    world, heard = World(), Heard()
    world.put("a", "10.0.0.1")
    world.put("b", "10.0.0.2")
    await world.settle()
    world.board.listen(heard)
    world.board.set_selector(lambda _, service: service.name == "b")
    await world.settle()
    assert (heard.addresses("a"), heard.addresses("b")) == ([], ["10.0.0.2"])


async def test_many_services_are_joined_piece_by_piece() -> None:
    """Many changed Services are computed in several rounds of the event loop."""
    world, heard = World(), Heard()
    world.board.listen(heard)
    for number in range(3 * BATCH):
        world.put(f"s{number}", "10.0.0.1")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first = heard.calls
    await world.settle()
    assert 0 < first < 3 * BATCH
    assert heard.calls == 3 * BATCH


class Noted(list[set[str]]):
    """The names of the Services in each call of a store."""

    def __call__(self, keys: Iterable[ObjectKey]) -> None:
        self.append({key.name for key in keys})


def test_store_of_services_reports_what_changes() -> None:
    """A list concerns old and new Services; the deletion of an unknown Service changes nothing."""
    noted = Noted()
    store = ServicesStore(noted)
    service, a, b = build.service(), ObjectKey("edge", "a"), ObjectKey("edge", "b")
    store.replace({a: service}, "1")
    store.replace({b: service}, "2")
    store.upsert(a, service, "3")
    store.delete(b, service, "4")
    store.delete(b, service, "5")
    assert noted == [{"a"}, {"a", "b"}, {"a"}, {"b"}]
    assert (store.by_key, store.lists) == ({a: service}, 2)


def test_store_of_slices_reports_the_services_that_change() -> None:
    """A list concerns old and new Services, a moved slice both; the last slice of a Service leaves nothing behind."""
    noted = Noted()
    store = SlicesStore(noted)
    s1, s2 = ObjectKey("edge", "s1"), ObjectKey("edge", "s2")
    of_a, of_b = build.slice("s1", service="a"), build.slice("s2", service="b")
    store.replace({s1: of_a}, "1")
    store.replace({s2: of_b}, "2")
    store.upsert(s1, of_a, "3")
    store.upsert(s1, build.slice("s1", service="b"), "4")
    store.delete(s2, of_b, "5")
    store.delete(s2, of_b, "6")
    assert noted == [{"a"}, {"a", "b"}, {"a"}, {"a", "b"}, {"b"}]
    assert [slice_.name for slice_ in store.of(ObjectKey("edge", "b"))] == ["s1"]
    assert (list(store.of(ObjectKey("edge", "a"))), store.lists) == ([], 2)


def test_cluster_is_complete_after_both_lists_of_every_namespace() -> None:
    """Each followed namespace has its own lists; objects of other namespaces are unknown."""
    content = Content(lambda _: None, ("edge", "shop"))
    assert list(content.services) == list(content.slices) == ["edge", "shop"]
    stores: list[Any] = [*content.services.values(), *content.slices.values()]
    for store in stores:
        assert not content.complete
        store.replace({}, "1")
    assert content.complete
    service, key = build.service("a"), ObjectKey("edge", "a")
    content.services["edge"].upsert(key, service, "2")
    content.slices["edge"].upsert(ObjectKey("edge", "s"), build.slice("s", service="a"), "2")
    assert (content.keys(), content.service(key)) == ([key], service)
    assert [slice_.name for slice_ in content.slices_of(key)] == ["s"]
    other = ObjectKey("other", "a")
    assert (content.service(other), list(content.slices_of(other))) == (None, [])


async def test_only_changed_services_are_computed_again() -> None:
    """The first complete lists compute all Services; afterwards a change concerns its own Service."""
    asked: list[str] = []

    def selects(_: str, service: Service) -> bool:
        asked.append(service.name)
        return True

    board = Board(selects)
    content = board.cluster("eu")
    content.slices[ALL].replace({}, "1")
    idle = [board.idle]
    content.services[ALL].replace({ObjectKey("edge", name): build.service(name) for name in ("a", "b")}, "1")
    idle.append(board.idle)
    await asyncio.sleep(0)
    assert (sorted(asked), [*idle, board.idle]) == (["a", "b"], [True, False, True])
    asked.clear()
    content.services[ALL].upsert(ObjectKey("edge", "a"), build.service("a"), "2")
    await asyncio.sleep(0)
    assert asked == ["a"]


async def test_removed_cluster_changes_nothing_any_more() -> None:
    """A watch that ends after its cluster was removed, and a state of an unknown cluster, are ignored."""
    world = World("eu")
    content = world.content("eu")
    world.board.forget("eu")
    world.board.forget("eu")
    content.services[ALL].upsert(ObjectKey("edge", "a"), build.service("a"), "2")
    world.board.mark_stale("eu", stale=True)
    assert (world.board.idle, dict(world.board.views)) == (True, {})


async def test_stale_mark_can_be_taken_back() -> None:
    """Only a change of the mark concerns the cluster's views."""
    world = World("local", "eu")
    world.put("a", "10.0.0.1")
    world.put("a", "10.1.0.1", cluster="eu")
    await world.settle()
    world.board.mark_stale("eu", stale=False)
    assert world.board.idle
    for stale in (True, False):
        world.board.mark_stale("eu", stale=stale)
        await world.settle()
        assert [view.stale for views in world.board.views.values() for view in views.values()] == [False, stale]


async def test_removed_listener_is_not_called() -> None:
    """A removed listener is no longer called; others are."""
    world, heard, other = World(), Heard(), Heard()
    world.board.listen(heard)
    world.board.listen(other)
    world.board.unlisten(heard)
    world.put("a", "10.0.0.1")
    await world.settle()
    assert (heard.calls, other.calls) == (0, 1)
    world.drop("a")
    await world.settle()
    assert other.addresses("a") == []
