"""Hundreds of remote clusters in one process, on simulated API servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Options, assemble

CLUSTERS = 200
DEAD = 20


def address(cluster: int, node: int) -> str:
    """The address of one node of one cluster."""
    return f"10.{cluster}.0.{node}"


def published(hub: SimulatedCluster) -> set[str]:
    """All published addresses."""
    return {endpoint["addresses"][0] for slice_ in hub.slices.list() for endpoint in slice_.get("endpoints") or ()}


async def until(hub: SimulatedCluster, wanted: set[str], seconds: float) -> None:
    """Wait until exactly these addresses are published."""
    async with asyncio.timeout(seconds):
        while published(hub) != wanted:  # noqa: ASYNC110 - the world under test raises no event
            await asyncio.sleep(0.05)


async def test_hundreds_of_clusters_with_a_tenth_down_are_published(tmp_path: Path) -> None:
    """All clusters are published; when a tenth is down, nothing is lost and other changes still arrive."""
    remotes = [SimulatedCluster(f"c{number}") for number in range(CLUSTERS)]
    hub = SimulatedCluster("hub")
    for number, sim in enumerate(remotes):
        for node in (1, 2):
            sim.nodes.add(make_node(f"n{node}", address(number, node)))
        hub.put(make_service("default", f"s{number}"))
    wanted = {address(number, node) for number in range(CLUSTERS) for node in (1, 2)}
    async with AsyncExitStack() as stack:
        for sim in (hub, *remotes):
            await stack.enter_async_context(sim)
        clusters = [
            {
                "name": sim.name,
                "kubeconfig": {"path": str(sim.write_kubeconfig(tmp_path / sim.name))},
                "allowedCIDRs": ["10.0.0.0/8"],
                "provider": {"name": "node-addresses"},
            }
            for sim in remotes
        ]
        services = [
            {
                "name": f"s{number}",
                "namespace": "default",
                "sources": [{"cluster": sim.name}],
                "ports": [{"port": 30443}],
            }
            for number, sim in enumerate(remotes)
        ]
        registry = tmp_path / "clusters.yaml"
        registry.write_text(json.dumps({"version": 1, "clusters": clusters, "services": services}))
        options = Options(str(registry), str(hub.write_kubeconfig(tmp_path / "hub")), leader_elect=False)
        stop = asyncio.Event()
        async with assemble(options) as it:
            running = asyncio.create_task(it.run(stop))
            await until(hub, wanted, 60)

            for sim in remotes[:DEAD]:
                await sim.stop()
            remotes[-1].nodes.add(make_node("n3", address(CLUSTERS - 1, 3)))
            await until(hub, wanted | {address(CLUSTERS - 1, 3)}, 10)
            stop.set()
            await running
