"""The two encodings of a slice, on a real API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hub.errors import Conflict, Invalid
from hub.kube import wire
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.model import (
    DRAINING,
    FAILED,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    LABEL_SERVICE_NAME,
    MANAGED_BY,
    PUBLISHED,
    Endpoint,
    Hints,
    NamedHint,
    ObjectKey,
    ObjectReference,
    OwnerReference,
    Port,
    Slice,
)
from hub.observe.local.cluster import LocalCluster
from hub.runtime.clock import SystemClock
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

FULL = Slice(
    "edge",
    "full",
    "IPv4",
    (
        Endpoint(
            ("10.0.0.1",),
            PUBLISHED,
            hostname="one",
            node_name="node-1",
            target_ref=ObjectReference("Node", "node-1", "", "u-1"),
            zone="zone-a",
            hints=Hints((NamedHint("zone-a"),), (NamedHint("node-1"),)),
        ),
        Endpoint(("10.0.0.2",), DRAINING),
        Endpoint(("10.0.0.3",), FAILED, zone="z" * 63),
    ),
    (Port("https", 30443, "TCP", "https"), Port("", 53, "UDP")),
    {LABEL_SERVICE_NAME: "payments", LABEL_MANAGED_BY: MANAGED_BY, LABEL_OWNER: "default", "team": "t" * 63},
    {"endpointslice-hub/lease": "default/x", "note": "ü" * 200},
    (OwnerReference("v1", "Service", "payments", "b7f6c1de-0000-4000-8000-000000000001", controller=False),),
)


@pytest.fixture
async def local(tmp_path: Path, hub_cluster: ApiServer):
    """The hub cluster, as the hub accesses it."""
    path = tmp_path / "kubeconfig"
    hub_cluster.kubeconfig(path)
    pool, clock = LookupPool(), SystemClock()
    async with Client(Credentials(load_hub_access(path), clock), pool) as client:
        yield LocalCluster(client, clock, ("default",), lambda _: None)
    pool.close()


def content(stored: Object) -> Object:
    """An object without the fields that differ between objects with the same content."""
    meta = stored["metadata"]
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "name"):
        meta.pop(key, None)
    return stored


async def test_both_encodings_store_the_same(local: LocalCluster, hub_cluster: ApiServer) -> None:
    """Protobuf and JSON store the same, for every field that the hub writes."""
    from msgspec.structs import replace

    await local.create(replace(FULL, name="binary"), 5.0)
    local._protobuf = False
    await local.create(replace(FULL, name="text"), 5.0)
    path = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices/"
    binary, text = (hub_cluster.api.get(path + name) for name in ("binary", "text"))
    assert content(binary) == content(text)


async def test_stored_slice_equals_the_sent_one(local: LocalCluster) -> None:
    """A slice that is read again equals the stored one, so that the next pass writes nothing."""
    await local.create(FULL, 5.0)
    known = local.slices.get(ObjectKey("edge", "full"))
    assert known is not None
    assert known.uid
    await local.reread(ObjectKey("edge", "full"), 5.0)
    assert local.slices.get(ObjectKey("edge", "full")) == known


@pytest.mark.parametrize("binary", [True, False])
async def test_no_fields_are_tracked_after_a_change(local: LocalCluster, hub_cluster: ApiServer, binary: bool) -> None:
    """In both encodings a PUT empties managedFields, which stay empty (docs/adr/0016)."""
    from msgspec.structs import replace

    local._protobuf = binary
    path = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices/full"
    await local.create(FULL, 5.0)
    assert hub_cluster.api.get(path)["metadata"]["managedFields"]
    for zone in ("a", "b"):
        known = local.slices.get(ObjectKey("edge", "full"))
        assert known is not None
        await local.update(replace(known, endpoints=(Endpoint(("10.0.0.1",), PUBLISHED, zone=zone),)), 5.0)
        stored = hub_cluster.api.get(path)
        assert (stored["endpoints"][0]["zone"], "managedFields" in stored["metadata"]) == (zone, False)


async def test_relist_decodes_only_changed_slices(
    local: LocalCluster, hub_cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of the API, a list decodes only those slices that have changed."""
    from msgspec.structs import replace

    names = ["one", "three", "two"]
    for name in names:
        await local.create(replace(FULL, name=name), 5.0)
    decoded: list[str] = []

    def spied(found: Any) -> Slice:
        decoded.append(found.metadata.name)
        return decode(found)

    decode = wire._slice
    monkeypatch.setattr(wire, "_slice", spied)

    async def listed() -> list[str]:
        lists, decoded[:] = local.slices.lists, []
        following = asyncio.create_task(local.follow_slices())
        await asyncio.to_thread(eventually, lambda: local.slices.lists > lists)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return sorted(decoded)

    path = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices/two"
    assert await listed() == []  # the list has only the hub's own writes
    hub_cluster.api.patch(path, {"metadata": {"annotations": {"note": "theirs"}}})
    assert await listed() == ["two"]
    assert {key.name: value.annotations["note"] for key, value in local.slices.items()} == {
        "one": "ü" * 200,
        "three": "ü" * 200,
        "two": "theirs",
    }


async def test_a_refused_slice_names_the_endpoint(local: LocalCluster) -> None:
    """A 422 to a protobuf request has the path of the field, as with JSON."""
    from msgspec.structs import replace

    with pytest.raises(Invalid) as caught:
        await local.create(replace(FULL, endpoints=(*FULL.endpoints, Endpoint(("127.0.0.1",), PUBLISHED))), 5.0)
    assert [path for path, _ in caught.value.causes] == ["endpoints[3].addresses[0]"]


async def test_a_stale_write_conflicts(local: LocalCluster, hub_cluster: ApiServer) -> None:
    """A write with a version that is no longer current is a 409 and changes nothing."""
    await local.create(FULL, 5.0)
    known = local.slices.get(ObjectKey("edge", "full"))
    assert known is not None
    path = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices/full"
    theirs = hub_cluster.api.get(path)
    theirs["endpoints"] = theirs["endpoints"][:1]
    hub_cluster.api.put(path, theirs)
    with pytest.raises(Conflict):
        await local.update(known, 5.0)
    assert len(hub_cluster.api.get(path)["endpoints"]) == 1
