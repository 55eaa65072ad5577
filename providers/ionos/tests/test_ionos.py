"""Tests of the provider, opened as the hub does, against a fake API on loopback: resolving, sharing, failing."""

from __future__ import annotations

import asyncio
import base64
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
    """A clock that moves only when a test advances it."""

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
        """Moves time and wakes the sleepers that are due."""
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
        """Opens a cluster's provider, which is closed at the end of the test."""
        cluster = LocalCluster(self.hub, name=name, folder=folder)
        parsed = IonosConfig.model_validate(
            {"datacenters": [DC], "lan": 2, "apiUrl": self.ionos.url, "token": {"env": "TOKEN"}} | config
        )
        provider = await self._stack.enter_async_context(hub_provider_ionos.open_provider(cluster, parsed, self.cloud))
        return provider, cluster

    @property
    def lists(self) -> int:
        """The number of requests for a list of servers."""
        return self.ionos.requests["datacenters/servers"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that happens in real time, such as an answer of the fake."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - another thread makes it true
                await asyncio.sleep(0.005)

    async def advance(self, seconds: float) -> None:
        """Moves the clock, after the tasks that are about to sleep have begun to."""
        for _ in range(10):
            await asyncio.sleep(0)
        self.clock.advance(seconds)

    async def next_list(self, seconds: float = 40.0) -> None:
        """Moves the clock by an interval and waits until every list was requested again."""
        before = self._counts()
        await self.advance(seconds)
        await self.until(lambda: all(now != then for now, then in zip(self._counts(), before, strict=True)))

    def _counts(self) -> list[tuple[int, int]]:
        return [(stats.lists, stats.failures) for stats in self.cloud.stats()]


@asynccontextmanager
async def a_world(proxy: str | None = None, **fake: Any) -> AsyncGenerator[World, None]:
    """A world with one empty data center, behind a proxy if one is given; ``fake`` are arguments of FakeIonos."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        ionos = await stack.enter_async_context(FakeIonos(**fake))
        ionos.add_datacenter(identity=DC)
        secrets = {"TOKEN": ionos.token}
        hub = await stack.enter_async_context(
            LocalHub(secrets=secrets, allow_api_hosts=frozenset({ionos.host}), clock=clock, proxy=proxy)
        )
        cloud = await stack.enter_async_context(hub_provider_ionos.open_cloud(hub))
        yield World(ionos, hub, clock, cloud, stack)


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    """A world with one empty data center."""
    async with a_world() as made:
        yield made


def node(name: str = "n1", server: str = A, system: str = "", *addresses: str) -> Node:
    """Builds a Node that names its server in its provider ID; without one if ``server`` is ""."""
    return Node(
        name,
        provider_id=f"ionos://{server}" if server else "",
        system_uuid=system,
        addresses=tuple(NodeAddress("InternalIP", address) for address in addresses),
    )


async def answer(provider: Ionos, asked: Node | None = None) -> Resolution:
    """Returns the provider's answer for one node."""
    asked = asked or node()
    return (await provider.resolve((asked,)))[asked.name]


class TestConformance(ProviderConformance):
    """The provider follows the rules of the plugin API."""

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
    """A node gets its server's address and zone from one list of LANs and one of servers, requested as documented."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A, zone="ZONE_1")
    provider, _ = await world.open()

    assert await answer(provider) == Found(("10.7.0.1",), "ZONE_1")
    assert world.ionos.paths == [
        f"/cloudapi/v6/datacenters/{DC}/lans?depth=1&offset=0&limit=1000",
        f"/cloudapi/v6/datacenters/{DC}/servers?depth=3&offset=0&limit=1000",
    ]
    assert world.ionos.headers["Authorization"] == "Bearer fake-token"


async def test_several_data_centers_are_one_place(world: World) -> None:
    """A cluster's servers may be spread over several data centers."""
    world.ionos.add_datacenter(identity=OTHER_DC)
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.ionos.add_server(OTHER_DC, "n2", "10.7.0.2", identity=B)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])

    said = await provider.resolve((node(), node("n2", B)))

    assert said == {"n1": Found(("10.7.0.1",)), "n2": Found(("10.7.0.2",))}


