"""The provider as the hub opens it, against a fake API on loopback: resolving, sharing, failing."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import hub_provider_ionos
import pytest
from hub_provider_ionos import Cloud, Ionos, IonosConfig
from hub_testkit.conformance import ProviderConformance
from hub_testkit.contexts import LocalCluster, LocalHub
from hub_testkit.ionos import FakeIonos
from hub_testkit.simulator.identity import AUTHORITY, server_tls
from pydantic import ValidationError

from hub.plugin import (
    Absent,
    CredentialError,
    Found,
    Node,
    NodeAddress,
    Resolution,
    TerminalProviderError,
    TransientProviderError,
    Unknown,
)

DC = "10000000-0000-4000-8000-000000000001"
OTHER_DC = "10000000-0000-4000-8000-000000000002"
K8S = "30000000-0000-4000-8000-000000000001"
A = "20000000-0000-4000-8000-00000000000a"
B = "20000000-0000-4000-8000-00000000000b"


class ManualClock:
    """Time moves when a test says so."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self._now + seconds, woken))
        await woken.wait()

    def advance(self, seconds: float) -> None:
        """Wake everybody whose time has come."""
        self._now += seconds
        for at, woken in self._sleepers:
            if at <= self._now:
                woken.set()
        self._sleepers = [(at, woken) for at, woken in self._sleepers if at > self._now]


class World:
    """A fake API, and a hub with as many clusters as a test opens."""

    def __init__(
        self, ionos: FakeIonos, hub: LocalHub, clock: ManualClock, cloud: Cloud, stack: AsyncExitStack
    ) -> None:
        self.ionos = ionos
        self.hub = hub
        self.clock = clock
        self.cloud = cloud
        self._stack = stack

    async def open(self, name: str = "eu", folder: str = "/", **config: Any) -> tuple[Ionos, LocalCluster]:
        """A cluster's provider; closed at the end of the test."""
        cluster = LocalCluster(self.hub, name=name, folder=folder)
        parsed = IonosConfig.model_validate(
            {"datacenters": [DC], "lan": 2, "apiUrl": self.ionos.url, "token": {"env": "TOKEN"}} | config
        )
        provider = await self._stack.enter_async_context(hub_provider_ionos.open_provider(cluster, parsed, self.cloud))
        return provider, cluster

    @property
    def lists(self) -> int:
        """Times servers were listed."""
        return self.ionos.requests["datacenters/servers"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that happens in real time: an answer of the fake."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - it is about another thread
                await asyncio.sleep(0.005)

    async def advance(self, seconds: float) -> None:
        """Let time pass, once everybody who waits has begun to."""
        for _ in range(10):
            await asyncio.sleep(0)
        self.clock.advance(seconds)

    async def next_list(self, seconds: float = 40.0) -> None:
        """Let an interval pass, and its list arrive."""
        before = self._counts()
        await self.advance(seconds)
        await self.until(lambda: all(now != then for now, then in zip(self._counts(), before, strict=True)))

    def _counts(self) -> list[tuple[int, int]]:
        return [(each.lists, each.failures) for each in self.cloud.stats()]


@asynccontextmanager
async def a_world(**fake: Any) -> AsyncGenerator[World, None]:
    """One data center, empty."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        ionos = await stack.enter_async_context(FakeIonos(**fake))
        ionos.add_datacenter(identity=DC)
        secrets = {"TOKEN": ionos.token}
        hub = await stack.enter_async_context(
            LocalHub(secrets=secrets, allow_api_hosts=frozenset({ionos.host}), clock=clock)
        )
        cloud = await stack.enter_async_context(hub_provider_ionos.open_cloud(hub))
        yield World(ionos, hub, clock, cloud, stack)


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    """One data center, empty."""
    async with a_world() as made:
        yield made


def node(name: str = "n1", server: str = A, system: str = "", *addresses: str) -> Node:
    """A Node that names its server."""
    return Node(
        name,
        provider_id=f"ionos://{server}" if server else "",
        system_uuid=system,
        addresses=tuple(NodeAddress("InternalIP", address) for address in addresses),
    )


async def answer(provider: Ionos, asked: Node | None = None) -> Resolution:
    """What is said of one node."""
    asked = asked or node()
    return (await provider.resolve((asked,)))[asked.name]


class TestConformance(ProviderConformance):
    """The rules of the plugin API."""

    plugin = hub_provider_ionos
    name = "ionos"
    config = {"datacenters": [DC], "lan": 2, "token": {"env": "TOKEN"}}
    nodes = (
        node("n1", A),
        node("n2", "", B.upper()),
        node("n3", ""),
        node("twin", ""),
    )
    addresses = {"n1": ("10.7.0.1",), "n2": ("10.7.0.2", "10.7.0.99")}

    def hub(self) -> LocalHub:
        return LocalHub(secrets={"TOKEN": "fake-token"}, allow_api_hosts=frozenset({self._host}))

    _host = ""

    @asynccontextmanager
    async def surroundings(self) -> AsyncGenerator[Mapping[str, Any], None]:
        async with FakeIonos() as ionos:
            ionos.add_datacenter(identity=DC)
            ionos.add_server(DC, "other-name", "10.7.0.1", identity=A)
            ionos.add_server(DC, "n2", "10.7.0.2", "10.7.0.99", identity=B)
            ionos.add_server(DC, "n3", "10.7.0.3")
            ionos.add_server(DC, "twin", "10.7.0.4")
            ionos.add_server(DC, "twin", "10.7.0.5")
            self._host = ionos.host
            yield {**self.config, "apiUrl": ionos.url}

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        async with FakeIonos() as ionos:
            ionos.add_datacenter(identity=DC)
            ionos.fail_next(502, None, body="<html>bad gateway</html>", content_type="text/html")
            self._host = ionos.host
            yield {**self.config, "apiUrl": ionos.url}


# --- resolving -------------------------------------------------------------------------------------------


async def test_a_node_gets_its_servers_address(world: World) -> None:
    """One list of servers and one of LANs, asked for as documented."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A, zone="ZONE_1")
    provider, _ = await world.open()

    assert await answer(provider) == Found(("10.7.0.1",), "ZONE_1")
    assert world.ionos.paths == [
        f"/cloudapi/v6/datacenters/{DC}/lans?depth=1&offset=0&limit=1000",
        f"/cloudapi/v6/datacenters/{DC}/servers?depth=3&offset=0&limit=1000",
    ]
    assert world.ionos.headers["Authorization"] == "Bearer fake-token"


async def test_several_data_centers_are_one_place(world: World) -> None:
    """A cluster's servers may be spread over data centers."""
    world.ionos.add_datacenter(identity=OTHER_DC)
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.ionos.add_server(OTHER_DC, "n2", "10.7.0.2", identity=B)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])

    said = await provider.resolve((node(), node("n2", B)))

    assert said == {"n1": Found(("10.7.0.1",)), "n2": Found(("10.7.0.2",))}


