"""The choice of a failover target's active source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.failover import Choice, FailoverMemory, Standing, choose
from hub.model import Finding
from hub.registry.spec import FailoverPolicy

POLICY = FailoverPolicy(min_ready=1, after=30.0, failback="auto", failback_after=300.0)
MANUAL = FailoverPolicy(failback="manual")


def up(cluster: str, *, published: bool = False, **more: Any) -> Standing:
    """A source that is ready; if it is published, it also serves."""
    return Standing(cluster, published=published, **{"serving": published, **more})


def down(cluster: str, *, published: bool = False, **more: Any) -> Standing:
    """A known source without ready endpoints."""
    return Standing(cluster, ready=False, offers=False, published=published, **more)


def lost(cluster: str) -> Standing:
    """An unknown source of which nothing is published."""
    return Standing(cluster, known=False, ready=False, offers=False)


class Scene:
    """A sequence of passes over one target."""

    def __init__(self, policy: FailoverPolicy = POLICY) -> None:
        self.policy = policy
        self.memory = FailoverMemory()
        self.now = 0.0

    def step(self, *standings: Standing, after: float = 0.0) -> Choice:
        """Run one pass, ``after`` seconds later."""
        self.now += after
        choice = choose(self.policy, standings, self.memory, self.now)
        self.memory = choice.memory
        return choice


def test_the_first_ready_source_is_active() -> None:
    """The first ready source in source order is active."""
    assert Scene().step(down("a"), up("b"), up("c")).active == "b"


def test_first_source_with_endpoints_is_active_if_none_is_ready() -> None:
    """Without a ready source, the first one with any endpoints is active."""
    half = Standing("b", ready=False, offers=True)
    assert Scene().step(down("a"), half).active == "b"


def test_no_source_is_active_without_endpoints() -> None:
    """Without any endpoints there is no active source."""
    choice = Scene().step(down("a"), lost("b"))
    assert choice == Choice(None, healthy=False, remove_others=False, memory=FailoverMemory())


def test_an_unknown_earlier_source_is_waited_for() -> None:
    """At the first start, an unknown earlier source delays the choice by up to ``after`` seconds."""
    scene = Scene()
    first = scene.step(lost("a"), up("b"))
    assert (first.active, first.wake_at) == (None, 30.0)
    assert (first.healthy, first.remove_others) == (False, False)
    assert scene.step(lost("a"), up("b"), after=29).active is None
    assert scene.step(lost("a"), up("b"), after=1).active == "b"


def test_an_unknown_earlier_source_that_comes_in_time() -> None:
    """An earlier source that becomes known within ``after`` is the first active source."""
    scene = Scene()
    scene.step(lost("a"), up("b"))
    assert scene.step(up("a"), up("b"), after=10).active == "a"


def test_an_unknown_later_source_is_not_waited_for() -> None:
    """An unknown later source does not delay the choice."""
    assert Scene().step(up("a"), lost("b")).active == "a"


@pytest.mark.parametrize(
    ("standings", "active"),
    [
        ([up("a"), up("b", published=True)], "b"),
        ([down("a", published=True), up("b", published=True)], "b"),
        ([up("a", published=True), up("b", published=True)], "a"),
        ([down("a", published=True), down("b", published=True, serving=True)], "b"),
        ([down("a", published=True), down("b")], "a"),
    ],
)
def test_active_is_adopted_after_a_restart(standings: list[Standing], active: str) -> None:
    """After a restart a published source is active: preferably a ready one, then one that serves, then the first."""
    assert Scene().step(*standings).active == active


def test_switch_after_the_time() -> None:
    """After ``after`` seconds of not being ready, the first ready source takes over and a finding reports it."""
    scene = Scene()
    scene.step(up("a", published=True), up("b"), up("c"))
    first = scene.step(down("a", published=True), up("b"), up("c"))
    assert (first.active, first.wake_at, first.healthy) == ("a", 30.0, False)
    assert scene.step(down("a", published=True), up("b"), up("c"), after=29).active == "a"
    last = scene.step(down("a", published=True), up("b"), up("c"), after=1)
    told = Finding("FailedOver", "failed over from a to b", ("a", "b"))
    assert (last.active, last.findings, last.remove_others) == ("b", (told,), False)


def test_a_first_choice_that_is_not_ready_has_its_time_from_then_on() -> None:
    """For a first choice that is not ready, ``after`` counts from the choice itself."""
    scene = Scene()
    half = Standing("a", ready=False, offers=True)
    scene.step(half, down("b"))
    assert scene.step(half, up("b"), after=29).active == "a"
    assert scene.step(half, up("b"), after=1).active == "b"


def test_source_published_alone_needs_no_timer() -> None:
    """A source that is published alone needs no timer; the five seconds begin when another one is published, too."""
    scene = Scene()
    for after in (0.0, 1000.0):
        choice = scene.step(up("a", published=True), up("b"), after=after)
        assert (choice.wake_at, choice.remove_others) == (None, False)
    beside = scene.step(up("a", published=True), up("b", published=True))
    assert (beside.wake_at, beside.remove_others) == (1005.0, False)


def test_a_short_outage_switches_nothing() -> None:
    """A source that recovers within ``after`` stays active, and the next outage starts the timer from zero."""
    scene = Scene()
    scene.step(down("a", published=True), up("b"))
    scene.step(up("a", published=True), up("b"), after=29)
    assert scene.step(down("a", published=True), up("b"), after=5).wake_at == 64.0


def test_no_switch_without_a_ready_source() -> None:
    """Without a ready alternative the active source stays and no timer runs."""
    scene = Scene()
    scene.step(down("a", published=True), down("b"))
    choice = scene.step(down("a", published=True), down("b"), after=1000)
    assert (choice.active, choice.wake_at) == ("a", None)


def test_old_source_leaves_five_seconds_after_the_new_one_serves() -> None:
    """The old source is removed five seconds after the new one was observed published."""
    scene = Scene()
    scene.step(down("a", published=True), up("b"))
    scene.step(down("a", published=True), up("b"), after=30)
    assert scene.step(down("a", published=True), up("b"), after=60).remove_others is False
    seen = scene.step(down("a", published=True), up("b", published=True))
    assert (seen.remove_others, seen.wake_at) == (False, 95.0)
    assert scene.step(down("a", published=True), up("b", published=True), after=4.9).remove_others is False
    assert scene.step(down("a", published=True), up("b", published=True), after=0.1).remove_others is True


def test_old_source_stays_while_the_new_one_fails() -> None:
    """If the new source fails right after the switch, the old one is not removed."""
    scene = Scene()
    scene.step(up("a", published=True), up("b", published=True))
    choice = scene.step(down("a", published=True, serving=True), up("b", published=True), after=10)
    assert (choice.active, choice.remove_others, choice.healthy) == ("a", False, False)


def test_settling_time_restarts_after_a_restart() -> None:
    """A hub that restarts during a switch waits the five seconds again."""
    scene = Scene()
    scene.step(down("a", published=True), up("b", published=True))
    scene.memory = FailoverMemory()
    assert scene.step(down("a", published=True), up("b", published=True), after=4).remove_others is False
    assert scene.step(down("a", published=True), up("b", published=True), after=5).remove_others is True


def test_fail_back() -> None:
    """An earlier source becomes active again after it has been ready for ``failbackAfter``."""
    scene = Scene()
    scene.step(down("a"), up("b", published=True))
    assert scene.step(up("a"), up("b", published=True), after=10).wake_at == 310.0
    assert scene.step(up("a"), up("b", published=True), after=299).active == "b"
    assert scene.step(up("a"), up("b", published=True), after=1).active == "a"


def test_fail_back_starts_over() -> None:
    """An interruption restarts the ``failbackAfter`` timer."""
    scene = Scene()
    scene.step(up("a"), up("b", published=True))
    scene.step(down("a"), up("b", published=True), after=299)
    scene.step(up("a"), up("b", published=True), after=1)
    assert scene.step(up("a"), up("b", published=True), after=299).active == "b"


def test_fail_back_to_the_first_that_held() -> None:
    """The earlier source that has been ready for long enough becomes active, and the very first one later."""
    scene = Scene()
    scene.step(down("a"), up("b"), up("c", published=True))
    scene.step(up("a"), up("b"), up("c", published=True), after=100)
    assert scene.step(up("a"), up("b"), up("c", published=True), after=200).active == "b"
    assert scene.step(up("a"), up("b", published=True), down("c"), after=299).active == "b"
    assert scene.step(up("a"), up("b", published=True), down("c"), after=1).active == "a"


def test_manual_failback_keeps_the_active_source() -> None:
    """With manual failback the active source stays until it fails."""
    scene = Scene(MANUAL)
    scene.step(up("a"), up("b", published=True))
    choice = scene.step(up("a"), up("b", published=True), after=1e6)
    assert (choice.active, choice.wake_at) == ("b", None)
    scene.step(up("a"), down("b", published=True))
    assert scene.step(up("a"), down("b", published=True), after=30).active == "a"


def test_an_active_source_that_left_the_registry() -> None:
    """If the active source leaves the registry, the next one is chosen at once."""
    scene = Scene()
    scene.step(up("a", published=True), up("b"))
    assert scene.step(up("b")).active == "b"


def test_settling_time_restarts_after_the_active_source_left() -> None:
    """The settling time of a source that left does not count for the next one."""
    scene = Scene()
    scene.step(up("a", published=True), up("b", published=True), up("c", published=True))
    choice = scene.step(up("b", published=True), up("c", published=True), after=60)
    assert (choice.active, choice.remove_others, choice.wake_at) == ("b", False, 65.0)


def test_memory_is_the_same_object_where_nothing_changed() -> None:
    """In a steady state the memory stays the same object."""
    scene = Scene()
    scene.step(up("a", published=True), up("b"))
    before = scene.memory
    scene.step(up("a", published=True), up("b"), after=10)
    assert scene.memory is before


STANDINGS = st.lists(
    st.builds(Standing, st.just(""), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    min_size=3,
    max_size=3,
)


@given(st.lists(st.tuples(STANDINGS, st.sampled_from([0.0, 5.0, 30.0, 300.0])), max_size=10))
def test_others_are_removed_only_while_the_active_source_serves(steps: list[tuple[list[Standing], float]]) -> None:
    """Other sources are only removed while the active one is ready and observed published."""
    scene = Scene()
    for standings, after in steps:
        named = [
            Standing(name, each.known, each.offers, each.ready, each.published, each.serving)
            for name, each in zip("abc", standings, strict=True)
        ]
        choice = scene.step(*named, after=after)
        if choice.remove_others:
            active = next(each for each in named if each.cluster == choice.active)
            assert active.ready
            assert active.serving
            assert choice.healthy
        assert choice.wake_at is None or choice.wake_at > scene.now
