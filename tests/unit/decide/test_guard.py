"""The guard: what may be taken away from consumers, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub.approval import ISSUED_LIMIT
from hub.decide.claims import Claim
from hub.decide.endpoints import EndpointGroup, EndpointSet, GroupKey, Published, prepare
from hub.decide.guard import GuardMemory, GuardVerdict, digest, guard
from hub.decide.record import NO_RECORD, GuardRecord, decode, encode
from hub.model import DRAINING, FAILED, PUBLISHED, Conditions, Endpoint, Finding, TargetKey
from hub.registry.spec import GuardPolicy
from tests.support import build

TARGET = TargetKey("edge", "payments")
KEY = GroupKey("eu", "IPv4")
WALL = 1.8e9
HOLD = 300.0


def content(addresses: Iterable[str], draining: Iterable[str] = (), failed: Iterable[str] = ()) -> dict[str, Endpoint]:
    """Endpoints of these addresses (single letters will do)."""
    conditions: dict[str, Conditions] = {**dict.fromkeys(draining, DRAINING), **dict.fromkeys(failed, FAILED)}
    every = sorted({*addresses, *conditions})
    return {address: build.endpoint(address, conditions=conditions.get(address, PUBLISHED)) for address in every}


class Scene:
    """One group under guard: answers come, time passes, and allowed endpoints are published."""

    def __init__(self, published: Mapping[str, Endpoint], policy: GuardPolicy | None = None) -> None:
        self.policy = policy or GuardPolicy()
        self.published = dict(published)
        self.observed = Published()
        self.memory: GuardMemory | None = None
        self.record = NO_RECORD
        self.answer = 0
        self.now = 0.0
        self.wall = WALL
        self.approvals: set[str] = set()

    def say(
        self,
        wanted: Mapping[str, Endpoint],
        *,
        after: float = 0.0,
        filtered: Iterable[str] = (),
        exempt: Iterable[str] = (),
        known: bool = True,
        again: bool = False,
        write: bool = True,
    ) -> GuardVerdict:
        """A complete answer; ``again`` = not a new one, ``write=False`` = the write fails."""
        self.now += after
        self.wall += after
        self.answer += not again
        if self.observed.endpoints != self.published:
            self.observed = Published((prepare(build.slice("s", self.published)),)) if self.published else Published()
        published = self.observed
        claim = Claim(KEY, published, EndpointSet.of(wanted))
        found = claim.difference
        it = EndpointGroup(
            KEY,
            wanted,
            (),
            published.slices,
            removed=found.removed,
            changed=found.changed,
            added=found.added,
            known=known,
            filtered=frozenset(filtered) & found.removed.keys(),
            exempt=frozenset(exempt),
        )
        verdict = guard(
            TARGET,
            it,
            self.policy,
            self.record,
            self.memory,
            answer=self.answer,
            approvals=self.approvals,
            now=self.now,
            wall=self.wall,
        )
        self.memory = verdict.memory
        if write:
            self.published = dict(verdict.endpoints)
            self.record = decode(encode(verdict.record))
        return verdict

    def restart(self, after: float = 0.0) -> None:
        """Start a new process, with another monotonic clock."""
        self.memory = None
        self.now = 5_000_000.0
        self.wall += after
        self.answer = 0


def left(verdict: GuardVerdict) -> str:
    """The addresses that may be published."""
    return "".join(sorted(verdict.endpoints))


def reasons(verdict: GuardVerdict) -> list[str]:
    """Reasons of the findings."""
    return [finding.reason for finding in verdict.findings]


TEN = "abcdefghij"
LAX = GuardPolicy(max_removal=None)


# --- what the guard does not look at ------------------------------------------------------------------


def test_additions_pass() -> None:
    """Additions pass, including the first publication; the group is returned as the same object."""
    scene = Scene({})
    assert left(scene.say(content("ab"))) == "ab"
    assert scene.say(content("abcd")).withheld is None


def test_changes_pass() -> None:
    """A changed zone is not a removal."""
    scene = Scene(content(TEN))
    zoned = {address: msgspec.structs.replace(each, zone="z") for address, each in content(TEN).items()}
    assert scene.say(zoned).endpoints == zoned


def test_unknown_is_passed_as_it_is() -> None:
    """The group of an unknown source passes unchanged and does not count as an answer."""
    scene = Scene(content("ab"), LAX)
    for _ in range(10):
        scene.say(content("ab"), known=False)
    assert scene.say({}).withheld is not None


def test_steady_states_keep_their_memory() -> None:
    """With unchanged values the memory stays the same object, for known and unknown sources."""
    published = Published((prepare(build.slice("s", content("ab"))),))
    for known in (True, False):
        steady = EndpointGroup(KEY, content("ab"), (), published.slices, known=known)
        memory = None
        seen = []
        for now in (0.0, 10.0, 20.0, 30.0):
            more = {"answer": 1, "approvals": (), "now": now, "wall": WALL + now}
            memory = guard(TARGET, steady, GuardPolicy(), NO_RECORD, memory, **more).memory  # type: ignore[arg-type]
            seen.append(memory)
        assert all(memory is seen[0] for memory in seen)


def test_exempt_removals_pass() -> None:
    """Exempt removals pass, even if they take all endpoints."""
    assert left(Scene(content(TEN)).say({}, exempt=TEN)) == ""


# --- maxRemoval -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_removal", "remaining", "allowed"),
    [
        (0.5, 5, True),
        (0.5, 4, False),
        (0.3, 7, True),
        (0.3, 6, False),
        (0.7, 3, True),
        (0.7, 2, False),
        (0.0, 9, False),
        (1.0, 1, True),
    ],
)
def test_max_removal(max_removal: float, remaining: int, allowed: bool) -> None:
    """A removal is withheld if fewer than ceil(peak × (1 - maxRemoval)) endpoints would be left."""
    verdict = Scene(content(TEN), GuardPolicy(max_removal=max_removal)).say(content(TEN[:remaining]))
    assert (verdict.withheld is None) is allowed
    assert len(verdict.endpoints) == (remaining if allowed else 10)


def test_odd_numbers_round_up() -> None:
    """Of three endpoints, two must be left at 50 %."""
    assert left(Scene(content("abc")).say(content("ab"))) == "ab"
    assert left(Scene(content("abc")).say(content("a"))) == "abc"


def test_withheld_as_a_whole_but_additions_pass() -> None:
    """No part of a withheld removal happens, while additions and changes are published."""
    zoned = build.endpoint("a", zone="z")
    verdict = Scene(content("abcde")).say({"a": zoned, "x": build.endpoint("x")})
    assert left(verdict) == "abcdex"
    assert verdict.endpoints["a"] == zoned


def test_replacement_passes() -> None:
    """All old endpoints may go at once if as many new ones come."""
    assert left(Scene(content("abcd")).say(content("wxyz"))) == "wxyz"


def test_withheld_removal_is_reported() -> None:
    """A withheld removal has kind, hash, addresses, time and approve command; the finding has the same text."""
    verdict = Scene(content(TEN)).say(content("ab"))
    withheld = verdict.withheld
    assert withheld is not None
    assert (withheld.kind, withheld.addresses, withheld.since) == ("RemovalWithheld", tuple(TEN[2:]), WALL)
    assert withheld.hash == digest(TARGET, KEY, TEN[2:])
    assert verdict.findings == (Finding("RemovalWithheld", withheld.message, withheld.addresses),)


NEVER = GuardPolicy(max_removal_hold=None)
EMPTY_NEVER = GuardPolicy(empty_results=0, max_removal=None)


@pytest.mark.parametrize(
    ("policy", "wanted", "filtered", "rest"),
    [
        (GuardPolicy(), "a", "", "3 of 4 endpoints would go; withheld until the answer has stood for 300 s, or: {}"),
        (NEVER, "a", "", "3 of 4 endpoints would go; withheld until: {}"),
        (LAX, "", "", "4 of 4 endpoints would go; withheld after 1 of 3 such answers"),
        (EMPTY_NEVER, "", "", "4 of 4 endpoints would go; withheld until: {}"),
        (LAX, "", "a", "4 of 4 endpoints would go although their nodes exist; withheld until: {}"),
    ],
)
def test_the_withheld_in_words(policy: GuardPolicy, wanted: str, filtered: str, rest: str) -> None:
    """The message says how many endpoints of which source would go, and what ends the withholding."""
    withheld = Scene(content("abcd"), policy).say(content(wanted), filtered=filtered).withheld
    assert withheld is not None
    assert withheld.message == f"eu (IPv4): {rest}".format(f"hub approve edge/payments {withheld.hash}")


def test_unrelated_changes_pass_while_a_removal_is_withheld() -> None:
    """Changes and exempt removals that are not withheld are passed to the next stage unchanged."""
    zoned = build.endpoint("a", zone="z")
    verdict = Scene(content("abcdef")).say({"a": zoned, "f": build.endpoint("f", conditions=DRAINING)}, exempt="b")
    assert left(verdict) == "acdef"
    assert verdict.group.removed == content("b")
    assert verdict.group.changed == {"a": (build.endpoint("a"), zoned)}


def test_peak_within_the_window() -> None:
    """Small removals add up: they are measured against the peak within the window."""
    scene = Scene(content(TEN))
    assert scene.say(content(TEN[:6])).withheld is None
    assert scene.say(content(TEN[:5]), after=300).withheld is None
    assert scene.say(content(TEN[:4]), after=299).withheld is not None


@pytest.mark.parametrize(("after", "withheld"), [(600, True), (601, False)])
def test_peak_is_forgotten_after_the_window(after: float, withheld: bool) -> None:
    """A level stops counting one window after a lower level was observed."""
    scene = Scene(content(TEN))
    scene.say(content(TEN[:6]))
    scene.say(content(TEN[:6]))
    scene.say(content(TEN[:6]), after=after)
    assert (scene.say(content(TEN[:3])).withheld is not None) is withheld


def test_a_level_counts_until_it_is_left() -> None:
    """The window begins when a higher level ends, not when it began."""
    scene = Scene(content(TEN))
    scene.say(content(TEN), after=10_000)
    scene.say(content(TEN[:6]), after=10)
    scene.say(content(TEN[:6]), after=500)
    assert scene.say(content(TEN[:4]), after=50).withheld is not None


def test_peak_rises_with_additions() -> None:
    """Added endpoints raise the peak, and with it the number that must be left."""
    scene = Scene(content("ab"))
    scene.say(content(TEN))
    scene.say(content(TEN))
    assert scene.say(content(TEN[:4])).withheld is not None


def test_peak_does_not_fall_while_withheld() -> None:
    """A removal that waits longer than the window is still measured against the old peak."""
    scene = Scene(content(TEN), GuardPolicy(max_removal_hold=None))
    scene.say(content(TEN[:6]))
    for _ in range(20):
        assert scene.say(content("abc"), after=100).withheld is not None


def test_peak_counts_endpoints_removed_by_other_writers() -> None:
    """Endpoints that another writer removed from our slices count towards the peak."""
    scene = Scene(content(TEN))
    scene.say(content(TEN))
    scene.published = content(TEN[:6])
    assert scene.say(content(TEN[:4])).withheld is not None


def test_peak_starts_from_the_remaining_endpoints_after_a_release() -> None:
    """After a release or an approval the peak starts from the remaining endpoints."""
    for approved in (False, True):
        scene = Scene(content(TEN))
        scene.say(content(TEN[:9]))
        withheld = scene.say(content("abcd")).withheld
        assert withheld is not None
        scene.approvals = {withheld.hash} if approved else set()
        assert left(scene.say(content("abcd"), after=0 if approved else HOLD)) == "abcd"
        assert left(scene.say(content("ab"))) == "ab"
        assert left(scene.say(content(""), after=1)) == "ab"


def test_peak_starts_from_published_endpoints() -> None:
    """After a restart the peak starts from the published endpoints."""
    scene = Scene(content(TEN))
    scene.say(content(TEN[:6]))
    scene.restart()
    assert left(scene.say(content("abc"))) == "abc"
    scene.restart()
    assert left(scene.say(content("a"))) == "abc"


def test_draining_counts_as_leaving() -> None:
    """An endpoint that starts to drain counts as removed."""
    scene = Scene(content(TEN))
    assert scene.say(content("", draining=TEN)).endpoints == content(TEN)
    assert scene.say(content(TEN[:5], draining=TEN[5:])).withheld is None


def test_draining_endpoint_does_not_count_as_removed() -> None:
    """An endpoint that drains already does not count as removed again."""
    scene = Scene(content(TEN))
    scene.say(content(TEN[:5], draining=TEN[5:]))
    assert left(scene.say(content(TEN[:5]))) == TEN[:5]


def test_coming_back_counts_as_coming() -> None:
    """An endpoint that stops draining makes up for one that is removed."""
    scene = Scene(content("ab", draining="cd"))
    assert left(scene.say(content("cd"))) == "cd"


def test_coming_back_counts_once() -> None:
    """An endpoint that stops draining does not make up for two that are removed."""
    assert left(Scene(content("abcd", draining="e")).say(content("e"))) == "abcde"


def test_health_verdicts_do_not_count() -> None:
    """An endpoint whose health check fails is neither removed nor missing from the level."""
    scene = Scene(content(TEN))
    assert scene.say(content("", failed=TEN)).withheld is None
    assert scene.say(content("", failed="abcd")).withheld is not None


def test_off() -> None:
    """With maxRemoval off, all endpoints but the last may be removed."""
    assert left(Scene(content(TEN), LAX).say(content("a"))) == "a"


def test_exempt_removals_do_not_count_against_others() -> None:
    """Later removals are measured against the endpoints that exempt removals left."""
    scene = Scene(content(TEN))
    scene.say(content(TEN[:4]), exempt=TEN[4:])
    assert left(scene.say(content("ab"))) == "ab"


def test_exempt_removals_lower_every_level_that_counts() -> None:
    """An exempt removal lowers earlier levels, too, so the peak no longer contains it."""
    for remaining, allowed in (("abc", True), ("ab", False)):
        scene = Scene(content(TEN))
        for _ in range(2):
            scene.say(content(TEN[:9]))
        scene.say(content(TEN[:4]), exempt=TEN[4:9])
        assert (scene.say(content(remaining)).withheld is None) is allowed


def test_exempt_removals_lower_the_last_level() -> None:
    """An exempt removal lowers the level of the last pass."""
    scene = Scene(content(TEN))
    scene.say(content(TEN))
    scene.say(content(TEN[:4]), exempt=TEN[4:])
    assert left(scene.say(content("ab"))) == "ab"


def test_undone_exempt_removal_is_exempt_again() -> None:
    """An exempt removal that was undone before it was written is forgiven again the next time."""
    scene = Scene(content(TEN))
    scene.say(content(TEN[:8]), exempt="ij", write=False)
    scene.say(content(TEN))
    scene.say(content(TEN[:8]), exempt="ij")
    assert scene.say(content(TEN[:4])).withheld is None


def test_exempt_removal_does_not_lower_the_peak_with_every_failed_write() -> None:
    """An exempt removal lowers an earlier peak once, even if its write fails."""
    scene = Scene(content(TEN))
    for _ in range(2):
        scene.say(content(TEN[:9]))
    for _ in range(5):
        scene.say(content(TEN[:8]), exempt="i", write=False)
    scene.say(content(TEN[:8]), exempt="i")
    assert scene.say(content(TEN[:4])).withheld is not None


def test_exempt_removal_is_forgiven_once() -> None:
    """While its write fails, the same exempt removal does not lower the peak again."""
    scene = Scene(content(TEN))
    for _ in range(5):
        scene.say(content(TEN[:8]), exempt="ij", write=False)
    scene.say(content(TEN[:8]), exempt="ij")
    assert scene.say(content("abc")).withheld is not None


def test_foreign_endpoints_are_removed_at_once() -> None:
    """Endpoints that another writer added to our slices are removed at once and raise no peak."""
    scene = Scene(content("ab"))
    scene.say(content("ab"))
    scene.published = content("ab" + "qrstuvwxyz")
    assert left(scene.say(content("ab"))) == "ab"
    assert scene.say(content("a")).withheld is None


def test_foreign_condition_change_is_reverted() -> None:
    """A condition that another writer changed is set back at once."""
    scene = Scene(content("", draining=TEN))
    scene.say(content("", draining=TEN))
    scene.published = content(TEN)
    assert scene.say(content("", draining=TEN)).withheld is None


def test_foreign_endpoints_are_no_loss_until_the_repair_is_written() -> None:
    """While the repairing write fails, endpoints that another writer added still count as no loss."""
    scene = Scene(content("ab"))
    scene.say(content("ab"))
    scene.published = content("ab" + "qrstuvwxyz")
    for _ in range(3):
        assert scene.say(content("ab"), write=False).withheld is None
    assert left(scene.say(content("ab"))) == "ab"


def test_foreign_endpoints_are_removed_during_a_withheld_removal() -> None:
    """Endpoints of another writer are removed at once even while a removal is withheld."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.published = content(TEN + "xyz")
    verdict = scene.say(content("ab"))
    assert verdict.withheld is not None
    assert (verdict.withheld.addresses, left(verdict)) == (tuple(TEN[2:]), TEN)