async def test_a_failing_data_center_is_no_smaller_fleet(world: World) -> None:
    """Where one of two lists fails, nothing is said of any node, and the place is named."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])

    with pytest.raises(TerminalProviderError, match=f"404 for the LANs of data center {OTHER_DC}"):
        await provider.resolve((node(),))


async def test_a_node_of_managed_kubernetes_is_found_there(world: World) -> None:
    """What is no server of the data center is looked up by the managed cluster's nodes: by id, then by name."""
    identity = world.ionos.add_pool_node(K8S, "pool-1", "10.7.0.1", "203.0.113.1")
    world.ionos.add_pool_node(K8S, "pool-2", "10.7.0.2")
    provider, _ = await world.open(k8sClusterId=K8S)

    said = await provider.resolve((node("any", identity), node("pool-2", "")))

    assert said == {"any": Found(("10.7.0.1", "203.0.113.1")), "pool-2": Found(("10.7.0.2",))}


async def test_managed_kubernetes_is_not_asked_where_nobody_needs_it(world: World) -> None:
    """While every node is a server, the other API costs nothing."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(k8sClusterId=K8S)
    await answer(provider)
    assert world.ionos.requests["k8s/nodepools"] == 0


async def test_an_id_of_a_node_pool_cannot_lead_elsewhere(world: World) -> None:
    """An id that is no UUID never becomes part of a URL."""
    world.ionos.k8s[K8S] = {"../../datacenters": {}}
    provider, _ = await world.open(k8sClusterId=K8S)
    with pytest.raises(TransientProviderError, match=r"items\[0\] has no id"):
        await answer(provider, node(server=""))


async def test_contract_and_password_are_sent(world: World) -> None:
    """X-Contract-Number and Basic authentication, where they are configured."""
    world.ionos.username, world.ionos.password, world.ionos.contract = "me@example.com", "secret", 4711
    world.hub.secrets["PW"] = "secret"
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    config: dict[str, Any] = {
        "token": None,
        "username": "me@example.com",
        "password": {"env": "PW"},
        "contractNumber": 4711,
    }
    provider, _ = await world.open(**config)
    assert await answer(provider) == Found(("10.7.0.1",))


@pytest.mark.parametrize("password", ["sécret", "пароль", "p€ss:word", "🔑"])
async def test_a_password_may_have_any_letters(world: World, password: str) -> None:
    """Basic authentication goes out as UTF-8 (RFC 7617), also for letters that Latin-1 lacks."""
    world.ionos.username, world.ionos.password = "mé@example.com", password
    world.hub.secrets["PW"] = password
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(token=None, username="mé@example.com", password={"env": "PW"})
    assert await answer(provider) == Found(("10.7.0.1",))


# --- two lists that agree --------------------------------------------------------------------------------


async def test_a_server_that_is_gone_is_absent_after_two_lists(world: World) -> None:
    """One list without it says nothing; the second one does."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    world.ionos.remove_server(DC, A)

    await world.next_list()
    await world.advance(1)
    assert await answer(provider) == Absent("no server of the data centers is this node")
    assert world.cloud.stats()[0].early == 1


