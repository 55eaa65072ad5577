"""Tests of the demo's provider: it follows every rule of the plugin API."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hub_testkit.conformance import ProviderConformance
from hub_testkit.demo import provider
from hub_testkit.demo.cloud import Cloud
from hub_testkit.demo.provider import DemoConfig, Server
from pydantic import ValidationError

from hub.observe.providers.catalog import Catalog
from hub.plugin import Node


class TestDemoProvider(ProviderConformance):
    """The demo's provider passes the conformance suite with a cloud on loopback."""

    plugin = provider
    name = "demo"
    config = {"cloud": "http://127.0.0.1:1", "datacenter": "eu"}
    nodes = (Node("eu-1", provider_id="demo:///eu/eu-1"), Node("eu-2", provider_id="demo:///eu/eu-2"))

    @asynccontextmanager
    async def surroundings(self) -> AsyncGenerator[Mapping[str, Any], None]:
        async with Cloud(random.Random(1)) as cloud:
            cloud.servers["eu"] = {f"eu-{n}": Server(f"eu-{n}", f"10.7.0.{n}", "eu-a") for n in (1, 2)}
            yield {"cloud": cloud.url, "datacenter": "eu"}

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        async with Cloud(random.Random(1)) as cloud:
            cloud.down = True
            yield {"cloud": cloud.url, "datacenter": "eu"}


def test_provider_is_found_through_its_entry_point() -> None:
    """The hub finds the demo's provider by the entry point of the test kit's distribution."""
    entry = next(entry for entry in Catalog().entries() if entry.name == "demo")
    assert (entry.distribution, entry.module) == ("endpointslice-hub-testkit", "hub_testkit.demo.provider")


@pytest.mark.parametrize(
    "cloud", ["http://10.0.0.1:80", "https://127.0.0.1:80", "http://127.0.0.1:80/x", "http://a:80"]
)
def test_config_accepts_loopback_only(cloud: str) -> None:
    """The configuration accepts only addresses of a cloud on loopback."""
    with pytest.raises(ValidationError):
        DemoConfig(cloud=cloud, datacenter="eu")
