"""What a copied Service amounts to."""

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
    """A slice as the hub decodes it; plain addresses become endpoints that say nothing else."""
    body = {
        "namespace": "edge",
        "name": name,
        "address_type": family,
        "endpoints": [{"addresses": [each]} if isinstance(each, str) else dict(each) for each in endpoints],
        "ports": HTTP if ports is None else ports,
    }
    return msgspec.convert(body, Slice)


def copied(*slices: Slice) -> Snapshot:
    """The snapshot of these slices, as the hub accepts it."""
    return read_snapshot(Copier().snapshot(slices))


def by_name(snapshot: Snapshot) -> dict[str, SnapshotEndpoint]:
    """Endpoints by name, which is their address."""
    return {each.name: each for each in snapshot.endpoints}


def port_names(endpoint: SnapshotEndpoint) -> list[str] | None:
    """Names of the ports an endpoint serves for itself."""
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
def test_unset_conditions_mean_what_consumers_take_them_for(
    conditions: dict[str, bool], wanted: tuple[bool, bool, bool]
) -> None:
    """Ready unless it says no, serving as ready, terminating only where it says so."""
    (found,) = copied(slice_of("a", {"addresses": ["10.0.0.1"], "conditions": conditions})).endpoints
    assert (found.ready, found.serving, found.terminating) == wanted


def test_everything_comes_along() -> None:
    """Zone, hostname, nodeName, targetRef and hints; what may leave a cluster is the hub's to decide."""
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
    assert [each.name for each in found.hints.for_zones] == ["a"]


def test_all_slices_and_families_count() -> None:
    """One endpoint for each address, whatever slice it is in."""
    snapshot = copied(
        slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2"), slice_of("six", "fd00::1", "fd00::2", family="IPv6")
    )
    assert by_name(snapshot).keys() == {"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"}
    assert snapshot.complete


def test_only_the_first_address_of_an_endpoint_counts() -> None:
    """As consumers read it."""
    assert by_name(copied(slice_of("a", {"addresses": ["10.0.0.1", "10.0.0.2"]}))).keys() == {"10.0.0.1"}


def test_no_slices_is_an_answer() -> None:
    """The Service is gone, or has no endpoints: both are complete statements of a synced watch."""
    assert copied() == Snapshot((), ports=(), copied=True)


def test_host_names_are_left_out_and_named() -> None:
    """A slice of type FQDN has no addresses to publish."""
    snapshot = copied(slice_of("names", "web.example.com", family="FQDN"), slice_of("a", "10.0.0.1"))
    assert by_name(snapshot).keys() == {"10.0.0.1"}
    assert ["names" in problem for problem in snapshot.problems] == [True]


def test_equal_ports_are_said_once() -> None:
    """In whatever order the slices have them; a slice without endpoints says nothing."""
    snapshot = copied(
        slice_of("a", "10.0.0.1", ports=HTTP + METRICS),
        slice_of("b", "10.0.0.2", ports=METRICS + HTTP),
        slice_of("empty", ports=[]),
    )
    assert [port.name for port in snapshot.ports or ()] == ["http", "metrics"]
    assert [each.ports for each in snapshot.endpoints] == [None, None]


def test_other_ports_stay_with_their_endpoints() -> None:
    """What most endpoints serve is the snapshot's, the others have their own."""
    other = [{"name": "http", "port": 9090}]
    snapshot = copied(slice_of("a", "10.0.0.1", ports=other), slice_of("b", "10.0.0.2", "10.0.0.3"))
    found = by_name(snapshot)
    assert [port.port for port in snapshot.ports or ()] == [8080]
    assert [port.port for port in found["10.0.0.1"].ports or ()] == [9090]
    assert (found["10.0.0.2"].ports, found["10.0.0.3"].ports) == (None, None)


def test_an_address_in_two_slices_serves_the_ports_of_both() -> None:
    """Consumers look for it by the port's name; it is published once."""
    snapshot = copied(
        slice_of("a", "10.0.0.1", "10.0.0.2"),
        slice_of("b", {"addresses": ["10.0.0.1"], "conditions": {"ready": False}}, ports=METRICS),
    )
    found = by_name(snapshot)
    assert port_names(found["10.0.0.1"]) == ["http", "metrics"]
    assert found["10.0.0.1"].ready is True
    assert port_names(found["10.0.0.2"]) is None


def test_the_order_of_slices_makes_no_difference_to_what_is_read() -> None:
    """The same content, however it is spread."""
    one, two = slice_of("a", "10.0.0.1", "10.0.0.2"), slice_of("b", "10.0.0.3", ports=METRICS)
    assert by_name(copied(one, two)) == by_name(copied(two, one))


def test_a_slice_that_did_not_change_is_not_read_again() -> None:
    """Of a thousand endpoints, the hundred of one slice are made anew."""
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
    """Both names, and both possible."""
    with pytest.raises(msgspec.ValidationError):
        validate(ServiceCopyConfig, wrong)


def test_its_own_guard_believes_the_first_answer() -> None:
    """A synced watch that says empty means it, and addresses of Pods that are gone are given to others."""
    (type_,) = hub_provider_service_copy.hub_register_providers()
    assert type_.guard == GuardDefaults(empty_results=1, max_removal="off")


async def test_a_change_is_a_new_snapshot_and_a_failure_an_error() -> None:
    """What was said before stays the hub's business."""
    api = ClusterObjects()
    api.set_slices("edge", "web", slice_of("a", "10.0.0.1"))
    config = ServiceCopyConfig(namespace="edge", name="web")
    async with (
        LocalHub() as hub,
        hub_provider_service_copy.open_provider(LocalCluster(hub, api=api), config, None) as it,
    ):
        stream = it.watch()
        assert by_name(await anext(stream)).keys() == {"10.0.0.1"}
        api.set_slices("edge", "web", slice_of("a", "10.0.0.1", "10.0.0.2"))
        assert by_name(await anext(stream)).keys() == {"10.0.0.1", "10.0.0.2"}
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        api.fail("edge", "web")
        with pytest.raises(TransientProviderError, match="the API is away"):
            await waiting


class TestConformance(ProviderConformance):
    """The rules of the plugin API."""

    plugin = hub_provider_service_copy
    name = "service-copy"
    config = {"namespace": "edge", "name": "web"}
    addresses = {"10.0.0.1": ("10.0.0.1",), "10.0.0.2": ("10.0.0.2",)}

    def api(self) -> ReadOnlyCluster:
        """A Service with two endpoints, and one whose slices cannot be read."""
        api = ClusterObjects()
        api.set_slices("edge", "web", slice_of("a", "10.0.0.1", "10.0.0.2"))
        api.fail("edge", "broken")
        return api

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """The Service that cannot be read."""
        yield {"namespace": "edge", "name": "broken"}
