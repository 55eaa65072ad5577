"""The reflector against a simulated cluster that fails in every way a watch can fail."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service, make_slice

from hub import errors
from hub.errors import HubError
from hub.kube import client as client_module
from hub.kube import reflector as reflector_module
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.reflector import LONGEST_RETRY_AFTER, STEADY_AFTER, Reflector, RelistSlots
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.kube.wire import NODES, SLICES, Resource
from hub.model import ObjectKey
from hub.runtime.clock import SystemClock
from tests.support.clocks import ManualClock
from tests.support.waiting import until


class Noted(SystemClock):
    """A clock that records waits and shortens them to almost nothing.

    Attributes:
        slept: the seconds of each wait.
        rate: how many times faster its time runs.
        ahead: seconds that it is ahead.
    """

    def __init__(self, rate: float = 1.0) -> None:
        self.slept: list[float] = []
        self.rate = rate
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() * self.rate + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.005)


class Kept:
    """A store that is also the observer.

    Attributes:
        objects: the objects in the store.
        sizes: the number of objects after each change.
        replaced: how often the store was replaced.
        told: the names of the observer's calls.
        errors: the errors that the observer was told of.
    """

    def __init__(self) -> None:
        self.objects: dict[Any, Any] = {}
        self.sizes: list[int] = []
        self.replaced = 0
        self.told: list[str] = []
        self.errors: list[HubError] = []

    def replace(self, objects: dict[Any, Any], resource_version: str) -> None:
        self.replaced += 1
        self.objects = objects
        self.sizes.append(len(objects))

    def upsert(self, key: Any, value: Any, resource_version: str) -> None:
        self.objects[key] = value
        self.sizes.append(len(self.objects))

    def delete(self, key: Any, value: Any, resource_version: str) -> None:
        del self.objects[key]
        self.sizes.append(len(self.objects))

    def listing(self) -> None:
        self.told.append("listing")

    def answered(self) -> None:
        self.told.append("answered")

    def failed(self, error: HubError) -> None:
        self.told.append("failed")
        self.errors.append(error)


class Follower:
    """A running reflector and everything around it."""

    def __init__(self, reflector: Reflector[Any], kept: Kept, clock: Noted, client: Client) -> None:
        self.reflector = reflector
        self.kept = kept
        self.clock = clock
        self.client = client
        self.task = asyncio.create_task(reflector.run())

    @property
    def names(self) -> list[str]:
        """The names of the objects in the store."""
        return sorted(map(str, self.kept.objects))

    def failed_with(self, kind: type[HubError]) -> bool:
        """Whether the observer was told of such an error."""
        return any(isinstance(error, kind) for error in self.kept.errors)


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """A simulated cluster with five Nodes."""
    cluster = SimulatedCluster("eu")
    for number in range(1, 6):
        cluster.nodes.add(make_node(f"n{number}", f"10.7.0.{number}"))
    async with cluster:
        yield cluster


@pytest.fixture
def pool() -> Iterator[LookupPool]:
    """Threads for name look-ups."""
    lookups = LookupPool(1)
    yield lookups
    lookups.close()


def client_of(sim: SimulatedCluster, pool: LookupPool) -> Client:
    """A client with real credentials."""
    access = ClusterAccess(sim.url, Token(Secret(sim.token)), "test", ca_data=sim.ca_pem.encode())
    return Client(Credentials(access, SystemClock()), pool)


@asynccontextmanager
async def following(
    sim: SimulatedCluster,
    pool: LookupPool,
    *,
    resource: Resource[Any] = NODES,
    kept: Kept | None = None,
    rate: float = 1.0,
    started: bool = True,
    **more: Any,
) -> AsyncIterator[Follower]:
    """A running reflector of a cluster; with ``started``, its watch is already open."""
    kept, clock = kept or Kept(), Noted(rate)
    async with client_of(sim, pool) as client:
        follower = Follower(Reflector("nodes of eu", client, resource, kept, kept, clock, **more), kept, clock, client)
        try:
            if started:
                await until(lambda: sim.streams() or follower.task.done())
            yield follower
            assert not follower.task.done(), follower.task
        finally:
            follower.task.cancel()
            await asyncio.gather(follower.task, return_exceptions=True)
    await asyncio.sleep(0.01)


def asked(sim: SimulatedCluster) -> tuple[int, int]:
    """The number of lists and watches so far."""
    return sim.requests["list", "nodes"], sim.requests["watch", "nodes"]


# --- list and watch ------------------------------------------------------------------------------


async def test_large_page_is_decoded_in_a_thread(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A page of more than 4 MiB is decoded in a thread, any other in the event loop."""
    page = {"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [make_node("n1", "10.0.0.1")]}
    threads: list[int] = []

    def read(body: bytes) -> Any:
        threads.append(threading.get_ident())
        return NODES.list_page(body)

    spied = NODES._replace(list_page=read)
    for size in (4 << 20, (4 << 20) + 1):
        body = json.dumps(page).encode().ljust(size)
        sim.garbage(verb="list", body=body, content_type="application/json")
        async with following(sim, pool, resource=spied) as follower:
            assert "n1" in follower.kept.objects
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


async def test_store_has_the_list_and_then_the_changes(sim: SimulatedCluster, pool: LookupPool) -> None:
    """The store gets one list, then every change of the watch."""
    async with following(sim, pool) as follower:
        assert follower.names == ["n1", "n2", "n3", "n4", "n5"]
        sim.nodes.add(make_node("n6"))
        sim.nodes.delete("n1")
        sim.nodes.set_ready("n2", ready=False)
        await until(lambda: follower.kept.objects["n2"].ready == "False")
        assert follower.names == ["n2", "n3", "n4", "n5", "n6"]
        assert (asked(sim), follower.kept.told) == ((1, 1), ["listing", "answered", "answered"])


async def test_list_is_read_in_pages_and_kept_at_once(sim: SimulatedCluster, pool: LookupPool) -> None:
    """The store is replaced once, with the objects of all pages."""
    async with following(sim, pool, page_size=2) as follower:
        assert (follower.names, follower.kept.replaced, sim.requests["list", "nodes"]) == (
            ["n1", "n2", "n3", "n4", "n5"],
            1,
            3,
        )


async def test_change_between_the_pages_is_not_missed(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A change between two pages arrives with the watch, which starts from the version of the list."""
    sim.latency = 0.02
    async with following(sim, pool, page_size=2, started=False) as follower:
        await until(lambda: sim.requests["list", "nodes"] == 2)
        sim.nodes.delete("n1")
        sim.nodes.add(make_node("n0"))
        await until(lambda: follower.names == ["n0", "n2", "n3", "n4", "n5"])
        assert follower.kept.replaced == 1


async def test_selectors_and_namespace_apply_to_list_and_watch(sim: SimulatedCluster, pool: LookupPool) -> None:
    """Selectors and the namespace apply to the list and the watch."""
    for namespace, name, owner in [("a", "s1", "us"), ("a", "s2", "them"), ("b", "s3", "us")]:
        sim.slices.add(make_slice(namespace, name, "web", ["10.0.0.1"], labels={"owner": owner}))
    select = {"labelSelector": "owner=us"}
    async with following(sim, pool, resource=SLICES, params=select, namespace="a") as follower:
        assert list(follower.kept.objects) == [ObjectKey("a", "s1")]
        for namespace, name, owner in [("b", "s4", "us"), ("a", "s5", "them"), ("a", "s6", "us")]:
            sim.slices.add(make_slice(namespace, name, "web", ["10.0.0.1"], labels={"owner": owner}))
        await until(lambda: len(follower.kept.objects) == 2)
        assert list(follower.kept.objects) == [ObjectKey("a", "s1"), ObjectKey("a", "s6")]


async def test_empty_list_is_an_answer(pool: LookupPool) -> None:
    """An empty list replaces the store."""
    async with SimulatedCluster("empty") as sim, following(sim, pool) as follower:
        assert (follower.kept.replaced, follower.kept.objects) == (1, {})


async def test_cancelled_reflector_leaves_no_stream(sim: SimulatedCluster, pool: LookupPool) -> None:
    """Cancelling the reflector ends its watch."""
    async with following(sim, pool):
        pass
    await until(lambda: sim.streams() == 0)


async def test_event_of_our_own_write_is_skipped(sim: SimulatedCluster, pool: LookupPool) -> None:
    """An event whose version the store already has is skipped, but its resourceVersion is used."""

    class Echoes(Kept):
        def shrink_page(self, page: dict[Any, Any]) -> dict[Any, Any]:
            return {key: value for key, value in page.items() if key.name != "not-kept"}

        def knows(self, key: Any, resource_version: str) -> bool:
            return key == ObjectKey("a", "ours")

        def defers(self, key: Any, again: Callable[[], None]) -> bool:
            return False

    sim.slices.add(make_slice("a", "not-kept", "web", ["10.0.0.1"]))
    async with following(sim, pool, resource=SLICES, kept=Echoes()) as follower:
        assert follower.kept.objects == {}
        sim.slices.add(make_slice("a", "ours", "web", ["10.0.0.1"]))
        await until(lambda: follower.reflector.resource_version == str(sim.version))
        sim.slices.add(make_slice("a", "theirs", "web", ["10.0.0.1"]))
        await until(lambda: follower.kept.objects)
        assert list(follower.kept.objects) == [ObjectKey("a", "theirs")]


# --- bookmarks and versions ----------------------------------------------------------------------


async def test_bookmarks_move_the_version(sim: SimulatedCluster, pool: LookupPool) -> None:
    """Bookmarks advance the resourceVersion, so that it does not expire while the objects do not change."""
    sim.bookmark_interval = 0.05
    async with following(sim, pool) as follower:
        sim.put(make_service("edge", "web"))
        await until(lambda: follower.reflector.resource_version == str(sim.version))
        sim.compact()
        sim.cut_stream()
        await until(lambda: sim.requests["watch", "nodes"] == 2)
        await asyncio.sleep(0.05)
        assert (sim.requests["list", "nodes"], follower.kept.replaced) == (1, 1)


async def test_current_as_of_moves_only_with_a_steady_watch_or_a_list(sim: SimulatedCluster, pool: LookupPool) -> None:
    """``current_as_of`` moves only with a list, or with a watch whose lines have arrived steadily for a while."""
    async with following(sim, pool) as follower:
        told: list[float] = []
        for number, seconds in enumerate(
            (0.0, STEADY_AFTER + 1, STEADY_AFTER - 1, STEADY_AFTER - 1, STEADY_AFTER - 1, STEADY_AFTER + 1)
        ):
            follower.clock.ahead += seconds
            sim.nodes.set_ready("n1", ready=number % 2 == 1)
            await until(lambda number=number: follower.kept.objects["n1"].ready == str(number % 2 == 1))  # type: ignore[misc]
            told.append(follower.reflector.current_as_of or 0.0)
        first, silent, soon, steady, still, again = told
        assert first == silent == soon < steady < still == again
        follower.reflector.list_again()
        await until(lambda: (follower.reflector.current_as_of or 0.0) > again)
        assert asked(sim)[0] == 2


async def test_a_list_that_is_asked_for_while_a_watch_opens_is_read(
    sim: SimulatedCluster, pool: LookupPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A list that is requested while a watch opens is read at once; that watch does not count as silent."""
    caplog.set_level(logging.INFO)
    sim.latency = 0.05
    async with following(sim, pool, rate=100, started=False) as follower:
        await until(lambda: asked(sim) == (1, 1))
        follower.reflector.list_again()
        await until(lambda: asked(sim) == (2, 2))
        follower.reflector.list_again()
        await until(lambda: asked(sim) == (3, 3))
    assert "silent" not in caplog.text


async def test_expired_version_in_the_stream_means_a_new_list(sim: SimulatedCluster, pool: LookupPool) -> None:
    """After a 410 in the stream, a new list is read at once; the store is kept until it is complete."""
    async with following(sim, pool, page_size=1) as follower:
        sim.cut_stream(how="expire")
        await until(lambda: follower.kept.replaced == 2)
        assert (set(follower.kept.sizes), follower.clock.slept, follower.kept.errors) == ({5}, [], [])
        assert follower.kept.told[:5] == ["listing", "answered", "answered", "listing", "answered"]


async def test_expired_version_at_the_start_of_a_watch_means_a_new_list(
    sim: SimulatedCluster, pool: LookupPool
) -> None:
    """After a long outage, the new list shows all changes, including deletions."""
    async with following(sim, pool) as follower:
        await sim.stop()
        sim.nodes.delete("n1")
        sim.nodes.add(make_node("n6"))
        sim.compact()
        await sim.start()
        await until(lambda: follower.kept.replaced == 2)
        assert follower.names == ["n2", "n3", "n4", "n5", "n6"]


async def test_expired_page_means_a_new_list(sim: SimulatedCluster, pool: LookupPool) -> None:
    """If a continue token expires, the list starts over, and a partial list is never stored."""
    sim.latency = 0.02
    async with following(sim, pool, page_size=2, started=False) as follower:
        await until(lambda: sim.requests["list", "nodes"] == 2)
        sim.nodes.delete("n1")
        sim.compact()
        await until(lambda: follower.kept.replaced)
        assert (follower.names, follower.kept.sizes) == (["n2", "n3", "n4", "n5"], [4])


async def test_versions_that_expire_again_and_again_are_waited_for(sim: SimulatedCluster, pool: LookupPool) -> None:
    """If every watch is answered with 410, lists are read with backoff."""
    sim.refuse(410, verb="watch")
    async with following(sim, pool, started=False) as follower:
        await until(lambda: len(follower.clock.slept) == 4)
        assert follower.clock.slept[-1] > 4 * follower.clock.slept[0] * 0.5
        assert sim.requests["list", "nodes"] <= 6


async def test_lists_that_expire_again_and_again_are_a_failure(sim: SimulatedCluster, pool: LookupPool) -> None:
    """If lists expire repeatedly, the observer is told; the store is kept until the next complete list."""
    async with following(sim, pool) as follower:
        sim.refuse(410, verb="list")
        sim.cut_stream(how="expire")
        await until(lambda: len(follower.clock.slept) >= 3)
        assert follower.failed_with(errors.Expired)
        assert (follower.kept.replaced, len(follower.names)) == (1, 5)
        sim.heal()
        await until(lambda: follower.kept.replaced == 2 and follower.kept.told[-1] == "answered")


async def test_two_silent_watches_from_a_future_version_cause_a_list(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch from a future version is silent; after two silent watches a new list is read."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 0.1)
    version = sim.version
    async with following(sim, pool, rate=100) as follower:
        for _ in range(5):
            sim.nodes.delete("n5")
            sim.nodes.add(make_node("n5"))
        sim.nodes.delete("n5")
        await until(lambda: len(follower.names) == 4)
        sim.restore(version)
        await until(lambda: follower.names == ["n1", "n2", "n3", "n4", "n5"])


async def test_a_bookmark_from_before_our_version_means_a_new_list(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A bookmark older than the known version, as after a restored backup, leads to a new list at once."""
    async with following(sim, pool) as follower:
        sim.inject(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % (sim.version - 1))
        await until(lambda: follower.kept.replaced == 2)
        assert (follower.kept.errors, follower.reflector.resource_version) == ([], str(sim.version))


# --- silence -------------------------------------------------------------------------------------


async def test_first_silent_watch_is_repeated_without_a_list(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one silent watch, the next one starts at once from the same version, without a list."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 0.1)
    async with following(sim, pool, rate=100) as follower:
        await until(lambda: sim.requests["watch", "nodes"] == 2)
        sim.nodes.add(make_node("n6"))
        await until(lambda: "n6" in follower.names)
        assert (sim.requests["list", "nodes"], follower.clock.slept, follower.kept.errors) == (1, [], [])


async def test_second_silent_watch_causes_a_list(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two silent watches in a row a new list is read."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 0.5)
    watches: list[int] = []

    class Counting(Kept):
        def replace(self, objects: dict[Any, Any], resource_version: str) -> None:
            super().replace(objects, resource_version)
            watches.append(sim.requests["watch", "nodes"])

    async with following(sim, pool, rate=100, kept=Counting()) as follower:
        await until(lambda: follower.kept.replaced >= 2)
        assert (watches[:2], follower.kept.errors) == ([0, 2], [])


async def test_watch_with_bookmarks_is_not_silent(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch on which bookmarks arrive is not silent, so it is neither replaced nor followed by a list."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 2.0)
    sim.bookmark_interval = 0.05
    async with following(sim, pool):
        await asyncio.sleep(4.5)
        assert asked(sim) == (1, 1)


async def test_frozen_server_is_a_failure(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen server is reported when the first new connection times out, and no list is read."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.05)
    async with following(sim, pool, rate=1000) as follower:  # as if each timeout took a minute
        port = int(sim.url.rpartition(":")[2])
        await sim.stop()
        follower.kept.errors.clear()
        with socket.create_server(("127.0.0.1", port)):
            await until(lambda: len(follower.kept.errors) > 3)
        assert {error.kind for error in follower.kept.errors[2:] if isinstance(error, errors.ClusterUnreachable)} == {
            "timeout"
        }
        assert len(follower.clock.slept) >= len(follower.kept.errors) - 1
        await sim.start()
        await until(lambda: sim.streams())
        assert sim.requests["list", "nodes"] == 1


async def test_unanswered_watch_request_is_a_failure(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer the watch request has failed; this does not count as silence."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 0.05)
    sim.hang(verb="watch")
    async with following(sim, pool, rate=1000, started=False) as follower:
        await until(lambda: len(follower.kept.errors) == 3)
        assert (sim.requests["list", "nodes"], len(follower.clock.slept)) == (1, 3)


# --- broken streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "half-line"])
async def test_broken_watch_continues_without_a_list(sim: SimulatedCluster, pool: LookupPool, how: Any) -> None:
    """After a broken connection the watch continues from the last version, without a list."""
    async with following(sim, pool) as follower:
        sim.nodes.add(make_node("n6"))
        await until(lambda: "n6" in follower.names)
        sim.cut_stream(how=how)
        sim.nodes.add(make_node("n7"))
        await until(lambda: "n7" in follower.names)
        assert (follower.names, asked(sim)) == (["n1", "n2", "n3", "n4", "n5", "n6", "n7"], (1, 2))
        assert [error.kind for error in follower.kept.errors if isinstance(error, errors.ClusterUnreachable)] == [
            "reset"
        ]


async def test_ended_watch_continues_at_once(sim: SimulatedCluster, pool: LookupPool) -> None:
    """When the server ends a watch that had events, the next one starts at once."""
    async with following(sim, pool) as follower:
        sim.nodes.add(make_node("n6"))
        await until(lambda: "n6" in follower.names)
        sim.cut_stream(how="end")
        await until(lambda: sim.requests["watch", "nodes"] == 2)
        assert (follower.clock.slept, follower.kept.errors, sim.requests["list", "nodes"]) == ([], [], 1)


async def test_invalid_event_line_is_skipped(
    sim: SimulatedCluster, pool: LookupPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A garbage line between events is skipped with a warning."""
    async with following(sim, pool) as follower:
        sim.nodes.add(make_node("n6"))
        for line in (b"garbage", b'{"type":"MODI', b"[]"):
            sim.inject(line)
        sim.nodes.add(make_node("n7"))
        await until(lambda: "n7" in follower.names)
        assert (follower.reflector.skipped, asked(sim), follower.kept.errors) == (3, (1, 1), [])
    assert caplog.text.count("skipped a line of the watch that is not an event") == 3


async def test_object_that_does_not_decode_is_skipped_with_its_version(
    sim: SimulatedCluster, pool: LookupPool, caplog: pytest.LogCaptureFixture
) -> None:
    """An object that does not decode is skipped, and the watch continues after its version."""
    async with following(sim, pool) as follower:
        version = str(sim.version + 1)
        sim.inject(
            json.dumps(
                {"type": "MODIFIED", "object": {"metadata": {"name": "n1", "resourceVersion": version}, "spec": 5}}
            ).encode()
        )
        await until(lambda: follower.reflector.skipped == 1)
        assert (follower.reflector.resource_version, asked(sim)) == (version, (1, 1))
    assert "skipped an event of type MODIFIED" in caplog.text


async def test_page_instead_of_a_watch_is_a_failure(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A proxy's login page is a failure with its first line, and no list is read."""
    sim.garbage(2, verb="watch", body=b"<html>\n<body>\nPlease log in\n")
    async with following(sim, pool) as follower:
        assert [type(error) for error in follower.kept.errors] == [errors.BadAnswer] * 2
        assert (len(follower.clock.slept), follower.reflector.skipped, asked(sim)) == (2, 0, (1, 3))


async def test_error_in_the_stream_is_a_failure_with_the_servers_words(sim: SimulatedCluster, pool: LookupPool) -> None:
    """After an error other than 410, the watch is retried from the same version after a delay."""
    async with following(sim, pool) as follower:
        sim.inject(b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is unwell"}}')
        await until(lambda: sim.requests["watch", "nodes"] == 2)
        assert [str(error) for error in follower.kept.errors] == ["watch /api/v1/nodes: 500 : etcd is unwell"]
        assert (len(follower.clock.slept), sim.requests["list", "nodes"]) == (1, 1)


# --- loops that must not be hot ------------------------------------------------------------------


def event_at(version: int) -> bytes:
    """An event that changes nothing."""
    node = {**make_node("n1"), "metadata": {"name": "n1", "resourceVersion": str(version)}}
    return json.dumps({"type": "ADDED", "object": node}).encode() + b"\n"


@pytest.mark.parametrize("body", ["nothing", "the same event", "a bookmark"])
async def test_watches_that_end_at_once_are_waited_for(sim: SimulatedCluster, pool: LookupPool, body: str) -> None:
    """Watches that end at once without anything new are retried with backoff."""
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % sim.version
    bodies = {"nothing": b"", "the same event": event_at(sim.version), "a bookmark": bookmark}
    sim.garbage(None, verb="watch", body=bodies[body], content_type="application/json")
    async with following(sim, pool, started=False) as follower:
        await until(lambda: len(follower.clock.slept) == 8)
        assert follower.failed_with(errors.BadAnswer)
        assert sim.requests["watch", "nodes"] <= 9  # each was followed by a wait
        assert sim.requests["list", "nodes"] <= 5
        if body != "a bookmark":
            assert follower.clock.slept[7] >= 30


async def test_list_that_never_ends_is_refused(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A page whose continue token leads to itself is refused."""
    page = {"kind": "NodeList", "metadata": {"resourceVersion": "5", "continue": "again"}, "items": []}
    sim.garbage(None, verb="list", body=json.dumps(page).encode(), content_type="application/json")
    async with following(sim, pool, started=False) as follower:
        await until(lambda: len(follower.clock.slept) == 2)
        assert follower.failed_with(errors.BadAnswer)
        assert sim.requests["list", "nodes"] <= 6


# --- refusals ------------------------------------------------------------------------------------


async def test_429_of_a_watch_waits_as_long_as_asked_and_lists_nothing(sim: SimulatedCluster, pool: LookupPool) -> None:
    """After a 429 the Retry-After is respected, and no list is read."""
    sim.fail_next(2, status=429, verb="watch", retry_after=17)
    async with following(sim, pool) as follower:
        assert all(delay >= 17 for delay in follower.clock.slept)
        assert (len(follower.clock.slept), asked(sim)) == (2, (1, 3))
        assert follower.failed_with(errors.TooManyRequests)


async def test_wish_for_a_very_long_wait_is_not_granted(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A Retry-After of a day is cut to a few minutes."""
    sim.fail_next(1, status=503, verb="watch", retry_after=86400)
    async with following(sim, pool) as follower:
        assert follower.clock.slept == [LONGEST_RETRY_AFTER]


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
async def test_refused_watch_keeps_version_and_store(sim: SimulatedCluster, pool: LookupPool, status: int) -> None:
    """After a refused watch the store is kept, and the watch is retried from the same version."""
    async with following(sim, pool) as follower:
        sim.fail_next(3, status=status, verb="watch")
        sim.cut_stream()
        await until(lambda: len(follower.kept.errors) == 4 and sim.streams())
        assert (sim.requests["list", "nodes"], follower.kept.replaced, len(follower.names)) == (1, 1, 5)


async def test_refused_list_keeps_the_store(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A list that fails at a later page does not change the store."""
    async with following(sim, pool, page_size=2) as follower:
        sim.fail_next(1, status=503, verb="list")
        sim.cut_stream(how="expire")
        await until(lambda: follower.kept.replaced == 2)
        assert set(follower.kept.sizes) == {5}
        assert follower.kept.told[3:7] == ["listing", "failed", "listing", "answered"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Please log in</html>",
        b"",
        b'{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[]}',
        b'{"kind":"NodeList","metadata":{},"items":[]}',
        b'{"kind":"NodeList","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"n1"}},',
    ],
    ids=["page", "nothing", "other kind", "no version", "cut short"],
)
async def test_non_list_answer_does_not_empty_the_store(sim: SimulatedCluster, pool: LookupPool, body: bytes) -> None:
    """A 200 that is not a list is a failure, not an empty list."""
    async with following(sim, pool) as follower:
        sim.garbage(2, verb="list", body=body)
        sim.cut_stream(how="expire")
        await until(lambda: follower.kept.replaced == 2)
        assert set(follower.kept.sizes) == {5}
        assert [type(error) for error in follower.kept.errors] == [errors.BadAnswer] * 2


async def test_login_page_instead_of_a_watch_is_a_lasting_failure(sim: SimulatedCluster, pool: LookupPool) -> None:
    """The 200 of a login page never counts as a success, so the state of the cluster does not flap."""
    async with following(sim, pool) as follower:
        sim.garbage(5, verb="watch")
        sim.cut_stream()
        await until(lambda: len(follower.kept.errors) == 6)  # the cut, and five pages
        assert follower.kept.told == ["listing", "answered", "answered", *["failed"] * 6]
        await until(sim.streams)
        sim.nodes.add(make_node("n6"))
        await until(lambda: "n6" in follower.names)
        assert (follower.kept.told[9:], sim.requests["list", "nodes"]) == (["answered"], 1)


async def test_watch_that_stands_without_a_word_is_an_answer_too(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, a watch that stays open counts as a success even without a line."""
    async with following(sim, pool) as follower:
        monkeypatch.setattr(reflector_module, "SHORT_WATCH", 0.1)
        sim.fail_next(1, status=503, verb="watch")
        sim.cut_stream()
        await until(lambda: follower.kept.told[3:] == ["failed", "failed", "answered"])
        assert sim.streams() == 1


async def test_refused_version_means_a_new_list(sim: SimulatedCluster, pool: LookupPool) -> None:
    """After a 400 for the version of a watch, a new list is read with backoff."""
    async with following(sim, pool) as follower:
        sim.fail_next(1, status=400, verb="watch")
        sim.cut_stream()
        await until(lambda: follower.kept.replaced == 2 and sim.streams())
        assert (asked(sim), len(follower.clock.slept), len(follower.names)) == ((2, 3), 2, 5)


@pytest.mark.parametrize("pages", [5, 4])
async def test_list_without_an_end_is_given_up(
    sim: SimulatedCluster, pool: LookupPool, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """A list with ever new continue tokens fails, and the store is kept."""
    monkeypatch.setattr(reflector_module, "LIST_PAGES", pages)
    async with following(sim, pool, page_size=1, started=False) as follower:
        if pages == 5:
            await until(lambda: follower.kept.replaced)
            assert follower.kept.errors == []
        else:
            await until(lambda: follower.failed_with(errors.BadAnswer))
            assert "without an end: more than 4 pages of 1" in str(follower.kept.errors[0])
            assert (follower.kept.replaced, sim.requests["list", "nodes"] % 4) == (0, 0)


async def test_outage_keeps_version_and_store(sim: SimulatedCluster, pool: LookupPool) -> None:
    """After an outage the watch continues from the last version, without a list."""
    async with following(sim, pool) as follower:
        await sim.stop()
        await until(lambda: len(follower.kept.errors) >= 3)
        assert len(follower.names) == 5
        sim.nodes.add(make_node("n6"))
        await sim.start()
        await until(lambda: "n6" in follower.names)
        kinds = [error.kind for error in follower.kept.errors if isinstance(error, errors.ClusterUnreachable)]
        assert (set(kinds[1:]), sim.requests["list", "nodes"]) == ({"refused"}, 1)


async def test_failures_wait_longer_and_longer(sim: SimulatedCluster, pool: LookupPool) -> None:
    """The delays grow from under two seconds to half a minute and more, with jitter."""
    sim.refuse(500)
    async with following(sim, pool, started=False) as follower:
        await until(lambda: len(follower.clock.slept) >= 8)
        assert follower.clock.slept[0] < 1.6
        assert all(30 <= delay < 60 for delay in follower.clock.slept[6:])


async def test_unexpected_error_ends_the_run(sim: SimulatedCluster, pool: LookupPool) -> None:
    """An unexpected error ends ``run``, so that the supervisor logs it."""

    class Broken(Kept):
        def replace(self, objects: dict[Any, Any], resource_version: str) -> None:
            raise ZeroDivisionError

    kept = Broken()
    async with client_of(sim, pool) as client:
        with pytest.raises(ZeroDivisionError):
            await Reflector("x", client, NODES, kept, kept, Noted()).run()
    await asyncio.sleep(0.01)


async def test_bookmarks_and_events_are_not_logged(
    sim: SimulatedCluster, pool: LookupPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Bookmarks and events are not logged."""
    caplog.set_level(logging.INFO)
    sim.bookmark_interval = 0.02
    async with following(sim, pool):
        sim.nodes.heartbeat("n1")
        await asyncio.sleep(0.1)
    assert [record for record in caplog.records if record.name.startswith("hub")] == []


# --- slots ---------------------------------------------------------------------------------------


async def test_slots_bound_how_many_lists_are_read_at_once() -> None:
    """With two slots, a third list waits."""
    slots, inside, most = RelistSlots(2, patience=5), 0, 0

    async def read() -> None:
        nonlocal inside, most
        async with slots.take():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(read() for _ in range(6)))
    assert most == 2


async def test_a_slot_is_held_only_so_long() -> None:
    """A slow list gives its slot back after the patience, and only once."""
    slots, inside, most = RelistSlots(2, patience=0.2), 0, 0
    begin = asyncio.get_running_loop().time()

    async def read(seconds: float) -> float:
        nonlocal inside, most
        async with slots.take():
            inside += 1
            most = max(most, inside)
            waited = asyncio.get_running_loop().time() - begin
            await asyncio.sleep(seconds)
            inside -= 1
        return waited

    waited = await asyncio.gather(*(read(seconds) for seconds in (2, 2, 2, 2, 0.01)))
    assert waited[:2] == pytest.approx([0, 0], abs=0.04)
    assert all(0.2 <= seconds < 1.5 for seconds in waited[2:])  # while all earlier lists are still running
    most = 0
    await asyncio.gather(*(read(0.01) for _ in range(6)))
    assert most == 2


async def test_a_cluster_that_does_not_answer_holds_no_slot(sim: SimulatedCluster, pool: LookupPool) -> None:
    """A slot is taken only after the connection is open, so others do not wait for it."""
    slots = RelistSlots(1, patience=60)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, but there is no TLS handshake
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        access = ClusterAccess(url, Token(Secret(sim.token)), "test", ca_data=sim.ca_pem.encode())
        kept = Kept()
        async with Client(Credentials(access, SystemClock()), pool) as client:
            stuck = Reflector("nodes of us", client, NODES, kept, kept, Noted(1.0), slots=slots)
            task = asyncio.create_task(stuck.run())
            silent.settimeout(5)
            accepted, _ = await asyncio.to_thread(silent.accept)
            with accepted:
                async with asyncio.timeout(5), following(sim, pool, slots=slots) as follower:
                    assert follower.names == ["n1", "n2", "n3", "n4", "n5"]
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_cancelled_list_frees_its_slot() -> None:
    """A cancelled list, waiting or running, leaves no slot taken."""
    slots = RelistSlots(1, patience=5)

    async def hold() -> None:
        async with slots.take():
            await asyncio.Event().wait()

    holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)
    async with asyncio.timeout(1), slots.take():
        pass


@pytest.mark.parametrize("rounds", range(5))
async def test_cancellation_is_not_lost_to_a_slot(rounds: int) -> None:
    """A reflector that is cancelled when it gets its slot ends, and the slot is free."""
    slots = RelistSlots(1, patience=5)

    async def wait() -> None:
        async with slots.take():
            await asyncio.Event().wait()

    async with slots.take():
        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
    for _ in range(rounds):
        await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiter, 1)
    async with asyncio.timeout(1), slots.take():
        pass


# --- scripts -------------------------------------------------------------------------------------


class Ended(Exception):
    """The script of a test is over."""


class Scripted:
    """A client whose watches are scripts: the seconds that pass, then a line that arrives or the error that ends it.

    Attributes:
        did: ``list`` and ``watch VERSION`` for each request.
        kind: the kind of its empty list.
    """

    def __init__(self, clock: ManualClock, *watches: list[tuple[float, bytes | Exception | None]]) -> None:
        self.clock = clock
        self.watches = list(watches)
        self.did: list[str] = []
        self.kind = "NodeList"

    async def reach(self) -> None:
        """Connect."""

    async def request(self, method: str, path: str, *, params: dict[str, str], timeout: float) -> bytes:  # noqa: ASYNC109
        self.did.append("list")
        return json.dumps({"kind": self.kind, "metadata": {"resourceVersion": "5"}, "items": []}).encode()

    @asynccontextmanager
    async def watch(self, path: str, params: dict[str, str]) -> AsyncIterator[Scripted]:
        if not self.watches:
            raise Ended
        self.did.append(f"watch {params['resourceVersion']}")
        yield self

    async def follow(self, take: Callable[[bytes], None]) -> None:
        for seconds, what in self.watches.pop(0):
            self.clock.advance(seconds)
            if isinstance(what, Exception):
                raise what
            if what is not None:
                take(what)


class Sleepless(ManualClock):
    """A clock that records its sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


async def scripted(
    *watches: list[tuple[float, bytes | Exception | None]],
) -> tuple[Scripted, Sleepless, Kept, Reflector[Any]]:
    """Follow these watches to the end of the last one."""
    clock, kept = Sleepless(), Kept()
    client = Scripted(clock, *watches)
    reflector = Reflector("nodes", cast("Client", client), NODES, kept, kept, clock)
    with pytest.raises(Ended):
        await reflector.run()
    return client, clock, kept, reflector


def node_event(kind: str, version: int, **node: Any) -> bytes:
    """A line of a watch."""
    meta = {"name": "n1", "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": meta, **node}}).encode()


EXPIRED = errors.Expired(410, "Expired", "too old")


@pytest.mark.parametrize(("apart", "sleeps"), [(29.5, 1), (30.0, 0), (30.5, 0)])
async def test_versions_that_expire_within_30_seconds_are_waited_for(apart: float, sleeps: int) -> None:
    """The first one leads to a list at once; one that follows in less than 30 s is delayed, and not a failure."""
    client, clock, kept, _ = await scripted([(100.0, EXPIRED)], [(apart, EXPIRED)])
    assert client.did == ["list", "watch 5", "list", "watch 5", "list"]
    assert (len(clock.slept), kept.errors) == (sleeps, [])


LINE = node_event("MODIFIED", 6)


@pytest.mark.parametrize(
    ("watches", "did", "failures"),
    [
        ([[(1.0, None)], [(1.0, None)]], ["list", "watch 5", "watch 5", "list"], 0),
        ([[(1.0, None)], [(1.0, LINE)], [(1.0, None)]], ["list", "watch 5", "watch 5", "watch 6"], 0),
        ([[(0.9, None)]], ["list", "watch 5"], 1),
        ([[(0.9, None)], [(0.9, None)], [(0.9, None)]], ["list", "watch 5", "watch 5", "watch 5"], 3),
        ([[(0.9, LINE)]], ["list", "watch 5"], 0),
        ([[(0.9, node_event("MODIFIED", 5))]], ["list", "watch 5"], 1),
        ([[(0.9, node_event("BOOKMARK", 6))]], ["list", "watch 5"], 1),
        ([[(1.0, node_event("BOOKMARK", 5))]], ["list", "watch 5"], 0),
        ([[(0.1, node_event("BOOKMARK", 4))]], ["list", "watch 5", "list"], 0),
    ],
)
async def test_watches_without_news_are_failures_or_end_in_a_list(
    watches: list[list[tuple[float, bytes | Exception | None]]], did: list[str], failures: int
) -> None:
    """A watch of less than a second must bring news; two longer ones without a line end in a list."""
    client, clock, kept, _ = await scripted(*watches)
    assert client.did == did
    assert len(kept.errors) == len(clock.slept) == failures
    assert all((error.status, error.reason) == (200, "") for error in kept.errors if isinstance(error, errors.ApiError))


@pytest.mark.parametrize(
    ("error", "did"),
    [
        (errors.ApiError(400, "BadRequest"), ["list", "watch 5", "list"]),
        (errors.Forbidden(403, "Forbidden"), ["list", "watch 5"]),
        (errors.ClusterUnreachable("gone", "reset"), ["list", "watch 5"]),
    ],
)
async def test_only_a_refused_version_is_forgotten(error: HubError, did: list[str]) -> None:
    """After a 400 the version is not used again; after any other failure the watch continues from it."""
    client, clock, kept, _ = await scripted([(5.0, error)])
    assert (client.did, kept.errors, len(clock.slept)) == (did, [error], 1)


@pytest.mark.parametrize(
    ("asked", "at_least", "at_most"), [(0.0, 0.8, 1.6), (7.0, 7.0, 7.0), (300.0, 300.0, 300.0), (301.0, 300.0, 300.0)]
)
async def test_retry_after_is_respected_within_limits(asked: float, at_least: float, at_most: float) -> None:
    """The wait is at least that of the backoff, and at most five minutes."""
    _, clock, _, _ = await scripted([(5.0, errors.TooManyRequests(429, "", "", retry_after=asked))])
    (slept,) = clock.slept
    assert at_least <= slept <= at_most


async def test_events_are_counted_and_applied() -> None:
    """Bookmarks are not counted; an object that does not decode, and a line that is no event, are skipped."""
    lines = [
        node_event("ADDED", 6),
        node_event("MODIFIED", 7, spec=5),
        b"garbage",
        node_event("BOOKMARK", 8),
        node_event("DELETED", 9),
    ]
    client, _, kept, reflector = await scripted([(1.0, line) for line in lines])
    assert client.did == ["list", "watch 5"]
    assert (kept.sizes, kept.objects) == ([0, 1, 0], {})
    assert (reflector.resource_version, reflector.relists, reflector.events, reflector.skipped) == ("9", 1, 3, 2)
    assert reflector.current_as_of == 1000.0


@pytest.mark.parametrize(
    ("gaps", "current_as_of"),
    [
        ([6.0], 1000.0),
        ([5.0], 1000.0),
        ([5.0, 5.0], 1010.0),
        ([2.5, 2.5], 1000.0),
        ([2.5, 2.6], 1005.1),
        ([2.5, 2.6, 6.0], 1005.1),
        ([6.0, 5.0], 1000.0),
        ([6.0, 5.0, 0.1], 1011.1),
    ],
)
async def test_store_is_current_as_of_a_steady_line(gaps: list[float], current_as_of: float) -> None:
    """A line counts if more than five seconds have passed without a silence of more than five seconds."""
    lines = [node_event("MODIFIED", 6 + number) for number in range(len(gaps))]
    _, _, _, reflector = await scripted(list(zip(gaps, lines, strict=True)))
    assert reflector.current_as_of == pytest.approx(current_as_of)


async def test_deferred_events_are_applied_later_unless_they_are_echoes() -> None:
    """A deferred event counts once, and does not move the version later; echoes, errors and garbage are dropped."""
    later: list[Callable[[], None]] = []

    class Deferring(Kept):
        def shrink_page(self, page: dict[Any, Any]) -> dict[Any, Any]:
            return page

        def knows(self, key: Any, resource_version: str) -> bool:
            return resource_version == "7"

        def defers(self, key: Any, again: Callable[[], None]) -> bool:
            later.append(again)
            return True

    clock, kept = Sleepless(), Deferring()
    undecodable = {**make_slice("a", "s3", "web", []), "endpoints": 5}
    objects = [make_slice("a", "s1", "web", []), make_slice("a", "s2", "web", []), undecodable]
    lines = [versioned(number, slice_) for number, slice_ in enumerate(objects, 6)]
    lines.append(b'{"type":"ERROR","object":{"metadata":{"resourceVersion":"9"}}}')
    client = Scripted(clock, [(1.0, line) for line in lines])
    client.kind = "EndpointSliceList"
    reflector = Reflector("slices", cast("Client", client), SLICES, kept, kept, clock)
    with pytest.raises(Ended):
        await reflector.run()
    assert (reflector.resource_version, reflector.events, reflector.skipped, kept.sizes) == ("9", 4, 0, [0])
    for again in later:
        again()
    assert list(kept.objects) == [ObjectKey("a", "s1")]
    assert (reflector.resource_version, reflector.events, reflector.skipped) == ("9", 4, 2)


def versioned(version: int, obj: dict[str, Any]) -> bytes:
    """A line of a watch with this version of an object."""
    meta = {**obj["metadata"], "resourceVersion": str(version)}
    return json.dumps({"type": "MODIFIED", "object": {**obj, "metadata": meta}}).encode()