async def test_failed_list_gives_no_node_an_answer(world: World) -> None:
    """If one of two lists fails, no node gets an answer, and the error names the list."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])

    with pytest.raises(TerminalProviderError, match=f"404 for the LANs of data center {OTHER_DC}"):
        await provider.resolve((node(),))


async def test_a_node_of_managed_kubernetes_is_found_there(world: World) -> None:
    """A node without a server in the data center is found among the managed cluster's nodes, by id, then by name."""
    identity = world.ionos.add_pool_node(K8S, "pool-1", "10.7.0.1", "203.0.113.1")
    world.ionos.add_pool_node(K8S, "pool-2", "10.7.0.2")
    provider, _ = await world.open(k8sClusterId=K8S)

    said = await provider.resolve((node("any", identity), node("pool-2", "")))

    assert said == {"any": Found(("10.7.0.1", "203.0.113.1")), "pool-2": Found(("10.7.0.2",))}


async def test_managed_kubernetes_is_not_listed_while_every_node_has_a_server(world: World) -> None:
    """While every node has a server, the nodes of managed Kubernetes are not listed."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(k8sClusterId=K8S)
    await answer(provider)
    assert world.ionos.requests["k8s/nodepools"] == 0


async def test_an_id_of_a_node_pool_cannot_lead_elsewhere(world: World) -> None:
    """The id of a node pool that is not a UUID is an error, and never becomes part of a URL."""
    world.ionos.k8s[K8S] = {"../../datacenters": {}}
    provider, _ = await world.open(k8sClusterId=K8S)
    with pytest.raises(TransientProviderError, match=r"items\[0\] has no id"):
        await answer(provider, node(server=""))


async def test_contract_and_password_are_sent(world: World) -> None:
    """A configured contract is sent as X-Contract-Number, username and password by Basic authentication."""
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
    """Username and password are sent as UTF-8 (RFC 7617), also with letters that Latin-1 lacks."""
    world.ionos.username, world.ionos.password = "mé@example.com", password
    world.hub.secrets["PW"] = password
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(token=None, username="mé@example.com", password={"env": "PW"})
    assert await answer(provider) == Found(("10.7.0.1",))


# --- two lists that agree --------------------------------------------------------------------------------


async def test_a_server_that_is_gone_is_absent_after_two_lists(world: World) -> None:
    """A node whose server is gone is absent once a second list, requested early, lacks the server too."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    world.ionos.remove_server(DC, A)

    await world.next_list()
    await world.advance(1)
    assert await answer(provider) == Absent("no server of the data centers is this node")
    assert world.cloud.stats()[0].early == 1


async def test_a_stopped_server_leaves_after_two_lists(world: World) -> None:
    """A node whose server is not RUNNING is unknown after one list, as it may restart, and absent after two."""
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
    """After one complete empty list a node is unknown, after two it is absent."""
    provider, _ = await world.open()
    assert isinstance(await answer(provider), Unknown)
    await world.next_list()
    assert isinstance(await answer(provider), Absent)


# --- sharing ---------------------------------------------------------------------------------------------