async def test_a_stopped_server_leaves_after_two_lists(world: World) -> None:
    """A server that is not RUNNING in two lists is leaving; in one it may be restarting."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    world.ionos.set_state(DC, A, "SHUTOFF")

    reason = f"server {A} is SHUTOFF"
    assert await answer(provider) == Unknown(f"{reason}; waiting for a second list")
    await world.next_list()
    assert await answer(provider) == Absent(reason)
    world.ionos.set_state(DC, A, "RUNNING")
    await world.next_list()
    assert await answer(provider) == Found(("10.7.0.1",))


async def test_an_empty_data_center_is_an_answer_only_twice(world: World) -> None:
    """``items: []`` with 200 is complete, and still needs a second list."""
    provider, _ = await world.open()
    assert isinstance(await answer(provider), Unknown)
    await world.next_list()
    assert isinstance(await answer(provider), Absent)


# --- sharing ---------------------------------------------------------------------------------------------


async def test_hundred_clusters_cost_one_list_per_interval(world: World) -> None:
    """Whoever asks and how often: one list per interval, one request at a time."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.ionos.latency = 0.02
    providers = [(await world.open(f"c{number}"))[0] for number in range(100)]

    for interval in range(3):
        said = await asyncio.gather(*(answer(provider) for provider in providers))
        assert set(said) == {Found(("10.7.0.1",))}
        assert world.lists == world.ionos.requests["datacenters/lans"] == interval + 1
        await world.next_list()

    assert world.ionos.most_in_flight == 1
    assert [(each.clusters, each.lists, each.early, each.size) for each in world.cloud.stats()] == [(100, 4, 0, 1)]


async def test_another_credential_is_another_list(world: World) -> None:
    """What one account may see is nobody else's answer."""
    world.hub.secrets["WRONG"] = "expired"
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    right, _ = await world.open("right")
    wrong, _ = await world.open("wrong", token={"env": "WRONG"})

    assert await answer(right) == Found(("10.7.0.1",))
    with pytest.raises(TerminalProviderError, match=r"401 .*; renew the token from env WRONG"):
        await answer(wrong)
    assert await answer(right) == Found(("10.7.0.1",))


async def test_a_list_nobody_uses_ends(world: World) -> None:
    """The last cluster that closes ends the list; the others keep it."""
    first, second = AsyncExitStack(), AsyncExitStack()
    config = IonosConfig.model_validate(
        {"datacenters": [DC], "lan": 2, "apiUrl": world.ionos.url, "token": {"env": "TOKEN"}}
    )
    for stack in (first, second):
        cluster = LocalCluster(world.hub)
        provider = await stack.enter_async_context(hub_provider_ionos.open_provider(cluster, config, world.cloud))
        await answer(provider)
    await first.aclose()
    assert [each.clusters for each in world.cloud.stats()] == [1]
    await second.aclose()
    assert world.cloud.stats() == ()
    lists = world.lists
    await world.advance(1000)
    await asyncio.sleep(0.05)
    assert world.lists == lists


async def test_clusters_are_told_of_a_change_and_of_nothing_else(world: World) -> None:
    """A list that says the same wakes nobody; one that differs wakes everybody."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, cluster = await world.open()
    await answer(provider)
    await world.next_list()
    assert cluster.changes == 0
    world.ionos.add_server(DC, "n2", "10.7.0.2", identity=B)
    await world.next_list()
    assert cluster.changes == 1


async def test_the_shortest_refresh_counts(world: World) -> None:
    """Clusters may differ in patience."""
    slow, _ = await world.open("slow", refresh="10m")
    await answer(slow, node(server=""))
    await world.open("quick", refresh="30s")
    await world.next_list()
    assert world.lists == 2


# --- missing nodes ---------------------------------------------------------------------------------------


async def test_a_new_node_is_found_at_once(world: World) -> None:
    """A node that is not in the list has it asked for early."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    await world.advance(1)
    world.ionos.add_server(DC, "n2", "10.7.0.2", identity=B)

    assert await answer(provider, node("n2", B)) == Found(("10.7.0.2",))
    assert (world.lists, world.cloud.stats()[0].early) == (2, 1)


