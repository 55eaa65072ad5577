"""The guard over all groups of a target: policies, answers, and when to decide again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.guard import GuardMemory, digest
from hub.decide.guarding import ASK_AGAIN, Guarded, effective, guard_groups
from hub.decide.record import GuardRecord, decode, encode
from hub.decide.snapshot import HubIdentity, SourceReading, TargetSnapshot, not_followed
from hub.model import ANNOTATION_STATE, GuardDefaults
from hub.registry.spec import GuardPolicy, Registry
from tests.support import build

EU, US = GroupKey("eu", "IPv4"), GroupKey("us", "IPv4")
START, WALL = 1000.0, 1.8e9
HOLD = 300.0
LAX = GuardPolicy(max_removal=None)


class Stand:
    """A guard for one target with the sources eu and us; the test moves time and sets what is published."""

    def __init__(self, **policies: GuardPolicy) -> None:
        self.time = 0.0
        self.approvals: set[str] = set()
        self.flags = ""
        names = ("eu", "us")
        self.sources = {name: build.source(name, guard=policies.get(name, GuardPolicy())) for name in names}
        self.defaults = dict.fromkeys(names, GuardDefaults())
        self.answers = dict.fromkeys(names, 1)
        self.memories: Mapping[GroupKey, GuardMemory] = {}

    def check(self, *groups: EndpointGroup) -> Guarded:
        """Run one decision."""
        target = build.target(sources=tuple(self.sources.values()))
        snapshot = TargetSnapshot(
            HubIdentity("hub/one", flags=self.flags),
            target.key,
            START + self.time,
            WALL + self.time,
            Registry("default", {}, {target.key: target}),
            sources=tuple(
                SourceReading(source, not_followed(name), self.answers[name], self.defaults[name])
                for name, source in self.sources.items()
            ),
            approvals=self.approvals,
        )
        guarded = guard_groups(snapshot, groups, self.memories)
        self.memories = guarded.memories
        return guarded


def group(key: GroupKey, published: int, wanted: int, state: str = "") -> EndpointGroup:
    """A group that publishes ``published`` endpoints and wants only the first ``wanted`` of them."""
    annotations = {ANNOTATION_STATE: state} if state else {}
    pipeline = build.Pipeline(build.target(key.cluster))
    pipeline.slices = (build.slice("s-0", build.endpoints(published), cluster=key.cluster, annotations=annotations),)
    pipeline.plan(build.view(key.cluster, build.endpoints(wanted)))
    assert pipeline.desired is not None
    (made,) = pipeline.desired.groups
    return made


def kinds(guarded: Guarded) -> dict[str, str]:
    """Cluster -> kind of its withheld removal."""
    return {key.cluster: each.kind for key, each in guarded.withheld.items()}


def sizes(groups: Iterable[EndpointGroup]) -> list[int]:
    """Number of endpoints that may be published, per group."""
    return [len(group.endpoints) for group in groups]


def test_each_group_is_guarded_separately() -> None:
    """The endpoints of one source do not make up for the removal of another one's."""
    stand = Stand()
    guarded = stand.check(group(EU, 10, 10), group(US, 4, 1))
    assert (sizes(guarded.groups), kinds(guarded)) == ([10, 4], {"us": "RemovalWithheld"})
    assert [finding.reason for finding in guarded.findings] == ["RemovalWithheld"]
    assert guarded.wakes == (HOLD,)
    assert guarded.list_again == ()


def test_each_source_has_its_own_policy() -> None:
    """The stricter policy of one source does not apply to another."""
    guarded = Stand(eu=LAX).check(group(EU, 4, 1), group(US, 4, 1))
    assert (sizes(guarded.groups), kinds(guarded)) == ([1, 4], {"us": "RemovalWithheld"})


def test_group_of_a_former_source_passes_the_guard() -> None:
    """A group of a former source passes unchanged, and the groups after it are still judged."""
    dropped = group(GroupKey("gone", "IPv4"), 4, 0)
    guarded = Stand().check(dropped, group(US, 4, 1))
    assert guarded.groups[0] is dropped
    assert kinds(guarded) == {"us": "RemovalWithheld"}


def test_the_record_is_kept_on_the_slices_only_where_there_is_one() -> None:
    """A group with an empty record has no state."""
    guarded = Stand(us=LAX).check(group(EU, 4, 4), group(US, 4, 0))
    record = GuardRecord(empty=1, hash=guarded.withheld[US].hash, since=int(WALL))
    assert {key: decode(text) for key, text in guarded.states.items()} == {US: record}


def test_empty_count_continues_after_a_restart() -> None:
    """Two empty answers before a restart and one after it count as three."""
    state = encode(GuardRecord(empty=2))
    assert sizes(Stand(eu=LAX).check(group(EU, 4, 0, state)).groups) == [0]


def test_hold_time_continues_after_a_restart() -> None:
    """Time that the same answer stood before a restart counts."""
    stand = Stand()
    going = sorted(build.endpoints(4).keys() - build.endpoints(1).keys())
    state = encode(GuardRecord(hash=digest(build.target().key, EU, going), since=int(WALL - 200)))
    assert stand.check(group(EU, 4, 1, state)).wakes == (100.0,)
    stand.time = 100.0
    guarded = stand.check(group(EU, 4, 1, state))
    assert (sizes(guarded.groups), [finding.reason for finding in guarded.findings]) == ([1], ["PlanReleased"])


