"""``hub run --once`` and the Lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.settings import Options
from hub.cli.exits import Exit
from hub.cli.once import once
from hub.errors import ClusterUnreachable

REGISTRY = """
version: 1
clusters:
  - {name: eu, kubeconfig: {path: eu}, allowedCIDRs: [10.0.0.0/8], provider: {name: node-addresses}}
services:
  - {name: web, namespace: default, sources: [{cluster: eu}], ports: [{port: 30443}]}
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SimulatedCluster]:
    """A hub cluster with one Service that has one remote cluster as its source."""
    async with SimulatedCluster("hub") as made, SimulatedCluster("eu") as remote:
        remote.nodes.add(make_node("n1", "10.1.0.1"))
        made.put(make_service("default", "web"))
        remote.write_kubeconfig(tmp_path / "eu")
        made.write_kubeconfig(tmp_path / "hub")
        (tmp_path / "clusters.yaml").write_text(REGISTRY)
        yield made


def begin(folder: Path) -> asyncio.Task[int]:
    """Start a single pass."""
    return asyncio.create_task(once(Options(str(folder / "clusters.yaml"), str(folder / "hub"))))


def holder(cluster: SimulatedCluster) -> str:
    """The holder of the Lease; "" = none."""
    [lease] = cluster.leases.list()
    return str(lease["spec"].get("holderIdentity") or "")


async def test_lease_is_given_back_after_the_pass(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """The Lease is released after the pass, so another hub can take it at once."""
    assert await begin(tmp_path) == Exit.OK
    assert (len(cluster.slices.list()), holder(cluster)) == (1, "")


async def test_lease_is_kept_where_a_write_was_cut_off(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """The Lease is not released if a write was cut off: the write may still be carried out."""
    cluster.hang(1, verb="create", resource="endpointslices")
    run = begin(tmp_path)
    async with asyncio.timeout(8):
        while not cluster.requests["create", "endpointslices"]:  # noqa: ASYNC110 - a state of the simulator
            await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert holder(cluster)


async def test_lease_is_kept_where_a_write_had_no_answer(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Lease is not released if a write got no answer."""
    monkeypatch.setattr("hub.reconcile.writer.REQUEST_TIMEOUT", 0.1)
    cluster.hang(1, verb="create", resource="endpointslices")
    with pytest.raises(ClusterUnreachable):
        await begin(tmp_path)
    assert holder(cluster)