async def test_missing_nodes_cost_one_early_list_per_ten_seconds(world: World) -> None:
    """Many new nodes in many clusters have one list asked for, and the next one 10 s later."""
    providers = [(await world.open(f"c{number}"))[0] for number in range(20)]
    await asyncio.gather(*(answer(provider, node("x", "")) for provider in providers))
    await world.advance(1)

    for number in range(20):
        await world.advance(0.01)
        await asyncio.gather(*(answer(provider, node(f"new-{number}", "")) for provider in providers))
    assert (world.lists, world.cloud.stats()[0].early) == (2, 1)

    await world.advance(10)
    await world.until(lambda: world.lists == 3)
    assert world.cloud.stats()[0].early == 2


async def test_a_node_that_stays_missing_asks_for_no_more_lists(world: World) -> None:
    """Two lists without it are enough: a foreign node does not cost a list every 10 s."""
    provider, _ = await world.open(refresh="10m")
    for _ in range(6):
        await answer(provider, node(server=""))
        await world.advance(11)
        await asyncio.sleep(0.02)
    assert world.lists == 2


# --- failing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (
            {"status": 200, "body": "<html>login</html>", "content_type": "text/html"},
            "the answer is text, not an object",
        ),
        ({"status": 200, "body": "[]"}, "the answer is a list, not an object"),
        ({"status": 200, "body": "{}"}, "items is missing, not a list"),
        ({"status": 200, "body": '{"items": null}'}, "items is null, not a list"),
        ({"status": 200, "body": '{"items": {}}'}, "items is an object, not a list"),
        ({"status": 200, "body": '{"items": [1]}'}, r"items\[0\] is a number, not an object"),
        ({"status": 200, "body": '{"items": [{"id": "../x"}]}'}, r"items\[0\] has no id"),
        ({"status": 200, "body": f'{{"items": [{{"id": "{A}"}}]}}'}, "properties is null, not an object"),
        ({"status": 200, "body": "[" * 100_000}, "servers of data center"),
        ({"status": 204}, "status 204 instead of 200"),
        ({"status": 202, "body": '{"items": []}'}, "status 202 instead of 200"),
        (
            {"status": 502, "body": "<html>bad gateway</html>", "content_type": "text/html"},
            "answers 502 for the servers",
        ),
        ({"status": 500, "body": "\x00\xff"}, "answers 500"),
        ({"status": 200, "cut": True}, "the answer was cut short"),
    ],
)
async def test_a_broken_answer_is_an_error(world: World, fault: dict[str, Any], error: str) -> None:
    """Whatever comes instead of a list: an error that names the place, never an empty fleet."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    world.ionos.fail_next(path="/servers", **fault)

    with pytest.raises(TransientProviderError, match=error):
        await answer(provider)
    await world.advance(61)
    await world.until(lambda: world.cloud.stats()[0].lists == 1)
    assert await answer(provider) == Found(("10.7.0.1",))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(world: World, status: int) -> None:
    """The credential goes to no host but the configured one."""
    async with FakeIonos() as elsewhere:
        provider, _ = await world.open()
        world.ionos.fail_next(status, headers={"Location": elsewhere.url}, body="")
        with pytest.raises(TerminalProviderError, match=f"answers {status} .*redirects are not followed"):
            await answer(provider)
        assert elsewhere.paths == []


async def test_links_are_not_followed(world: World) -> None:
    """Pages are asked for by offset, whatever the answer names as the next one."""
    async with FakeIonos() as elsewhere:
        for number in range(3):
            world.ionos.add_server(DC, f"s{number}", f"10.7.0.{number + 1}")
        provider, _ = await world.open()
        body = f'{{"items": [], "limit": 1000, "_links": {{"next": "{elsewhere.url}/x"}}}}'
        world.ionos.fail_next(200, body=body, path="/servers")
        with pytest.raises(TransientProviderError, match="the pages do not end"):
            await answer(provider)
        assert elsewhere.paths == []


async def test_an_outage_is_everybodys_error_and_costs_little(world: World) -> None:
    """While the API fails, its list is asked for with backoff, whoever wants to know; at the end all are told."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    opened = [await world.open(f"c{number}") for number in range(10)]
    await asyncio.gather(*(answer(provider) for provider, _ in opened))
    world.ionos.fail_next(503, None)
    await world.next_list()
    asked = world.ionos.requests["datacenters/lans"]

    for _ in range(5):
        for provider, _cluster in opened:
            with pytest.raises(TransientProviderError, match=f"503 for the LANs of data center {DC}: made to fail"):
                await answer(provider)
    assert world.ionos.requests["datacenters/lans"] == asked
    assert {cluster.changes for _, cluster in opened} == {1}

    world.ionos.heal()
    await world.next_list()
    assert {cluster.changes for _, cluster in opened} == {2}
    assert await answer(opened[0][0]) == Found(("10.7.0.1",))