async def test_hundred_clusters_cost_one_list_per_interval(world: World) -> None:
    """However many clusters ask, there is one list per interval, and one request at a time."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.ionos.latency = 0.02
    providers = [(await world.open(f"c{number}"))[0] for number in range(100)]

    for interval in range(3):
        said = await asyncio.gather(*(answer(provider) for provider in providers))
        assert set(said) == {Found(("10.7.0.1",))}
        assert world.lists == world.ionos.requests["datacenters/lans"] == interval + 1
        await world.next_list()

    assert world.ionos.most_in_flight == 1
    found = [(stats.clusters, stats.lists, stats.early, stats.size) for stats in world.cloud.stats()]
    assert found == [(100, 4, 0, 1)]


async def test_cluster_with_another_credential_gets_its_own_list(world: World) -> None:
    """A cluster with another credential gets its own list, and never the answer for another account."""
    world.hub.secrets["WRONG"] = "expired"
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    right, _ = await world.open("right")
    wrong, _ = await world.open("wrong", token={"env": "WRONG"})

    assert await answer(right) == Found(("10.7.0.1",))
    with pytest.raises(TerminalProviderError, match=r"401 .*; renew the token from env WRONG"):
        await answer(wrong)
    assert await answer(right) == Found(("10.7.0.1",))


async def test_list_ends_with_its_last_cluster(world: World) -> None:
    """A list goes on while one cluster uses it, and ends with the last one."""
    first, second = AsyncExitStack(), AsyncExitStack()
    config = IonosConfig.model_validate(
        {"datacenters": [DC], "lan": 2, "apiUrl": world.ionos.url, "token": {"env": "TOKEN"}}
    )
    for stack in (first, second):
        cluster = LocalCluster(world.hub)
        provider = await stack.enter_async_context(hub_provider_ionos.open_provider(cluster, config, world.cloud))
        await answer(provider)
    await first.aclose()
    assert [stats.clusters for stats in world.cloud.stats()] == [1]
    await second.aclose()
    assert world.cloud.stats() == ()
    lists = world.lists
    await world.advance(1000)
    await asyncio.sleep(0.05)
    assert world.lists == lists


async def test_only_a_changed_list_notifies_clusters(world: World) -> None:
    """A list with the same content tells no cluster; a list that differs tells each cluster."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, cluster = await world.open()
    await answer(provider)
    await world.next_list()
    assert cluster.changes == 0
    world.ionos.add_server(DC, "n2", "10.7.0.2", identity=B)
    await world.next_list()
    assert cluster.changes == 1


async def test_the_shortest_refresh_counts(world: World) -> None:
    """If clusters configure different intervals, the list comes at the shortest one."""
    slow, _ = await world.open("slow", refresh="10m")
    await answer(slow, node(server=""))
    await world.open("quick", refresh="30s")
    await world.next_list()
    assert world.lists == 2


# --- missing nodes ---------------------------------------------------------------------------------------


async def test_a_new_node_is_found_at_once(world: World) -> None:
    """If a node is not in the list, the list is requested early."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    await world.advance(1)
    world.ionos.add_server(DC, "n2", "10.7.0.2", identity=B)

    assert await answer(provider, node("n2", B)) == Found(("10.7.0.2",))
    assert (world.lists, world.cloud.stats()[0].early) == (2, 1)


async def test_missing_nodes_cost_one_early_list_per_ten_seconds(world: World) -> None:
    """Many new nodes in many clusters cause one early list, and the next one 10 s later."""
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


async def test_missing_node_causes_at_most_two_early_lists(world: World) -> None:
    """After two lists without a node there are no more early lists, so a foreign node does not cost one every 10 s."""
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
    """Anything but a list is an error that names the list, and never an empty list; the next good list recovers."""
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
    """A redirect is an error, and the credential is sent to no host but the configured one."""
    async with FakeIonos() as elsewhere:
        provider, _ = await world.open()
        world.ionos.fail_next(status, headers={"Location": elsewhere.url}, body="")
        with pytest.raises(TerminalProviderError, match=f"answers {status} .*redirects are not followed"):
            await answer(provider)
        assert elsewhere.paths == []


async def test_links_are_not_followed(world: World) -> None:
    """Pages are requested by offset; the link to the next page is never followed."""
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
    """During an outage every cluster gets the error without extra requests, and is told at its start and its end."""
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
    """A refused connection is described in words, without addresses of Python objects."""
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
    """A body that arrives byte by byte is an error after a limited time, so it does not hold a thread for ever."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    provider, _ = await world.open()
    world.ionos.fail_next(200, body='{"items": []}' + " " * 500, trickle=0.02)
    with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
        await answer(provider)


async def test_headers_that_trickle_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that arrive byte by byte are an error after a limited time, though no single read times out."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    provider, _ = await world.open()
    world.ionos.fail_next(200, trickle=0.02, trickle_headers=True)
    with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
        await answer(provider)


async def test_an_endless_answer_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body larger than the limit is an error."""
    monkeypatch.setattr("hub_provider_ionos.transport.MAX_BODY", 10_000)
    provider, _ = await world.open()
    world.ionos.fail_next(200, body='{"items": []}' + " " * 20_000)
    with pytest.raises(TransientProviderError, match="larger than 10000 bytes"):
        await answer(provider)


async def test_request_without_an_answer_times_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that gets no answer times out."""
    monkeypatch.setattr("hub_provider_ionos.api.ANSWER", 0.2)
    provider, _ = await world.open()
    world.ionos.fail_next(200, hang=True)
    with pytest.raises(TransientProviderError, match=r"does not answer for the LANs .* within 0\.2 s"):
        await answer(provider)


