"""Copied Services whose endpoints serve different ports, through all pure stages."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.endpoints import EndpointGroup, GroupKey, prepare
from hub.decide.plan import Plan
from hub.decide.split import may_exchange, split
from hub.model import Endpoint, Port, ServicePort, Slice, SourceView
from tests.support import build

SERVICE = build.service(ports=(ServicePort(80, "http", target_port="http"),))


def http(number: int) -> tuple[Port, ...]:
    """The one port of a set."""
    return (Port("http", number),)


def offer(main: int, *addresses: str, others: Mapping[str, int] | None = None, **more: object) -> SourceView:
    """The view of a copied Service: most endpoints at one port, some at others."""
    others = others or {}
    every = [build.endpoint(each) for each in sorted({*addresses, *others})]
    return build.view(
        "eu",
        every,
        ports=http(main),
        port_sets={each: http(port) for each, port in others.items()},
        copied=True,
        **more,
    )


def offered(numbers: Mapping[str, int]) -> SourceView:
    """Address -> port, of the same view."""
    main = min(numbers.values())
    return offer(main, *numbers, others={address: number for address, number in numbers.items() if number != main})


def ports_of(numbers: Mapping[str, int]) -> dict[int, list[str]]:
    """Port -> addresses, sorted."""
    return {number: sorted(each for each in numbers if numbers[each] == number) for number in numbers.values()}


def pipeline(**more: object) -> build.Pipeline:
    """One target with one copied source."""
    made = build.Pipeline(**more)  # type: ignore[arg-type]
    made.service = SERVICE
    return made


def by_port(it: build.Pipeline) -> dict[int, list[str]]:
    """Port -> published addresses; fails if an address is published twice."""
    found: dict[int, list[str]] = {}
    for each in it.slices:
        (port,) = each.ports
        found.setdefault(port.port or 0, []).extend(endpoint.address for endpoint in each.endpoints)
    every = [address for addresses in found.values() for address in addresses]
    assert len(every) == len(set(every))
    return {port: sorted(addresses) for port, addresses in found.items()}


def after_each_write(it: build.Pipeline, plan: Plan) -> list[set[tuple[str, int]]]:
    """(address, port) pairs that are published after each write of a plan, in its order."""
    now = {slice_.name: slice_ for slice_ in it.slices}
    seen = []
    for each in (*plan.creates, *plan.updates, *plan.deletes):
        now[each.name] = each
        if each in plan.deletes:
            del now[each.name]
        seen.append(
            {(endpoint.address, each.ports[0].port or 0) for each in now.values() for endpoint in each.endpoints}
        )
    return seen


def check_writes(it: build.Pipeline, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Check that after each write, endpoints wanted before and after are there, at their old or new port only."""
    for seen in after_each_write(it, it.plan(offered(after))):
        assert seen <= before.items() | after.items()
        assert {address for address, _ in seen} >= before.keys() & after.keys()


def test_each_port_set_has_its_own_slices() -> None:
    """Each port set has its own slices, and the next pass writes nothing."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", "10.0.0.2", others={"10.0.0.3": 9090}))
    assert by_port(it) == {8080: ["10.0.0.1", "10.0.0.2"], 9090: ["10.0.0.3"]}
    assert it.plan(offer(8080, "10.0.0.1", "10.0.0.2", others={"10.0.0.3": 9090})).writes == 0


def test_larger_port_set_does_not_move_endpoints() -> None:
    """Endpoints stay in the slices with their ports when another port set becomes the largest."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", "10.0.0.2", others={"10.0.0.3": 9090}))
    assert it.plan(offer(9090, "10.0.0.3", others={"10.0.0.1": 8080, "10.0.0.2": 8080})).writes == 0


