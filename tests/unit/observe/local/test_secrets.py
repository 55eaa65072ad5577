"""Secrets of a simulated hub cluster: their values, and how long they are followed."""

from __future__ import annotations

import asyncio

import pytest
from hub_testkit import SimulatedCluster

from hub.errors import CredentialError, NotFound
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.observe.local import secrets as module
from hub.observe.local.secrets import FORGET, GONE, Secrets
from hub.runtime.clock import SystemClock
from tests.support.clocks import AheadClock, HastyClock
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("user", "Secret access/cloud: has no key 'user'"),
        ("bytes", "Secret access/cloud: key 'bytes' is not text in base64"),
    ],
)
async def test_unusable_key_of_a_secret_is_named_with_its_namespace(key: str, message: str) -> None:
    """A key is read as text; the error for a key that is missing or no text names the namespace and the Secret."""
    pool, clock = LookupPool(), SystemClock()
    async with SimulatedCluster("hub") as sim:
        sim.namespaces.add({"metadata": {"name": "access"}})
        metadata = {"name": "cloud", "namespace": "access"}
        sim.secrets.add({"metadata": metadata, "data": {"token": "aHVudGVyMg==", "bytes": "/w=="}})
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        async with Client(Credentials(access, clock), pool) as client:
            secrets = Secrets(client, clock, "access")
            assert await secrets.text("cloud", "token") == "hunter2"
            with pytest.raises(CredentialError) as caught:
                await secrets.text("cloud", key)
    pool.close()
    assert str(caught.value) == message


async def test_unused_secret_is_no_longer_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of a Secret ends FORGET seconds after its last use; a Secret in use stays followed."""
    monkeypatch.setattr(module, "SWEEP", 0.01)
    pool, clock = LookupPool(), AheadClock()
    async with SimulatedCluster("hub") as sim:
        sim.namespaces.add({"metadata": {"name": "access"}})
        for name in ("used", "unused"):
            sim.secrets.add({"metadata": {"name": name, "namespace": "access"}})
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        async with Client(Credentials(access, clock), pool) as client:
            secrets = Secrets(client, clock, "access")
            following = asyncio.create_task(secrets.run())
            try:
                await until(lambda: secrets.version("used") and secrets.version("unused"))
                await until(lambda: sim.streams("secrets") == 2)
                clock.ahead = FORGET / 2
                assert secrets.version("used")
                clock.ahead = FORGET + 1
                await until(lambda: sim.streams("secrets") == 1)
                assert secrets.version("used")
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    pool.close()


async def test_refused_watch_is_reported_once_until_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """A watch that is refused again and again is logged once, and again if it was allowed in between."""
    caplog.set_level("INFO", "hub.observe.local.secrets")
    pool, clock = LookupPool(), HastyClock()
    async with SimulatedCluster("hub") as sim:
        sim.namespaces.add({"metadata": {"name": "access"}})
        sim.secrets.add({"metadata": {"name": "cloud", "namespace": "access"}, "data": {}})
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        async with Client(Credentials(access, clock), pool) as client:
            secrets = Secrets(client, clock, "access")
            await secrets.read("cloud")
            following = asyncio.create_task(secrets.run())
            for refused in ("list", "watch"):
                sim.forbid(refused, "secrets")
                sim.cut_stream("secrets")
                before = sim.requests[refused, "secrets"]
                await until(lambda: sim.requests[refused, "secrets"] > before + 2)  # noqa: B023 - awaited here
                sim.permit()
                await until(lambda: sim.streams("secrets") and secrets.version("cloud"))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    pool.close()
    message = "Secret cloud is read every half minute: the hub's account may not watch it"
    assert sum(text.startswith(message) for text in caplog.messages) == 2


async def test_followed_secret_is_read_without_a_request() -> None:
    """A followed Secret is read from its watch; its version changes with it, and one that is gone has a version too."""
    pool, clock = LookupPool(), SystemClock()
    async with SimulatedCluster("hub") as sim:
        sim.namespaces.add({"metadata": {"name": "access"}})
        sim.secrets.add({"metadata": {"name": "cloud", "namespace": "access"}, "data": {"token": "YQ=="}})
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        async with Client(Credentials(access, clock), pool) as client:
            secrets = Secrets(client, clock, "access")
            assert secrets.version("cloud") is None
            following = asyncio.create_task(secrets.run())
            try:
                await until(lambda: secrets.version("cloud") and secrets.version("none"))
                before = sim.requests.copy()
                assert await secrets.read("cloud") == {"token": "YQ=="}
                with pytest.raises(NotFound) as caught:
                    await secrets.read("none")
                assert sim.requests == before
                assert str(caught.value) == (
                    'GET /api/v1/namespaces/access/secrets/none: 404 NotFound: secrets "none" not found'
                )
                assert secrets.version("none") == GONE != secrets.version("cloud")
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            assert secrets.version("cloud") is None
    pool.close()
