"""Adoption: when the slices of another controller may be deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.adopt import LISTED, NEW, QUIET, SETTLE, Adoption, AdoptMemory, adopt, is_theirs, with_deleted
from hub.decide.endpoints import EndpointGroup, GroupKey, prepare
from hub.model import (
    DRAINING,
    FAILED,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    LABEL_SERVICE_NAME,
    PUBLISHED,
    Conditions,
    Endpoint,
    Finding,
    Port,
    Slice,
)
from hub.registry.spec import ENDPOINT_COPIER, LABEL_COPIER_SOURCE
from tests.support import build

OLD = "old-controller"
NIL = Conditions()


def theirs(name: str = "payments", *endpoints: Endpoint, version: str = "1", uid: str = "", **more: Any) -> Slice:
    """A slice of the old controller."""
    labels = {LABEL_SERVICE_NAME: "payments", LABEL_MANAGED_BY: OLD}
    more.setdefault("ports", (build.PORT,))
    return Slice(
        "edge", name, "IPv4", endpoints, labels=labels, uid=uid or f"uid-{name}", resource_version=version, **more
    )


def wanted(*endpoints: Endpoint, published: Iterable[Slice] = (), **more: Any) -> EndpointGroup:
    """A group of ours that wants ``endpoints``, with the slices ``published``."""
    slices = tuple(prepare(slice_) for slice_ in published)
    there = {address for slice_ in slices for address in slice_.addresses}
    content = build.by_address(endpoints)
    more.setdefault("ports", (build.PORT,))
    added = tuple(sorted(set(content) - there))
    return EndpointGroup(GroupKey("eu", "IPv4"), content, slices=slices, added=added, **more)


def covered(*theirs_: Slice, ours: Endpoint, wants: Endpoint | None = None, **more: Any) -> Adoption:
    """The result of a pass in which ``ours`` is published and ``wants`` (default: the same) is wanted."""
    published = build.slice(endpoints=(ours,), **more)
    group = wanted(wants or ours, published=(published,), **more)
    return adopt(OLD, theirs_, (published,), (group,), NEW, 100.0)


def test_their_slices_are_deleted_five_seconds_after_ours_cover_them() -> None:
    """Their slices are deleted five seconds after ours cover them, exactly as observed."""
    old = theirs("payments", build.endpoint("10.0.0.1", conditions=NIL))
    ours = build.slice(endpoints=(build.endpoint("10.0.0.1"),))
    groups = (wanted(build.endpoint("10.0.0.1"), published=(ours,)),)

    first = adopt(OLD, (old,), (ours,), groups, NEW, 100.0)
    early = adopt(OLD, (old,), (ours,), groups, first.memory, 104.9)
    due = adopt(OLD, (old,), (ours,), groups, early.memory, 105.0)

    assert (first.deletes, first.wake_at, first.findings) == ((), 105.0, ())
    assert (early.deletes, early.wake_at) == ((), 105.0)
    assert due.deletes == (old,)


def test_unwritten_endpoint_covers_nothing() -> None:
    """A wanted endpoint that is not published yet covers nothing, because no consumer sees it."""
    found = adopt(OLD, (theirs("payments", build.endpoint()),), (), (wanted(build.endpoint()),), NEW, 100.0)

    assert [finding.reason for finding in found.findings] == ["AdoptionWaiting"]
    assert found.memory.covered_since is None


HTTP = Port("http", 30080)
NAMELESS = Port("", 30443)


@pytest.mark.parametrize(
    ("old", "ours", "goes"),
    [
        (theirs("t", build.endpoint()), {}, True),
        (theirs("t", build.endpoint(conditions=NIL)), {}, True),
        (theirs("t", build.endpoint(conditions=FAILED)), {"conditions": FAILED}, True),
        (theirs("t", build.endpoint(conditions=FAILED)), {}, True),
        (theirs("t", build.endpoint(conditions=DRAINING)), {}, True),
        (theirs("t", build.endpoint()), {"conditions": FAILED}, False),
        (theirs("t", build.endpoint()), {"conditions": DRAINING}, False),
        (theirs("t", build.endpoint(conditions=NIL)), {"conditions": DRAINING}, False),
        (theirs("t", build.endpoint(conditions=DRAINING)), {"conditions": FAILED}, False),
        (theirs("t", build.endpoint("10.0.0.2")), {}, False),
        (theirs("t", Endpoint(("10.0.0.1", "10.0.0.2"))), {}, False),
        (theirs("t", build.endpoint(), ports=(NAMELESS,)), {}, True),
        (theirs("t", build.endpoint(), ports=()), {}, True),
        (theirs("t", build.endpoint(), ports=(build.PORT, HTTP)), {}, False),
        (theirs("t", build.endpoint(), ports=(Port("https", 30444),)), {}, False),
        (theirs("t", build.endpoint(), ports=(Port("tls", 30443),)), {}, False),
        (theirs("t", build.endpoint(), ports=(Port("https", 30443, "UDP"),)), {}, False),
        (theirs("t", build.endpoint(), ports=(Port("https", None),)), {}, False),
        (theirs("t"), {}, True),
    ],
)
def test_an_endpoint_is_covered_by(old: Slice, ours: Mapping[str, Any], goes: bool) -> None:
    """An endpoint is covered by the same address with all its ports and with conditions that are no worse."""
    found = covered(old, ours=build.endpoint(**ours))

    assert (found.memory.covered_since is not None) == goes
    assert [finding.reason for finding in found.findings] == ([] if goes else ["AdoptionWaiting"])


def test_each_endpoint_is_covered_with_the_ports_it_serves() -> None:
    """Coverage compares the ports of each endpoint, which may differ between slices of one copy."""
    one, other = build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2")
    ours = (build.slice("s-0", [one]), build.slice("s-1", [other], ports=(HTTP,)))
    group = wanted(one, other, published=ours, port_sets={"10.0.0.2": (HTTP,)})

    right = adopt(OLD, (theirs("a", one), theirs("b", other, ports=(HTTP,))), ours, (group,), NEW, 100.0)
    wrong = adopt(OLD, (theirs("a", one, ports=(HTTP,)),), ours, (group,), NEW, 100.0)

    assert (right.findings, right.wake_at) == ((), 100.0 + SETTLE)
    assert [finding.objects for finding in wrong.findings] == [("10.0.0.1",)]


def test_unwanted_endpoint_covers_nothing() -> None:
    """A published endpoint that is no longer wanted covers nothing, because it will be removed."""
    published = build.slice(endpoints=(build.endpoint(),))
    group = wanted(published=(published,), removed={"10.0.0.1": build.endpoint()})

    found = adopt(OLD, (theirs("t", build.endpoint()),), (published,), (group,), NEW, 100.0)

    assert found.findings[0].objects == ("10.0.0.1",)
    assert found.wake_at is None


def test_endpoint_of_another_family_covers_nothing() -> None:
    """An endpoint is only covered by one of the same address family."""
    old = msgspec.structs.replace(theirs("t", build.endpoint("node.example.com")), address_type="FQDN")

    assert covered(old, ours=build.endpoint("node.example.com")).findings[0].reason == "AdoptionWaiting"


@pytest.mark.parametrize(
    ("uncertain", "goes"),
    [
        ({}, True),
        ({"unknown": "unreachable"}, False),
        ({"complete": False}, False),
        ({"unknown_nodes": ["n9"]}, False),
        ({"ipv4": ()}, False),
    ],
)
def test_an_address_that_no_source_has_is_covered_if_all_sources_are_certain(
    uncertain: Mapping[str, Any], goes: bool
) -> None:
    """An address of theirs that no source has is left out only if all views are complete and have endpoints."""
    one, left = build.endpoint("10.0.0.1"), build.endpoint("10.0.0.9")
    published = build.slice(endpoints=(one,))
    group = wanted(one, published=(published,))
    sources = (build.view("eu", [one]), build.view(**{"cluster": "us", "ipv4": [one], **uncertain}))

    found = adopt(OLD, (theirs("t", one, left),), (published,), (group,), NEW, 100.0, sources=sources)

    assert (found.memory.covered_since is not None) == goes
    assert [finding.objects for finding in found.findings] == ([] if goes else [("10.0.0.9",)])


def test_ours_have_the_conditions_of_theirs_meanwhile() -> None:
    """During adoption ours have the conditions of theirs; unset conditions mean ready."""
    failing = build.endpoint("10.0.0.1", conditions=FAILED)
    other = build.endpoint("10.0.0.2")
    published = build.slice(endpoints=(failing, other))
    group = wanted(failing, other, published=(published,))

    (alike,) = adopt(
        OLD, (theirs("t", build.endpoint("10.0.0.1", conditions=NIL)),), (published,), (group,), NEW, 100.0
    ).groups

    assert alike.endpoints["10.0.0.1"].conditions == PUBLISHED
    assert alike.endpoints["10.0.0.2"] is other
    assert alike.changed == {"10.0.0.1": (failing, alike.endpoints["10.0.0.1"])}


def test_endpoint_with_their_conditions_is_not_a_change() -> None:
    """An endpoint that is published with the conditions of theirs is not a change."""
    mine = build.endpoint("10.0.0.1", conditions=FAILED)
    published = build.slice(endpoints=(build.endpoint("10.0.0.1"),))
    group = wanted(mine, published=(published,), changed={"10.0.0.1": (published.endpoints[0], mine)})

    (alike,) = adopt(OLD, (theirs("t", build.endpoint("10.0.0.1")),), (published,), (group,), NEW, 100.0).groups

    assert alike.changed == {}


def test_changed_slice_restarts_the_wait_and_is_reported() -> None:
    """A changed slice is reported; the five seconds begin after a quiet period."""
    passes = Passes()
    passes.run(theirs("t", build.endpoint(), version="1"))

    changed = passes.run(theirs("t", build.endpoint(), version="2"), after=4.0)
    waiting = passes.run(theirs("t", build.endpoint(), version="2"), after=QUIET - 1.0)
    quiet = passes.run(theirs("t", build.endpoint(), version="2"), after=1.0)
    due = passes.run(theirs("t", build.endpoint(), version="2"), after=SETTLE)

    assert [finding.reason for finding in changed.findings] == ["OldWriterActive"]
    assert changed.wake_at == passes.now - SETTLE
    assert ([finding.reason for finding in waiting.findings], waiting.deletes) == (["OldWriterActive"], ())
    assert (quiet.findings, quiet.deletes) == ((), ())
    assert len(due.deletes) == 1


def test_a_slice_that_comes_back_is_never_deleted_again() -> None:
    """A slice that reappears after its deletion is reported as long as it exists and is never deleted again."""
    passes = Passes()
    passes.run(theirs("t", build.endpoint()))
    passes.delete(*passes.run(theirs("t", build.endpoint()), after=SETTLE).deletes)
    passes.run()

    outcomes = [passes.run(theirs("t", build.endpoint(), uid="again"), after=1000.0) for _ in range(5)]

    assert {finding.reason for outcome in outcomes for finding in outcome.findings} == {"OldWriterActive"}
    assert not any(outcome.deletes for outcome in outcomes)


def test_stopped_writer_is_no_longer_reported() -> None:
    """Once the reappeared slices are deleted, the old writer is no longer reported."""
    passes = Passes()
    passes.run(theirs("t", build.endpoint()))
    passes.delete(*passes.run(theirs("t", build.endpoint()), after=SETTLE).deletes)
    passes.run(theirs("t", build.endpoint(), uid="again"))

    assert passes.run().findings == ()


def test_a_slice_that_was_deleted_is_not_deleted_twice() -> None:
    """A deleted slice that is still observed is not deleted again."""
    passes = Passes()
    old = theirs("t", build.endpoint())
    passes.run(old)
    passes.delete(*passes.run(old, after=SETTLE).deletes)

    late = passes.run(old, after=SETTLE)

    assert (late.deletes, late.findings) == ((), ())


def test_deleted_slice_does_not_count_as_a_write() -> None:
    """A slice that disappears does not count as a write, because an operator may have deleted it."""
    passes = Passes()
    passes.run(theirs("a", build.endpoint()), theirs("b", build.endpoint()))

    assert passes.run(theirs("a", build.endpoint()), after=1.0).findings == ()


def test_other_managed_by_value_clears_the_memory() -> None:
    """Another managed-by value in the registry starts with an empty memory."""
    memory = AdoptMemory("another", {"uid-t": "0"}, written_at=99.0, returned=True)
    published = build.slice(endpoints=(build.endpoint(),))
    group = wanted(build.endpoint(), published=(published,))

    found = adopt(OLD, (theirs("t", build.endpoint()),), (published,), (group,), memory, 100.0)

    assert found.memory == AdoptMemory(OLD, {"uid-t": "1"}, covered_since=100.0)


@pytest.mark.parametrize(
    ("labels", "managed_by", "expected"),
    [
        ({LABEL_MANAGED_BY: OLD}, OLD, True),
        ({LABEL_MANAGED_BY: OLD, LABEL_OWNER: "default"}, OLD, False),
        ({LABEL_MANAGED_BY: "another"}, OLD, False),
        ({}, OLD, False),
        ({LABEL_COPIER_SOURCE: "x"}, ENDPOINT_COPIER, True),
        ({LABEL_COPIER_SOURCE: "x", LABEL_OWNER: "default"}, ENDPOINT_COPIER, False),
        ({LABEL_COPIER_SOURCE: "x", LABEL_MANAGED_BY: ENDPOINT_COPIER}, ENDPOINT_COPIER, False),
        ({LABEL_MANAGED_BY: ENDPOINT_COPIER}, ENDPOINT_COPIER, False),
        ({}, ENDPOINT_COPIER, False),
    ],
)
def test_whose_slices_are_theirs(labels: dict[str, str], managed_by: str, expected: bool) -> None:
    """Theirs have the managed-by value, or endpoint-copier's own label without any, and never the hub's owner label."""
    assert is_theirs(msgspec.structs.replace(theirs(), labels=labels), managed_by) is expected


def test_old_writer_is_reported_in_words() -> None:
    """The finding says what to do, and whether the slices came back; only a quiet period ends by itself."""
    passes = Passes()
    passes.run(theirs("b", build.endpoint()), theirs("a", build.endpoint()))
    changed = passes.run(theirs("b", build.endpoint()), theirs("a", build.endpoint(), version="2"), after=1.0)
    text = f"{OLD} still writes slices of this Service; they stay. Stop it"
    assert changed.findings == (Finding("OldWriterActive", text, ("a", "b")),)
    assert changed.wake_at == 101.0 + QUIET
    passes.delete(theirs("a"), theirs("b"))
    passes.run()
    back = passes.run(theirs("c", build.endpoint()))
    text = (
        f"{OLD} still writes slices of this Service again after they were deleted; they stay. Stop it, then delete them"
    )
    assert back.findings == (Finding("OldWriterActive", text, ("c",)),)
    assert back.wake_at is None


def test_uncovered_endpoints_are_reported_in_words() -> None:
    """The finding has the number of uncovered addresses, the first one, and a limited list of them."""
    old = theirs("t", *(build.endpoint(build.address(number)) for number in range(LISTED + 5)))
    addresses = sorted(build.address(number) for number in range(LISTED + 5))
    [finding] = adopt(OLD, (old,), (), (), NEW, 100.0).findings
    text = f"slices of {OLD} stay: {LISTED + 5} of their endpoints are not covered by ours, such as {addresses[0]}"
    assert finding == Finding("AdoptionWaiting", text, tuple(addresses[:LISTED]))


def test_a_slice_that_is_being_deleted_needs_no_cover() -> None:
    """A slice of theirs that is being deleted is neither covered, reported nor deleted again."""
    passes = Passes()
    passes.run(theirs("t", build.endpoint("10.0.0.9"), deleting=True), theirs("a", build.endpoint()))
    found = passes.run(
        theirs("t", build.endpoint("10.0.0.9"), deleting=True), theirs("a", build.endpoint()), after=SETTLE
    )
    assert (found.findings, [slice_.name for slice_ in found.deletes]) == ((), ["a"])


def test_ours_have_the_best_of_their_conditions() -> None:
    """If theirs have an address twice, ours get the better conditions, whatever the order of the slices."""
    mine = build.endpoint("10.0.0.1", conditions=FAILED)
    published = build.slice(endpoints=(mine,))
    group = wanted(mine, published=(published,))
    states = {"a": FAILED, "b": DRAINING, "c": PUBLISHED}
    for names in ("ab", "ba", "abc", "cab"):
        old = [
            theirs(str(place), build.endpoint("10.0.0.1", conditions=states[name])) for place, name in enumerate(names)
        ]
        (alike,) = adopt(OLD, old, (published,), (group,), NEW, 100.0).groups
        assert alike.endpoints["10.0.0.1"].conditions == (PUBLISHED if "c" in names else DRAINING)


def test_groups_are_unchanged_without_their_slices() -> None:
    """Without slices of theirs, the groups are returned as the same objects."""
    groups = (wanted(build.endpoint()),)

    assert adopt(OLD, (), (), groups, NEW, 100.0).groups is groups


class Passes:
    """One target whose wanted endpoints are published and cover everything of theirs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.memory = NEW
        self.published = build.slice(endpoints=(build.endpoint(),))
        self.groups = (wanted(build.endpoint(), published=(self.published,)),)

    def run(self, *old: Slice, after: float = 0.0) -> Adoption:
        """Run a pass ``after`` seconds later."""
        self.now += after
        found = adopt(OLD, old, (self.published,), self.groups, self.memory, self.now)
        self.memory = found.memory
        return found

    def delete(self, *old: Slice) -> None:
        """Record that these slices were deleted."""
        self.memory = with_deleted(self.memory, [each.uid for each in old])


