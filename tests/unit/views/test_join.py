"""Computing views from Services and slices, and changes from views."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.model import Conditions, Endpoint, EndpointView, Port, Service, ServicePort, Slice
from hub.views.join import diff, gathered, views_of

HTTP, HTTPS = ServicePort(80, "http", target_port="web"), ServicePort(443, "https", target_port=8443)


def service(*ports: ServicePort, **more: Any) -> Service:
    """A Service ``edge/web``."""
    return Service("edge", "web", ports=ports or (HTTP, HTTPS), **more)


def slice_(
    *endpoints: str | Endpoint, ports: tuple[Port, ...] | None = None, name: str = "web-1", **more: Any
) -> Slice:
    """A slice of that Service; plain addresses become endpoints without conditions."""
    made = tuple(Endpoint((endpoint,)) if isinstance(endpoint, str) else endpoint for endpoint in endpoints)
    return Slice(
        "edge", name, "IPv4", made, (Port("http", 8080), Port("https", 8443)) if ports is None else ports, **more
    )


def seen(views: Any) -> list[tuple[int, str, int | None]]:
    """The port, the addresses and the resolved port of each view."""
    return sorted((view.port, ",".join(view.addresses), view.resolved_port) for view in views.values())


def test_one_view_for_each_port_and_address() -> None:
    """Two ports and two addresses make four views; the slice resolves a named targetPort."""
    views = views_of("eu", service(), [slice_("10.0.0.1", "10.0.0.2")])
    assert seen(views) == [
        (80, "10.0.0.1", 8080),
        (80, "10.0.0.2", 8080),
        (443, "10.0.0.1", 8443),
        (443, "10.0.0.2", 8443),
    ]
    assert {view.target_port for view in views.values()} == {"web", 8443}
    assert all(name == view.name and view.cluster == "eu" for name, view in views.items())


def test_slices_that_serve_other_ports_are_not_paired_wrongly() -> None:
    """Each endpoint has only the ports of its own slice, with their numbers."""
    slices = [
        slice_("10.0.0.1", ports=(Port("http", 8080),)),
        slice_("10.0.0.2", ports=(Port("http", 9090), Port("https", 9443)), name="web-2"),
    ]
    assert seen(views_of("eu", service(), slices)) == [
        (80, "10.0.0.1", 8080),
        (80, "10.0.0.2", 9090),
        (443, "10.0.0.2", 9443),
    ]


def test_a_port_of_another_protocol_is_another_port() -> None:
    """Ports match by name and protocol, as for DNS over UDP and TCP."""
    dns = service(ServicePort(53, "udp", "UDP"), ServicePort(53, "tcp", "TCP"))
    views = views_of("eu", dns, [slice_("10.0.0.1", ports=(Port("udp", 5353, "UDP"),))])
    assert [(view.protocol, view.resolved_port) for view in views.values()] == [("UDP", 5353)]


def test_a_slice_without_ports_serves_all_of_them() -> None:
    """A slice without ports, such as one written by hand, serves all ports of the Service."""
    assert seen(views_of("eu", service(HTTP), [slice_("10.0.0.1", ports=())])) == [(80, "10.0.0.1", None)]


@pytest.mark.parametrize(("ready", "shown"), [(True, True), (None, True), (False, False)])
def test_missing_ready_condition_counts_as_ready(ready: bool | None, shown: bool) -> None:
    """A missing ready condition counts as ready, as the API defines."""
    endpoint = Endpoint(
        ("10.0.0.1",), Conditions(ready=ready, serving=True, terminating=True), node_name="n1", zone="a"
    )
    views = list(views_of("eu", service(HTTP), [slice_(endpoint)]).values())
    assert [(view.node_name, view.zone, view.terminating) for view in views] == [("n1", "a", True)] * shown


@pytest.mark.parametrize(
    ("conditions", "serving", "terminating"),
    [
        (Conditions(), True, False),
        (Conditions(serving=True, terminating=False), True, False),
        (Conditions(serving=False, terminating=True), False, True),
    ],
)
def test_missing_conditions_mean_serving_and_not_terminating(
    conditions: Conditions, *, serving: bool, terminating: bool
) -> None:
    """Missing conditions have the API's defaults; a view is stale only if its cluster does not answer."""
    endpoint = Endpoint(("10.0.0.1",), conditions)
    for stale in (False, True):
        [view] = views_of("eu", service(HTTP), [slice_(endpoint)], stale=stale).values()
        assert (view.serving, view.terminating, view.node_name, view.zone, view.stale) == (
            serving,
            terminating,
            "",
            "",
            stale,
        )
    assert not any(view.stale for view in views_of("eu", service(), [slice_(endpoint)]).values())


