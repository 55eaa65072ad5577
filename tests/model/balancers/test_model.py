"""Random courses of one Service: kills, takeovers, lost answers, lists that lag or fail, and people who interfere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hub.controller import course, record
from hub.controller.course import Memory
from tests.model.balancers.world import Unseen, World, Writer, run
from tests.support.balancing import Seen

Patch = pytest.MonkeyPatch


def test_random_courses_leak_nothing_double_nothing_and_converge() -> None:
    """No second object, nothing left behind, nothing foreign touched; without trouble the end is as wanted."""
    for seed in range(300):
        assert run(seed).settled()


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100_000, 120_000, 1000))
def test_many_random_courses_hold(first: int) -> None:
    """The same for 20,000 further courses."""
    for seed in range(first, first + 1000):
        assert run(seed).settled()


def _no_lag(patch: Patch) -> None:
    patch.setattr(course, "LAG", 0.0)


def _old_observations_count(patch: Patch) -> None:
    patch.setattr(course, "_old", lambda *_: None)


def _earlier_creations_are_forgotten(patch: Patch) -> None:
    patch.setattr(course, "_visible_at", lambda *_: course.NEVER)


def _steps_are_forgotten(patch: Patch) -> None:
    patch.setattr(Memory, "recent", lambda *_: [])


def _everything_found_is_ours(patch: Patch) -> None:
    patch.setattr(course, "_made", lambda scene: tuple(sorted(scene.found)))


def _intents_are_not_kept(patch: Patch) -> None:
    write = record.write
    patch.setattr(record, "write", lambda kept, *more: write(_without_intent(kept), *more))


def _without_intent(kept: Any) -> Any:
    return type(kept)(kept.name, kept.marker, kept.former_names, kept.ids, kept.made, kept.set)


def _unknown_counts_as_nothing(patch: Patch) -> None:
    observed = World.observed

    def wrong(world: World) -> Seen:
        try:
            return observed(world)
        except Unseen:
            return {}

    patch.setattr(World, "observed", wrong)


def _two_write_at_once(patch: Patch) -> None:
    patch.setattr(Writer, "fence", lambda _: None)


@pytest.mark.parametrize(
    ("bug", "laws"),
    [
        (_no_lag, ("a second", "are left")),
        (_old_observations_count, ("a second", "are left")),
        (_earlier_creations_are_forgotten, ("a second", "are left")),
        (_steps_are_forgotten, ("a second", "are left", "settle")),
        (_everything_found_is_ours, ("not the hub's",)),
        (_intents_are_not_kept, ("a second", "are left", "settle")),
        (_unknown_counts_as_nothing, ("a second", "are left")),
        (_two_write_at_once, ("a second", "are left")),
    ],
)
def test_the_model_finds_a_planted_bug(
    bug: Callable[[Patch], None], laws: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug breaks one of its laws in one of a few courses."""
    bug(monkeypatch)
    for seed in range(500):
        try:
            run(seed)
        except AssertionError as error:
            if any(law in str(error).partition("\n")[0] for law in laws):
                return
    pytest.fail("the model does not find the bug")
