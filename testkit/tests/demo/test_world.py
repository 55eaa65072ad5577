"""Tests of the simulated world and the endpoints that it wants published."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hub_testkit.demo.cloud import Cloud
from hub_testkit.demo.layout import CLUSTERS, SERVICES, registry
from hub_testkit.demo.narrator import service_rows
from hub_testkit.demo.script import Step
from hub_testkit.demo.world import Shown, Spot, World, published_of

from hub.registry.load import load

EU_1 = Spot("payments", "10.7.0.1")


def services_of(world: World, address: str) -> dict[str, bool]:
    """Returns the Services that should publish an address, each with whether it should be ready."""
    return {spot.service: shown.ready for spot, shown in world.wanted().items() if spot.address == address}


def test_registry_of_the_demo_is_accepted(tmp_path: Path) -> None:
    """The written clusters.yaml loads without a problem and names the clusters and Services of the layout."""
    (tmp_path / "clusters.yaml").write_text(registry("demo", Cloud(random.Random(1)).config))
    loaded = load(str(tmp_path / "clusters.yaml"))
    assert loaded.problems == ()
    assert {*loaded.registry.clusters} >= {cluster.name for cluster in CLUSTERS}
    assert {key.name for key in loaded.registry.targets} == {service.name for service in SERVICES}


async def test_world_starts_with_all_nodes_wanted(tmp_path: Path) -> None:
    """At the start every Service has the seven nodes, or those of its pool, of each of its sources in use."""
    async with World(tmp_path) as world:
        rows = {row.name: [str(count) if count else "" for count in row.counts] for row in service_rows(world.wanted())}
    assert rows == {
        "edge/payments": ["7/7", "7/7", "7/7"],
        "edge/checkout": ["4/4", "4/4", ""],
        "edge/search": ["7/7", "", "7/7"],
        "edge/refunds": ["", "4/4", ""],
    }


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (["fail"], {}),
        (["fail", "recover"], {"payments": True, "checkout": True, "search": True}),
        (["cordon"], {"payments": False, "checkout": False, "search": False}),
        (["cordon", "leave"], {}),
        (["blip"], {"payments": True, "checkout": True, "search": True}),
        (["dark", "fail"], {"payments": True, "checkout": True, "search": True}),
        (["dark", "fail", "light"], {}),
    ],
)
async def test_world_computes_expected_addresses(tmp_path: Path, steps: list[Any], left: dict[str, bool]) -> None:
    """A node's state decides how it is published; a change while the API server is away counts when it is back."""
    async with World(tmp_path) as world:
        for action in steps:
            await world.happen(Step(0.0, action, "payments-eu", "eu-1"))
        assert services_of(world, "10.7.0.1") == left


async def test_world_gives_a_new_node_a_new_address(tmp_path: Path) -> None:
    """A node that replaces another has a new name and a new address, which the cloud lists."""
    async with World(tmp_path) as world:
        await world.happen(Step(0.0, "leave", "payments-eu", "eu-1"))
        await world.happen(Step(0.0, "join", "payments-eu", "eu-8", "batch"))
        assert services_of(world, "10.7.0.8") == {"payments": True, "search": True}
        assert services_of(world, "10.7.0.1") == {}
        addresses = world.cloud.addresses("eu")
        assert addresses["eu-8"] == "10.7.0.8"
        assert "eu-1" not in addresses


def test_published_of_reads_slices_as_consumers_do() -> None:
    """An endpoint belongs to the Service and cluster of its slice's labels, and has the slice's port."""
    labels = {"kubernetes.io/service-name": "payments", "multicluster.kubernetes.io/source-cluster": "payments-eu"}
    conditions = {"ready": True, "serving": True, "terminating": False}
    slices = [
        {
            "metadata": {"labels": labels},
            "ports": [{"port": 30443}],
            "endpoints": [{"addresses": ["10.7.0.1"], "conditions": conditions}],
        },
        {"metadata": {"labels": labels}, "ports": None, "endpoints": None},
    ]
    assert published_of(slices) == {EU_1: Shown("payments-eu", 30443, ready=True)}
