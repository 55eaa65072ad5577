"""How answers change a verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.checks import Verdict
from hub.observe.health.verdicts import CheckState, advance


def after(start: Verdict, answers: str, *, rise: int = 2, fall: int = 3, frozen: bool = False) -> Verdict:
    """The verdict after a series of answers: ``+`` is a pass, ``-`` a failure."""
    standing = CheckState(start)
    for answer in answers:
        standing = advance(standing, passed=answer == "+", rise=rise, fall=fall, frozen=frozen)
    return standing.verdict


@pytest.mark.parametrize(
    ("start", "answers", "verdict"),
    [
        (True, "--", True),
        (True, "---", False),
        (True, "--+--", True),
        (True, "--+---", False),
        (False, "+", False),
        (False, "++", True),
        (False, "+-+", False),
        (None, "+", None),
        (None, "++", True),
        (None, "--", None),
        (None, "---", False),
        (None, "+--", None),
        (None, "--+", None),
    ],
)
def test_a_run_of_answers_decides(start: Verdict, answers: str, verdict: Verdict) -> None:
    """Only enough answers in a row change a verdict; a contrary answer restarts the count."""
    assert after(start, answers) is verdict


def test_frozen_failures_count_for_nothing() -> None:
    """While verdicts are frozen failures are ignored, and the count restarts at zero afterwards."""
    assert after(start=True, answers="-----", frozen=True) is True
    standing = advance(CheckState(verdict=True, run=2, passing=False), passed=False, rise=2, fall=3, frozen=True)
    assert advance(standing, passed=False, rise=2, fall=3).verdict is True


def test_frozen_passes_count() -> None:
    """While verdicts are frozen, passes still make an address healthy."""
    assert after(start=False, answers="++", frozen=True) is True


@given(st.text("+-", max_size=40), st.integers(1, 4), st.integers(1, 4), st.sampled_from([True, False, None]))
def test_a_verdict_is_the_last_full_run(answers: str, rise: int, fall: int, start: Verdict) -> None:
    """The verdict is the kind of the last run that was long enough, whatever came before."""
    expected: Verdict = start
    for end in range(1, len(answers) + 1):
        if answers[:end].endswith("+" * rise):
            expected = True
        elif answers[:end].endswith("-" * fall):
            expected = False
    assert after(start, answers, rise=rise, fall=fall) is expected


def test_an_answer_that_confirms_the_verdict_changes_nothing() -> None:
    """The standing of an address that keeps passing stays the same object."""
    standing = advance(CheckState(verdict=True), passed=True, rise=3, fall=3)
    assert advance(standing, passed=True, rise=3, fall=3) is standing
    assert standing == CheckState(verdict=True, passing=True)


@pytest.mark.parametrize(
    ("before", "passed", "frozen", "after_it"),
    [
        (CheckState(), True, False, CheckState(None, 1, passing=True)),
        (CheckState(None, 1, passing=True), True, False, CheckState(verdict=True, run=0, passing=True)),
        (CheckState(None, 1, passing=True), False, False, CheckState(None, 1, passing=False)),
        (CheckState(verdict=True, run=0, passing=True), False, False, CheckState(verdict=True, run=1, passing=False)),
        (CheckState(verdict=True, run=2, passing=False), False, False, CheckState(verdict=False, run=0, passing=False)),
        (CheckState(verdict=True, run=2, passing=False), False, True, CheckState(verdict=True, run=0, passing=False)),
        (CheckState(verdict=True, run=2, passing=False), True, True, CheckState(verdict=True, run=0, passing=True)),
        (CheckState(verdict=True, run=1, passing=True), True, False, CheckState(verdict=True, run=0, passing=True)),
        (CheckState(verdict=False, run=0, passing=False), True, True, CheckState(verdict=False, run=1, passing=True)),
    ],
)
def test_state_after_one_answer(before: CheckState, after_it: CheckState, *, passed: bool, frozen: bool) -> None:
    """One more answer changes verdict, run and last answer together."""
    assert advance(before, passed=passed, rise=2, fall=3, frozen=frozen) == after_it