def test_record_of_a_later_version_is_never_overwritten() -> None:
    """No pass of this hub overwrites the record of a later version."""
    stand = Stand(eu=LAX)
    later = '{"v":9,"more":true}'
    states = []
    for answer in (1, 2, 2):
        stand.answers["eu"] = answer
        states.append(stand.check(group(EU, 4, 0, later)).states.get(EU))
    assert states == [later] * 3
    stand.answers["eu"] = 3
    assert sizes(stand.check(group(EU, 4, 0, later)).groups) == [0]


def test_the_process_remembers_more_than_the_slices() -> None:
    """A record counts before it is written to the slices."""
    stand = Stand(eu=LAX)
    for answer in (1, 2):
        stand.answers["eu"] = answer
        assert sizes(stand.check(group(EU, 4, 0)).groups) == [4]
    stand.answers["eu"] = 3
    assert sizes(stand.check(group(EU, 4, 0)).groups) == [0]


def test_only_a_new_answer_counts() -> None:
    """Passes without a new complete answer do not count as answers."""
    stand = Stand(eu=LAX)
    for _ in range(5):
        assert sizes(stand.check(group(EU, 4, 0)).groups) == [4]


def test_an_empty_answer_is_asked_for_again() -> None:
    """A watched source with an empty answer is listed again every ten seconds, and the target decides again."""
    guarded = Stand(eu=LAX).check(group(EU, 4, 0))
    assert (kinds(guarded), guarded.wakes, ASK_AGAIN) == ({"eu": "EmptyResultHeld"}, (10.0,), 10.0)
    assert Stand(eu=LAX).check(group(EU, 4, 0), group(US, 4, 4)).list_again == ("eu",)


def test_the_provider_types_default_holds() -> None:
    """A copied Service empties at once, as its provider type declares."""
    stand = Stand()
    stand.defaults["eu"] = GuardDefaults(empty_results=1, max_removal="off")
    assert sizes(stand.check(group(EU, 4, 0)).groups) == [0]


def test_removal_with_approved_hash_passes() -> None:
    """A removal passes if its hash is among the current approvals."""
    stand = Stand()
    withheld = stand.check(group(EU, 4, 1)).withheld[EU]
    stand.approvals = {withheld.hash}
    assert sizes(stand.check(group(EU, 4, 1)).groups) == [1]


def test_the_command_that_approves_is_whole() -> None:
    """The approve command has the hub's flags, if there are any, after the hash."""
    stand = Stand(eu=GuardPolicy(max_removal_hold=None))
    (plain,) = stand.check(group(EU, 4, 1)).withheld.values()
    stand.memories, stand.flags = {}, " --namespace edge"
    (flagged,) = stand.check(group(EU, 4, 1)).withheld.values()
    assert plain.message.endswith(f"hub approve edge/payments {plain.hash}")
    assert flagged.message == f"{plain.message} --namespace edge"


def test_a_group_that_is_gone_is_forgotten() -> None:
    """The memory of a group that disappeared is dropped; a later one starts from its slices."""
    stand = Stand()
    stand.check(group(EU, 4, 4), group(US, 4, 4))
    assert set(stand.memories) == {EU, US}
    stand.check(group(US, 4, 4))
    assert set(stand.memories) == {US}


@pytest.mark.parametrize(
    ("written", "defaults", "expected"),
    [
        ((), GuardDefaults(), (3, 0.5)),
        ((), GuardDefaults(empty_results=1), (1, 0.5)),
        ((), GuardDefaults(empty_results=0), (0, 0.5)),
        ((), GuardDefaults(max_removal="off"), (3, None)),
        ((), GuardDefaults(max_removal=0.2), (3, 0.2)),
        ((), GuardDefaults(empty_results=1, max_removal="off"), (1, None)),
        (("empty_results",), GuardDefaults(empty_results=1, max_removal="off"), (3, None)),
        (("max_removal",), GuardDefaults(empty_results=1, max_removal="off"), (1, 0.5)),
        (("empty_results", "max_removal"), GuardDefaults(empty_results=1, max_removal="off"), (3, 0.5)),
    ],
)
def test_guard_keys_come_from_registry_then_type_then_hub(
    written: Iterable[str], defaults: GuardDefaults, expected: tuple[int, float | None]
) -> None:
    """Each key comes from the registry, else from the provider type, else from the hub."""
    policy = effective(GuardPolicy(max_removal_hold=7.0), frozenset(written), defaults)
    assert (policy.empty_results, policy.max_removal) == expected
    assert policy.max_removal_hold == 7.0


def test_registry_value_precedes_type_default() -> None:
    """The guard uses the registry's value before the provider type's default."""
    stand = Stand()
    stand.sources = {"eu": build.source("eu", guard_set=frozenset({"empty_results", "max_removal"}))}
    stand.defaults["eu"] = GuardDefaults(empty_results=1, max_removal="off")
    assert sizes(stand.check(group(EU, 4, 0)).groups) == [4]
