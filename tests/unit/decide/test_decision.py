"""One whole decision about a target, and the reasons that it gives."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hub.decide.decision import Decision, Reason, TargetState, decide, is_ours
from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.guard import GuardMemory, Withheld
from hub.decide.plan import Plan
from hub.decide.snapshot import HubIdentity, SourceReading, TargetSnapshot
from hub.decide.view import ViewResult
from hub.model import ANNOTATION_PAUSED, LABEL_MANAGED_BY, LABEL_SERVICE_NAME, Finding, Slice, TargetKey
from hub.registry.spec import ClusterSpec, Registry, RegistryHeld, service_entry
from tests.support import build

KEY = TargetKey("edge", "payments")
HUB = HubIdentity("hub/one", removal_grace=60.0)
EU, US = GroupKey("eu", "IPv4"), GroupKey("us", "IPv4")
NOTE = Finding("Note", "a note", ("edge/payments",))
PAUSED = build.service(annotations={ANNOTATION_PAUSED: "true"})


def snapshot_of(*observed: Slice, target: bool = True, registry: dict[str, Any] | None = None, **more: Any) -> Any:
    """A snapshot of the target at time 100, with one source that offers 10.0.0.1."""
    spec = build.target("eu")
    clusters = {"eu": ClusterSpec("eu", None, allowed_ports=((1, 65535),))}
    targets = {KEY: spec} if target else {}
    more.setdefault("service", build.service())
    if target:
        more.setdefault("sources", (SourceReading(spec.sources[0], ViewResult(build.view("eu", ONE), {}), 1),))
    return TargetSnapshot(
        HUB, KEY, 100.0, 1.8e9, Registry("default", clusters, targets, **registry or {}), observed=observed, **more
    )


ONE = (build.endpoint("10.0.0.1", "n1"),)
SLICE = build.slice("payments-b", ONE)
OTHER = build.slice("payments-a", (build.endpoint("10.0.0.2", "n2"),))
FOREIGN = build.slice("payments-c", ONE, lease="hub/two")


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (
            snapshot_of(SLICE, service=PAUSED),
            Decision(KEY, status="paused", observed=(SLICE,), held=True),
        ),
        (
            snapshot_of(SLICE, target=False, service=PAUSED, registry={"broken_targets": {KEY: "no sources"}}),
            Decision(KEY, status="frozen: no sources", observed=(SLICE,), held=True),
        ),
        (
            snapshot_of(SLICE, service=None),
            Decision(
                KEY,
                status="the Service does not exist",
                observed=(SLICE,),
                findings=(Finding("ServiceMissing", "the Service does not exist"),),
            ),
        ),
        (
            snapshot_of(service=None, namespace_watched=False),
            Decision(
                KEY,
                status="namespace not watched; add --target-namespace",
                findings=(Finding("ServiceMissing", "namespace not watched; add --target-namespace"),),
            ),
        ),
        (snapshot_of(target=False), Decision(KEY, status="gone")),
        (snapshot_of(FOREIGN, target=False), Decision(KEY, status="gone")),
        (snapshot_of(SLICE, target=False, registry={"frozen_names": frozenset({"eu"})}), Decision(KEY, status="gone")),
        (
            snapshot_of(target=False, registry={"notes": {KEY: NOTE}}),
            Decision(KEY, status="a note", findings=(NOTE,)),
        ),
        (
            snapshot_of(SLICE, service=PAUSED, registry={"notes": {KEY: NOTE}}),
            Decision(KEY, status="paused", observed=(SLICE,), held=True, findings=(NOTE,)),
        ),
        (
            snapshot_of(SLICE, OTHER, FOREIGN, target=False),
            Decision(KEY, status="not in the registry: 2 slices go in 60 s", observed=(SLICE, OTHER), again_after=60.0),
        ),
    ],
    ids=[
        "paused",
        "broken",
        "missing",
        "unwatched",
        "gone",
        "another hub's",
        "frozen",
        "note",
        "paused note",
        "orphan",
    ],
)
def test_target_that_is_not_published_normally(snapshot: TargetSnapshot, expected: Decision) -> None:
    """A target that is paused, broken, without its Service or without an entry has this whole decision."""
    assert decide(snapshot, TargetState())[0] == expected


def test_slices_without_an_entry_are_deleted_after_the_grace() -> None:
    """The removal grace begins with the first decision without an entry, and ends with the deletion of our slices."""
    first = snapshot_of(SLICE, OTHER, FOREIGN, target=False)
    _, state = decide(first, TargetState())
    early, state = decide(replace(first, now=159.0), state)
    due, state = decide(replace(first, now=160.0), state)
    assert (early.status, early.again_after) == ("not in the registry: 2 slices go in 1 s", 1.0)
    assert due == Decision(KEY, Plan(deletes=(OTHER, SLICE)), "removing", observed=(SLICE, OTHER))
    assert state.orphan_since == 100.0


@pytest.mark.parametrize(
    ("entry", "begun"),
    [({}, None), ({"target": False, "registry": {"broken_targets": {KEY: "x"}}}, None), ({"target": False}, 1.0)],
    ids=["valid", "broken", "none"],
)
def test_an_entry_ends_the_removal_grace(entry: dict[str, Any], begun: float | None) -> None:
    """The removal grace starts over once the target has an entry again, even a broken one."""
    assert decide(snapshot_of(SLICE, **entry), TargetState(orphan_since=1.0))[1].orphan_since == begun


def test_withheld_removal_of_an_entry_keeps_the_slices() -> None:
    """Slices whose entry is part of a withheld mass removal stay, however long ago the grace ended."""
    held = RegistryHeld("abc", (service_entry(KEY),), 2, 2, "hub approve abc")
    snapshot = snapshot_of(SLICE, target=False, held={service_entry(KEY): held})
    decision, state = decide(snapshot, TargetState(orphan_since=-1000.0))
    assert decision == Decision(KEY, status=held.message, observed=(SLICE,), findings=(held.finding,))
    assert state.orphan_since == -1000.0


def test_holding_times_stop_while_nothing_is_decided() -> None:
    """While the target is paused, the guard's memories are paused too; the rest of the state stays."""
    _, state = decide(snapshot_of(SLICE, OTHER), TargetState())
    assert state.guards.keys() == {EU}
    _, paused = decide(snapshot_of(SLICE, OTHER, service=PAUSED), state)
    assert replace(paused, guards=state.guards) == state
    assert isinstance(paused.guards[EU], GuardMemory)


