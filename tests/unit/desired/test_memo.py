"""What costs something to make is made once, and kept for no longer than it is used."""

from __future__ import annotations

from hub.desired.memo import Memo


def test_the_very_same_inputs_have_an_outcome() -> None:
    """Equal ones are others."""
    memo: Memo[str, str] = Memo()
    inputs = ([1], [2])
    assert memo.put("a", inputs, "made") == "made"
    assert memo.get("a", inputs) == "made"
    assert (memo.get("a", ([1], [2])), memo.get("b", inputs)) == (None, None)
    assert (memo.last("a"), memo.last("b")) == ("made", None)


def test_what_a_pass_had_no_use_for_is_forgotten() -> None:
    """What was made in it, or asked for, stays for the next one."""
    memo: Memo[str, str] = Memo()
    inputs = ([1],)
    for key in "abc":
        memo.put(key, inputs, key)
    memo.sweep()
    assert memo.get("a", inputs) == "a"
    assert memo.get("b", ([1],)) is None
    assert memo.put("b", inputs, "anew") == "anew"
    memo.sweep()
    assert [memo.last(key) for key in "abc"] == ["a", "anew", None]
    assert len(memo) == 2
