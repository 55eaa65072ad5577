"""The Lease in the API: exact versions, and no other object is taken for a Lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hub_testkit import SimulatedCluster

from hub.election import lease as lease_module
from hub.election.elector import LeaseRecord
from hub.election.lease import KubeLease
from hub.errors import AlreadyExists, BadAnswer, ClusterUnreachable, Conflict, Forbidden, NotFound
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.runtime.clock import SystemClock

RECORD = LeaseRecord("hub-1", 15, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:10.000000Z", 3)


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """The simulated hub cluster."""
    async with SimulatedCluster("hub") as cluster:
        cluster.namespaces.add({"metadata": {"name": "hub"}})
        yield cluster


@pytest.fixture
async def lease(sim: SimulatedCluster) -> AsyncIterator[KubeLease]:
    """A Lease that does not exist yet."""
    pool = LookupPool(1)
    access = ClusterAccess(sim.url, Token(Secret(sim.token)), "test", ca_data=sim.ca_pem.encode())
    async with Client(Credentials(access, SystemClock()), pool) as client:
        yield KubeLease(client, "hub", "endpointslice-hub")
    pool.close()


async def test_created_lease_shows_holder_and_times(sim: SimulatedCluster, lease: KubeLease) -> None:
    """The created Lease shows its holder and its times to kubectl."""
    await lease.create(RECORD)
    assert sim.leases.get("endpointslice-hub", namespace="hub")["spec"] == {
        "holderIdentity": "hub-1",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:10.000000Z",
        "leaseTransitions": 3,
    }


async def test_every_call_returns_the_record_as_stored(lease: KubeLease) -> None:
    """Each call returns the stored record with the version that the next update needs."""
    created = await lease.create(RECORD)
    assert replace(created, version="") == RECORD
    assert await lease.get() == created
    updated = await lease.update(replace(created, holder="hub-2"))
    assert (updated.holder, updated.version != created.version) == ("hub-2", True)


async def test_released_lease_has_no_holder(lease: KubeLease) -> None:
    """An empty holder is stored and read back as no holder."""
    created = await lease.create(RECORD)
    await lease.update(replace(created, holder=""))
    assert (await lease.get()).holder == ""


async def test_missing_lease_is_not_found(lease: KubeLease) -> None:
    """Reading a missing Lease raises NotFound."""
    with pytest.raises(NotFound):
        await lease.get()


async def test_second_creation_is_refused(lease: KubeLease) -> None:
    """Creating an existing Lease raises AlreadyExists."""
    await lease.create(RECORD)
    with pytest.raises(AlreadyExists):
        await lease.create(RECORD)


async def test_update_of_an_old_version_is_a_conflict(lease: KubeLease) -> None:
    """Of two updates of the same version the second raises Conflict."""
    created = await lease.create(RECORD)
    await lease.update(replace(created, holder="hub-2"))
    with pytest.raises(Conflict):
        await lease.update(replace(created, holder="hub-3"))
    assert (await lease.get()).holder == "hub-2"


async def test_forbidden_error_names_the_rbac_rule(sim: SimulatedCluster, lease: KubeLease) -> None:
    """The error for a 403 names the missing RBAC rule."""
    sim.forbid("get", "leases")
    with pytest.raises(Forbidden, match="leases"):
        await lease.get()


async def test_frozen_server_is_given_up(
    sim: SimulatedCluster, lease: KubeLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to a server that does not answer times out."""
    monkeypatch.setattr(lease_module, "REQUEST_SECONDS", 0.1)
    sim.hang(1)
    with pytest.raises(ClusterUnreachable):
        await lease.get()


async def test_release_is_seen_by_the_watch(sim: SimulatedCluster, lease: KubeLease) -> None:
    """The watch returns at the Lease's release, not at its renewals or changes of other Leases."""
    held = await lease.create(RECORD)
    freed = asyncio.create_task(lease.wait_until_free())
    while not sim.streams("leases"):  # noqa: ASYNC110 - the world under test raises no event
        await asyncio.sleep(0.01)
    sim.leases.add({"metadata": {"name": "other", "namespace": "hub"}, "spec": {}})
    held = await lease.update(replace(held, renewed="2026-01-01T00:00:20.000000Z"))
    await asyncio.sleep(0.05)
    assert not freed.done()
    await lease.update(replace(held, holder=""))
    await asyncio.wait_for(freed, 1)
    assert sim.requests["watch", "leases"] == 1


async def test_watch_of_a_free_lease_returns_at_once(lease: KubeLease) -> None:
    """The watch returns at once if the Lease has no holder when it starts."""
    await lease.create(replace(RECORD, holder=""))
    await asyncio.wait_for(lease.wait_until_free(), 1)


async def test_watch_without_permission_raises_forbidden(sim: SimulatedCluster, lease: KubeLease) -> None:
    """A watch without permission raises Forbidden; a standby then polls."""
    sim.forbid("watch", "leases")
    with pytest.raises(Forbidden, match="leases"):
        await lease.wait_until_free()


@pytest.mark.parametrize("body", [b"<html>\n", b'{"type":"ADDED"}\n', b'{"type":"ERROR","object":{}}\n'])
async def test_watch_of_garbage_frees_no_lease(sim: SimulatedCluster, lease: KubeLease, body: bytes) -> None:
    """A line of the watch that is not an event, such as a proxy's page, raises an error and is no release."""
    sim.garbage(body=body)
    with pytest.raises(BadAnswer):
        await lease.wait_until_free()


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"metadata":{},"spec":5}', b'{"metadata":{"name":"x"'])
async def test_garbage_answer_is_not_a_free_lease(sim: SimulatedCluster, lease: KubeLease, body: bytes) -> None:
    """An answer that is not a Lease, such as a proxy's page, raises an error and is not taken for a free Lease."""
    sim.garbage(body=body)
    with pytest.raises(BadAnswer, match="Lease"):
        await lease.get()


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"Status","metadata":{},"spec":{},"status":"Success"}',
        b'{"kind":"ConfigMap","metadata":{"resourceVersion":"5"},"spec":{}}',
        b'{"kind":"Lease","metadata":{"name":"endpointslice-hub"},"spec":{}}',
        b'{"kind":"Lease","metadata":{"resourceVersion":"5"},"spec":{"holderIdentity":"\xff"}}',
    ],
    ids=["Status", "other kind", "no version", "no utf-8"],
)
async def test_object_of_another_kind_is_not_a_free_lease(sim: SimulatedCluster, lease: KubeLease, body: bytes) -> None:
    """Another kind of object, or a Lease without a resourceVersion or in bad UTF-8, raises an error."""
    sim.garbage(body=body)
    with pytest.raises(BadAnswer):
        await lease.get()
