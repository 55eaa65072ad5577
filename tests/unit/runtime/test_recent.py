"""The cache of recently used values."""

from __future__ import annotations

from hub.runtime.recent import Recent


def test_stored_value_is_found() -> None:
    """A stored value is found; other keys are not."""
    recent: Recent[str, int] = Recent(2)
    assert recent.put("a", 1) == 1
    assert (recent.get("a"), recent.get("b")) == (1, None)
    recent.put("a", 2)
    assert (recent.get("a"), len(recent)) == (2, 1)


def test_cache_keeps_the_last_entries_and_at_most_twice_as_many() -> None:
    """The last entries are kept, and never more than twice as many, however many are stored."""
    recent: Recent[int, int] = Recent(10)
    for number in range(1, 100):
        recent.put(number, number)
        assert len(recent) <= 20
        assert all(recent._young.get(n) or recent._old.get(n) for n in range(max(1, number - 9), number + 1))


def test_used_entry_stays() -> None:
    """Getting a value counts as a use and keeps its entry."""
    recent: Recent[int, int] = Recent(10)
    recent.put(1, 1)
    for number in range(2, 100):
        recent.put(number, number)
        assert recent.get(1) == 1
    for number in range(100, 120):
        recent.put(number, number)
    assert recent.get(1) is None