def test_an_address_in_several_slices_is_one_endpoint() -> None:
    """The endpoint of the first slice by name counts, in whatever order the slices arrive."""
    first = slice_(Endpoint(("10.0.0.1",), zone="a"), name="web-1")
    second = slice_(Endpoint(("10.0.0.1",), zone="b"), name="web-2")
    for slices in ([first, second], [second, first]):
        assert [view.zone for view in views_of("eu", service(HTTP), slices).values()] == ["a"]


def test_slice_being_deleted_makes_no_views() -> None:
    """A slice with a deletion timestamp makes no views."""
    assert views_of("eu", service(), [slice_("10.0.0.1", deleting=True)]) == {}


def test_a_view_keeps_its_name_while_the_service_changes() -> None:
    """A new targetPort or type keeps a view's name; another cluster's view has another name."""
    before = views_of("eu", service(HTTP), [slice_("10.0.0.1")])
    after = views_of("eu", service(ServicePort(80, "http", target_port=1), kind="NodePort"), [slice_("10.0.0.1")])
    elsewhere = views_of("us", service(HTTP), [slice_("10.0.0.1")])
    assert before.keys() == after.keys()
    assert before != after
    assert before.keys().isdisjoint(elsewhere.keys())


def test_gathered_views_have_all_addresses_of_a_port() -> None:
    """A gathered view has all addresses, sorted, and the resolved port if all share it."""
    slices = [slice_("10.0.0.2", "10.0.0.1"), slice_("10.0.0.3", ports=(Port("http", 9090),), name="web-2")]
    views = gathered(views_of("eu", service(), slices))
    assert seen(views) == [(80, "10.0.0.1,10.0.0.2,10.0.0.3", None), (443, "10.0.0.1,10.0.0.2", 8443)]
    assert list(views) == ["web-TCP-443", "web-TCP-80"]


def test_new_objects_come_before_deleted_ones() -> None:
    """New and changed objects come before deleted ones, both sorted by name."""
    changes = diff({"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 2, "z": 1, "d": 1})
    assert changes == [("c", 1, 2), ("d", None, 1), ("z", None, 1), ("a", 1, None)]


@given(st.dictionaries(st.integers(), st.integers()), st.dictionaries(st.integers(), st.integers()))
def test_changes_lead_from_the_old_to_the_new(old: dict[int, int], new: dict[int, int]) -> None:
    """Applying the changes to the old objects gives the new ones, and each key changes once."""
    known = dict(old)
    changes = diff(old, new)
    for key, before, after in changes:
        assert known.get(key) == before
        if after is None:
            del known[key]
        else:
            known[key] = after
    assert known == new
    assert len({change.key for change in changes}) == len(changes)


ADDRESSES = st.sampled_from([f"10.0.0.{number}" for number in range(1, 6)])
ENDPOINTS = st.builds(Endpoint, st.tuples(ADDRESSES), st.builds(Conditions, st.sampled_from([True, None, False])))
PORTS = st.lists(st.sampled_from([Port("http", 8080), Port("https", 8443), Port("x", 1)]), unique=True).map(tuple)
SLICES = st.lists(
    st.builds(slice_, ENDPOINTS, ENDPOINTS, ports=PORTS, name=st.uuids().map(str)),
    max_size=4,
    unique_by=lambda s: s.name,
)


@given(SLICES, st.randoms())
def test_the_order_of_slices_does_not_matter(slices: list[Slice], random: Any) -> None:
    """The order of slices does not change the views; gathering keeps exactly their addresses."""
    views = views_of("eu", service(), slices)
    shuffled = list(slices)
    random.shuffle(shuffled)
    assert list(views_of("eu", service(), shuffled).items()) == list(views.items())

    def pairs(found: Any) -> set[tuple[int, str]]:
        return {(view.port, address) for view in found.values() for address in view.addresses}

    assert pairs(gathered(views)) == pairs(views)
    assert all(isinstance(view, EndpointView) for view in views.values())
