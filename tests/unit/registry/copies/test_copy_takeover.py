"""The takeover of endpoint-copier's slices, and the removal of a copy that a Service no longer asks for."""

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
    """endpoint-copier's only slice: it has the Service's name and a label of its own, and no managed-by label."""
    labels = {"kubernetes.io/service-name": "payments", "endpoint-copier/source": "web-1"}
    endpoints = tuple(Endpoint((address,)) for address in addresses)
    return Slice("edge", "payments", "IPv4", endpoints, ports, labels, uid="u", resource_version="1")


def endpoints(said: Said) -> list[Endpoint]:
    """Endpoints with these addresses and conditions."""
    return [build.endpoint(address, conditions=conditions) for address, conditions in said.items()]


def taken(
    their: Slice,
    wanted: Said,
    published: Said | None = None,
    *,
    stated: Said | None = None,
    now: float = SETTLE,
    **view: Any,
) -> Adoption:
    """The adoption at ``now``, after a first pass at 0 s; ``published`` and ``stated`` default to ``wanted``."""
    there = wanted if published is None else published
    mine = build.slice(endpoints=endpoints(there), cluster="local")
    added = tuple(sorted(wanted.keys() - there.keys()))
    content = build.by_address(endpoints(wanted))
    group = EndpointGroup(GroupKey("local", "IPv4"), content, (build.PORT,), (prepare(mine),), added=added)
    said = (build.view("local", endpoints(wanted if stated is None else stated), **view),)
    first = adopt(OLD, (their,), (mine,), (group,), NEW, 0.0, sources=said)
    return adopt(OLD, (their,), (mine,), (group,), first.memory, now, sources=said)


def test_a_stale_address_does_not_hold_it() -> None:
    """An address that the source no longer states does not keep the old slice."""
    found = taken(theirs(ONE, STALE), {ONE: PUBLISHED})
    assert [slice_.name for slice_ in found.deletes] == ["payments"]


def test_old_slice_stays_for_the_settling_time() -> None:
    """The old slice stays for the settling time, so that consumers see our slice first."""
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
def test_old_slice_stays_until_ours_has_all_endpoints(lacks: dict[str, Said]) -> None:
    """The old slice stays until our slices contain all that the source states, with the same conditions."""
    both = {ONE: PUBLISHED, TWO: PUBLISHED}
    found = taken(theirs(ONE, TWO), **{"wanted": both, "stated": both, **lacks})
    assert (found.deletes, [finding.reason for finding in found.findings]) == ((), ["AdoptionWaiting"])
    assert TWO in found.findings[0].objects


@pytest.mark.parametrize(
    "source", [{"unknown": "no answer yet"}, {"complete": False}, {"unknown_nodes": ["n7"]}, {"stated": {}}]
)
def test_old_slice_stays_while_the_source_is_incomplete(source: dict[str, Any]) -> None:
    """The old slice stays while the source is unknown, incomplete or empty."""
    found = taken(theirs(ONE, STALE), {ONE: PUBLISHED}, **source)
    assert (found.deletes, [finding.objects for finding in found.findings]) == ((), [(STALE,)])


def test_old_slice_stays_while_a_second_source_is_empty() -> None:
    """The old slice stays while a second source is empty, since the address may belong to that source."""
    mine = build.slice(endpoints=endpoints({ONE: PUBLISHED}))
    group = EndpointGroup(GroupKey("eu", "IPv4"), build.by_address(mine.endpoints), (build.PORT,), (prepare(mine),))
    said = (build.view("eu", mine.endpoints), build.view("us"))
    found = adopt(OLD, (theirs(ONE, TWO),), (mine,), (group,), NEW, 0.0, sources=said)
    assert [finding.objects for finding in found.findings] == [(TWO,)]


def test_old_slice_stays_while_ours_has_nothing_ready() -> None:
    """The old slice stays while no endpoint of ours is ready, whatever the source states."""
    assert taken(theirs(ONE, STALE), {ONE: FAILED}).findings[0].objects == (ONE, STALE)


def test_unready_endpoint_does_not_keep_the_old_slice() -> None:
    """An endpoint that the source states as not ready does not keep the old slice."""
    found = taken(theirs(ONE, TWO), {ONE: PUBLISHED, TWO: FAILED})
    assert [slice_.name for slice_ in found.deletes] == ["payments"]


def test_ports_that_endpoint_copier_got_wrong_do_not_hold_it() -> None:
    """Wrong ports of the old slice (endpoint-copier mistakes a named targetPort for the Service's) do not keep it."""
    found = taken(theirs(ONE, ports=(Port("https", 443),)), {ONE: PUBLISHED})
    assert [slice_.name for slice_ in found.deletes] == ["payments"]


def test_withdrawn_copies_do_not_count_as_dropped() -> None:
    """Slices of withdrawn copies do not count as dropped, however many endpoints they have."""
    slices = [build.slice("a-0", build.endpoints(3), service="a"), build.slice("b-0", build.endpoints(3), service="b")]
    withdrawn = frozenset({TargetKey("edge", "a"), TargetKey("edge", "b")})
    kept = Registry("default", {}, {}, withdrawn=withdrawn)
    assert dropped(kept, slices).entries == {}
