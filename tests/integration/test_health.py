"""Health checks of a whole hub with simulated API servers and real sockets. Each test has its own network namespace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Hub, Options, assemble
from hub.app.oneshot import observing, one_pass
from hub.model import TargetKey
from tests.support.grpc_health import NOT_SERVING, SERVING, HealthServer
from tests.support.namespace import in_namespace

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
READY, FAILED, DRAINING = (True, True, False), (False, False, False), (False, True, True)
PORT = 30443
PANIC = Path(__file__).parents[2] / "docs" / "runbooks" / "EndpointSliceHubPanicMode.md"
"""Its sample is the status of the hub in the test below about panic mode."""
TCP = {"mode": "tcp", "interval": "200ms", "timeout": "200ms", "rise": 2, "fall": 2}


def addresses(count: int, cluster: int = 0) -> list[str]:
    """The first addresses of a cluster."""
    return [f"10.7.{cluster}.{number}" for number in range(1, count + 1)]


@dataclass
class Backends:
    """The backend servers by address and port."""

    servers: dict[tuple[str, int], asyncio.Server] = field(default_factory=dict)

    async def start(self, which: Iterable[str], answer: bytes | Serve | None = None, port: int = PORT) -> None:
        """Listen on these addresses. Servers send ``answer`` once they receive bytes, or only accept if None.

        Instead of bytes, ``answer`` may handle the whole connection.
        """

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if callable(answer):
                    await answer(reader, writer)
                elif answer is not None and await reader.read(4096):
                    writer.write(answer)
                    await writer.drain()
            except ConnectionError:
                pass
            finally:
                writer.close()

        for address in which:
            self.servers[address, port] = await asyncio.start_server(serve, address, port)

    async def stop(self, which: Iterable[str], port: int = PORT) -> None:
        """Close the servers, so that connections are refused."""
        for address in list(which):
            server = self.servers.pop((address, port))
            server.close()
            await server.wait_closed()

    async def close(self) -> None:
        """Close all servers."""
        for address, port in list(self.servers):
            await self.stop([address], port)


@dataclass
class World:
    """A hub cluster, remote clusters with some nodes each, and the backends on the node addresses."""

    folder: Path
    hub_cluster: SimulatedCluster
    remotes: dict[str, SimulatedCluster]
    backends: Backends
    hub: Hub | None = None

    def write(self, *, clusters: dict[str, Any] | None = None, **service: Any) -> None:
        """Write the registry."""
        entries = [
            {
                "name": name,
                "kubeconfig": {"path": name},
                "allowedCIDRs": ["10.7.0.0/16"],
                "provider": {"name": "node-addresses"},
                **(clusters or {}),
            }
            for name in self.remotes
        ]
        sources = [{"cluster": name} for name in self.remotes]
        entry = {"name": "payments", "namespace": "default", "sources": sources, "ports": [{"port": PORT}], **service}
        content = {"version": 1, "clusters": entries, "services": [entry]}
        new = self.folder / "new"
        new.write_text(json.dumps(content))
        new.rename(self.folder / "clusters.yaml")

    @property
    def options(self) -> Options:
        """The options of a hub in this world."""
        return Options(str(self.folder / "clusters.yaml"), str(self.folder / "hub"), leader_elect=False, settle=10.0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Hub]:
        """Run a hub."""
        stop = asyncio.Event()
        async with assemble(self.options) as self.hub:
            task = asyncio.create_task(self.hub.run(stop))
            try:
                yield self.hub
            finally:
                stop.set()
                await task

    def published(self) -> dict[str, tuple[bool, bool, bool]]:
        """Address -> (ready, serving, terminating)."""
        return {
            endpoint["addresses"][0]: tuple(
                endpoint["conditions"][name] for name in ("ready", "serving", "terminating")
            )
            for slice_ in self.hub_cluster.slices.list()
            for endpoint in slice_.get("endpoints") or ()
        }

    def findings(self) -> dict[str, str]:
        """The messages of the last pass's findings, by reason."""
        assert self.hub is not None
        last = self.hub.reconciler.last(TargetKey("default", "payments"))
        return {finding.reason: finding.message for finding in last.findings} if last is not None else {}

    async def until(self, wanted: dict[str, tuple[bool, bool, bool]], seconds: float = 15.0) -> None:
        """Wait until exactly this is published."""
        try:
            async with asyncio.timeout(seconds):
                while self.published() != wanted:  # noqa: ASYNC110 - the world under test raises no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"published: {self.published()}, wanted: {wanted}") from None

    async def sees(self, check: Callable[[], object], seconds: float = 15.0) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(seconds):
            while not check():  # noqa: ASYNC110 - the world under test raises no event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def open_world(folder: Path, nodes: int = 3, remotes: Iterable[str] = ("eu",)) -> AsyncIterator[World]:
    """A world whose nodes have no listening backends yet."""
    made = World(folder, SimulatedCluster("hub"), {name: SimulatedCluster(name) for name in remotes}, Backends())
    made.hub_cluster.put(make_service("default", "payments"))
    async with AsyncExitStack() as stack:
        for index, (name, sim) in enumerate({"hub": made.hub_cluster, **made.remotes}.items()):
            await stack.enter_async_context(sim)
            sim.write_kubeconfig(folder / name)
            for number, address in enumerate(addresses(nodes, index - 1) if index else ()):
                sim.nodes.add(make_node(f"n{number}", address))
        stack.push_async_callback(made.backends.close)
        yield made