# --- pages -----------------------------------------------------------------------------------------------


def fill(ionos: FakeIonos, count: int) -> list[str]:
    """Adds servers and returns their ids."""
    return [ionos.add_server(DC, f"s{n}", f"10.7.{n // 250}.{n % 250 + 1}") for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 28, 29, 95])
async def test_all_pages_are_read(count: int) -> None:
    """The list has every server, whether or not the last page is full."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, count)
        provider, _ = await world.open()
        await answer(provider)
        assert world.cloud.stats()[0].size == count


async def test_a_failing_second_page_is_an_error() -> None:
    """If the second page fails, the whole list is an error."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, 25)
        provider, _ = await world.open()
        world.ionos.fail_next(500, path="/servers", skip=1)
        with pytest.raises(TransientProviderError, match="answers 500 for the servers"):
            await answer(provider)


async def test_a_full_page_that_names_no_next_one_is_not_the_last() -> None:
    """After a full page the next one is requested, even if the API names none."""
    async with a_world(max_limit=10) as world:
        world.ionos.names_next = False
        servers = fill(world.ionos, 25)
        provider, _ = await world.open()
        said = await provider.resolve([node(f"n{n}", server) for n, server in enumerate(servers)])
        assert {type(resolution) for resolution in said.values()} == {Found}
        assert world.cloud.stats()[0].size == 25


@pytest.mark.parametrize(("servers", "requests"), [(0, 1), (1, 1), (9, 1), (10, 2), (11, 2)])
async def test_an_exactly_full_page_costs_one_request_more(servers: int, requests: int) -> None:
    """A page that is not full is the last one; a full one costs a request for the next."""
    async with a_world(max_limit=10) as world:
        fill(world.ionos, servers)
        provider, _ = await world.open()
        await answer(provider)
        assert (world.cloud.stats()[0].size, world.lists) == (servers, requests)


@pytest.mark.parametrize("pools", [1, 2])
async def test_a_part_of_managed_kubernetes_is_an_error(world: World, pools: int) -> None:
    """A list of node pools or their nodes that names a next page is an error, not a shorter list."""
    for pool in range(pools):
        for number in range(3 - pools):
            identity = f"40000000-0000-4000-8000-00000000000{pool}"
            world.ionos.add_pool_node(K8S, f"p{pool}-{number}", f"10.7.{pool}.{number + 1}", pool=identity)
    world.ionos.pages_nodes = 1
    provider, _ = await world.open(k8sClusterId=K8S)
    what = "the node pools" if pools == 2 else "the nodes of pool .*"
    with pytest.raises(
        TransientProviderError, match=f"{what} of Kubernetes cluster {K8S}: the answer is only one page"
    ):
        await answer(provider, node("p0-0", ""))


async def test_a_set_that_shrinks_between_pages_is_read_again() -> None:
    """If a server is deleted between two pages, the list is read again and misses none of the others."""
    async with a_world(max_limit=10) as world:
        servers = fill(world.ionos, 25)

        def shrink(offset: int) -> None:
            if offset == 9 and servers[0] in world.ionos.datacenters[DC].servers:
                world.ionos.remove_server(DC, servers[0])

        world.ionos.on_page = shrink
        provider, _ = await world.open()
        asked = [node(f"n{n}", server) for n, server in enumerate(servers[1:])]
        said = await provider.resolve(asked)
        assert {type(resolution) for resolution in said.values()} == {Found}
        assert world.cloud.stats()[0].size == 24


async def test_a_set_that_keeps_shrinking_is_an_error() -> None:
    """A list that changes during three attempts to read it is an error, never a partial list."""
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
    """An empty page after a full one means that the list has changed, not that it ends."""
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
    """After a 429 no request is sent before Retry-After has passed: 60 s if missing or invalid, at most an hour."""
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
    """Metrics count requests and rate limits by API, and lists by data center."""
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
    """Retry-After may be an HTTP date."""
    world.ionos.fail_next(429, headers={"Retry-After": "Thu, 01 Jan 1970 00:17:00 GMT"})  # 1020; now is 1000
    provider, _ = await world.open()
    with pytest.raises(TransientProviderError, match="asking again in 20 s"):
        await answer(provider)


