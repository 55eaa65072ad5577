"""Rise and fall: the verdict after a run of answers. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hub.decide.checks import Verdict


class Standing(NamedTuple):
    """One address under one check.

    Attributes:
        verdict: in force.
        run: answers in a row that contradict it (for a verdict of None: that agree with each other).
        passing: whether the last answer was a pass; None if there was none.
    """

    verdict: Verdict = None
    run: int = 0
    passing: bool | None = None


def advance(standing: Standing, *, passed: bool, rise: int, fall: int, frozen: bool = False) -> Standing:
    """The standing after one more answer.

    Args:
        standing: before.
        passed: whether the answer was a pass.
        rise: passes in a row that make an address healthy.
        fall: failures in a row that make it unhealthy.
        frozen: the prober itself probably fails: failures are ignored, and runs of failures start again at zero.
    """
    verdict, run, passing = standing
    if passed is verdict:
        return standing if passing is passed and run == 0 else Standing(verdict, 0, passed)
    if frozen and not passed:
        return Standing(verdict, 0, passed)
    run = run + 1 if passing is passed else 1
    if run >= (rise if passed else fall):
        return Standing(passed, 0, passed)
    return Standing(verdict, run, passed)