def all_are(which: Iterable[str], conditions: tuple[bool, bool, bool]) -> dict[str, tuple[bool, bool, bool]]:
    """All of these addresses with the same conditions."""
    return dict.fromkeys(which, conditions)


@in_namespace
async def test_a_failing_address_is_published_as_failed_and_comes_back(tmp_path: Path) -> None:
    """New addresses start as failed. A backend that stops answering is published as failed until it answers again."""
    one, two, three = addresses(3)
    async with open_world(tmp_path) as world:
        world.write(health=TCP)
        async with world.running():
            await world.backends.start([one, two, three])
            await world.until(all_are((one, two, three), READY))

            await world.backends.stop([two])
            await world.until({**all_are((one, three), READY), two: FAILED})
            assert world.findings()["EndpointsUnhealthy"] == f"1 addresses fail their checks, such as {two}"

            await world.backends.start([two])
            await world.until(all_are((one, two, three), READY))


@in_namespace
async def test_an_address_never_seen_waits_for_its_first_checks(tmp_path: Path) -> None:
    """A new address is published as failed, and as ready after ``rise`` successful checks."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=1) as world:
        world.write(health={**TCP, "fall": 100})
        async with world.running():
            await world.until({one: FAILED})
            await world.backends.start([one])
            await world.until({one: READY})

            world.remotes["eu"].nodes.add(make_node("new", two))
            await world.until({one: READY, two: FAILED})
            await world.backends.start([two])
            await world.until({one: READY, two: READY})


@in_namespace
async def test_on_fail_remove_takes_addresses_out_beyond_max_removal(tmp_path: Path) -> None:
    """The guard does not limit removals by health checks: two of three addresses are removed."""
    one, two, three = addresses(3)
    async with open_world(tmp_path) as world:
        world.write(health={**TCP, "onFail": "remove"})
        await world.backends.start([one, two, three])
        async with world.running():
            await world.until(all_are((one, two, three), READY))
            await world.backends.stop([two, three])
            await world.until({one: READY})
            await world.backends.start([two])
            await world.until(all_are((one, two), READY))


@in_namespace
async def test_panic_publishes_all_when_nothing_would_be_ready(tmp_path: Path) -> None:
    """When the last ready address fails, all addresses are published as ready, until one passes its checks again."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health=TCP)
        await world.backends.start([one, two])
        async with world.running():
            await world.until(all_are((one, two), READY))
            await world.backends.stop([one])
            await world.until({one: FAILED, two: READY})
            await world.backends.stop([two])
            await world.until(all_are((one, two), READY))
            assert f"! PanicMode: {world.findings()['PanicMode']}" in PANIC.read_text()
            await world.backends.start([two])
            await world.until({one: FAILED, two: READY})
            assert "PanicMode" not in world.findings()


@in_namespace
async def test_a_restarted_hub_starts_from_what_is_published(tmp_path: Path) -> None:
    """A restart changes neither a healthy nor a failed address."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health={**TCP, "interval": "300ms"})
        await world.backends.start([one])
        async with world.running():
            await world.until({one: READY, two: FAILED})
        before = world.hub_cluster.slices.list()
        async with world.running() as hub:
            await world.sees(lambda: hub.board.verdicts())
            await asyncio.sleep(1.5)  # five probe intervals
            assert world.hub_cluster.slices.list() == before


@in_namespace
async def test_failover_uses_the_source_whose_probes_pass(tmp_path: Path) -> None:
    """Failover leaves a source when all its addresses fail, and uses the next source that has a ready endpoint."""
    eu, us = addresses(2, 0), addresses(2, 1)
    async with open_world(tmp_path, nodes=2, remotes=("eu", "us")) as world:
        world.write(health=TCP, strategy="failover", failover={"after": "2s", "failbackAfter": "1h"})
        await world.backends.start([*eu, *us])
        async with world.running():
            await world.until(all_are(eu, READY))
            await world.backends.stop(eu)
            await world.sees(lambda: set(us) <= world.published().keys())
            await world.until(all_are(us, READY), 20)


@in_namespace
async def test_unreachable_cluster_keeps_answering_addresses(tmp_path: Path) -> None:
    """``unreachable: {probe: tcp}`` probes even with health off, and only addresses that do not answer are removed."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=2) as world:
        policy = {"after": "12s", "policy": "remove", "probe": "tcp"}
        world.write(clusters={"unreachable": policy})
        await world.backends.start([one])
        async with world.running() as hub:
            await world.until(all_are((one, two), READY))
            assert not hub.board.verdicts()
            await world.remotes["eu"].stop()
            await world.until({one: READY}, 45)


