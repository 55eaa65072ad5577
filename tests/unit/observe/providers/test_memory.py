"""How answers change the resolution of a node, for all sequences of answers."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hub.model import Absent, Found, Unknown
from hub.observe.providers.memory import Memory

WINDOW = 10.0

said = st.sampled_from(
    [Found(("10.0.0.1",)), Found(("10.0.0.2",)), Absent("deleted"), Absent("stopped"), Unknown("ambiguous"), None]
)
steps = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 4.0, 9.9, 10.0, 25.0]), said | st.just("failed")), max_size=30)


@given(steps)
def test_an_address_leaves_only_for_two_agreeing_answers_a_window_apart(script: list[tuple[float, object]]) -> None:
    """A found address stays until "absent" is answered twice, at least a window apart."""
    memory = Memory(WINDOW)
    memory.add("a")
    now, absent_since = 0.0, None
    for delay, step in script:
        now += delay
        before = memory.resolutions["a"]
        if step == "failed":
            changed = memory.failed(["a", "never heard of"], "the API is away")
        else:
            assert step is None or isinstance(step, Found | Absent | Unknown)
            changed = memory.apply("a", step, now)
        after = memory.resolutions["a"]
        assert changed is (after != before)
        if isinstance(step, Found):
            absent_since = None
            assert after == step
        elif isinstance(step, Absent) and absent_since is None and not isinstance(before, Absent):
            absent_since = now
        if isinstance(before, Found) and not isinstance(after, Found):
            assert isinstance(step, Absent)
            assert after == step
            assert absent_since is not None
            assert now >= absent_since + WINDOW
        if isinstance(after, Absent) and not isinstance(before, Absent):
            absent_since = None
        if isinstance(before, Absent) and not isinstance(step, Found | Absent):
            assert after == before


@given(steps)
@example([(9.9, Absent("deleted")), (10.0, Absent("deleted"))])  # 19.9 - 9.9 is less than 10
def test_unconfirmed_absence_has_confirm_at(script: list[tuple[float, object]]) -> None:
    """``confirm_at`` is set exactly while an "absent" waits for confirmation."""
    memory = Memory(WINDOW)
    memory.add("a")
    now = 0.0
    for delay, step in script:
        now += delay
        if step != "failed":
            memory.apply("a", step, now)  # type: ignore[arg-type]
        due = memory.confirm_at()
        assert (due is None) is (memory.unconfirmed() == {})
        if isinstance(step, Found) or isinstance(memory.resolutions["a"], Absent):
            assert due is None
        if isinstance(step, Absent) and not isinstance(memory.resolutions["a"], Absent):
            assert due is not None
        assert step == "failed" or due is None or due > now


def test_the_first_absent_after_a_restart_is_unknown() -> None:
    """The first "absent" about a node that was never found makes it unknown, not absent."""
    memory = Memory(WINDOW)
    memory.add("a")
    assert memory.resolutions["a"] == Unknown("not resolved yet")
    memory.apply("a", Absent("deleted"), 0.0)
    assert memory.resolutions["a"] == Unknown("to be confirmed: deleted")
    memory.apply("a", Absent("deleted"), 9.9)
    assert isinstance(memory.resolutions["a"], Unknown)
    memory.apply("a", Absent("deleted"), 10.0)
    assert dict(memory.resolutions) == {"a": Absent("deleted")}


def test_new_node_of_the_same_name_inherits_nothing() -> None:
    """A new node of the same name inherits neither the address nor an unconfirmed "absent"."""
    memory = Memory(WINDOW)
    memory.add("a")
    memory.apply("a", Found(("10.0.0.1",)), 0.0)
    memory.apply("a", Absent("deleted"), 1.0)
    memory.add("a")
    assert memory.resolutions["a"] == Unknown("not resolved yet")
    assert memory.confirm_at() is None
    assert memory.forget("a")
    assert not memory.forget("a")
    assert memory.resolutions == {}


def test_a_failure_is_the_reason_only_where_nothing_is_known() -> None:
    """A failure becomes the reason of unknown nodes; known ones keep their resolution."""
    memory = Memory(WINDOW)
    for name in ("known", "new"):
        memory.add(name)
    memory.apply("known", Found(("10.0.0.1",)), 0.0)
    assert memory.failed(["known", "new", "gone"], "the API is away")
    assert memory.resolutions == {"known": Found(("10.0.0.1",)), "new": Unknown("the API is away")}
    assert not memory.failed(["known", "new"], "the API is away")


def test_unknown_after_absent_postpones_the_confirmation() -> None:
    """An "unknown" after a first "absent" postpones the confirmation by a window."""
    memory = Memory(WINDOW)
    memory.add("a")
    memory.apply("a", Found(("10.0.0.1",)), 0.0)
    memory.apply("a", Absent("deleted"), 100.0)
    assert memory.confirm_at() == 100.0 + WINDOW
    memory.apply("a", Unknown("ambiguous"), 110.0)
    assert memory.confirm_at() == 110.0 + WINDOW
    assert memory.resolutions["a"] == Found(("10.0.0.1",))
    memory.apply("a", Absent("deleted"), 120.0)
    assert memory.resolutions["a"] == Absent("deleted")
    assert memory.confirm_at() is None