async def test_no_server_at_all_is_an_error() -> None:
    """Nobody listens: said in words, without addresses of Python objects."""
    async with FakeIonos() as other:
        url, host = other.url, other.host
    async with LocalHub(secrets={"TOKEN": "x"}, allow_api_hosts=frozenset({host})) as hub:
        config = IonosConfig.model_validate({"datacenters": [DC], "lan": 2, "apiUrl": url, "token": {"env": "TOKEN"}})
        async with (
            hub_provider_ionos.open_cloud(hub) as cloud,
            hub_provider_ionos.open_provider(LocalCluster(hub), config, cloud) as provider,
        ):
            with pytest.raises(TransientProviderError) as raised:
                await provider.resolve((node(),))
    assert str(raised.value) == (
        f"{url} does not answer for the LANs of data center {DC}: connection refused or no route"
    )


async def test_a_trickling_answer_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that comes byte by byte holds a thread for a bounded time, not for ever."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    provider, _ = await world.open()
    world.ionos.fail_next(200, body='{"items": []}' + " " * 500, trickle=0.02)
    with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
        await answer(provider)


async def test_headers_that_trickle_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no end that a timeout between two pieces would find; the thread is free again in time."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    provider, _ = await world.open()
    world.ionos.fail_next(200, trickle=0.02, trickle_headers=True)
    with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
        await answer(provider)


async def test_an_endless_answer_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is read up to a size."""
    monkeypatch.setattr("hub_provider_ionos.transport.MAX_BODY", 10_000)
    provider, _ = await world.open()
    world.ionos.fail_next(200, body='{"items": []}' + " " * 20_000)
    with pytest.raises(TransientProviderError, match="larger than 10000 bytes"):
        await answer(provider)


async def test_a_silent_api_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that gets no answer ends, and the others' slots are not held by it."""
    monkeypatch.setattr("hub_provider_ionos.api.ANSWER", 0.2)
    provider, _ = await world.open()
    world.ionos.fail_next(200, hang=True)
    with pytest.raises(TransientProviderError, match=r"does not answer for the LANs .* within 0\.2 s"):
        await answer(provider)


# --- pages -----------------------------------------------------------------------------------------------


def fill(ionos: FakeIonos, count: int) -> list[str]:
    """So many servers."""
    return [ionos.add_server(DC, f"s{n}", f"10.7.{n // 250}.{n % 250 + 1}") for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 28, 29, 95])
async def test_all_pages_are_read(count: int) -> None:
    """Pages smaller than asked for, full ones and rests: every server is in the list."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, count)
        provider, _ = await world.open()
        await answer(provider)
        assert world.cloud.stats()[0].size == count


async def test_a_failing_second_page_is_an_error() -> None:
    """Half a list is none."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, 25)
        provider, _ = await world.open()
        world.ionos.fail_next(500, path="/servers", skip=1)
        with pytest.raises(TransientProviderError, match="answers 500 for the servers"):
            await answer(provider)


async def test_a_full_page_that_names_no_next_one_is_not_the_last() -> None:
    """Without the link, how full a page is says whether there may be more."""
    async with a_world(max_limit=10) as world:
        world.ionos.names_next = False
        servers = fill(world.ionos, 25)
        provider, _ = await world.open()
        said = await provider.resolve([node(f"n{n}", server) for n, server in enumerate(servers)])
        assert {type(each) for each in said.values()} == {Found}
        assert world.cloud.stats()[0].size == 25


