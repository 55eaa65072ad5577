"""Taking over what endpoint-copier left, and letting go of what a Service asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hub.decide.adopt import NEW, SETTLE, Adoption, adopt
from hub.decide.endpoints import EndpointGroup, GroupKey, prepare
from hub.model import FAILED, PUBLISHED, Conditions, Endpoint, Port, Slice, TargetKey
from hub.registry.removals import dropped
from hub.registry.spec import Registry
from tests.support import build

OLD = "endpoint-copier"
ONE, TWO, STALE = "10.0.0.1", "10.0.0.2", "10.0.0.99"

Said = Mapping[str, Conditions]
"""Conditions by address."""


def theirs(*addresses: str, ports: tuple[Port, ...] = (build.PORT,)) -> Slice:
    """Its one slice: named like the Service, with its own label and nobody's managed-by."""
    labels = {"kubernetes.io/service-name": "payments", "endpoint-copier/source": "web-1"}
    endpoints = tuple(Endpoint((each,)) for each in addresses)
    return Slice("edge", "payments", "IPv4", endpoints, ports, labels, uid="u", resource_version="1")


def endpoints(said: Said) -> list[Endpoint]:
    """Of these conditions."""
    return [build.endpoint(address, conditions=each) for address, each in said.items()]


def taken(
    their: Slice,
    wanted: Said,
    published: Said | None = None,
    *,
    stated: Said | None = None,
    now: float = SETTLE,
    **view: Any,
) -> Adoption:
    """Passes at 0 s and at ``now``. What is wanted is published, and the source states it, unless told otherwise."""
    there = wanted if published is None else published
    mine = build.slice(endpoints=endpoints(there), cluster="local")
    added = tuple(sorted(wanted.keys() - there.keys()))
    content = build.by_address(endpoints(wanted))
    group = EndpointGroup(GroupKey("local", "IPv4"), content, (build.PORT,), (prepare(mine),), added=added)
    said = (build.view("local", endpoints(wanted if stated is None else stated), **view),)
    first = adopt(OLD, (their,), (mine,), (group,), NEW, 0.0, sources=said)
    return adopt(OLD, (their,), (mine,), (group,), first.memory, now, sources=said)


def test_a_stale_address_does_not_hold_it() -> None:
    """Ours is made from the same source: what it lacks is gone there."""
    found = taken(theirs(ONE, STALE), {ONE: PUBLISHED})
    assert [each.name for each in found.deletes] == ["payments"]


def test_it_stays_for_as_long_as_both_have_to_stand() -> None:
    """Consumers see ours first."""
    found = taken(theirs(ONE), {ONE: PUBLISHED}, now=SETTLE - 1)
    assert (found.deletes, found.wake_at) == ((), SETTLE)


@pytest.mark.parametrize(
    "lacks",
    [
        {"published": {ONE: PUBLISHED}},  # not written yet
        {"published": {ONE: PUBLISHED, TWO: FAILED}},  # its end is not written yet
        {"wanted": {ONE: PUBLISHED}},  # its check is not done, say, or its ports are not known
        {"wanted": {ONE: PUBLISHED, TWO: FAILED}},  # likewise
        {"wanted": {ONE: PUBLISHED}, "published": {ONE: PUBLISHED, TWO: PUBLISHED}},
        {"wanted": {}},
    ],
)
def test_it_stays_while_the_source_has_more_than_ours(lacks: dict[str, Said]) -> None:
    """An address that the source states, and as it states it: until then theirs may be all there is of it."""
    both = {ONE: PUBLISHED, TWO: PUBLISHED}
    found = taken(theirs(ONE, TWO), **{"wanted": both, "stated": both, **lacks})
    assert (found.deletes, [each.reason for each in found.findings]) == ((), ["AdoptionWaiting"])
    assert TWO in found.findings[0].objects


@pytest.mark.parametrize(
    "source", [{"unknown": "no answer yet"}, {"complete": False}, {"unknown_nodes": ["n7"]}, {"stated": {}}]
)
def test_a_source_that_does_not_say_all_takes_nothing_away(source: dict[str, Any]) -> None:
    """Then a stale address may be a good one; and one that says nothing at all may be misspelt."""
    found = taken(theirs(ONE, STALE), {ONE: PUBLISHED}, **source)
    assert (found.deletes, [each.objects for each in found.findings]) == ((), [(STALE,)])


def test_a_second_source_that_says_nothing_takes_nothing_away() -> None:
    """What theirs has, and the first one has not, may be the second one's."""
    mine = build.slice(endpoints=endpoints({ONE: PUBLISHED}))
    group = EndpointGroup(GroupKey("eu", "IPv4"), build.by_address(mine.endpoints), (build.PORT,), (prepare(mine),))
    said = (build.view("eu", mine.endpoints), build.view("us"))
    found = adopt(OLD, (theirs(ONE, TWO),), (mine,), (group,), NEW, 0.0, sources=said)
    assert [each.objects for each in found.findings] == [(TWO,)]


def test_without_anything_ready_of_ours_it_stays() -> None:
    """Whatever the source says: traffic that goes nowhere is no better than traffic that may go astray."""
    assert taken(theirs(ONE, STALE), {ONE: FAILED}).findings[0].objects == (ONE, STALE)


def test_an_endpoint_that_the_source_says_is_not_ready_does_not_hold_it() -> None:
    """Theirs never learnt of it."""
    found = taken(theirs(ONE, TWO), {ONE: PUBLISHED, TWO: FAILED})
    assert [each.name for each in found.deletes] == ["payments"]


def test_ports_that_endpoint_copier_got_wrong_do_not_hold_it() -> None:
    """It takes a named targetPort for the Service's port."""
    found = taken(theirs(ONE, ports=(Port("https", 443),)), {ONE: PUBLISHED})
    assert [each.name for each in found.deletes] == ["payments"]


def test_a_wish_that_was_taken_back_is_no_mass_removal() -> None:
    """The Service's own doing, however much of all endpoints it is."""
    slices = [build.slice("a-0", build.endpoints(3), service="a"), build.slice("b-0", build.endpoints(3), service="b")]
    withdrawn = frozenset({TargetKey("edge", "a"), TargetKey("edge", "b")})
    kept = Registry("default", {}, {}, withdrawn=withdrawn)
    assert dropped(kept, slices).entries == {}