@in_namespace
async def test_an_unknown_source_is_still_checked(tmp_path: Path) -> None:
    """When a source is unknown its addresses are frozen but still probed: they can fail and become ready again."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health=TCP)
        await world.backends.start([one, two])
        async with world.running():
            await world.until(all_are((one, two), READY))
            await world.remotes["eu"].stop()
            await world.backends.stop([two])
            await world.until({one: READY, two: FAILED})
        async with world.running():  # after a restart the hub knows the addresses only from the slices
            await world.backends.start([two])
            await world.until(all_are((one, two), READY))


@in_namespace
async def test_one_probe_serves_all_targets_with_the_same_check(tmp_path: Path) -> None:
    """Two Services with equal checks share the probes and the verdicts."""
    (one,) = addresses(1)
    async with open_world(tmp_path, nodes=1) as world:
        world.write(health=TCP)
        text = json.loads((tmp_path / "clusters.yaml").read_text())
        text["services"].append({**text["services"][0], "name": "other"})
        (tmp_path / "clusters.yaml").write_text(json.dumps(text))
        world.hub_cluster.put(make_service("default", "other"))
        await world.backends.start([one])
        async with world.running() as hub:
            await world.sees(lambda: len(world.hub_cluster.slices.list()) == 2 and world.published() == {one: READY})
            ((check, verdicts),) = hub.board.verdicts().items()
            assert (check.mode, check.port, verdicts) == ("tcp", PORT, {one: True})


@in_namespace
async def test_external_traffic_policy_local_recipe(tmp_path: Path) -> None:
    """Only nodes whose health port answers 200 are ready. A node without a local Pod answers 503 and is not."""
    one, two = addresses(2)
    health_port = 32456
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health={**TCP, "mode": "http", "port": health_port, "path": "/healthz", "status": [200]})
        await world.backends.start([one], b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", health_port)
        away = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        await world.backends.start([two], away, health_port)
        async with world.running():
            await world.until({one: READY, two: FAILED})


@in_namespace
async def test_a_grpc_service_that_stops_serving_is_published_as_failed(tmp_path: Path) -> None:
    """A server that still accepts connections but whose service does not serve is failed, with gRPC's reason."""
    one, two = addresses(2)
    servers = {address: HealthServer({"shop.v1.Cart": SERVING}) for address in (one, two)}
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health={**TCP, "mode": "grpc", "timeout": "2s", "grpcService": "shop.v1.Cart"})
        for address, server in servers.items():
            await world.backends.start([address], server.serve)
        async with world.running() as hub:
            await world.until(all_are((one, two), READY))
            servers[two].statuses["shop.v1.Cart"] = NOT_SERVING
            await world.until({one: READY, two: FAILED})
            ((check, _),) = hub.board.verdicts().items()
            assert (str(check), hub.board.reason(check, two)) == (f"grpc :{PORT} shop.v1.Cart", "NOT_SERVING")

            servers[two].statuses["shop.v1.Cart"] = SERVING
            await world.until(all_are((one, two), READY))


@in_namespace
async def test_once_checks_before_it_publishes(tmp_path: Path) -> None:
    """A single pass probes every address before it publishes."""
    one, two = addresses(2)
    async with open_world(tmp_path, nodes=2) as world:
        world.write(health=TCP)
        await world.backends.start([one])
        async with assemble(world.options) as hub, observing(hub):
            await one_pass(hub)
        assert world.published() == {one: READY, two: FAILED}


@in_namespace
async def test_denied_address_is_not_probed(tmp_path: Path) -> None:
    """An address outside allowedCIDRs that someone added to a slice while its source was unreachable is not probed."""
    one, alien = "10.7.0.1", "10.7.128.9"
    contacted = asyncio.Event()

    async def seen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        contacted.set()
        writer.close()

    async with open_world(tmp_path, nodes=1) as world:
        world.write(health=TCP, clusters={"allowedCIDRs": ["10.7.0.0/17"]})
        await world.backends.start([one])
        async with world.running():
            await world.until({one: READY})
        await world.remotes["eu"].stop()
        (slice_,) = world.hub_cluster.slices.list()
        slice_["endpoints"].append({**slice_["endpoints"][0], "addresses": [alien]})
        world.hub_cluster.put(slice_)
        async with await asyncio.start_server(seen, alien, PORT), world.running() as hub:
            await world.sees(lambda: any(one in verdicts for verdicts in hub.board.verdicts().values()))
            await asyncio.sleep(1.0)  # five probe intervals
            assert not any(alien in verdicts for verdicts in hub.board.verdicts().values())
        assert not contacted.is_set()
