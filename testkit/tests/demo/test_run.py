"""A whole show inside one process, without a terminal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from hub_testkit.demo.cloud import Cloud
from hub_testkit.demo.run import show
from hub_testkit.demo.screen import Event, Picture
from hub_testkit.demo.world import World


class Watching:
    """An audience that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.last: Picture | None = None

    def tell(self, event: Event) -> None:
        self.events.append(event.text)

    def show(self, picture: Picture) -> None:
        self.last = picture


async def test_show_publishes_everything_and_says_so(tmp_path: Path) -> None:
    """The real hub publishes what the world says; the verdict is good and the picture shows it."""
    watching = Watching()
    verdict = await show(World(tmp_path), watching, 2.5, asyncio.Event())
    assert verdict.ok, verdict.text
    assert verdict.text.endswith("published = expected")
    assert watching.events[0].startswith("start: 21 nodes → 21 endpoints into 4 services in ")
    assert watching.last is not None
    assert {row.state for row in watching.last.clusters} == {"Ready"}
    assert str(watching.last.services[0].sum) == "21/21"


async def test_show_needs_no_other_package(tmp_path: Path) -> None:
    """Without the provider ionos the demo's own cloud does."""
    verdict = await show(World(tmp_path, cloud=Cloud(random.Random(1))), Watching(), 2.5, asyncio.Event())
    assert verdict.ok, verdict.text


async def test_show_asks_the_real_provider_where_it_is_installed(tmp_path: Path) -> None:
    """The fake IONOS API stands behind every cluster."""
    world = World(tmp_path)
    verdict = await show(world, Watching(), 2.5, asyncio.Event())
    assert verdict.ok, verdict.text
    assert world.cloud.provider == "ionos"
    assert (tmp_path / "clusters.yaml").read_text().count("name: ionos") == 3


async def test_show_fails_when_the_hub_publishes_nothing(tmp_path: Path) -> None:
    """A hub that may not write leaves consumers without endpoints: the demo has failed."""
    world = World(tmp_path)
    world.hub.forbid("create", "endpointslices")
    verdict = await show(world, Watching(), 0.5, asyncio.Event(), settle=0.5)
    assert not verdict.ok
    assert "published is NOT as expected: checkout lacks 10.7.0.1 of payments-eu (and 46 more)" in verdict.text


async def test_show_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """An endless show ends at the stop, with a verdict."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(1.5, stop.set)
    async with asyncio.timeout(20.0):
        verdict = await show(World(tmp_path), Watching(), None, stop)
    assert verdict.ok, verdict.text
