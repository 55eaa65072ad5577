"""Tests of whole runs of the demo in one process, without a terminal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from hub_testkit.demo.cloud import Cloud
from hub_testkit.demo.run import show
from hub_testkit.demo.screen import Event, Picture
from hub_testkit.demo.world import World


class Watching:
    """An audience that stores events and the last picture."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.last: Picture | None = None

    def tell(self, event: Event) -> None:
        self.events.append(event.text)

    def show(self, picture: Picture) -> None:
        self.last = picture


async def test_show_publishes_everything_and_reports_success(tmp_path: Path) -> None:
    """The hub publishes what the world wants; the verdict is good and the picture shows all endpoints."""
    watching = Watching()
    verdict = await show(World(tmp_path), watching, 2.5, asyncio.Event())
    assert verdict.ok, verdict.text
    assert verdict.text.endswith("published = expected")
    assert watching.events[0].startswith("start: 21 nodes → 21 endpoints into 4 services in ")
    assert watching.last is not None
    assert {row.state for row in watching.last.clusters} == {"Ready"}
    assert str(watching.last.services[0].sum) == "21/21"


async def test_show_needs_no_other_package(tmp_path: Path) -> None:
    """The demo works with its own cloud, without the provider ``ionos``."""
    verdict = await show(World(tmp_path, cloud=Cloud(random.Random(1))), Watching(), 2.5, asyncio.Event())
    assert verdict.ok, verdict.text


async def test_show_asks_the_real_provider_where_it_is_installed(tmp_path: Path) -> None:
    """If the provider ``ionos`` is installed, every cluster uses it with the fake IONOS API."""
    world = World(tmp_path)
    verdict = await show(world, Watching(), 2.5, asyncio.Event())
    assert verdict.ok, verdict.text
    assert world.cloud.provider == "ionos"
    assert (tmp_path / "clusters.yaml").read_text().count("name: ionos") == 3


async def test_show_fails_when_the_hub_publishes_nothing(tmp_path: Path) -> None:
    """If the hub is not allowed to write, the verdict is bad and names a missing endpoint."""
    world = World(tmp_path)
    world.hub.forbid("create", "endpointslices")
    verdict = await show(world, Watching(), 0.5, asyncio.Event(), settle=0.5)
    assert not verdict.ok
    assert "published is NOT as expected: checkout lacks 10.7.0.1 of payments-eu (and 46 more)" in verdict.text


async def test_endless_show_ends_at_stop(tmp_path: Path) -> None:
    """An endless run ends with a verdict when it is stopped."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(1.5, stop.set)
    async with asyncio.timeout(20.0):
        verdict = await show(World(tmp_path), Watching(), None, stop)
    assert verdict.ok, verdict.text
