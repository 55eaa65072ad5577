"""Recent changes: what is recorded, what is forgotten, and what the recording costs."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.failover import FailoverMemory
from hub.decide.guard import Withheld
from hub.events.timeline import MARKS, NAMED, POINTS, STATES, WINDOW, Mark, Point, Recent, Span, Timeline, Timelines
from hub.model import FAILED, TargetKey
from tests.support import build
from tests.support.clocks import ManualClock

KEY = TargetKey("edge", "payments")
HELD = Withheld("RemovalWithheld", "abc", ("10.0.0.1",), 0.0, "1 would go")


class Recorded:
    """Timelines with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall_time=1000.0)
        self.timelines = Timelines(self.clock.wall)

    def at(self, seconds: float) -> Timelines:
        """The timelines, ``seconds`` after the start."""
        self.clock.wall_time = 1000.0 + seconds
        return self.timelines

    @property
    def recent(self) -> Recent:
        """The recent changes of the Service."""
        found = self.timelines.of(KEY)
        assert found is not None
        return found


def made(*slices: Any, panic: bool = False, active: str = "", **more: Any) -> Decision:
    """A decision that observed these slices."""
    found = build.decision(observed=slices, **more)
    assert found.desired is not None
    memory = replace(found.desired.memory, panic=panic, failover=FailoverMemory(active=active))
    return replace(found, desired=replace(found.desired, memory=memory))


