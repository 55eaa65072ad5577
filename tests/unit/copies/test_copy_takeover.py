"""Taking over what endpoint-copier left, and letting go of what a Service asked for."""

from __future__ import annotations

from hub.desired.published import prepare
from hub.model import Endpoint, EndpointGroup, GroupKey, Port, Slice, TargetKey
from hub.plan.adopt import NEW, SETTLE, Adoption, adopt
from hub.registry.removals import dropped
from hub.registry.spec import Registry
from tests.support import build

OLD = "endpoint-copier"


def theirs(*addresses: str, ports: tuple[Port, ...] = (build.PORT,)) -> Slice:
    """Its one slice: named like the Service, with its own label and nobody's managed-by."""
    labels = {"kubernetes.io/service-name": "payments", "endpoint-copier/source": "web-1"}
    endpoints = tuple(Endpoint((each,)) for each in addresses)
    return Slice("edge", "payments", "IPv4", endpoints, ports, labels, uid="u", resource_version="1")


def taken(their: Slice, wanted: list[str], published: list[str], *, known: bool = True, now: float = 0.0) -> Adoption:
    """One pass; ``SETTLE`` seconds later where ``now`` says so."""
    mine = build.slice(endpoints=[build.endpoint(each) for each in published], cluster="local")
    content = build.by_address([build.endpoint(each) for each in wanted])
    added = tuple(sorted(set(wanted) - set(published)))
    group = EndpointGroup(GroupKey("local", "IPv4"), content, (build.PORT,), (prepare(mine),), added=added)
    first = adopt(OLD, (their,), (mine,), (group,), NEW, 0.0, complete=known)
    return adopt(OLD, (their,), (mine,), (group,), first.memory, now, complete=known)


def test_a_stale_address_does_not_hold_it() -> None:
    """Ours is made from the same source: what it lacks is gone there."""
    found = taken(theirs("10.0.0.1", "10.0.0.99"), ["10.0.0.1"], ["10.0.0.1"], now=SETTLE)
    assert [each.name for each in found.deletes] == ["payments"]


def test_it_stays_for_as_long_as_both_have_to_stand() -> None:
    """Consumers see ours first."""
    found = taken(theirs("10.0.0.1"), ["10.0.0.1"], ["10.0.0.1"], now=SETTLE - 1)
    assert (found.deletes, found.wake_at) == ((), SETTLE)


def test_it_stays_until_ours_is_written() -> None:
    """An address that is wanted and not published yet is theirs alone."""
    found = taken(theirs("10.0.0.1", "10.0.0.2"), ["10.0.0.1", "10.0.0.2"], ["10.0.0.1"], now=SETTLE)
    assert (found.deletes, [each.reason for each in found.findings]) == ((), ["AdoptionWaiting"])


def test_a_source_that_says_nothing_takes_nothing_away() -> None:
    """Unknown is not empty: then a stale address may be a good one."""
    found = taken(theirs("10.0.0.1", "10.0.0.99"), ["10.0.0.1"], ["10.0.0.1"], known=False, now=SETTLE)
    assert (found.deletes, [each.reason for each in found.findings]) == ((), ["AdoptionWaiting"])


def test_ports_that_endpoint_copier_got_wrong_do_not_hold_it() -> None:
    """It takes a named targetPort for the Service's port."""
    found = taken(theirs("10.0.0.1", ports=(Port("https", 443),)), ["10.0.0.1"], ["10.0.0.1"], now=SETTLE)
    assert [each.name for each in found.deletes] == ["payments"]


def test_a_wish_that_was_taken_back_is_no_mass_removal() -> None:
    """The Service's own doing, however much of all endpoints it is."""
    slices = [build.slice("a-0", build.endpoints(3), service="a"), build.slice("b-0", build.endpoints(3), service="b")]
    withdrawn = frozenset({TargetKey("edge", "a"), TargetKey("edge", "b")})
    kept = Registry("default", {}, {}, withdrawn=withdrawn)
    assert dropped(kept, slices).entries == {}