def test_foreign_endpoints_added_while_unknown_are_removed_at_once() -> None:
    """The verdict for an unknown source also shows which endpoints another writer added."""
    scene = Scene(content("ab"))
    scene.say(content("ab"), known=False)
    scene.published = content("ab" + "qrstuvwxyz")
    assert left(scene.say(content("ab"))) == "ab"


def test_foreign_endpoints_added_after_a_release_are_removed_at_once() -> None:
    """Endpoints that another writer puts back after their removal was observed are removed at once."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("ab")).withheld
    assert withheld is not None
    scene.approvals = {withheld.hash}
    for _ in range(2):
        scene.say(content("ab"))
    scene.approvals = set()
    scene.published = content(TEN)
    assert left(scene.say(content("ab"))) == "ab"


def test_unwritten_unreachable_removal_is_guarded_again() -> None:
    """If the write of ``unreachable: remove`` fails, the endpoints are guarded again with the next answer."""
    scene = Scene(content(TEN))
    scene.say({}, known=False, write=False)
    assert scene.say(content("a")).withheld is not None


def test_an_accepted_removal_is_judged_again_until_written() -> None:
    """An allowed removal that is not written yet is judged again if the answer changes."""
    scene = Scene(content("ab"), GuardPolicy(empty_results=1, max_removal=None))
    scene.say({}, write=False)
    assert left(scene.say({}, filtered="a")) == "a"


def test_draining_endpoints_are_not_foreign() -> None:
    """Draining endpoints that the hub allowed are not taken for another writer's."""
    scene = Scene(content("", draining="ab"), LAX)
    scene.say(content("", draining="ab"))
    assert left(scene.say({})) == "ab"


