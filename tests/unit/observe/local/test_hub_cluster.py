"""Following and writing the hub cluster, against a simulated API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from hub_testkit import SimulatedCluster, make_service, make_slice

from hub.errors import AlreadyExists, ClusterUnreachable, Conflict, Forbidden, NotFound
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY, ObjectKey, TargetKey
from hub.observe.local.cluster import Follower, LocalCluster
from hub.observe.local.stores import ServiceStore, SliceStore
from hub.runtime.clock import SystemClock
from tests.support import build
from tests.support.waiting import until

SERVICES, SLICES = "services: get, list, watch", "endpointslices: list"
TARGET = TargetKey("edge", "payments")
ONE = build.slice("s-0", build.endpoints(2), resource_version="")


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """A hub cluster with two namespaces and a Service in each."""
    async with SimulatedCluster("hub") as made:
        for namespace in ("edge", "other"):
            made.namespaces.add({"metadata": {"name": namespace}})
            made.put(make_service(namespace, "payments"))
        yield made


@pytest.fixture
async def client(sim: SimulatedCluster) -> AsyncIterator[Client]:
    """A client of the simulated cluster."""
    pool = LookupPool()
    access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
    async with Client(Credentials(access, SystemClock()), pool) as made:
        yield made
    pool.close()


@asynccontextmanager
async def following(client: Client, **more: Any) -> AsyncIterator[LocalCluster]:
    """A LocalCluster of owner ``default`` that runs and is synced."""
    hub = LocalCluster(client, SystemClock(), ("default",), more.pop("on_change", lambda _: None), **more)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow()) for follow in (hub.follow_services, hub.follow_slices)]
        try:
            async with asyncio.timeout(20):
                await hub.wait_synced()
            yield hub
        finally:
            for task in tasks:
                task.cancel()


def ours(name: str, owner: str = "default", namespace: str = "edge") -> dict[str, Any]:
    """A slice of an owner."""
    made = make_slice(namespace, name, "payments", ["10.0.0.1"])
    made["metadata"]["labels"] |= {LABEL_MANAGED_BY: MANAGED_BY, LABEL_OWNER: owner}
    return made


def names(hub: LocalCluster) -> list[str]:
    """The names of the stored slices."""
    return sorted(slice_.name for slice_ in hub.slices.values())


async def test_both_pictures_are_known_before_it_is_synced(sim: SimulatedCluster, client: Client) -> None:
    """Once synced, all Services are known, and the slices of our owner only."""
    sim.put(ours("a"))
    sim.put(ours("b", owner="another"))
    hub = LocalCluster(client, SystemClock(), ("default",), lambda _: None)
    assert (hub.synced, hub.attempted, hub.error) == (False, False, "")
    async with following(client) as hub:
        assert (hub.synced, hub.attempted, hub.error) == (True, True, "")
        assert names(hub) == ["a"]
        assert hub.services.get(TARGET) is not None
        assert hub.follows("edge")
        assert hub.follows("anything")


async def test_only_named_namespaces_are_followed(sim: SimulatedCluster, client: Client) -> None:
    """With ``namespaces``, only these are followed, and the names of the tasks contain them."""
    sim.put(ours("a"))
    sim.put(ours("b", namespace="other"))
    async with following(client, namespaces=("edge",)) as hub:
        assert names(hub) == ["a"]
        assert hub.services.get(TARGET) is not None
        assert hub.services.get(TargetKey("other", "payments")) is None
        assert (hub.follows("edge"), hub.follows("other")) == (True, False)
        assert "services of namespace edge of the hub cluster" in {task.get_name() for task in asyncio.all_tasks()}


async def test_tasks_that_follow_everything_name_no_namespace(client: Client) -> None:
    """The names of tasks that follow all namespaces, which appear in logs, contain no namespace."""
    async with following(client):
        assert "services of the hub cluster" in {task.get_name() for task in asyncio.all_tasks()}


async def test_slices_of_new_owners_are_followed_from_then_on(sim: SimulatedCluster, client: Client) -> None:
    """New owners start a new list; the same owners again do not."""
    sim.put(ours("a"))
    sim.put(ours("b", owner="another"))
    async with following(client) as hub:
        lists = sim.requests["list", "endpointslices"]
        hub.follow_owners(("default",))
        await asyncio.sleep(0.1)
        assert sim.requests["list", "endpointslices"] == lists
        hub.follow_owners(("default", "another"))
        await until(lambda: names(hub) == ["a", "b"])


async def test_changes_wake_their_target(sim: SimulatedCluster, client: Client) -> None:
    """Changes of slices and of Services wake their target."""
    woken: list[TargetKey] = []
    async with following(client, on_change=woken.append):
        woken.clear()
        sim.put(ours("a"))
        await until(lambda: TARGET in woken)
        woken.clear()
        sim.services.delete("payments", namespace="other")
        await until(lambda: TargetKey("other", "payments") in woken)


async def test_write_is_stored_at_once(sim: SimulatedCluster, client: Client) -> None:
    """A write is stored with the resourceVersion of the answer, which the next update or delete must have."""
    admitted: list[TargetKey] = []
    async with following(client, admit=admitted.append) as hub:
        await hub.create(ONE, 5.0)
        made = hub.slices.get(ObjectKey("edge", "s-0"))
        assert made is not None
        assert made.resource_version == sim.slices.list()[0]["metadata"]["resourceVersion"]
        with pytest.raises(AlreadyExists):
            await hub.create(ONE, 5.0)
        await hub.update(msgspec.structs.replace(made, endpoints=made.endpoints[:1]), 5.0)
        after = hub.slices.get(ObjectKey("edge", "s-0"))
        assert after is not None
        assert len(sim.slices.list()[0]["endpoints"]) == len(after.endpoints) == 1
        for write in (hub.update, hub.delete):
            with pytest.raises(Conflict):
                await write(made, 5.0)
        await hub.delete(after, 5.0)
        assert hub.slices.get(ObjectKey("edge", "s-0")) is None
        assert sim.slices.list() == []
        await hub.delete(after, 5.0)  # a deleted slice can be deleted again
        assert admitted == [TARGET] * 8  # the first write was sent twice: the simulator does not accept protobuf


async def test_a_write_that_is_not_admitted_is_not_sent(sim: SimulatedCluster, client: Client) -> None:
    """If ``admit`` raises, the write is not sent."""

    def refuse(_: TargetKey) -> None:
        raise ClusterUnreachable("not any more")

    async with following(client, admit=refuse) as hub:
        for write in (hub.create, hub.update, hub.delete):
            with pytest.raises(ClusterUnreachable, match="not any more"):
                await write(msgspec.structs.replace(ONE, resource_version="7"), 5.0)
        assert sim.writes == 0


@pytest.mark.parametrize("code", [406, 415])
async def test_a_server_without_protobuf_gets_json(
    sim: SimulatedCluster, client: Client, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After the first 406 or 415 writes are JSON; that is logged once and is not an error."""
    caplog.set_level(logging.INFO)
    async with following(client) as hub:
        sim.fail_next(status=code, verb="create", resource="endpointslices")
        await hub.create(ONE, 5.0)
        await hub.create(build.slice("s-1", build.endpoints(1), resource_version=""), 5.0)
        assert sorted(stored["metadata"]["name"] for stored in sim.slices.list()) == ["s-0", "s-1"]
        assert caplog.text.count("does not take protobuf: writing JSON") == 1
        sim.fail_next(status=code, verb="create", resource="endpointslices")
        with pytest.raises(Exception, match=str(code)):
            await hub.create(build.slice("s-2", build.endpoints(1), resource_version=""), 5.0)