def test_slices_of_another_hub_are_reported_and_not_changed() -> None:
    """Slices of another Lease with our owner are neither observed nor written; the finding names them."""
    other = replace(FOREIGN, name="payments-d")
    decision, _ = decide(snapshot_of(other, SLICE, FOREIGN), TargetState())
    message = (
        "2 slices with our owner belong to the hub with Lease hub/two and are not changed; "
        "after stopping that hub: hub run --take-over edge/payments"
    )
    assert decision.findings == (Finding("OwnerConflict", message, ("payments-c", "payments-d")),)
    assert decision.observed == (SLICE,)
    assert decision.plan is not None
    assert not {slice_.name for slice_ in decision.plan.deletes} & {"payments-c", "payments-d"}


@pytest.mark.parametrize(
    ("slice_", "hub", "ours"),
    [
        (SLICE, HUB, True),
        (FOREIGN, HUB, False),
        (replace(SLICE, annotations={}), HUB, True),
        (build.slice(lease="hub/two", owner="former"), HUB, True),
        (FOREIGN, replace(HUB, take_over=frozenset({KEY})), True),
        (FOREIGN, replace(HUB, take_over=frozenset({TargetKey("edge", "other")})), False),
    ],
)
def test_slices_are_ours_by_lease_owner_or_take_over(slice_: Slice, hub: HubIdentity, ours: bool) -> None:
    """A slice is ours with our Lease or none, with another owner, or if its target is taken over."""
    assert is_ours(slice_, "default", hub) is ours


def test_adoption_waits_until_the_other_slices_are_listed() -> None:
    """Before the slices of the other controller are listed nothing is adopted, and the memory of the adoption stays."""
    snapshot = snapshot_of(SLICE)
    spec = replace(build.target("eu"), adopt="old-controller")
    snapshot = replace(snapshot, registry=replace(snapshot.registry, targets={KEY: spec}))
    labels = {LABEL_SERVICE_NAME: "payments", LABEL_MANAGED_BY: "old-controller"}
    old = Slice("edge", "old", "IPv4", ONE, (build.PORT,), labels=labels, uid="uid-old", resource_version="1")
    _, state = decide(replace(snapshot, theirs=(old,)), TargetState())
    unlisted, after = decide(replace(snapshot, theirs=None), state)
    due, _ = decide(replace(snapshot, theirs=(old,), now=105.0), after)
    assert state.adoption is not None
    assert (unlisted.plan is not None and unlisted.plan.deletes, after.adoption) == ((), state.adoption)
    assert due.plan is not None
    assert due.plan.deletes == (old,)
    assert due.observed == (SLICE, old)
    assert decide(replace(snapshot_of(SLICE), theirs=(old,)), state)[1].adoption is None


@pytest.mark.parametrize(("times", "after"), [((7.0, 5.0), 5.0), ((5.0, 7.0), 5.0), ((-3.0,), 0.0), ((), None)])
def test_the_next_decision_comes_with_the_first_timer(times: tuple[float, ...], after: float | None) -> None:
    """The next decision starts a moment after the first timer: of the sources, or of a refused write."""
    snapshot = snapshot_of(SLICE)
    reading = snapshot.sources[0]
    wake_at = snapshot.wall + times[0] if times else None
    sources = (replace(reading, result=ViewResult(reading.result.view, {}, wake_at=wake_at)),)
    writes = replace(snapshot.writes, retry_in=times[1] if len(times) > 1 else None)
    decision, _ = decide(replace(snapshot, sources=sources, writes=writes), TargetState())
    assert decision.again_after == (None if after is None else pytest.approx(after, abs=0.01))