@pytest.mark.parametrize(
    "others",
    [
        {"10.0.0.2": 9090, "10.0.0.3": 9090, "10.0.0.4": 7070},  # one moves
        {"10.0.0.2": 9090, "10.0.0.3": 7070, "10.0.0.4": 7070},  # two, one of them to where the other was
        {"10.0.0.2": 7070, "10.0.0.4": 9090, "10.0.0.3": 9090},  # likewise, through the slices in the other order
        {"10.0.0.2": 9090, "10.0.0.4": 7070},  # two exchange their ports
        {"10.0.0.2": 9090, "10.0.0.3": 7070},  # three do
        {"10.0.0.1": 9090, "10.0.0.2": 9090, "10.0.0.4": 9090},  # and one of the ports is served no more
    ],
)
def test_an_endpoint_that_changes_its_port_is_never_missing(others: dict[str, int]) -> None:
    """An endpoint that changes its port is in the new slice before it leaves the old one."""
    it = pipeline()
    every = dict.fromkeys(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"], 8080)
    before, after = {**every, "10.0.0.3": 9090, "10.0.0.4": 7070}, {**every, **others}
    it.run(offered(before))
    check_writes(it, before, after)
    assert it.planned.creates == ()
    it.run(offered(after))
    it.run(offered(after))
    assert by_port(it) == ports_of(after)
    assert it.plan(offered(after)).writes == 0


ASSIGNED = st.dictionaries(
    st.sampled_from([build.address(number) for number in range(6)]), st.sampled_from([7070, 8080, 9090]), min_size=1
)


@given(ASSIGNED, ASSIGNED, st.integers(1, 3))
def test_no_write_loses_an_endpoint(before: dict[str, int], after: dict[str, int], limit: int) -> None:
    """After each write all endpoints wanted before and after are published, and two passes finish any move."""
    it = pipeline(target=build.target(endpoints_per_slice=limit))
    it.run(offered(before))
    check_writes(it, before, after)
    it.run(offered(after))
    it.run(offered(after))
    assert by_port(it) == ports_of(after)
    assert it.plan(offered(after)).writes == 0


def test_no_slice_holds_more_than_the_api_takes() -> None:
    """No slice exceeds the API's limit, even if two full ones exchange their endpoints."""
    it = pipeline(target=build.target(endpoints_per_slice=1000))
    numbers = {build.address(number): 8080 if number < 600 else 9090 for number in range(1200)}
    it.run(offered(numbers))
    plan = it.plan(offered({address: 9090 if number == 8080 else 8080 for address, number in numbers.items()}))
    assert [len(slice_.endpoints) for slice_ in plan.updates] == [1000, 600]


def test_one_port_for_all_is_a_change_in_place() -> None:
    """If all endpoints have the same new port, the same slices get the new number."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", "10.0.0.2"))
    plan = it.plan(offer(9090, "10.0.0.1", "10.0.0.2"))
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (0, 1, 0)
    assert plan.updates[0].ports == http(9090)


def test_a_set_that_is_gone_leaves_no_slice() -> None:
    """When its last endpoint goes, the slice of a port set is deleted."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", others={"10.0.0.3": 9090}))
    it.guarded = False
    it.run(offer(8080, "10.0.0.1"))
    assert by_port(it) == {8080: ["10.0.0.1"]}


def test_endpoints_of_an_unknown_source_keep_their_ports() -> None:
    """The endpoints of an unknown source keep their ports, even after a restart."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", others={"10.0.0.3": 9090}))
    before = it.slices
    it.restart()
    assert it.plan(build.view("eu", unknown="no answer yet")).writes == 0
    it.service = build.service(ports=SERVICE.ports, labels={"team": "a"})
    it.run(build.view("eu", unknown="no answer yet"))
    assert [(slice_.name, slice_.ports) for slice_ in it.slices] == [(each.name, each.ports) for each in before]
    assert {slice_.labels.get("team") for slice_ in it.slices} == {"a"}


def test_endpoint_unknown_since_the_start_keeps_its_ports() -> None:
    """An endpoint whose source has been unknown since the start keeps its published ports."""
    it = pipeline()
    it.run(offer(8080, "10.0.0.1", others={"10.0.0.3": 9090}))
    it.restart()
    published = [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.3")]
    assert it.plan(build.view("eu", published, unknown="no answer yet", adopted=True)).writes == 0


def test_withheld_endpoint_keeps_its_ports() -> None:
    """An endpoint whose removal is withheld keeps its published ports."""
    it = pipeline()
    it.guarded = True
    it.run(offer(8080, "10.0.0.1", others={"10.0.0.3": 9090, "10.0.0.4": 9090}))
    it.run(offer(8080, "10.0.0.1"))
    assert by_port(it) == {8080: ["10.0.0.1"], 9090: ["10.0.0.3", "10.0.0.4"]}


def test_numbers_of_the_service_make_one_set() -> None:
    """With numeric targetPorts, the source's ports are ignored, as in endpoint-copier."""
    it = build.Pipeline()
    it.run(offer(8080, "10.0.0.1", others={"10.0.0.3": 9090}))
    assert {slice_.ports for slice_ in it.slices} == {(build.PORT,)}


