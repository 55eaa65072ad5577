"""Hints in error messages."""

from __future__ import annotations

import pytest

from hub.errors import (
    REASON_LIMIT,
    STATUS_QUOTE_LIMIT,
    WORD_LIMIT,
    ApiError,
    Problem,
    RegistryError,
    did_you_mean,
    one_line,
)


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


def test_long_word_is_compared_in_part() -> None:
    """Of a long word only the start is compared, and of a long known word only the start is shown."""
    known = "a" * (WORD_LIMIT + 50)

    assert did_you_mean("a" * WORD_LIMIT, [known]) == f"did you mean {'a' * WORD_LIMIT}?"
    assert did_you_mean("payments" + "x" * 10_000, ["payments"]) == ""
    assert did_you_mean("beta", []) == ""


@pytest.mark.parametrize(
    ("text", "limit", "line"),
    [
        ("a\nb\x1b[0m é", None, "a\\nb\\x1b[0m é"),
        ("plain é", None, "plain é"),
        ("abc", 2, "ab"),
        ("a\nb", 2, "a\\"),
        ("a\nb", 3, "a\\n"),
    ],
)
def test_text_is_shown_on_one_line(text: str, limit: int | None, line: str) -> None:
    """Line breaks and terminal codes are escaped; other characters stay; the result is cut to the limit."""
    assert one_line(text, limit) == line


def test_problem_is_shown_with_its_place_key_and_hint() -> None:
    """A problem has place, key, message and hint; parts that it lacks are left out."""
    problems = (Problem("f", 1, 2, "a.b", "is bad", "repair it"), Problem("f", 0, 0, "", "is bad"))

    assert str(RegistryError(problems)) == "f:1:2: a.b: is bad (repair it)\nf: is bad"


def test_api_error_is_one_line_and_cut() -> None:
    """The error of an API has the request, if known, the status, the reason and the message, each on one line."""
    long = ApiError(422, "r" * 1000, "m" * 1000, what="PUT x")

    assert str(ApiError(409, "Conflict", "a\nb")) == "409 Conflict: a\\nb"
    assert str(long) == f"PUT x: 422 {'r' * REASON_LIMIT}: {'m' * STATUS_QUOTE_LIMIT}"
    assert (long.reason, long.message) == ("r" * REASON_LIMIT, "m" * STATUS_QUOTE_LIMIT)