@pytest.mark.parametrize(("servers", "requests"), [(0, 1), (1, 1), (9, 1), (10, 2), (11, 2)])
async def test_an_exactly_full_page_costs_one_request_more(servers: int, requests: int) -> None:
    """A page with room is the last one; after a full one there is a look behind it."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, servers)
        provider, _ = await world.open()
        await answer(provider)
        assert (world.cloud.stats()[0].size, world.lists) == (servers, requests)


@pytest.mark.parametrize("pools", [1, 2])
async def test_a_part_of_managed_kubernetes_is_an_error(world: World, pools: int) -> None:
    """Node pools and their nodes have no pages; should an answer name one, the rest is not taken for gone."""
    for pool in range(pools):
        for number in range(3 - pools):
            identity = f"40000000-0000-4000-8000-00000000000{pool}"
            world.ionos.add_pool_node(K8S, f"p{pool}-{number}", f"10.7.{pool}.{number + 1}", pool=identity)
    world.ionos.pages_nodes = 1
    provider, _ = await world.open(k8sClusterId=K8S)
    what = "the node pools" if pools == 2 else "the nodes of pool .*"
    with pytest.raises(TransientProviderError, match=f"{what} of Kubernetes cluster {K8S}: the answer is a part"):
        await answer(provider, node("p0-0", ""))


async def test_a_set_that_shrinks_between_pages_is_read_again() -> None:
    """A server deleted meanwhile shifts the others; none of them is taken for gone."""
    async with a_world(max_limit=10) as world:
        servers = fill(world.ionos, 25)

        def shrink(offset: int) -> None:
            if offset == 9 and servers[0] in world.ionos.datacenters[DC].servers:
                world.ionos.remove_server(DC, servers[0])

        world.ionos.on_page = shrink
        provider, _ = await world.open()
        asked = [node(f"n{n}", server) for n, server in enumerate(servers[1:])]
        said = await provider.resolve(asked)
        assert {type(each) for each in said.values()} == {Found}
        assert world.cloud.stats()[0].size == 24


async def test_a_set_that_keeps_shrinking_is_an_error() -> None:
    """After three attempts the list is an error, never a part of one."""
    async with a_world(max_limit=10) as world:
        servers = fill(world.ionos, 40)

        def shrink(offset: int) -> None:
            if offset:
                world.ionos.remove_server(DC, servers.pop(0))

        world.ionos.on_page = shrink
        provider, _ = await world.open()
        with pytest.raises(TransientProviderError, match="the list keeps changing while it is read"):
            await answer(provider)


async def test_a_set_that_vanishes_between_pages_is_an_error() -> None:
    """An empty second page is no end of the list."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, 15)
        provider, _ = await world.open()
        empty = '{"items": [], "offset": 9, "limit": 10, "_links": {}}'
        for _ in range(3):
            world.ionos.fail_next(200, body=empty, path="/servers", skip=1)
        with pytest.raises(TransientProviderError, match="keeps changing"):
            await answer(provider)


# --- rate limit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "wait"), [("7", 7.0), ("", 60.0), ("soon", 60.0), ("nan", 60.0), ("999999", 3600.0)]
)
async def test_retry_after_is_honoured(world: World, header: str, wait: float) -> None:
    """A 429 with, without and with a strange Retry-After: nothing is asked before its time."""
    world.ionos.rate_limit, world.ionos.retry_after = 0, header
    provider, _ = await world.open()
    with pytest.raises(TransientProviderError, match=f"answers 429 .*asking again in {wait:.0f} s") as raised:
        await answer(provider)
    assert raised.value.retry_after == pytest.approx(wait, abs=0.01)

    world.ionos.rate_limit = None
    await world.advance(wait - 0.5)
    await asyncio.sleep(0.05)
    assert world.ionos.requests["datacenters/lans"] == 1
    await world.advance(1.0)
    await world.until(lambda: world.cloud.stats()[0].lists == 1)
    assert world.cloud.stats()[0].limited == 1


async def test_numbers_for_the_hubs_metrics(world: World) -> None:
    """Requests and rate limits by API, lists by data center; alerts come by data center, not by cluster."""
    read = {name: measure() for name, measure in world.hub.measures.items()}
    assert set(read) == {
        "api_requests_total",
        "api_rate_limited_total",
        "api_rate_limit_remaining",
        "lists_total",
        "list_failures_total",
        "early_lists_total",
        "list_interval_seconds",
    }
    assert not any(read.values())
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.ionos.fail_next(429, headers={"Retry-After": "3"})
    provider, _ = await world.open()
    with pytest.raises(TransientProviderError, match="429"):
        await answer(provider)
    assert world.hub.measures["list_interval_seconds"]() == {DC: 3.0}
    await world.advance(4)
    await world.until(lambda: world.cloud.stats()[0].lists == 1)

    read = {name: measure() for name, measure in world.hub.measures.items()}
    assert read["api_rate_limited_total"] == {world.ionos.url: 1}
    assert read["api_requests_total"] == {world.ionos.url: world.cloud.stats()[0].requests}
    assert read["lists_total"] == read["list_failures_total"] == {DC: 1}
    assert 27.0 <= read["list_interval_seconds"][DC] <= 33.0
    await world.advance(11)
    await answer(provider, node("new", B))
    assert world.hub.measures["early_lists_total"]() == {DC: 1}
    [declared] = hub_provider_ionos.hub_register_providers()
    config = IonosConfig.model_validate({"datacenters": [OTHER_DC, DC], "lan": 2, "token": {"env": "TOKEN"}})
    assert declared.scope is not None
    assert declared.scope(config) == ",".join(sorted([DC, OTHER_DC]))


async def test_a_date_in_retry_after_is_understood(world: World) -> None:
    """The header may be an HTTP date."""
    world.ionos.fail_next(429, headers={"Retry-After": "Thu, 01 Jan 1970 00:17:00 GMT"})  # 1020; now is 1000
    provider, _ = await world.open()
    with pytest.raises(TransientProviderError, match="asking again in 20 s"):
        await answer(provider)


