"""The timer wheel."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hub.observe.health.wheel import TICK, Wheel

moments = st.lists(st.floats(1000, 1010, allow_nan=False), max_size=30)


@given(moments, moments)
def test_everything_is_handed_out_once_and_never_early(due: list[float], looks: list[float]) -> None:
    """Each item is handed out once, at the first call at or after its time, at most one tick late."""
    wheel: Wheel[int] = Wheel()
    for number, at in enumerate(due):
        wheel.put(number, at)
    seen: dict[int, float] = {}
    for now in sorted(looks):
        for number in wheel.due(now):
            assert number not in seen
            assert due[number] <= now
            seen[number] = now
        assert all(number in seen for number, at in enumerate(due) if at + TICK <= now)
    assert len(wheel) == len(due) - len(seen)


def test_overdue_item_is_returned_by_the_next_call() -> None:
    """An item whose time has passed is handed out by the next call."""
    wheel: Wheel[str] = Wheel()
    assert list(wheel.due(100.0)) == []
    wheel.put("late", 5.0)
    assert list(wheel.due(100.0)) == []
    assert list(wheel.due(100.0 + TICK)) == ["late"]


def test_long_pause_returns_all_due_items() -> None:
    """After a very long pause, all due items are handed out at once and in order."""
    wheel: Wheel[str] = Wheel()
    list(wheel.due(0.0))
    wheel.put("second", 20.0)
    wheel.put("first", 10.0)
    assert list(wheel.due(3.15e7)) == ["first", "second"]


def test_number_of_items_counts_those_not_handed_out() -> None:
    """``len`` counts the items that are not due yet, also if several are due at the same time."""
    wheel: Wheel[str] = Wheel()
    for item, at in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        wheel.put(item, at)
    assert len(wheel) == 3
    assert list(wheel.due(1.0)) == ["a", "b"]
    assert list(wheel.due(1.0)) == []
    wheel.put("d", 1.0)
    assert list(wheel.due(0.5)) == []
    assert list(wheel.due(1.0 + TICK)) == ["d"]
    assert (len(wheel), list(wheel.due(2.0))) == (1, ["c"])