async def test_other_errors_are_raised(sim: SimulatedCluster, client: Client) -> None:
    """Other errors are raised, and nothing is stored."""
    async with following(client) as hub:
        sim.forbid("create", "endpointslices")
        with pytest.raises(Forbidden):
            await hub.create(ONE, 5.0)
        assert names(hub) == []
        with pytest.raises(NotFound):
            await hub.update(msgspec.structs.replace(ONE, resource_version="7"), 5.0)


async def test_reread_stores_only_our_slices(sim: SimulatedCluster, client: Client) -> None:
    """``reread`` returns every slice, but stores only those of our owner."""
    hub = LocalCluster(client, SystemClock(), ("default",), lambda _: None)
    sim.put(ours("a"))
    sim.put(ours("b", owner="another"))
    foreign = make_slice("edge", "c", "payments", ["10.0.0.1"])
    foreign["metadata"]["labels"] |= {LABEL_MANAGED_BY: "somebody", LABEL_OWNER: "default"}
    sim.put(foreign)
    found = [await hub.reread(ObjectKey("edge", name), 5.0) for name in "abcd"]
    assert [slice_.name if slice_ is not None else None for slice_ in found] == ["a", "b", "c", None]
    assert names(hub) == ["a"]
    sim.slices.delete("a", namespace="edge")
    assert await hub.reread(ObjectKey("edge", "a"), 5.0) is None
    assert names(hub) == []