def test_endpoints_are_recorded_when_first_observed_and_after_every_write() -> None:
    """A point has the ready endpoints by source and the number of the others."""
    eu = build.slice("a", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2", None, FAILED)])
    us = build.slice("b", [build.endpoint("10.0.1.1")], cluster="us")
    smaller = build.slice("a", [build.endpoint("10.0.0.1")])
    recorded = Recorded()
    recorded.at(5).decided(made(eu))
    recorded.at(7).published(made(eu), [("create", us)])
    recorded.at(9).published(made(eu, us), [("update", smaller), ("delete", us)])
    assert recorded.recent == Recent(
        1000, ("eu", "us", ""), (Point(1005, (1, 0, 0), 1), Point(1007, (1, 1, 0), 1), Point(1009, (1, 0, 0), 0))
    )


def test_slices_of_another_controller_are_not_counted() -> None:
    """A slice without a source cluster is one that the hub is about to replace."""
    theirs = build.slice("theirs", [build.endpoint()], cluster="")
    recorded = Recorded()
    recorded.at(0).decided(made(theirs, build.slice("a", [build.endpoint()])))
    assert recorded.recent.points == (Point(1000, (1, 0), 0),)


class Untouched(tuple[Any, ...]):
    """Slices that nobody may look at."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a pass without news counts no endpoints")


def test_pass_without_news_counts_and_adds_nothing() -> None:
    """After the first pass, a pass that changes neither endpoints nor findings leaves the record as it is."""
    recorded = Recorded()
    recorded.at(0).decided(made(build.slice("a", [build.endpoint()])))
    before = recorded.recent
    quiet = replace(made(), observed=Untouched())
    for second in range(100):
        recorded.at(second).decided(quiet)
    assert recorded.recent == before


def test_findings_become_marks_when_they_begin_and_end() -> None:
    """Withheld removals, panic and a failover are marked once; the first active source is no failover."""
    held = {GroupKey("eu", "IPv4"): HELD, GroupKey("eu", "IPv6"): HELD}
    recorded = Recorded()
    recorded.at(0).decided(made(active="eu"))
    for second in (1, 2):
        recorded.at(second).decided(made(active="eu", withheld=held))
    recorded.at(3).decided(made(active="us", panic=True))
    recorded.at(4).decided(made(active="us"))
    recorded.at(5).decided(Decision(KEY, status="paused"))
    assert recorded.recent.marks == (
        Mark(1001, "withheld", "eu"),
        Mark(1003, "failover", "us"),
        Mark(1003, "panic"),
        Mark(1003, "released", "eu"),
        Mark(1004, "panic over"),
    )


def test_endpoints_are_unknown_while_another_replica_writes() -> None:
    """A lost lead is marked and leaves a gap until this process decides again."""
    slice_ = build.slice("a", [build.endpoint()])
    recorded = Recorded()
    recorded.at(0).decided(made(slice_))
    recorded.at(10).rights_changed("lost", set())
    recorded.at(30).rights_changed("leads", {KEY})
    recorded.at(31).decided(made(slice_))
    assert recorded.recent.points == (Point(1000, (1, 0), 0), Point(1010, (0, 0), None), Point(1031, (1, 0), 0))
    assert recorded.recent.marks == (Mark(1010, "leader", "lost"), Mark(1030, "leader", "leads"))


def test_deleted_services_and_clusters_are_forgotten() -> None:
    """Nothing is kept of a Service that is gone or that the hub no longer knows."""
    for end in (
        lambda timelines: timelines.decided(Decision(KEY, status="gone")),
        lambda timelines: timelines.published(Decision(KEY, status="removing"), []),
        lambda timelines: timelines.keep(set(), {}),
    ):
        recorded = Recorded()
        recorded.at(0).decided(made(build.slice()))
        recorded.at(0).cluster_changed("eu", "Ready")
        end(recorded.at(1))
        assert recorded.timelines.of(KEY) is None
    assert recorded.timelines.clusters == {}
    unknown = Recorded()
    unknown.at(0).decided(Decision(KEY, status="gone"))
    assert unknown.timelines.of(KEY) is None


def test_cluster_states_are_recorded_when_they_change() -> None:
    """The same state twice is one span, and the oldest are forgotten."""
    recorded = Recorded()
    recorded.at(0).keep(set(), {"eu": "Pending"})
    recorded.at(1).cluster_changed("eu", "Ready")
    recorded.at(2).cluster_changed("eu", "Ready")
    assert recorded.timelines.clusters == {"eu": (Span(1000, "Pending"), Span(1001, "Ready"))}
    for second in range(3, 200):
        recorded.at(second).cluster_changed("eu", f"{second}")
    assert len(recorded.timelines.clusters["eu"]) == STATES
    assert recorded.timelines.clusters["eu"][-1] == Span(1199, "199")


def test_sources_beyond_the_named_ones_are_counted_together() -> None:
    """The number of sources does not matter for memory, and no endpoint is lost."""
    timeline = Timeline()
    timeline.count(1, {f"c{number}": (number, number) for number in range(1, 9)})
    found = timeline.recent(0, ())
    assert found.sources == ("c1", "c2", "c3", "c4", "c5", "")
    assert found.points == (Point(1, (1, 2, 3, 4, 5, 6 + 7 + 8), 0),)
    assert len(found.sources) == NAMED + 1


def test_merged_points_keep_outages_and_the_present() -> None:
    """However many changes there are, an outage of one second in the last hours stays, and so does the last point."""
    timeline = Timeline()
    for second in range(2000):
        timeline.count(second, {"eu": (0 if second == 700 else 5 + second % 2, 9)})
    found = timeline.recent(0, ())
    assert len(found.points) <= POINTS
    assert 0 in {point.ready[0] for point in found.points}
    assert found.points[-1] == Point(1999, (6, 0), 3)
    assert [point.at for point in found.points] == sorted({point.at for point in found.points})


def test_older_half_is_merged_in_pairs() -> None:
    """One point too many merges the older half in pairs; each pair begins with its first point and keeps its worst."""
    timeline = Timeline()
    for second in range(POINTS):
        timeline.count(second, {"eu": (second % 4, 3)})
    assert len(timeline.recent(0, ()).points) == POINTS
    timeline.interrupt(POINTS)
    found = timeline.recent(0, ()).points
    merged = [Point(second, (second % 4, 0), 3 - second % 4) for second in range(0, POINTS // 2, 2)]
    rest = [Point(second, (second % 4, 0), 3 - second % 4) for second in range(POINTS // 2, POINTS)]
    assert found == (*merged, *rest, Point(POINTS, (0, 0), None))


def test_gap_is_the_worst_of_a_pair() -> None:
    """A pair with a gap becomes a gap, even if no endpoint was ready beside it."""
    timeline = Timeline()
    for second in range(0, POINTS + 2, 2):
        timeline.count(second, {"eu": (0, 1 + second % 4)})
        timeline.interrupt(second + 1)
    assert {point.not_ready for point in timeline.recent(0, ()).points[: POINTS // 4]} == {None}


def test_same_numbers_are_one_point() -> None:
    """A count that changes nothing adds no point, and a second change within a second replaces the first."""
    timeline = Timeline()
    assert not timeline.known
    timeline.count(1, {"eu": (1, 2)})
    timeline.count(2, {"eu": (1, 2)})
    assert timeline.recent(0, ()).points == (Point(1, (1, 0), 1),)
    timeline.count(1, {"eu": (2, 2)})
    assert timeline.recent(0, ()).points == (Point(1, (2, 0), 0),)
    assert timeline.known
    timeline.interrupt(3)
    assert not timeline.known


def test_point_at_the_beginning_of_the_window_replaces_older_ones() -> None:
    """A point is forgotten when the next one is as old as the window."""
    timeline = Timeline()
    for at in (0, 10, WINDOW + 9):
        timeline.count(at, {"eu": (at, at)})
    assert [point.at for point in timeline.recent(0, ()).points] == [0, 10, WINDOW + 9]
    timeline.count(WINDOW + 10, {"eu": (0, 0)})
    assert [point.at for point in timeline.recent(0, ()).points] == [10, WINDOW + 9, WINDOW + 10]


def test_changes_are_forgotten_after_some_hours() -> None:
    """Of the points before the window only the one that is still in force at its beginning stays."""
    timeline = Timeline()
    for at in (0, 10, WINDOW + 100):
        timeline.count(at, {"eu": (at, at)})
        timeline.note(at, frozenset({"eu"} if at != 10 else ()), "", panic=False)
    found = timeline.recent(0, ())
    assert [point.at for point in found.points] == [10, WINDOW + 100]
    assert found.marks == (Mark(WINDOW + 100, "withheld", "eu"),)


def test_clock_that_is_set_back_keeps_the_order() -> None:
    """A change never comes before the last one."""
    timeline = Timeline()
    timeline.count(100, {"eu": (1, 1)})
    timeline.count(50, {"eu": (2, 2)})
    assert timeline.recent(0, ()).points == (Point(100, (2, 0), 0),)


def full_timeline() -> Timeline:
    """A Service with more sources, changes and marks than are kept."""
    timeline = Timeline()
    for second in range(2 * POINTS):
        timeline.count(second, {f"cluster-{number}": (second, 500) for number in range(NAMED + 3)})
        timeline.note(second, frozenset({"cluster-1"} if second % 2 else ()), "", panic=False)
    return timeline


def test_two_thousand_services_that_change_all_the_time_take_at_most_12_mb() -> None:
    """With the most points and marks, 100 Services stay below a twentieth of the stated limit."""
    tracemalloc.start()
    try:
        timelines = [full_timeline() for _ in range(100)]
        gc.collect()  # also frees the interpreter's reserve of tuples
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = timelines[0].recent(0, ())
    assert (len(found.points) > POINTS // 2, len(found.marks)) == (True, MARKS)
    assert used * 20 < 12e6
