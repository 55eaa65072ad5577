"""The history of a Service: one entry for each thing that happens, with its reason, and none for anything else."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hub.decide import history
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.history import LISTED, NOTHING, PER_SERVICE, Entry, Named, merged, newest, of_writes
from hub.decide.snapshot import HubIdentity, TargetSnapshot
from hub.decide.view import ViewResult
from hub.model import ANNOTATION_PAUSED, LABEL_MANAGED_BY, LABEL_SERVICE_NAME, TargetKey
from hub.registry.spec import (
    ClusterSpec,
    FailoverPolicy,
    GuardPolicy,
    HealthPolicy,
    NodePolicy,
    RegistryHeld,
    UnreachablePolicy,
    service_entry,
)
from tests.support import build
from tests.support.play import KEY, LAX, Play, nodes, said


@pytest.fixture
def play() -> Play:
    """Four nodes of eu are published."""
    made = Play()
    made.nodes(*nodes(1, 2, 3, 4))
    made.run()
    return made


# --- endpoints -----------------------------------------------------------------------------------


def test_publication_is_one_entry_with_all_addresses() -> None:
    """The first publication is one entry; it has the time, the addresses, their nodes, the cluster and the provider."""
    play = Play()
    play.nodes(*nodes(1, 2))
    (entry,) = play.run()
    why = "offered by its source (provider node-addresses)"
    assert said([entry]) == [("added", "eu", ["10.0.0.1 n1", "10.0.0.2 n2"], why)]
    assert (entry.at, entry.count, entry.family) == (1800000001, 2, "IPv4")


def test_a_pass_without_a_change_makes_no_entry(play: Play) -> None:
    """A pass that writes nothing adds nothing."""
    assert play.run() == []


def test_node_that_is_gone_is_the_reason(play: Play) -> None:
    """A removed endpoint whose node is gone from the complete list."""
    play.nodes(*nodes(1, 2, 4))
    assert said(play.run()) == [("removed", "eu", ["10.0.0.3 n3"], "its node is gone (provider node-addresses)")]


def test_filtered_nodes_are_grouped_by_their_reason(play: Play) -> None:
    """A node that is excluded gives the rule that excludes it; nodes with one reason share an entry."""
    first, *others = nodes(1, 2, 3, 4)
    tainted = [
        build.node(node.name, node.addresses[0].address, taints=["karpenter.sh/disrupted"]) for node in others[:2]
    ]
    moved = build.node("n4", "10.0.0.9")
    play.nodes(first, *tainted, moved)
    assert said(play.run()) == [
        ("removed", "eu", ["10.0.0.2 n2", "10.0.0.3 n3"], "tainted karpenter.sh/disrupted (provider node-addresses)"),
        (
            "removed",
            "eu",
            ["10.0.0.4 n4"],
            "its node has another address: 10.0.0.9 (provider node-addresses)",
        ),
        ("added", "eu", ["10.0.0.9 n4"], "offered by its source (provider node-addresses)"),
    ]


def test_address_that_changes_its_slice_is_neither_added_nor_removed() -> None:
    """Packing endpoints into other slices, and a write that fails halfway, are no events."""
    play = Play()
    play.nodes(*nodes(1, 2))
    play.run()
    (slice_,) = play.slices
    first, second = slice_.endpoints
    observed = (replace(slice_, endpoints=(first,)), replace(slice_, name="other-1", endpoints=(second,)))
    decision = Decision(KEY, observed=observed)
    snapshot = TargetSnapshot(HubIdentity("hub/one"), KEY, 0.0, 0.0, play.registry)
    assert of_writes(decision, snapshot, [("update", slice_), ("delete", observed[1])]) == ()
    assert of_writes(decision, snapshot, [("update", slice_)]) == ()


def test_cordoned_node_drains_and_comes_back(play: Play) -> None:
    """An endpoint that begins to terminate, and one that no longer does, are entries."""
    policy = NodePolicy(cordoned="not-ready")
    play.nodes(*nodes(1, 2, 3), build.node("n4", "10.0.0.4", unschedulable=True), policy=policy)
    assert [(entry.kind, entry.endpoints) for entry in play.run()] == [("draining", (Named("10.0.0.4", "n4"),))]
    play.nodes(*nodes(1, 2, 3, 4), policy=policy)
    assert [(entry.kind, entry.endpoints) for entry in play.run()] == [("restored", (Named("10.0.0.4", "n4"),))]


@pytest.mark.parametrize(("policy", "kind"), [("remove", "removed"), ("not-ready", "draining")])
def test_unreachable_policy_is_the_reason(policy: Literal["remove", "not-ready"], kind: str) -> None:
    """Endpoints that the policy removes or drains name the policy and the error."""
    source = build.source("eu", unreachable=UnreachablePolicy(after=600.0, policy=policy))
    play = Play(build.target(sources=(source,)))
    play.nodes(*nodes(1))
    play.run()
    play.unknown("connection refused")
    play.unreachable = 700.0
    why = "unreachable.policy: eu is unknown (connection refused)"
    assert said(play.run()) == [(kind, "eu", ["10.0.0.1 n1"], why)]


def test_dropped_service_and_source_name_the_registry(play: Play) -> None:
    """A source and a Service that the registry no longer has are the reason."""
    other = build.target(sources=(build.source("us"),))
    play.registry = replace(
        play.registry, targets={KEY: other}, clusters={**play.registry.clusters, "us": ClusterSpec("us", None)}
    )
    play.views["us"] = ViewResult(build.view("us"), {})
    assert play.run() == []
    why = "eu is no longer a source of the Service"
    assert [entry[::3] for entry in said(play.run(after=61.0))] == [("removed", why)]
    play = Play()
    play.nodes(*nodes(1))
    play.run()
    play.drop()
    play.run()
    (entry,) = play.run(after=61.0)
    assert said([entry]) == [("removed", "eu", ["10.0.0.1 n1"], "the Service is no longer in the registry")]


def test_failover_says_from_where_to_where() -> None:
    """A failover is one entry; the endpoints of the other source leave for that reason, and no node is gone."""
    sources = (build.source("eu"), build.source("us"))
    play = Play(build.target(sources=sources, strategy="failover", failover=FailoverPolicy(after=0.0)))
    play.nodes(*nodes(1))
    play.nodes(*nodes(2), cluster="us")
    play.run()
    play.nodes(build.node("n1", "10.0.0.1", unschedulable=True), policy=NodePolicy(cordoned="not-ready"))
    found = play.run()
    found += play.run()
    found += play.run(after=10.0)
    assert ("failed over", "us", [], "failed over from eu to us") in said(found)
    assert said(found)[-1] == ("removed", "eu", ["10.0.0.1 n1"], "failed over to us")


def test_moved_address_is_not_removed() -> None:
    """An address that another source publishes now has moved."""
    play = Play(build.target(sources=(build.source("eu", guard=LAX), build.source("us", guard=LAX))))
    play.nodes(*nodes(1, 2))
    play.nodes(*nodes(3), cluster="us")
    play.run()
    play.nodes(*nodes(1))
    play.nodes(*nodes(3), build.node("m2", "10.0.0.2"), cluster="us")
    found = play.run()
    for _ in range(3):
        found += play.run(after=6.0)
    assert [(entry.kind, entry.cluster, entry.why) for entry in found] == [
        ("added", "us", "moves here from eu"),
        ("moved", "eu", "us publishes it now"),
    ]


def test_failing_health_check_is_the_reason() -> None:
    """With onFail remove, the check is the reason; all failing at once is a panic, which ends when one passes."""
    policy = HealthPolicy(mode="tcp", on_fail="remove")
    play = Play(build.target(sources=(build.source("eu", health=policy, guard=LAX),)))
    play.nodes(*nodes(1, 2))
    play.run()
    check = play.decision.watches[0].check
    play.verdicts = {check: {"10.0.0.1": True, "10.0.0.2": True}}
    play.run()
    play.verdicts = {check: {"10.0.0.1": True, "10.0.0.2": False}}
    assert said(play.run()) == [("removed", "eu", ["10.0.0.2 n2"], "its health check fails")]
    play.verdicts = {check: {"10.0.0.1": False, "10.0.0.2": False}}
    assert [entry.kind for entry in play.run()][:1] == ["panic"]
    assert "panic" not in [entry.kind for entry in play.run()]
    play.verdicts = {check: {"10.0.0.1": True, "10.0.0.2": True}}
    assert [entry.kind for entry in play.run()][:1] == ["panic over"]


def test_adopted_slices_name_their_controller() -> None:
    """A slice of another controller that is replaced is an entry; its addresses are added, and none is removed."""
    play = Play(build.target(sources=(build.source("eu", guard=LAX),), adopt="old-controller"))
    play.nodes(*nodes(1, 2))
    theirs = build.slice("old-x", build.endpoints(2, 1))
    labels = {LABEL_SERVICE_NAME: KEY.name, LABEL_MANAGED_BY: "old-controller"}
    play.theirs = (replace(theirs, labels=labels),)
    found = play.run()
    for _ in range(4):
        found += play.run(after=30.0)
    assert [entry.kind for entry in found] == ["added", "adopted"]
    assert found[-1].why == "slice old-x of old-controller is replaced"


numbers = st.frozensets(st.integers(1, 6))


@given(st.lists(st.tuples(numbers, numbers, st.sampled_from([1.0, 6.0, 400.0]), st.booleans()), max_size=12))
def test_history_replayed_gives_what_is_published(
    steps: list[tuple[frozenset[int], frozenset[int], float, bool]],
) -> None:
    """Whatever two sources offer, share, lose and fail to answer: the entries add up to the published endpoints."""
    play = Play(build.target(sources=(build.source("eu"), build.source("us")), endpoints_per_slice=2))
    play.nodes(cluster="eu")
    found: set[tuple[str, str]] = set()
    for eu, us, after, known in steps:
        play.nodes(*nodes(*eu))
        play.nodes(*[build.node(f"m{number}", f"10.0.0.{number}") for number in us], cluster="us")
        if not known:
            play.unknown("connection refused", "us")
        for entry in play.run(after):
            places = {(entry.cluster, named.address) for named in entry.endpoints}
            if entry.kind == "added":
                assert not places & found
                found |= places
            elif entry.kind in ("removed", "moved"):
                assert places <= found
                found -= places
        assert found == {(slice_.cluster, endpoint.address) for slice_ in play.slices for endpoint in slice_.endpoints}


# --- the guard -----------------------------------------------------------------------------------


def withholding() -> Play:
    """The removal of three of four endpoints is withheld."""
    play = Play(build.target(sources=(build.source("eu"),)))
    play.nodes(*nodes(1, 2, 3, 4))
    play.run()
    play.nodes(*nodes(1))
    (entry,) = play.run()
    assert (entry.kind, entry.count, len(entry.hash)) == ("withheld", 3, 12)
    assert entry.why.startswith("RemovalWithheld: eu (IPv4): 3 of 4 endpoints would go")
    assert entry.endpoints == (Named("10.0.0.2", "n2"), Named("10.0.0.3", "n3"), Named("10.0.0.4", "n4"))
    assert play.run() == []
    return play


def test_withheld_removal_that_is_approved_names_the_operator() -> None:
    """The entry about the approval has its hash and who gave it; the removal follows."""
    play = withholding()
    name = play.entries[-1].hash
    play.approvers = {name: "ada@laptop", "0123456789ab": "another"}
    approved, removed = play.run()
    assert (approved.kind, approved.why, approved.hash, approved.count) == ("approved", "by ada@laptop", name, 3)
    assert (removed.kind, removed.count) == ("removed", 3)
    assert history.lasting_states(play.entries) is NOTHING


def test_withheld_removal_that_stood_is_released() -> None:
    """The release gives its reason, and the removal follows."""
    play = withholding()
    released, removed = play.run(after=301.0)
    assert (released.kind, released.count, removed.kind) == ("released", 3, "removed")
    assert released.why == "eu (IPv4): 3 endpoints may go: the same answer has stood for 300 s"


def test_withheld_endpoints_that_come_back_end_it() -> None:
    """Endpoints that are offered again end the withholding, and nothing was removed."""
    play = withholding()
    play.nodes(*nodes(1, 2, 3, 4))
    assert [(entry.kind, entry.why) for entry in play.run()] == [("returned", "its source offers the endpoints again")]


def test_withheld_removal_that_is_allowed_by_additions_is_released() -> None:
    """If so many endpoints arrive that the guard allows the removal, that is a release without an approval."""
    play = withholding()
    play.nodes(*nodes(1, 11, 12, 13))
    assert sorted((entry.kind, entry.count) for entry in play.run()) == [("added", 3), ("released", 3), ("removed", 3)]


def test_unknown_source_does_not_end_a_withholding() -> None:
    """While the source is unknown, the removal neither ends nor begins anew."""
    play = withholding()
    play.unknown("connection refused")
    assert play.run() == []
    play.nodes(*nodes(1))
    assert play.run() == []


def test_empty_answers_are_withheld_and_then_accepted() -> None:
    """An empty answer is withheld, and the third one is accepted: by then, all four endpoints go."""
    play = Play(build.target(sources=(build.source("eu", guard=GuardPolicy(max_removal=None)),)))
    play.nodes(*nodes(1, 2, 3, 4))
    play.run()
    play.nodes()
    found = [entry for _ in range(3) for entry in play.run()]
    assert [entry.kind for entry in found] == ["withheld", "released", "removed"]
    assert found[0].why.startswith("EmptyResultHeld: ")
    assert found[1].why == "eu (IPv4): empty, confirmed by 3 answers"


def test_registry_removal_is_withheld_until_somebody_approves_it(play: Play) -> None:
    """A mass removal from the registry makes one entry when it is withheld and one, with the name, when approved."""
    play.drop()
    play.held = {
        service_entry(KEY): RegistryHeld(
            "abcdefabcdef", (service_entry(KEY),), 4, 4, "hub approve registry abcdefabcdef"
        )
    }
    (withheld,) = play.run()
    assert (withheld.kind, withheld.hash, withheld.cluster) == ("withheld", "abcdefabcdef", "")
    assert play.run() == []
    play.held, play.approvers = {}, {"abcdefabcdef": "ada@laptop"}
    found = play.run(after=1.0) + play.run(after=61.0)
    assert [(entry.kind, entry.why) for entry in found] == [
        ("approved", "by ada@laptop"),
        ("removed", "the Service is no longer in the registry"),
    ]


def test_pause_and_resume_are_entries(play: Play) -> None:
    """A pause is one entry, however long it lasts."""
    play.service = build.service(annotations={ANNOTATION_PAUSED: "true"})
    assert [entry.kind for entry in (*play.run(), *play.run())] == ["paused"]
    play.service = build.service()
    assert [entry.kind for entry in (*play.run(), *play.run())] == ["resumed"]


# --- limits and merging ----------------------------------------------------------------------------


def test_entry_names_some_endpoints_and_counts_all() -> None:
    """An entry names LISTED endpoints at most; the number is that of all."""
    play = Play()
    play.nodes(*nodes(*range(1, 81)))
    (entry,) = play.run()
    assert (len(entry.endpoints), entry.count) == (LISTED, 80)


def test_a_restart_continues_the_history_of_the_last_process() -> None:
    """A process that knows the stored entries does not report what already stands; nor does the merge of both."""
    play = withholding()
    stored = tuple(play.entries)
    again = replace(stored[-1], at=stored[-1].at + 30)
    assert merged({KEY: stored}, {KEY: (again,)}) == {KEY: stored}
    other = replace(again, hash="0" * 12)
    assert merged({KEY: stored}, {KEY: (other,)}) == {KEY: (*stored, other)}


def rings(times: st.SearchStrategy[int]) -> st.SearchStrategy[dict[TargetKey, tuple[Entry, ...]]]:
    """Histories of two Services with entries of these times, at most one entry in a second."""
    entries = st.builds(
        Entry,
        at=times,
        kind=st.sampled_from(["added", "removed", "withheld", "released", "paused", "resumed"]),
        why=st.sampled_from(["a", "b"]),
        cluster=st.sampled_from(["", "eu"]),
        hash=st.sampled_from(["", "x"]),
    )
    unique = st.lists(entries, max_size=30, unique_by=lambda entry: entry.at)
    ring = unique.map(lambda found: tuple(sorted(found, key=lambda entry: entry.at)))
    return st.fixed_dictionaries({KEY: ring, TargetKey("edge", "orders"): ring})


later = st.integers(5, 50)


@given(rings(st.integers(0, 9)), rings(later.map(lambda at: 2 * at)), rings(later.map(lambda at: 2 * at + 1)))
def test_merging_loses_nothing_and_is_repeatable(
    shared: history.Entries, one: history.Entries, other: history.Entries
) -> None:
    """Two histories with a common beginning: a merge has every event once, in order; merging again changes nothing."""
    common = merged(shared, {})
    one, other = (merged(common, more) for more in (one, other))
    found = merged(one, other)
    for key, ring in found.items():
        assert [entry.at for entry in ring] == sorted(entry.at for entry in ring)
        events = {entry for entry in (*one[key], *other[key]) if entry.kind in ("added", "removed")}
        assert events <= {*ring} or len(ring) == PER_SERVICE
    assert merged(found, other) == merged(found, one) == merged(other, one) == found


@given(rings(st.integers(0, 50)), st.integers(1, 40))
def test_newest_entries_stay(found: history.Entries, most: int) -> None:
    """At most so many entries stay, none of them older than one that goes; each Service keeps its order."""
    kept = newest(found, most)
    left = [entry for key, ring in found.items() for entry in ring[: len(ring) - len(kept.get(key, ()))]]
    stayed = [entry for ring in kept.values() for entry in ring]
    assert len(stayed) == min(most, sum(map(len, found.values())))
    assert all(found[key][len(found[key]) - len(ring) :] == ring for key, ring in kept.items())
    assert max((entry.at for entry in left), default=0) <= min((entry.at for entry in stayed), default=0)


def test_a_hundred_entries_of_a_service_stay() -> None:
    """The oldest entries of a Service make room."""
    many = tuple(Entry(at, "added", "x") for at in range(PER_SERVICE))
    more = tuple(Entry(at, "removed", "x") for at in range(PER_SERVICE, PER_SERVICE + 20))
    assert merged({KEY: many}, {KEY: more})[KEY] == (*many[20:], *more)


def test_groups_are_told_apart() -> None:
    """A release of one source leaves the withheld removal of another one standing."""
    ring = [
        Entry(1, "withheld", "x", "eu", "IPv4", hash="a"),
        Entry(2, "withheld", "x", "us", "IPv4", hash="b"),
        Entry(3, "released", "x", "eu", "IPv4"),
    ]
    assert history.lasting_states(ring).withheld == {GroupKey("us", "IPv4"): "b"}