def test_after_a_restart_everything_published_is_ours() -> None:
    """Without memory no published endpoint counts as another writer's."""
    scene = Scene(content("ab"))
    scene.say(content("ab"))
    scene.published = content(TEN)
    scene.restart()
    assert scene.say(content("ab")).withheld is not None


def test_endpoints_of_an_unknown_source_are_guarded() -> None:
    """Endpoints that were published while the source was unknown are guarded like all others."""
    scene = Scene(content("ab"))
    scene.say(content("ab"))
    scene.say(content(TEN), known=False)
    assert scene.say(content("ab")).withheld is not None


# --- the hold ----------------------------------------------------------------------------------------------


def test_released_after_the_hold() -> None:
    """A removal is released at wake_at, after the same answer has stood for maxRemovalHold."""
    scene = Scene(content(TEN))
    first = scene.say(content("ab"))
    assert first.wake_at == HOLD
    assert scene.say(content("ab"), after=HOLD - 1).withheld is not None
    last = scene.say(content("ab"), after=1, again=True)
    assert (left(last), reasons(last), last.record) == ("ab", ["PlanReleased"], NO_RECORD)


def test_release_lasts_until_written() -> None:
    """If the write fails, released endpoints are not withheld again."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.say(content("ab"), after=HOLD, write=False)
    assert left(scene.say(content("ab"), after=1)) == "ab"


def test_peak_restarts_after_a_release() -> None:
    """After a release the peak starts from the accepted number of endpoints."""
    scene = Scene(content(TEN))
    scene.say(content("abcd"))
    scene.say(content("abcd"), after=HOLD)
    assert left(scene.say(content("ab"))) == "ab"


def test_more_departures_begin_a_new_hold() -> None:
    """An answer that removes more endpoints starts a new hold."""
    scene = Scene(content(TEN))
    scene.say(content("abc"))
    scene.say(content("ab"), after=HOLD - 1)
    assert scene.say(content("ab"), after=1).withheld is not None
    assert left(scene.say(content("ab"), after=HOLD)) == "ab"


def test_fewer_departures_go_on_with_the_hold() -> None:
    """An answer that removes fewer endpoints continues the hold with the same hash."""
    scene = Scene(content(TEN))
    first = scene.say(content("ab")).withheld
    second = scene.say(content("abc"), after=HOLD - 1).withheld
    assert first is not None
    assert second is not None
    assert (second.hash, second.since) == (first.hash, first.since)
    assert left(scene.say(content("abc"), after=1)) == "abc"


def test_endpoint_that_came_back_is_not_released() -> None:
    """An endpoint that came back in between is not released together with the others."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.say(content("abc"), after=HOLD - 1)
    assert left(scene.say(content("ab"), after=1)) == TEN
    assert scene.say(content("ab"), after=HOLD - 1).withheld is not None
    assert left(scene.say(content("ab"), after=1)) == "ab"


