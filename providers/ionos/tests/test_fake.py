"""Tests of the fake API: it answers as the real API's documentation says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
import yaml
from hub_provider_ionos import IonosConfig, open_cloud, open_provider
from hub_testkit.contexts import LocalCluster, LocalHub
from hub_testkit.ionos import FakeIonos, FakeIonosThread

from hub.plugin import Found, Node

DC = "10000000-0000-4000-8000-000000000001"
AUTH = {"Authorization": "Bearer fake-token"}


@pytest.fixture
async def ionos() -> AsyncGenerator[FakeIonos, None]:
    """A fake API with three servers in a data center and pages of two."""
    async with FakeIonos(max_limit=2) as fake:
        fake.add_datacenter(identity=DC)
        for number in range(3):
            fake.add_server(DC, f"n{number}", f"10.7.0.{number}")
        yield fake


async def get(ionos: FakeIonos, path: str, **options: Any) -> tuple[int, Any, Any]:
    """Sends a request and returns status, body and headers."""
    method, headers = options.pop("method", "GET"), options.pop("headers", AUTH)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{ionos.url}{path}", headers=headers, **options) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


@pytest.mark.parametrize(
    ("depth", "shape"),
    [
        (0, None),
        (1, {"id", "type", "href"}),
        (2, {"id", "type"}),
        (3, {"id", "type", "metadata", "properties"}),
    ],
)
async def test_depth_decides_what_is_expanded(ionos: FakeIonos, depth: int, shape: set[str] | None) -> None:
    """A list has no items at depth 0; its NICs have no items at 1, are references at 2 and have properties at 3."""
    _, body, _ = await get(ionos, f"/datacenters/{DC}/servers?depth={depth}")
    if shape is None:
        assert "items" not in body
        return
    nics = body["items"][0]["entities"]["nics"]
    assert ("items" in nics) == (depth > 1)
    assert set(nics["items"][0] if depth > 1 else nics) == shape


async def test_lists_come_in_pages(ionos: FakeIonos) -> None:
    """Lists obey offset and limit; each page but the last links to the next one."""
    _, first, _ = await get(ionos, f"/datacenters/{DC}/servers?depth=1&limit=1000")
    _, last, _ = await get(ionos, f"/datacenters/{DC}/servers?depth=1&offset=2")
    assert (len(first["items"]), first["limit"], "next" in first["_links"]) == (2, 2, True)
    assert (len(last["items"]), "next" in last["_links"]) == (1, False)


async def test_a_token_is_needed(ionos: FakeIonos) -> None:
    """A request without a token is answered with 401 and the API's error body."""
    status, body, _ = await get(ionos, f"/datacenters/{DC}/servers", headers={})
    assert (status, body["messages"][0]["message"]) == (401, "Unauthorized")


async def test_the_rate_limit_counts_down(ionos: FakeIonos) -> None:
    """X-RateLimit-Remaining counts down to 0; then the answer is 429, with or without Retry-After."""
    ionos.rate_limit = 1
    _, _, headers = await get(ionos, f"/datacenters/{DC}")
    assert (headers["X-RateLimit-Remaining"], headers["X-RateLimit-Limit"]) == ("0", "1")
    status, _, headers = await get(ionos, f"/datacenters/{DC}")
    assert (status, headers["Retry-After"]) == (429, "1")
    ionos.retry_after = ""
    _, _, headers = await get(ionos, f"/datacenters/{DC}")
    assert "Retry-After" not in headers


@pytest.mark.parametrize("fails", [False, True])
async def test_a_change_is_done_later(ionos: FakeIonos, fails: bool) -> None:
    """A PATCH of a NIC is answered with 202 and a Location; the server is BUSY until the request is DONE or FAILED."""
    ionos.fail_changes = fails
    server = next(iter(ionos.datacenters[DC].servers))
    nic = ionos.server(DC, server)["entities"]["nics"]["items"][0]
    path = f"/datacenters/{DC}/servers/{server}/nics/{nic['id']}"

    status, _, headers = await get(ionos, path, method="PATCH", json={"ips": ["10.7.0.0", "10.7.0.77"]})
    assert (status, ionos.server(DC, server)["metadata"]["state"]) == (202, "BUSY")
    request = headers["Location"].removeprefix(ionos.url)
    states = [(await get(ionos, request))[1]["metadata"]["status"] for _ in range(2)]

    assert states == ["RUNNING", "FAILED" if fails else "DONE"]
    assert ionos.server(DC, server)["metadata"]["state"] == "AVAILABLE"
    assert nic["properties"]["ips"] == (["10.7.0.0"] if fails else ["10.7.0.0", "10.7.0.77"])


async def test_a_fault_takes_the_requests_it_is_for(ionos: FakeIonos) -> None:
    """A fault takes a number of requests, selected by path, after letting some pass; heal() ends endless faults."""
    ionos.fail_next(502, path="/servers", skip=1)
    ionos.fail_next(500, None, path="/lans")
    paths = ("servers", "servers", "servers", "lans", "lans")
    statuses = [(await get(ionos, f"/datacenters/{DC}/{path}"))[0] for path in paths]
    assert statuses == [200, 502, 200, 500, 500]
    ionos.heal()
    assert (await get(ionos, f"/datacenters/{DC}/lans"))[0] == 200


def test_the_fake_serves_blocking_tests() -> None:
    """FakeIonosThread serves the fake in its own thread; ``do`` changes it in that thread."""
    with FakeIonosThread() as fake:
        datacenter = fake.do(lambda ionos: ionos.add_datacenter())
        assert fake.do(lambda ionos: list(ionos.datacenters)) == [datacenter]
        assert fake.url == f"http://{fake.host}/cloudapi/v6"


async def test_the_fake_can_be_started_by_hand() -> None:
    """``python -m hub_testkit.ionos`` prints a provider entry that works."""
    command = [sys.executable, "-m", "hub_testkit.ionos", "--servers", "2", "--token", "mine"]
    started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(30):
            said = b"".join([await started.stdout.readline() for _ in range(9)])
        config = IonosConfig.model_validate(yaml.safe_load(said)["provider"]["config"])
        async with (
            LocalHub(secrets={"IONOS_TOKEN": "mine"}, allow_api_hosts=frozenset({config.api_host})) as hub,
            open_cloud(hub) as cloud,
            open_provider(LocalCluster(hub), config, cloud) as provider,
        ):
            node = Node("n2", provider_id="ionos://20000000-0000-4000-8000-000000000002")
            assert await provider.resolve((node,)) == {"n2": Found(("10.7.0.3",))}
    finally:
        started.kill()
        await started.wait()
