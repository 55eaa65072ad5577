"""A copied Service: its view and its published endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.addresses import AddressPolicy
from hub.decide.snapshot_view import SnapshotMemory, view_of_snapshot
from hub.decide.view import ViewResult
from hub.model import Conditions, Port, Service, Snapshot, SnapshotEndpoint, SourceView
from tests.support import build

POLICY = AddressPolicy(build.networks("10.0.0.0/8", "fd00::/8"))


def copied(*endpoints: SnapshotEndpoint, previous: SourceView | None = None, **more: Any) -> ViewResult:
    """The view of a copied Service with these endpoints."""
    memory = more.pop("memory", None)
    policy = more.pop("policy", POLICY)
    return view_of_snapshot("eu", Snapshot(endpoints, copied=True, **more), previous, policy, 100, memory=memory)


def web(number: int, **more: Any) -> SnapshotEndpoint:
    """The endpoint of one Pod of a StatefulSet."""
    return SnapshotEndpoint(f"10.0.0.{number}", (f"10.0.0.{number}",), hostname=f"web-{number}", **more)


def hostnames(service: Service, *endpoints: SnapshotEndpoint) -> dict[str, str | None]:
    """Address -> hostname, as published for a Service."""
    it = build.Pipeline(service=service)
    it.run(copied(*endpoints).view)
    return {endpoint.address: endpoint.hostname for slice_ in it.slices for endpoint in slice_.endpoints}


@pytest.mark.parametrize("headless", [False, True])
@pytest.mark.parametrize("publish_not_ready", [False, True])
def test_hostnames_are_copied_for_every_service(headless: bool, publish_not_ready: bool) -> None:
    """Hostnames are copied unchanged, even if two Pods or both families of a Pod share one."""
    service = build.service(headless=headless, publish_not_ready=publish_not_ready, families=("IPv4", "IPv6"))
    six = SnapshotEndpoint("fd00::1", ("fd00::1",), hostname="web-1")
    twin = SnapshotEndpoint("10.0.0.9", ("10.0.0.9",), hostname="web-1")
    found = hostnames(service, web(1), six, twin)
    assert found == {"10.0.0.1": "web-1", "fd00::1": "web-1", "10.0.0.9": "web-1"}


@pytest.mark.parametrize("bad", ["Web", "a.b", "-a", "a" * 64])
def test_a_bad_hostname_is_left_out(bad: str) -> None:
    """An invalid hostname is left out, because the API server would refuse the whole slice."""
    endpoint = SnapshotEndpoint("10.0.0.1", ("10.0.0.1",), hostname=bad)
    assert hostnames(build.service(), endpoint) == {"10.0.0.1": None}


def test_other_sources_are_not_taken_for_copies() -> None:
    """Next to a copy, a node still has its own hostname, unique among the nodes."""
    it = build.Pipeline(build.target("eu", "us"), build.service(headless=True))
    it.run(copied(web(1)).view, build.view("us", [build.endpoint("10.1.0.1", "web-1")]))
    assert {it.endpoint(address).hostname for address in ("10.0.0.1", "10.1.0.1")} == {"web-1"}


def test_ports_of_single_endpoints_reach_the_view() -> None:
    """The view maps each published address to its endpoint's own ports."""
    other = (Port("http", 9090),)
    made = copied(web(1), web(2, ports=other), ports=(Port("http", 8080),)).view
    assert (made.ports, made.port_sets, made.copied) == ((Port("http", 8080),), {"10.0.0.2": other}, True)


def test_an_endpoint_that_stays_is_not_made_again() -> None:
    """An endpoint that is the same object in the next snapshot gives the same published object."""
    memory, one, two = SnapshotMemory(), web(1), web(2)
    first = copied(one, two, memory=memory)
    second = copied(one, web(2, ready=False), previous=first.view, memory=memory)
    old, new = first.view.endpoints["IPv4"], second.view.endpoints["IPv4"]
    assert new["10.0.0.1"] is old["10.0.0.1"]
    assert second.reports["10.0.0.1"] is first.reports["10.0.0.1"]
    assert new["10.0.0.2"].conditions == Conditions(ready=False, serving=True, terminating=False)


def test_under_another_policy_nothing_is_remembered() -> None:
    """An address that a new policy rejects leaves, even if its endpoint did not change."""
    memory, one = SnapshotMemory(), web(1)
    first = copied(one, memory=memory)
    narrow = AddressPolicy(build.networks("10.9.0.0/16"))
    assert copied(one, previous=first.view, memory=memory, policy=narrow).view.endpoints["IPv4"] == {}


OFFERS = st.lists(
    st.builds(
        SnapshotEndpoint,
        st.sampled_from("abcd"),
        st.lists(
            st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1", "nonsense"]), min_size=1, max_size=3
        ).map(tuple),
        ready=st.booleans(),
        hostname=st.sampled_from(["", "web-1", "Bad"]),
    ),
    max_size=4,
    unique_by=lambda each: each.name,
)


@given(st.lists(OFFERS, min_size=1, max_size=4))
def test_views_are_the_same_with_and_without_memory(offers: list[list[SnapshotEndpoint]]) -> None:
    """A sequence of views is the same with and without memory; unchanged objects are reused."""
    memory = SnapshotMemory()
    pool: dict[SnapshotEndpoint, SnapshotEndpoint] = {}
    with_memory: ViewResult | None = None
    without: ViewResult | None = None
    for offer in offers:
        same = tuple(pool.setdefault(each, each) for each in offer)
        with_memory = copied(*same, previous=with_memory.view if with_memory else None, memory=memory)
        without = copied(*same, previous=without.view if without else None)
        assert with_memory == without