def test_return_ends_the_hold() -> None:
    """When the endpoints are back, the hold ends, and the next removal starts a new one."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    assert scene.say(content(TEN), after=HOLD - 1).record == NO_RECORD
    assert scene.say(content("ab"), after=1).wake_at == 2 * HOLD


def test_a_release_that_comes_to_nothing_is_forgotten() -> None:
    """If released endpoints come back before the write, the next removal starts a new hold."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    assert scene.say(content("ab"), after=HOLD, write=False).withheld is None
    scene.say(content(TEN))
    assert scene.say(content("ab")).withheld is not None


def test_release_continues_when_its_nodes_return() -> None:
    """If endpoints remain, a release holds whether or not the nodes exist again."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.say(content("ab"), after=HOLD, write=False)
    assert left(scene.say(content("ab"), filtered=TEN[2:])) == "ab"


def test_a_release_is_for_once() -> None:
    """Released endpoints that come back and leave again start a new hold."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    assert left(scene.say(content("ab"), after=HOLD)) == "ab"
    assert left(scene.say(content(TEN[1:]))) == TEN[1:]
    assert left(scene.say(content("b"))) == TEN[1:]
    assert scene.say(content("b"), after=HOLD - 1).withheld is not None


def test_release_has_a_finding() -> None:
    """A finding reports a release and its reason, also if it empties the source."""
    scene = Scene(content("ab"))
    for _ in range(3):
        scene.say({})
    assert scene.say({}, after=HOLD).findings == (
        Finding("PlanReleased", "eu (IPv4): 2 endpoints may go: the same answer has stood for 300 s", ("a", "b")),
        Finding("EmptyResultAccepted", "eu (IPv4): empty, confirmed by 3 answers"),
    )


