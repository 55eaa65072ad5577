"""Tests of copied Services: which endpoints and ports a copy has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import hub_provider_service_copy
import msgspec
import pytest
from hub_provider_service_copy import Copier, ServiceCopyConfig
from hub_testkit.conformance import ProviderConformance
from hub_testkit.contexts import ClusterObjects, LocalCluster, LocalHub

from hub.plugin import GuardDefaults, ReadOnlyCluster, Slice, Snapshot, SnapshotEndpoint, TransientProviderError
from hub.plugin.answers import read_snapshot
from hub.plugin.config import validate

HTTP = [{"name": "http", "port": 8080}]
METRICS = [{"name": "metrics", "port": 9090}]


def slice_of(
    name: str, *endpoints: str | Mapping[str, Any], ports: list[dict[str, Any]] | None = None, family: str = "IPv4"
) -> Slice:
    """Builds a slice as the hub decodes it; a plain address becomes an endpoint without other fields."""
    body = {
        "namespace": "edge",
        "name": name,
        "address_type": family,
        "endpoints": [
            {"addresses": [endpoint]} if isinstance(endpoint, str) else dict(endpoint) for endpoint in endpoints
        ],
        "ports": HTTP if ports is None else ports,
    }
    return msgspec.convert(body, Slice)


def copied(*slices: Slice) -> Snapshot:
    """Returns the snapshot of these slices, as the hub reads it."""
    return read_snapshot(Copier().snapshot(slices))


def by_name(snapshot: Snapshot) -> dict[str, SnapshotEndpoint]:
    """Returns the endpoints by name, which is their address."""
    return {endpoint.name: endpoint for endpoint in snapshot.endpoints}


def port_names(endpoint: SnapshotEndpoint) -> list[str] | None:
    """Returns the names of an endpoint's own ports; None if it has those of the snapshot."""
    return None if endpoint.ports is None else [port.name for port in endpoint.ports]


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({}, (True, True, False)),
        ({"ready": True}, (True, True, False)),
        ({"ready": False}, (False, False, False)),
        ({"ready": False, "serving": True, "terminating": True}, (False, True, True)),
        ({"ready": True, "serving": False}, (True, False, False)),
    ],
)
def test_unset_conditions_have_kubernetes_defaults(
    conditions: dict[str, bool], wanted: tuple[bool, bool, bool]
) -> None:
    """An endpoint is ready unless ``ready`` is false, ``serving`` defaults to ``ready``, ``terminating`` to false."""
    (found,) = copied(slice_of("a", {"addresses": ["10.0.0.1"], "conditions": conditions})).endpoints
    assert (found.ready, found.serving, found.terminating) == wanted


def test_everything_comes_along() -> None:
    """A copy has zone, hostname, nodeName, targetRef and hints; the hub decides which of them may cross clusters."""
    whole = {
        "addresses": ["10.0.0.1"],
        "hostname": "web-0",
        "nodeName": "n1",
        "zone": "a",
        "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "edge", "uid": "u"},
        "hints": {"forZones": [{"name": "a"}]},
    }
    snapshot = copied(slice_of("a", whole))
    (found,) = snapshot.endpoints
    assert snapshot.copied
    assert (found.hostname, found.node_name, found.zone) == ("web-0", "n1", "a")
    assert found.target_ref is not None
    assert found.target_ref.uid == "u"
    assert found.hints is not None
    assert [zone.name for zone in found.hints.for_zones] == ["a"]


def test_all_slices_and_families_count() -> None:
    """A copy has one endpoint per address, from all slices and both families."""
    snapshot = copied(
        slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2"), slice_of("six", "fd00::1", "fd00::2", family="IPv6")
    )
    assert by_name(snapshot).keys() == {"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"}
    assert snapshot.complete


def test_only_the_first_address_of_an_endpoint_counts() -> None:
    """Of an endpoint with several addresses only the first is copied, as consumers use only that one."""
    assert by_name(copied(slice_of("a", {"addresses": ["10.0.0.1", "10.0.0.2"]}))).keys() == {"10.0.0.1"}


def test_no_slices_is_an_answer() -> None:
    """No slices (the Service is gone or has no endpoints) is a complete empty answer, because the watch is synced."""
    assert copied() == Snapshot((), ports=(), copied=True)


def test_host_names_are_left_out_and_named() -> None:
    """A slice of type FQDN has no addresses to publish and is reported as a problem."""
    snapshot = copied(slice_of("names", "web.example.com", family="FQDN"), slice_of("a", "10.0.0.1"))
    assert by_name(snapshot).keys() == {"10.0.0.1"}
    assert ["names" in problem for problem in snapshot.problems] == [True]