async def test_error_names_the_missing_rbac_rule(sim: SimulatedCluster, client: Client) -> None:
    """``error`` names the missing RBAC rule until the permission is granted."""
    sim.forbid("*", "endpointslices")
    hub = LocalCluster(client, SystemClock(), ("default",), lambda _: None)
    tasks = [asyncio.create_task(follow()) for follow in (hub.follow_services, hub.follow_slices)]
    await until(lambda: hub.attempted)
    assert not hub.synced
    assert hub.error.startswith("403: the hub's account lacks the rule «endpointslices.discovery.k8s.io: ")
    sim.permit()
    await until(lambda: hub.synced and not hub.error)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


REFUSED: Callable[[], Forbidden] = lambda: Forbidden(403, "Forbidden", "no")  # noqa: E731


def test_a_follower_warns_once_of_each_kind_of_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A 403 is logged at the third time, other errors at once; recovery is logged only after a warning."""
    caplog.set_level(logging.INFO)
    follower = Follower("Services", "services: list", "edge")
    assert (follower.attempted, follower.error) == (False, "")
    follower.answered()
    assert (follower.attempted, caplog.messages) == (True, [])
    for _ in range(4):
        follower.failed(REFUSED())
    rule = "403: the hub's account lacks the rule «services: list» in namespace edge in the hub cluster"
    assert follower.error == rule
    assert caplog.messages == [f"hub cluster: cannot follow Services of namespace edge: {rule}"]
    follower.failed(ClusterUnreachable("away"))
    follower.failed(ClusterUnreachable("away"))
    assert (len(caplog.messages), follower.error) == (2, "away")
    follower.answered()
    follower.answered()
    assert caplog.messages[2:] == ["hub cluster: Services of namespace edge are followed again"]
    assert follower.error == ""


def test_a_failure_counts_as_an_attempt() -> None:
    """A failure counts as an attempt, and sets ``error`` at once."""
    follower = Follower("Services", "services: list")
    follower.failed(REFUSED())
    assert follower.attempted
    assert follower.error == "403: the hub's account lacks the rule «services: list» in the hub cluster"


@pytest.mark.parametrize(
    ("services", "slices", "synced"), [(0, 0, False), (1, 0, False), (0, 1, False), (1, 1, True), (2, 3, True)]
)
def test_it_is_synced_once_both_kinds_were_listed(services: int, slices: int, *, synced: bool) -> None:
    """Without a complete list of slices there are no slices to count; it is synced with a list of each kind."""
    hub = LocalCluster(cast("Client", None), SystemClock(), ("default",), lambda _: None)
    assert isinstance(hub.services, ServiceStore)
    assert isinstance(hub.slices, SliceStore)
    for _ in range(services):
        hub.services.replace({}, "1")
    for _ in range(slices):
        hub.slices.replace({}, "1")

    assert hub.synced is synced
    assert (hub.all_slices() is None) is (slices == 0)