def test_unknown_time_does_not_count() -> None:
    """Time in which the source is unknown does not count towards the hold."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.say(content(TEN), after=100, known=False)
    scene.say(content(TEN), after=400, known=False)
    assert scene.say(content("ab"), after=600).withheld is not None
    assert scene.say(content("ab"), after=199).withheld is not None
    assert scene.say(content("ab"), after=1).withheld is None


def test_hold_never() -> None:
    """With the hold ``never``, only an approval ends the withholding."""
    scene = Scene(content(TEN), GuardPolicy(max_removal_hold=None))
    assert scene.say(content("ab")).wake_at is None
    assert scene.say(content("ab"), after=1e9).withheld is not None


def test_hold_continues_after_a_restart() -> None:
    """After a restart the hold continues from the record's hash and start."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.restart(after=200)
    assert scene.say(content("ab")).withheld is not None
    assert scene.say(content("ab"), after=99).withheld is not None
    assert left(scene.say(content("ab"), after=1)) == "ab"


def test_different_removal_after_a_restart_starts_a_new_hold() -> None:
    """After a restart only an identical removal continues the hold."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.restart(after=1000)
    assert scene.say(content("a")).withheld is not None


def test_a_clock_set_back_does_not_release() -> None:
    """A record with a start in the future starts the hold now."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.restart(after=-10_000)
    assert scene.say(content("ab")).withheld is not None
    assert scene.say(content("ab"), after=HOLD - 1).withheld is not None


def test_a_wall_clock_that_jumps_does_not_release() -> None:
    """Within a process only the monotonic clock counts."""
    scene = Scene(content(TEN))
    scene.say(content("ab"))
    scene.wall += 1e6
    assert scene.say(content("ab"), after=1).withheld is not None


# --- emptyResults -------------------------------------------------------------------------------------------


def test_empty_needs_so_many_answers() -> None:
    """The third complete answer without endpoints is published as empty."""
    scene = Scene(content("ab"), LAX)
    verdicts = [scene.say({}) for _ in range(3)]
    assert [left(verdict) for verdict in verdicts] == ["ab", "ab", ""]
    assert [verdict.record.empty for verdict in verdicts] == [1, 2, 0]
    assert [reasons(verdict) for verdict in verdicts] == [
        ["EmptyResultHeld"],
        ["EmptyResultHeld"],
        ["EmptyResultAccepted"],
    ]


def test_the_same_answer_counts_once() -> None:
    """Further passes over one answer do not count again."""
    scene = Scene(content("ab"), LAX)
    scene.say({})
    assert [scene.say({}, again=True).record.empty for _ in range(5)] == [1] * 5


def test_empty_results_one_publishes_the_first_empty_answer() -> None:
    """With emptyResults 1, as for a copied Service, the first empty answer is published."""
    assert left(Scene(content("ab"), GuardPolicy(empty_results=1, max_removal=None)).say({})) == ""


def test_zero_is_never() -> None:
    """With emptyResults 0, an empty answer is never published."""
    scene = Scene(content("ab"), GuardPolicy(empty_results=0, max_removal=None))
    assert all(left(scene.say({}, after=1000)) == "ab" for _ in range(20))
    assert scene.record.empty == 1