# --- whatever happens ---------------------------------------------------------------------------------

CONDITIONS = st.sampled_from([PUBLISHED, DRAINING, FAILED, NIL])
ENDPOINTS = st.dictionaries(st.integers(0, 3), CONDITIONS, max_size=4)
MOMENTS = st.lists(
    st.tuples(ENDPOINTS, st.integers(0, 2), ENDPOINTS, st.booleans(), st.floats(0, 40)), min_size=1, max_size=25
)


def _made(content: Mapping[int, Conditions]) -> list[Endpoint]:
    return [build.endpoint(build.address(number), conditions=each) for number, each in content.items()]


def _ready(endpoints: Iterable[Endpoint]) -> set[str]:
    return {endpoint.address for endpoint in endpoints if endpoint.conditions.ready is not False}


@given(MOMENTS)
def test_a_consumer_never_has_fewer_ready_endpoints_for_a_deletion(moments: list[tuple[Any, ...]]) -> None:
    """Ready endpoints of a deleted slice have been ready in ours, wanted and published, for 5 s.

    Each step: the endpoints and version of their slices, our wanted endpoints, whether the hub restarts, and the
    seconds to the next step.
    """
    memory, now = NEW, 1000.0
    published = build.slice()
    covered_since: float | None = None
    gone: set[str] = set()
    last_version: str | None = None
    for content, version, ours, restart, step in moments:
        memory = NEW if restart else memory
        last_version = None if restart else last_version
        old = theirs("t", *_made(content), version=str(version))
        group = wanted(*_made(ours), published=(published,))
        found = adopt(OLD, (old,), (published,), (group,), memory, now)
        memory = found.memory
        (alike,) = found.groups
        for address in alike.endpoints.keys() & {endpoint.address for endpoint in old.endpoints}:
            assert (address in _ready(alike.endpoints.values())) == (address in _ready(old.endpoints))
        whole = _ready(old.endpoints) <= _ready(group.endpoints.values()) & _ready(published.endpoints)
        quiet = last_version in (None, str(version))
        covered_since = (covered_since if covered_since is not None else now) if whole and quiet else None
        if restart and whole:
            covered_since = now
        if found.deletes:
            assert found.deletes == (old,)
            assert covered_since is not None
            assert now - covered_since >= SETTLE - 0.001
            gone.add(old.uid)
            memory = with_deleted(memory, gone)
            assert adopt(OLD, (old,), (published,), (group,), memory, now + 100).deletes == ()
            return
        published = build.slice(endpoints=alike.endpoints)
        last_version = str(version)
        now += step