async def test_a_rate_limit_holds_for_the_whole_account(world: World) -> None:
    """After a 429, other lists of the same account wait too, without a request."""
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
    """The interval is 2, 4 or 8 times as long while less than 25, 10 or 5 % of the rate limit remain."""
    world.ionos.rate_remaining = remaining
    provider, _ = await world.open()
    await answer(provider)
    stats = world.cloud.stats()[0]
    assert 27.0 * times <= stats.interval <= 33.0 * times
    assert stats.remaining == remaining


async def test_a_low_limit_allows_no_early_list(world: World) -> None:
    """While the rate limit runs low, a missing node causes no early list."""
    world.ionos.rate_remaining = 10
    provider, _ = await world.open()
    await answer(provider)
    await world.advance(1)
    assert isinstance(await answer(provider, node("n2", B)), Unknown)
    assert world.lists == 1


# --- credentials -----------------------------------------------------------------------------------------


async def test_an_expired_token_is_read_again_on_a_401(world: World) -> None:
    """If the token was replaced at its source, a refused request is repeated with the new one, without an error."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    await answer(provider)
    world.ionos.token = world.hub.secrets["TOKEN"] = "rotated"
    await world.next_list()
    assert world.cloud.stats()[0].error == ""


async def test_an_expired_token_is_named_and_recovers_when_it_is_renewed(world: World) -> None:
    """The error names the token's source but not the token; a renewed token is noticed within 5 s."""
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


async def test_call_after_token_renewal_retries_at_once(world: World) -> None:
    """A call after the token was renewed makes a new attempt instead of raising the old error."""
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    world.hub.secrets["TOKEN"] = "expired"
    provider, _ = await world.open()
    with pytest.raises(TerminalProviderError):
        await answer(provider)
    world.hub.secrets["TOKEN"] = "fake-token"
    assert await answer(provider) == Found(("10.7.0.1",))


async def test_a_renewed_token_counts_at_once_for_every_list(world: World) -> None:
    """A renewed token is used at once for all lists of the account, not only for the one that notices it first."""
    world.ionos.add_datacenter(identity=OTHER_DC)
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open(datacenters=[DC, OTHER_DC])
    await answer(provider)
    world.ionos.token = "rotated"
    for _ in range(8):  # until the backoff has grown to a minute
        await world.next_list(60.0)

    world.hub.secrets["TOKEN"] = "rotated"
    await world.next_list(5.0)
    assert [stats.error for stats in world.cloud.stats()] == ["", ""]


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "umläut"])
async def test_a_token_that_cannot_be_sent_is_not_quoted(world: World, text: str) -> None:
    """The error for an impossible token names its source, and never quotes it."""
    world.hub.secrets["TOKEN"] = text
    provider, _ = await world.open()
    with pytest.raises(CredentialError, match="the token from env TOKEN holds characters a token cannot have"):
        await answer(provider)
    assert world.ionos.paths == []


async def test_a_missing_token_is_named(world: World) -> None:
    """The error for a missing environment variable names it."""
    provider, _ = await world.open(token={"env": "NONE"})
    with pytest.raises(CredentialError, match="NONE"):
        await answer(provider)


async def test_a_host_the_hub_may_not_contact_is_refused(world: World) -> None:
    """A registry cannot send the token to a host that --allow-api-host does not name."""
    with pytest.raises(TerminalProviderError, match="--allow-api-host"):
        await world.open(apiUrl="https://evil.example")


@pytest.mark.parametrize("content", ["no certificate", "", "# Főtanúsítvány"])
async def test_a_ca_file_without_a_certificate_is_refused(world: World, tmp_path: Path, content: str) -> None:
    """A caFile without a certificate, also an empty one, is refused on opening, and not at the first request."""
    (tmp_path / "ca.pem").write_text(content, encoding="utf-8")
    with pytest.raises(TerminalProviderError, match=r"caFile ca\.pem: contains no certificate in PEM format"):
        await world.open(folder=str(tmp_path), caFile="ca.pem")