def test_any_endpoint_resets_the_count() -> None:
    """An answer with an endpoint resets the count."""
    scene = Scene(content("ab"), LAX)
    scene.say({})
    scene.say({})
    assert scene.say(content("ab")).record == NO_RECORD
    assert scene.say({}).record.empty == 1


def test_unknown_does_not_count_nor_reset() -> None:
    """Passes while the source is unknown neither count nor reset the count."""
    scene = Scene(content("ab"), LAX)
    scene.say({})
    assert scene.say(content("ab"), known=False).record.empty == 1
    assert scene.say({}).record.empty == 2


def test_unknown_keeps_the_count_that_is_not_written_yet() -> None:
    """While the source is unknown, a count that is not written yet is kept."""
    scene = Scene(content("ab"), LAX)
    scene.say({}, write=False)
    assert scene.say(content("ab"), known=False).record.empty == 1


def test_a_removal_resets_the_count_after_a_restart() -> None:
    """After a restart, an answer with an endpoint resets the count even if its removal is withheld."""
    scene = Scene(content(TEN))
    scene.say({})
    scene.restart()
    assert scene.say(content("ab")).record.empty == 0
    assert scene.say({}).record.empty == 1


@pytest.mark.parametrize("between", [TEN, "ab"])
def test_same_answer_counts_again_after_a_selector_change(between: str) -> None:
    """The same answer counts again if a changed selector left endpoints in between."""
    scene = Scene(content(TEN))
    scene.say({})
    assert scene.say(content(between), again=True).record.empty == 0
    assert scene.say({}, again=True).record.empty == 1


def test_count_survives_a_restart() -> None:
    """The count is read from the slices after a restart."""
    scene = Scene(content("ab"), LAX)
    scene.say({})
    scene.restart()
    scene.say({})
    scene.restart()
    assert left(scene.say({})) == ""


def test_count_is_not_lost_when_a_write_fails() -> None:
    """The process's own count is used even if the slices carry an older one."""
    scene = Scene(content("ab"), LAX)
    for _ in range(2):
        scene.say({}, write=False)
    assert left(scene.say({})) == ""


def test_acceptance_lasts_until_written() -> None:
    """If the write that empties the group fails, the count does not start again."""
    scene = Scene(content("ab"), LAX)
    for _ in range(3):
        scene.say({}, write=False)
    assert left(scene.say({}, again=True)) == ""


def test_zero_needs_max_removal_too() -> None:
    """With maxRemoval on, enough empty answers still wait for the hold."""
    scene = Scene(content("ab"))
    for _ in range(5):
        verdict = scene.say({}, after=10)
        assert left(verdict) == "ab"
    assert reasons(verdict) == ["RemovalWithheld"]
    assert verdict.wake_at is not None
    last = scene.say({}, after=HOLD)
    assert (left(last), reasons(last)) == ("", ["PlanReleased", "EmptyResultAccepted"])


def test_empty_answer_needs_count_and_hold() -> None:
    """After the hold, an empty answer still waits for enough empty answers."""
    scene = Scene(content("ab"))
    scene.say({})
    assert left(scene.say({}, after=HOLD, again=True)) == "ab"
    scene.say({})
    assert left(scene.say({})) == ""


def test_already_empty_is_nothing_to_hold() -> None:
    """An empty group that wants nothing has nothing to withhold."""
    verdict = Scene({}).say({})
    assert (verdict.withheld, verdict.record) == (None, NO_RECORD)


def test_filtered_empty_waits_for_approval() -> None:
    """If the nodes of the removed endpoints still exist, only an approval empties the source."""
    scene = Scene(content("ab"), LAX)
    verdicts = [scene.say({}, after=HOLD, filtered="a") for _ in range(10)]
    assert {left(verdict) for verdict in verdicts} == {"ab"}
    assert (reasons(verdicts[-1]), verdicts[-1].wake_at, verdicts[-1].record.empty) == (["FilteredEmpty"], None, 0)


def test_filtered_answers_do_not_count() -> None:
    """An answer with one filtered removal interrupts the count."""
    scene = Scene(content("ab"), LAX)
    scene.say({})
    scene.say({}, filtered="b")
    assert scene.say({}).record.empty == 1


def test_record_does_not_change_with_each_pass() -> None:
    """The record does not depend on the time of the pass, so passes cause no writes."""
    scene = Scene(content("ab"))
    scene.say({})
    records = {scene.say({}, after=7, again=True).record for _ in range(5)}
    assert len(records) == 1


# --- approval -------------------------------------------------------------------------------------------------


def test_approved_removal_happens_at_once() -> None:
    """An approved removal happens at once and is reported once."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("ab")).withheld
    assert withheld is not None
    scene.approvals = {withheld.hash}
    verdict = scene.say(content("ab"), write=False)
    told = Finding("ApprovalUsed", "eu (IPv4): 8 endpoints may go: approved", tuple(TEN[2:]))
    assert (left(verdict), verdict.findings, verdict.record) == ("ab", (told,), NO_RECORD)
    assert reasons(scene.say(content("ab"))) == []


def test_approval_of_filtered_and_of_never() -> None:
    """An approval ends a withholding that time does not end."""
    for policy, filtered in ((LAX, "ab"), (GuardPolicy(empty_results=0, max_removal=None), "")):
        scene = Scene(content("ab"), policy)
        withheld = scene.say({}, filtered=filtered).withheld
        assert withheld is not None
        scene.approvals = {withheld.hash}
        assert left(scene.say({}, filtered=filtered)) == ""


def test_approval_covers_any_subset() -> None:
    """An approval still covers the rest if some of the endpoints came back."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("ab")).withheld
    assert withheld is not None
    scene.approvals = {withheld.hash}
    assert left(scene.say(content("abc"))) == "abc"