def test_group_with_one_port_set_is_not_split() -> None:
    """A group with one port set is returned as the same object."""
    group = EndpointGroup(GroupKey("eu", "IPv4"), build.endpoints(3), http(8080))
    assert split(group) == (group,)
    assert split(group)[0] is group


@st.composite
def groups(draw: st.DrawFn) -> EndpointGroup:
    """A group with any distribution of endpoints over ports and slices."""
    addresses = [build.address(number) for number in range(6)]
    wanted = {each: build.endpoint(each) for each in draw(st.sets(st.sampled_from(addresses)))}
    sets = draw(st.dictionaries(st.sampled_from(addresses), st.sampled_from([http(1), http(2), http(3)])))
    published: list[Endpoint] = [build.endpoint(each) for each in sorted(draw(st.sets(st.sampled_from(addresses))))]
    cut = draw(st.integers(0, len(published)))
    slices = tuple(
        prepare(build.slice(f"s-{number}", part, ports=draw(st.sampled_from([http(1), http(2), http(9)]))))
        for number, part in enumerate((published[:cut], published[cut:]))
    )
    return EndpointGroup(GroupKey("eu", "IPv4"), wanted, http(1), slices, port_sets=sets)


@given(groups())
def test_splitting_loses_nothing(group: EndpointGroup) -> None:
    """Every endpoint and slice is in exactly one part, and each part has its own difference."""
    parts = split(group)
    spread = [address for part in parts for address in part.endpoints]
    assert sorted(spread) == sorted(group.endpoints)
    names = [slice_.slice.name for part in parts for slice_ in part.slices]
    assert sorted(names) == sorted(slice_.slice.name for slice_ in group.slices)
    for part in parts if group.port_sets else ():
        there = {address for slice_ in part.slices for address in slice_.addresses}
        assert set(part.added) == part.endpoints.keys() - there
        assert part.removed.keys() == there - part.endpoints.keys()
        assert all(group.port_sets.get(address, group.ports) == part.ports for address in part.endpoints)


@pytest.mark.parametrize("limit", [1, 2])
def test_the_limit_holds_in_every_set(limit: int) -> None:
    """The endpoint limit holds for the slices of each port set."""
    it = pipeline(target=build.target(endpoints_per_slice=limit))
    it.run(offer(8080, "10.0.0.1", "10.0.0.2", "10.0.0.5", others={"10.0.0.3": 9090, "10.0.0.4": 9090}))
    assert by_port(it) == {8080: ["10.0.0.1", "10.0.0.2", "10.0.0.5"], 9090: ["10.0.0.3", "10.0.0.4"]}
    assert all(0 < len(slice_.endpoints) <= limit for slice_ in it.slices)


def test_many_port_sets_are_split_quickly() -> None:
    """One port set per endpoint, as a remote cluster may offer, is split quickly."""
    wanted = build.endpoints(3000)
    sets = {address: http(number) for number, address in enumerate(wanted, 20_000)}
    slices = tuple(
        prepare(msgspec.structs.replace(build.slice(f"s-{ports[0].port}", {address: wanted[address]}), ports=ports))
        for address, ports in sets.items()
    )
    group = EndpointGroup(GroupKey("eu", "IPv4"), wanted, http(1), slices, port_sets=sets)
    began = time.perf_counter()
    parts = split(group)
    assert time.perf_counter() - began < 2.0
    assert len(parts) == 3000
    assert not any(part.added or part.removed or part.changed for part in parts)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (build.slice("b", ports=http(81)), True),
        (build.slice("b", ports=http(80)), False),
        (build.slice("b", ports=http(81), cluster="us"), False),
        (build.slice("b", ports=http(81), family="IPv6"), False),
        (build.slice("b", ports=http(80), cluster="us"), False),
    ],
)
def test_addresses_move_between_slices_of_one_group_with_different_ports(other: Slice, expected: bool) -> None:
    """An address may move between slices of one cluster and family whose ports differ, and between no others."""
    assert may_exchange(build.slice("a", ports=http(80)), other) is expected
    assert may_exchange(other, build.slice("a", ports=http(80))) is expected