def test_equal_ports_become_the_snapshots_ports() -> None:
    """Ports that all endpoints serve become the snapshot's, however slices order them; empty slices are ignored."""
    snapshot = copied(
        slice_of("a", "10.0.0.1", ports=HTTP + METRICS),
        slice_of("b", "10.0.0.2", ports=METRICS + HTTP),
        slice_of("empty", ports=[]),
    )
    assert [port.name for port in snapshot.ports or ()] == ["http", "metrics"]
    assert [endpoint.ports for endpoint in snapshot.endpoints] == [None, None]


def test_other_ports_stay_with_their_endpoints() -> None:
    """The ports that most endpoints serve are the snapshot's; endpoints with other ports keep their own."""
    other = [{"name": "http", "port": 9090}]
    snapshot = copied(slice_of("a", "10.0.0.1", ports=other), slice_of("b", "10.0.0.2", "10.0.0.3"))
    found = by_name(snapshot)
    assert [port.port for port in snapshot.ports or ()] == [8080]
    assert [port.port for port in found["10.0.0.1"].ports or ()] == [9090]
    assert (found["10.0.0.2"].ports, found["10.0.0.3"].ports) == (None, None)


def test_an_address_in_two_slices_serves_the_ports_of_both() -> None:
    """An address in two slices becomes one ready endpoint with the ports of both slices."""
    snapshot = copied(
        slice_of("a", "10.0.0.1", "10.0.0.2"),
        slice_of("b", {"addresses": ["10.0.0.1"], "conditions": {"ready": False}}, ports=METRICS),
    )
    found = by_name(snapshot)
    assert port_names(found["10.0.0.1"]) == ["http", "metrics"]
    assert found["10.0.0.1"].ready is True
    assert port_names(found["10.0.0.2"]) is None


def test_slice_order_does_not_change_endpoints() -> None:
    """Slices in another order give the same endpoints."""
    one, two = slice_of("a", "10.0.0.1", "10.0.0.2"), slice_of("b", "10.0.0.3", ports=METRICS)
    assert by_name(copied(one, two)) == by_name(copied(two, one))


def test_a_slice_that_did_not_change_is_not_read_again() -> None:
    """Endpoints of an unchanged slice stay the same objects when another slice changes."""
    copier = Copier()
    same, before, after = slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2"), slice_of("b", "10.0.0.3")
    first = by_name(copier.snapshot((same, before)))
    second = by_name(copier.snapshot((same, after)))
    assert second["10.0.0.1"] is first["10.0.0.1"]
    assert second.keys() == {"10.0.0.1", "10.0.0.3"}


@pytest.mark.parametrize(
    "wrong", [{}, {"name": "web"}, {"namespace": "edge", "name": ""}, {"namespace": "A", "name": "b"}]
)
def test_a_configuration_names_a_service(wrong: dict[str, str]) -> None:
    """A configuration needs a valid namespace and a valid name."""
    with pytest.raises(msgspec.ValidationError):
        validate(ServiceCopyConfig, wrong)


def test_one_empty_answer_is_enough_for_its_guard() -> None:
    """One empty answer is enough: the watch is synced, and addresses of deleted Pods are assigned to other Pods."""
    (type_,) = hub_provider_service_copy.hub_register_providers()
    assert type_.guard == GuardDefaults(empty_results=1, max_removal="off")


async def test_a_change_is_a_new_snapshot_and_a_failure_an_error() -> None:
    """A change of the source yields a new snapshot, a failing API raises a transient error."""
    api = ClusterObjects()
    api.set_slices("edge", "web", slice_of("a", "10.0.0.1"))
    config = ServiceCopyConfig(namespace="edge", name="web")
    async with (
        LocalHub() as hub,
        hub_provider_service_copy.open_provider(LocalCluster(hub, api=api), config, None) as provider,
    ):
        stream = provider.watch()
        assert by_name(await anext(stream)).keys() == {"10.0.0.1"}
        api.set_slices("edge", "web", slice_of("a", "10.0.0.1", "10.0.0.2"))
        assert by_name(await anext(stream)).keys() == {"10.0.0.1", "10.0.0.2"}
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        api.fail("edge", "web")
        with pytest.raises(TransientProviderError, match="the API is away"):
            await waiting


class TestConformance(ProviderConformance):
    """The provider follows the rules of the plugin API."""

    plugin = hub_provider_service_copy
    name = "service-copy"
    config = {"namespace": "edge", "name": "web"}
    addresses = {"10.0.0.1": ("10.0.0.1",), "10.0.0.2": ("10.0.0.2",)}

    def api(self) -> ReadOnlyCluster:
        """Provides a Service with two endpoints, and one whose slices cannot be read."""
        api = ClusterObjects()
        api.set_slices("edge", "web", slice_of("a", "10.0.0.1", "10.0.0.2"))
        api.fail("edge", "broken")
        return api

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Configures the Service that cannot be read."""
        yield {"namespace": "edge", "name": "broken"}