def test_approval_covers_a_subset_after_the_hold_changed() -> None:
    """A late approval of an earlier, larger set still covers its subset."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("ab")).withheld
    assert withheld is not None
    scene.say(content(TEN))
    scene.say(content("abcd"))
    scene.approvals = {withheld.hash}
    assert left(scene.say(content("abcd"))) == "abcd"


@pytest.mark.parametrize(("used", "allowed"), [([0], False), ([1], False), ([0, 1], True)])
def test_two_approvals_cover_both(used: list[int], allowed: bool) -> None:
    """Each approval covers its own addresses, and both together cover all."""
    scene = Scene(content(TEN))
    hashes = []
    for remaining in (TEN[:4], TEN[6:]):
        withheld = scene.say(content(remaining)).withheld
        assert withheld is not None
        hashes.append(withheld.hash)
        scene.say(content(TEN))
    scene.approvals = {hashes[number] for number in used}
    assert (left(scene.say({})) == "") is allowed


@pytest.mark.parametrize(("sets", "remembered"), [(ISSUED_LIMIT, True), (ISSUED_LIMIT + 1, False)])
def test_so_many_withheld_sets_are_remembered(sets: int, remembered: bool) -> None:
    """Withheld sets can be approved up to the limit of remembered sets."""
    many = [f"10.0.0.{number}" for number in range(10, 40)]
    scene = Scene(content(many))
    first = None
    for more in range(sets):
        withheld = scene.say(content(many[: 14 - more])).withheld
        assert withheld is not None
        first = first or withheld.hash
    assert first is not None
    scene.approvals = {first}
    assert ("ApprovalUsed" in reasons(scene.say(content(many[: 15 - sets])))) is remembered


def test_approval_does_not_cover_more() -> None:
    """Addresses that were not approved are judged by themselves."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("abcdx"[:4])).withheld
    assert withheld is not None
    scene.approvals = {withheld.hash}
    assert left(scene.say({})) == "abcd"


def test_unknown_hash_approves_nothing() -> None:
    """A hash of another family or target, or an unknown one, approves nothing."""
    scene = Scene(content(TEN))
    addresses = TEN[2:]
    scene.approvals = {
        "0" * 12,
        digest(TARGET, GroupKey("eu", "IPv6"), addresses),
        digest(TARGET, GroupKey("us", "IPv4"), addresses),
        digest(TargetKey("edge", "other"), KEY, addresses),
    }
    assert scene.say(content("ab")).withheld is not None


def test_approval_holds_after_a_restart() -> None:
    """The hash depends only on the removal, so an approval works after a restart."""
    scene = Scene(content(TEN))
    withheld = scene.say(content("ab")).withheld
    assert withheld is not None
    scene.restart()
    scene.approvals = {withheld.hash}
    assert left(scene.say(content("ab"))) == "ab"


def test_digest_is_fixed() -> None:
    """The hash does not depend on the order of addresses and never changes between versions."""
    assert digest(TARGET, KEY, ["b", "a"]) == digest(TARGET, KEY, ("a", "b"))
    assert len(digest(TARGET, KEY, [])) == 12


# --- the record ------------------------------------------------------------------------------------------------


def test_record_without_start_time_starts_the_hold() -> None:
    """A record without a start time starts the hold now."""
    scene = Scene(content(TEN))
    scene.record = GuardRecord(hash=digest(TARGET, KEY, TEN[2:]))
    assert scene.say(content("ab")).withheld is not None


def test_a_later_version_is_kept_and_not_used() -> None:
    """The record of a later version stays unchanged, while the guard counts from the start."""
    scene = Scene(content("ab"), LAX)
    text = json.dumps({"v": 9, "empty": 2})
    scene.record = decode(text)
    verdicts = [scene.say({}) for _ in range(3)]
    assert [left(verdict) for verdict in verdicts] == ["ab", "ab", ""]
    assert {encode(verdict.record) for verdict in verdicts} == {text}


def test_a_later_version_is_kept_while_the_source_is_unknown() -> None:
    """While the source is unknown, the record of a later version is not overwritten."""
    scene = Scene(content("ab"))
    scene.record = decode(json.dumps({"v": 9}))
    assert encode(scene.say(content("ab"), known=False).record) == json.dumps({"v": 9})


# --- no sequence gets past it -------------------------------------------------------------------------------------