WANTED = EndpointGroup(EU, build.by_address(ONE))
ELSEWHERE = EndpointGroup(US, build.by_address([build.endpoint("10.0.0.9")]))
FOUND = (Finding("A", "about us", ("us",)), Finding("B", "about eu", ("eu",)), Finding("C", "later", ("eu",)))
OTHERWISE = "not of a family of the Service, not the active source, or another source has it"


@pytest.mark.parametrize(
    ("decision", "address", "kept_only", "expected"),
    [
        ({"status": "paused"}, "10.0.0.1", False, ("not published", "paused")),
        (
            {"groups": [ELSEWHERE, WANTED]},
            "10.0.0.1",
            True,
            ("arriving", "10.0.0.1 of eu: published with the next write"),
        ),
        ({"groups": [WANTED, ELSEWHERE]}, "10.0.0.9", False, ("not published", f"10.0.0.9 of eu: {OTHERWISE}")),
        ({"groups": [ELSEWHERE]}, "10.0.0.1", False, ("not published", f"10.0.0.1 of eu: {OTHERWISE}")),
        ({"findings": FOUND}, "10.0.0.1", False, ("not published", "10.0.0.1 of eu: about eu")),
        ({"findings": FOUND[:1]}, "10.0.0.1", False, ("not published", f"10.0.0.1 of eu: {OTHERWISE}")),
        (
            {"findings": FOUND},
            "10.0.0.1",
            True,
            (
                "not published",
                "10.0.0.1 of eu: its node is not Ready: its address is kept if it is published, but not added",
            ),
        ),
    ],
)
def test_why_an_offered_address_is_not_published(
    decision: dict[str, Any], address: str, kept_only: bool, expected: tuple[str, str]
) -> None:
    """The reason is the target's status, the next write, the node, the first finding about the cluster, or a rule."""
    found = build.decision(**decision).why_not_published(EU, address, kept_only=kept_only)
    assert found == Reason("service", *expected)


LEAVING = {endpoint.address: endpoint for endpoint in (build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2"))}
HELD = Withheld("RemovalWithheld", "abc", ("10.0.0.1",), 0.0, "1 of 2 leaves", "hub approve abc")


@pytest.mark.parametrize(
    ("decision", "address", "expected"),
    [
        ({}, "10.0.0.1", ()),
        ({"status": "paused"}, "10.0.0.1", (Reason("service", "kept", "paused"),)),
        ({"unknown": {"eu": "timeout"}}, "10.0.0.1", (Reason("service", "kept", "eu is unknown: timeout"),)),
        ({"unknown": {"us": "timeout"}}, "10.0.0.1", ()),
        (
            {"groups": [ELSEWHERE, replace(WANTED, removed=LEAVING, filtered=frozenset({"10.0.0.1"}))]},
            "10.0.0.1",
            (Reason("service", "leaving", "its node exists, but does not offer it; goes with the next write"),),
        ),
        (
            {"groups": [ELSEWHERE, replace(WANTED, removed=LEAVING, filtered=frozenset({"10.0.0.1"}))]},
            "10.0.0.2",
            (Reason("service", "leaving", "its node is gone; goes with the next write"),),
        ),
        ({"groups": [replace(WANTED, removed=LEAVING)]}, "10.0.0.3", ()),
        ({"groups": [replace(ELSEWHERE, removed=LEAVING)]}, "10.0.0.1", ()),
        (
            {"withheld": {EU: HELD}, "status": "paused"},
            "10.0.0.1",
            (
                Reason("guard", "withheld", "RemovalWithheld: 1 of 2 leaves"),
                Reason("guard", "approve with", "hub approve abc"),
            ),
        ),
        ({"withheld": {EU: HELD}}, "10.0.0.2", ()),
        ({"withheld": {US: HELD}}, "10.0.0.1", ()),
    ],
)
def test_why_an_unwanted_address_is_still_published(
    decision: dict[str, Any], address: str, expected: tuple[Reason, ...]
) -> None:
    """The guard comes first, then the target's status, an unknown source, and the coming removal."""
    assert build.decision(**decision).why_still_published(EU, address) == expected


@pytest.mark.parametrize(
    ("group", "waits"),
    [
        ({}, False),
        ({"exempt": frozenset({"10.0.0.1"})}, True),
        ({"port_sets": {"10.0.0.1": (build.PORT,)}}, True),
        ({"drop": True}, True),
        ({"drop": True, "endpoints": {}}, False),
    ],
)
def test_which_groups_are_decided_again_after_own_writes(group: dict[str, Any], waits: bool) -> None:
    """Moves, own ports of endpoints, and a dropped group that still has endpoints are decided again after writes."""
    assert build.decision([ELSEWHERE, replace(WANTED, **group)]).waits_for_own_writes is waits


def test_a_decision_without_wanted_endpoints_waits_for_no_write() -> None:
    """A decision about a target that is not published has no groups, no probes and waits for no write."""
    decision = Decision(KEY, status="paused")
    assert (decision.groups, decision.watches, decision.waits_for_own_writes) == ((), (), False)
