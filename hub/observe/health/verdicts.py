"""Computes the verdict after a run of answers, by the check's ``rise`` and ``fall``. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hub.decide.checks import Verdict


class CheckState(NamedTuple):
    """The state of one address under one check.

    Attributes:
        verdict: the verdict in force.
        run: number of answers in a row that contradict the verdict; if it is None, number of equal answers in a row.
        passing: whether the last answer was a pass; None if there was none.
    """

    verdict: Verdict = None
    run: int = 0
    passing: bool | None = None


def advance(standing: CheckState, *, passed: bool, rise: int, fall: int, frozen: bool = False) -> CheckState:
    """The standing after one more answer.

    Args:
        standing: the standing before this answer.
        passed: whether the answer was a pass.
        rise: passes in a row that make an address healthy.
        fall: failures in a row that make it unhealthy.
        frozen: whether the prober itself probably fails; failures are then ignored, and runs of them restart at zero.
    """
    verdict, run, passing = standing
    if passed is verdict:
        return standing if passing is passed and run == 0 else CheckState(verdict, 0, passed)
    if frozen and not passed:
        return CheckState(verdict, 0, passed)
    run = run + 1 if passing is passed else 1
    if run >= (rise if passed else fall):
        return CheckState(passed, 0, passed)
    return CheckState(verdict, run, passed)