ANSWER = st.fixed_dictionaries(
    {
        "wanted": st.sets(st.sampled_from(TEN)),
        "draining": st.sets(st.sampled_from(TEN), max_size=4),
        "filtered": st.sets(st.sampled_from(TEN)),
        "after": st.sampled_from([0.0, 1.0, 50.0, 299.0, 300.0, 700.0]),
        "known": st.sampled_from([True, True, True, False]),
        "again": st.booleans(),
        "write": st.sampled_from([True, True, False]),
        "restart": st.sampled_from([False, False, False, True]),
    }
)
POLICIES = st.builds(
    GuardPolicy,
    empty_results=st.integers(0, 3),
    max_removal=st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    max_removal_hold=st.sampled_from([None, 300.0]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(ANSWER, max_size=14), POLICIES)
def test_no_sequence_gets_past_the_guard(answers: list[dict[str, Any]], policy: GuardPolicy) -> None:
    """No sequence of answers empties a group without enough empty answers or goes below the floor without a hold.

    Checked against a model that only sees what was published and answered, not how the guard counts.
    """
    scene = Scene(content(TEN), policy)
    empties = 0
    counted_answer: int | None = None
    for answer in answers:
        if answer["restart"]:
            # The model is generous to a restart: it may forget, never invent.
            scene.restart()
            counted_answer = None
        before = dict(scene.published)
        wanted = content(answer["wanted"] - answer["draining"], draining=answer["draining"])
        known = answer["known"]
        verdict = scene.say(
            wanted if known else before,
            after=answer["after"],
            filtered=answer["filtered"],
            known=known,
            again=answer["again"],
            write=answer["write"],
        )
        after = dict(verdict.endpoints)
        assert set(wanted) <= set(after) or not known
        if not known:
            assert after == before
            continue
        gone = frozenset(before) - frozenset(wanted)
        if not wanted and gone and not gone & answer["filtered"]:
            if scene.answer != counted_answer:
                empties += 1
                counted_answer = scene.answer
        elif wanted or gone & answer["filtered"]:
            empties, counted_answer = 0, None
        if before and not after:
            assert not gone & answer["filtered"]
            assert 0 < policy.empty_results <= empties
        lost = {a for a, e in before.items() if a not in after or (after[a] != e and after[a].conditions.terminating)}
        useful = sum(1 for each in after.values() if not each.conditions.terminating)
        had = sum(1 for each in before.values() if not each.conditions.terminating)
        if policy.max_removal is not None and policy.max_removal_hold is None and lost:
            assert useful >= round(had * (1 - policy.max_removal), 6)
        if verdict.withheld is not None:
            assert all(after[address] == before[address] for address in verdict.withheld.addresses)


STANDS = st.tuples(
    st.sets(st.sampled_from(TEN)), st.sampled_from([0.0, 1.0, 100.0, 299.0]), st.sampled_from([True, True, True, False])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STANDS, max_size=14), st.sampled_from([0.3, 0.5, 0.7]))
@example([(set(), 0.0, True), (set(), 299.0, True), ({"d"}, 1.0, False), ({"a", "b", "c"}, 0.0, True)], 0.3)
def test_only_endpoints_missing_for_the_whole_hold_are_released(
    answers: list[tuple[set[str], float, bool]], max_removal: float
) -> None:
    """Time releases only endpoints that every answer of the whole hold lacked."""
    scene = Scene(content(TEN), GuardPolicy(empty_results=1, max_removal=max_removal))
    missing: dict[str, float] = {}
    for wanted, after, write in answers:
        before = dict(scene.published)
        verdict = scene.say(content(wanted), after=after, write=write)
        missing = {address: missing.get(address, scene.now) for address in before if address not in wanted}
        lost = before.keys() - verdict.endpoints.keys()
        # Released by time and not written yet: what else goes is measured against what is left without them.
        due = {address for address in lost if scene.now - missing[address] >= HOLD}
        if len(verdict.endpoints) < round((len(before) - len(due)) * (1 - max_removal), 6):
            assert lost == due


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.sampled_from(TEN)), min_size=1, max_size=10))
def test_fast_answers_never_halve(answers: list[set[str]]) -> None:
    """Within the hold no sequence of answers leaves fewer than half of the peak."""
    scene = Scene(content(TEN))
    peak = 10
    for answer in answers:
        scene.say(content(answer), after=10)
        assert len(scene.published) * 2 >= peak
        peak = max(peak, len(scene.published))


# --- duplicates -----------------------------------------------------------------------------------------------


def twice(conditions: Conditions = PUBLISHED) -> build.Pipeline:
    """A group of 100 endpoints, each of which is also in a second slice with these conditions."""
    pipeline = build.Pipeline(guarded=True)
    for _ in range(2):
        pipeline.run(build.view("eu", build.endpoints(100)))
    [first] = pipeline.slices
    again = [msgspec.structs.replace(endpoint, conditions=conditions) for endpoint in first.endpoints]
    pipeline.slices = (first, build.slice("payments-x-1", again))
    return pipeline


@pytest.mark.parametrize("conditions", [PUBLISHED, DRAINING])
def test_duplicate_endpoint_counts_once(conditions: Conditions) -> None:
    """A duplicate does not let a removal of nine of ten addresses pass, even if the copies drain."""
    pipeline = twice(conditions)
    pipeline.run(build.view("eu", dict(list(build.endpoints(100).items())[:10])), after=1)
    [verdict] = pipeline.verdicts.values()
    assert verdict.withheld is not None
    assert "90 of 100 endpoints would go" in verdict.withheld.message
    assert len(pipeline.published()["eu"]) == 100


def test_duplicates_that_are_repaired_are_no_loss() -> None:
    """Duplicates that are repaired do not count towards the peak."""
    pipeline, every = twice(), build.endpoints(100)
    pipeline.run(build.view("eu", every), after=1)
    pipeline.run(build.view("eu", dict(list(every.items())[:99])), after=1)
    assert len(pipeline.published()["eu"]) == 99