async def test_a_rate_limit_holds_for_the_whole_account(world: World) -> None:
    """Other lists of the same account wait too, without asking."""
    world.ionos.add_datacenter(identity=OTHER_DC)
    first, _ = await world.open("a")
    second, _ = await world.open("b", datacenters=[OTHER_DC])
    world.ionos.fail_next(429, headers={"Retry-After": "30"})
    with pytest.raises(TransientProviderError, match="429"):
        await answer(first)
    with pytest.raises(TransientProviderError, match="told to wait for 30 s more"):
        await answer(second)
    assert sum(world.ionos.requests.values()) == 1


@pytest.mark.parametrize(("remaining", "times"), [(5000, 1), (1200, 2), (500, 4), (10, 8)])
async def test_lists_come_slower_while_the_limit_runs_low(world: World, remaining: int, times: int) -> None:
    """X-RateLimit-Remaining below a quarter of the limit doubles the interval, and further."""
    world.ionos.rate_remaining = remaining
    provider, _ = await world.open()
    await answer(provider)
    stats = world.cloud.stats()[0]
    assert 27.0 * times <= stats.interval <= 33.0 * times
    assert stats.remaining == remaining


async def test_a_low_limit_allows_no_early_list(world: World) -> None:
    """While the limit runs low, a missing node waits for its turn."""
    world.ionos.rate_remaining = 10
    provider, _ = await world.open()
    await answer(provider)
    await world.advance(1)
    assert isinstance(await answer(provider, node("n2", B)), Unknown)
    assert world.lists == 1


# --- credentials -----------------------------------------------------------------------------------------


async def test_an_expired_token_is_read_again_on_a_401(world: World) -> None:
    """A token that was replaced where it comes from costs one refused request and no error."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    world.ionos.token = world.hub.secrets["TOKEN"] = "rotated"
    await world.next_list()
    assert world.cloud.stats()[0].error == ""


async def test_an_expired_token_is_named_and_recovers_when_it_is_renewed(world: World) -> None:
    """An error for operators without the token; a renewed one is noticed within seconds."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, cluster = await world.open()
    await answer(provider)
    world.ionos.token = "rotated"
    await world.next_list()
    with pytest.raises(TerminalProviderError, match="renew the token from env TOKEN") as raised:
        await answer(provider)
    assert "fake-token" not in str(raised.value)
    told = cluster.changes

    world.hub.secrets["TOKEN"] = "rotated"
    await world.next_list(5.0)
    assert cluster.changes == told + 1
    assert await answer(provider) == Found(("10.7.0.1",))


async def test_a_renewed_token_counts_at_once_for_who_asks(world: World) -> None:
    """The hub asks again when a credential changed: then the old error is no answer."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.hub.secrets["TOKEN"] = "expired"
    provider, _ = await world.open()
    with pytest.raises(TerminalProviderError):
        await answer(provider)
    world.hub.secrets["TOKEN"] = "fake-token"
    assert await answer(provider) == Found(("10.7.0.1",))


async def test_a_renewed_token_counts_at_once_for_every_list(world: World) -> None:
    """Whichever notices it first: the account's other data centers do not wait for their next attempt."""
    world.ionos.add_datacenter(identity=OTHER_DC)
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])
    await answer(provider)
    world.ionos.token = "rotated"
    for _ in range(8):  # until they are asked for once a minute
        await world.next_list(60.0)

    world.hub.secrets["TOKEN"] = "rotated"
    await world.next_list(5.0)
    assert [each.error for each in world.cloud.stats()] == ["", ""]


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "umläut"])
async def test_a_token_that_cannot_be_sent_is_not_quoted(world: World, text: str) -> None:
    """A wrong file for a token: named by its place, never by its content."""
    world.hub.secrets["TOKEN"] = text
    provider, _ = await world.open()
    with pytest.raises(CredentialError, match="the token from env TOKEN holds characters a token cannot have"):
        await answer(provider)
    assert world.ionos.paths == []


async def test_a_missing_token_is_named(world: World) -> None:
    """No variable, no request."""
    provider, _ = await world.open(token={"env": "NONE"})
    with pytest.raises(CredentialError, match="NONE"):
        await answer(provider)


async def test_a_host_the_hub_may_not_contact_is_refused(world: World) -> None:
    """Somebody who edits the registry cannot send the token elsewhere."""
    with pytest.raises(TerminalProviderError, match="--allow-api-host"):
        await world.open(apiUrl="https://evil.example")