@pytest.mark.parametrize("ca", [True, False])
async def test_api_with_its_own_ca_needs_ca_file(ca: bool, tmp_path: Path) -> None:
    """An API with its own certificate authority is trusted only with caFile; the error without it names caFile."""
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
    """The time limit on trickling headers also holds for encrypted connections."""
    monkeypatch.setattr("hub_provider_ionos.transport.TOTAL", 0.3)
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    async with a_world(tls=server_tls()) as world:
        provider, _ = await world.open(folder=str(tmp_path), caFile="ca.pem")
        world.ionos.fail_next(200, trickle=0.02, trickle_headers=True)
        with pytest.raises(TransientProviderError, match=r"the answer does not end within 0\.3 s"):
            await answer(provider)


# --- the process around it -------------------------------------------------------------------------------


async def test_log_levels_of_others_stay(world: World) -> None:
    """The log levels of urllib3 and the SDK, which the SDK changes, are restored after a request."""
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
    """IONOS_HTTP_PROXY, which the SDK reads, has no effect: the hub contacts only hosts that its flags allow."""
    monkeypatch.setenv("IONOS_HTTP_PROXY", "http://127.0.0.1:1")
    world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
    provider, _ = await world.open()
    assert await answer(provider) == Found(("10.7.0.1",))


@asynccontextmanager
async def connecting(login: str, seen: list[str]) -> AsyncGenerator[int, None]:
    """An HTTP proxy that wants this login; ``seen`` gets the host and port of each CONNECT."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        seen.append(head[0])
        if f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}" not in head:
            writer.write(b"HTTP/1.1 407 hunter2\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        there = await asyncio.open_connection(*head[0].split(" ")[1].rsplit(":", 1))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in open_ones:
            writer.transport.abort()
        await asyncio.sleep(0.05)


async def test_requests_pass_the_hubs_proxy(tmp_path: Path) -> None:
    """The API is asked through the hub's proxy, with its login, and the API's certificate is verified."""
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    seen: list[str] = []
    async with (
        connecting("j@e:hunter2", seen) as port,
        a_world(f"http://j%40e:hunter2@127.0.0.1:{port}", tls=server_tls()) as world,
    ):
        world.ionos.add_server(DC, "n1", "10.7.0.1", identity=A)
        provider, _ = await world.open(folder=str(tmp_path), caFile="ca.pem")
        assert await answer(provider) == Found(("10.7.0.1",))
        assert {line.rpartition(" ")[0] for line in seen} == {f"CONNECT {world.ionos.host}"}
        distrustful, _ = await world.open("us")
        with pytest.raises(TransientProviderError, match="its certificate is not accepted"):
            await answer(distrustful)


@pytest.mark.parametrize(("login", "says"), [("j:hunter2", "answers 407"), ("", "does not answer")])
async def test_failing_proxy_is_named(login: str, says: str, tmp_path: Path) -> None:
    """The error names the proxy's variable and the status, and quotes nothing of the answer or the URL."""
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    async with connecting("j:other", []) as port:
        proxy = f"http://{login}@127.0.0.1:{port}" if login else "http://x:hunter2@127.0.0.1:1"
        async with a_world(proxy, tls=server_tls()) as world:
            provider, _ = await world.open(folder=str(tmp_path), caFile="ca.pem")
            with pytest.raises(TransientProviderError, match=f": the proxy of HTTPS_PROXY {says}$") as caught:
                await answer(provider)
    assert "hunter2" not in str(caught.value)


def test_the_sdk_is_imported_with_the_first_request_only() -> None:
    """Importing the provider, as ``hub check`` does, imports neither the SDK nor an HTTP library."""
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
    """An apiUrl gets a missing scheme and path, as IONOS's tools omit them, so that equal addresses share a list."""
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
        {"lan": "2"},
        {"lan": None, "lans": ["2"]},
        {"contractNumber": "31"},
        {"token": None, "username": "me:you", "password": {"env": "P"}},
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
    """A mistake in the configuration is an error before any request."""
    with pytest.raises(ValidationError):
        IonosConfig.model_validate({"datacenters": [DC], "lan": 2, "token": {"env": "T"}} | wrong)
