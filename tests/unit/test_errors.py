"""Hints in error messages."""

from __future__ import annotations

import pytest

from hub.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("paymnets", "did you mean payments?"),
        ("PAYMENTS", "did you mean payments?"),
        ("two\nlines!", "did you mean two\\nlines?"),
        ("something else", "known: all of them"),
    ],
)
def test_hint_has_the_closest_known_word(word: str, hint: str) -> None:
    """The closest word is suggested on one line, whatever its case; if none is close, the hint is another one."""
    assert did_you_mean(word, ["payments", "orders", "two\nlines"], "known: all of them") == hint