@pytest.mark.parametrize("content", ["no certificate", "", "# Főtanúsítvány"])
async def test_a_ca_file_without_a_certificate_is_refused(world: World, tmp_path: Path, content: str) -> None:
    """Named at once, not at the first request; an empty one does not mean the public authorities."""
    (tmp_path / "ca.pem").write_text(content, encoding="utf-8")
    with pytest.raises(TerminalProviderError, match=r"caFile ca\.pem holds no PEM certificate"):
        await world.open(folder=str(tmp_path), caFile="ca.pem")


@pytest.mark.parametrize("ca", [True, False])
async def test_an_api_with_an_authority_of_its_own(ca: bool, tmp_path: Path) -> None:
    """CaFile is who is trusted, for https; without it the public authorities are, and the message names the key."""
    (tmp_path / "ca.pem").write_text(f"# Főtanúsítvány\n{AUTHORITY}", encoding="utf-8")  # as a bundle has it
    async with a_world(tls=server_tls()) as world:
        world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
        assert world.ionos.url.startswith("https://")
        provider, _ = await world.open(folder=str(tmp_path), **({"caFile": "ca.pem"} if ca else {}))
        if ca:
            assert await answer(provider) == Found(("10.7.0.1",))
        else:
            with pytest.raises(TransientProviderError, match=r"its certificate is not accepted \(caFile names"):
                await answer(provider)


async def test_headers_that_trickle_over_tls_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is one of encrypted connections too."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    async with a_world(tls=server_tls()) as world:
        provider, _ = await world.open(folder=str(tmp_path), caFile="ca.pem")
        world.ionos.fail_next(200, trickle=0.02, trickle_headers=True)
        with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
            await answer(provider)


# --- the process around it -------------------------------------------------------------------------------


async def test_log_levels_of_others_stay(world: World) -> None:
    """The SDK sets levels of urllib3's and its own loggers; they are as before afterwards."""
    logger = logging.getLogger("urllib3")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        provider, _ = await world.open()
        await answer(provider)
        assert logger.level == logging.DEBUG
        assert logging.getLogger("ionoscloud").level == logging.NOTSET
    finally:
        logger.setLevel(before)


async def test_a_proxy_of_the_environment_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads IONOS_HTTP_PROXY; the hub contacts what its flags allow and nothing else."""
    monkeypatch.setenv("IONOS_HTTP_PROXY", "http://127.0.0.1:1")
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    assert await answer(provider) == Found(("10.7.0.1",))


def test_the_sdk_is_imported_with_the_first_request_only() -> None:
    """``hub check`` pays for the configuration's model, not for the SDK or an HTTP library."""
    code = "import sys, hub_provider_ionos; print({'ionoscloud', 'urllib3', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("api.ionos.com", "https://api.ionos.com/cloudapi/v6"),
        ("https://api.ionos.com", "https://api.ionos.com/cloudapi/v6"),
        ("https://API.ionos.com:443/", "https://api.ionos.com/cloudapi/v6"),
        ("https://api.ionos.com/cloudapi/v6/", "https://api.ionos.com/cloudapi/v6"),
        ("https://proxy.example:8443/ionos", "https://proxy.example:8443/ionos"),
        ("http://[::1]:80", "http://[::1]/cloudapi/v6"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/cloudapi/v6"),
    ],
)
def test_api_url_is_normalised(text: str, url: str) -> None:
    """Other tools of IONOS write it without scheme or path; equal addresses share a list."""
    config = {"datacenters": DC, "lan": 2, "token": {"env": "T"}, "apiUrl": text}
    assert IonosConfig.model_validate(config).api_url == url


@pytest.mark.parametrize(
    "wrong",
    [
        {"apiUrl": "http://api.ionos.com"},
        {"apiUrl": "http://localhost"},
        {"apiUrl": "ftp://api.ionos.com"},
        {"apiUrl": "https://user:pw@api.ionos.com"},
        {"apiUrl": "https://api.ionos.com/?x=1"},
        {"apiUrl": "https://api.ionos.com/../x"},
        {"apiUrl": "https://api.ionos.com:port"},
        {"apiUrl": "https://"},
        {"datacenters": []},
        {"datacenters": ["../x"]},
        {"datacenters": [DC, DC.upper()]},
        {"lan": 0},
        {"lan": None},
        {"lans": [3]},
        {"token": "inline"},
        {"token": None},
        {"token": None, "username": "me"},
        {"username": "me", "password": {"env": "P"}},
        {"refresh": "500ms"},
        {"families": []},
        {"families": ["IPv5"]},
        {"cidrs": ["10.7.0."]},
        {"k8sClusterId": "x"},
        {"fingerprint": "aa"},
    ],
)
def test_config_refuses_mistakes(wrong: dict[str, Any]) -> None:
    """A mistake is an error before anything is asked."""
    with pytest.raises(ValidationError):
        IonosConfig.model_validate({"datacenters": [DC], "lan": 2, "token": {"env": "T"}} | wrong)
