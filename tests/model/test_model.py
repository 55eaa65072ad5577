"""The whole hub, driven by chance, judged by a model of its own; see docs/reliability.md."""

from __future__ import annotations

import math
import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import HubMachine

STEPS = int(os.environ.get("MODEL_STEPS", "1000"))
"""Set by ``make test-model``."""
LENGTH = 80
"""Steps of one history: long enough for three faults to meet and to be worth its end, short enough to be shrunk."""
PLAYED = 0.85
"""Part of them that is played, on average: hypothesis ends a history that has used up its choices."""


def test_hub_keeps_its_promises_under_faults() -> None:
    """No write that is not allowed, and in the end what is true is published and left alone."""
    HubMachine.steps = 0
    run_state_machine_as_test(
        HubMachine,
        settings=settings(
            max_examples=math.ceil(STEPS / (LENGTH * PLAYED)),
            stateful_step_count=LENGTH,
            deadline=None,
            derandomize="MODEL_STEPS" not in os.environ,  # the same histories in every run of `make test`
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{HubMachine.steps:,} steps")  # noqa: T201 - the figure that is asked for
    assert HubMachine.steps >= 0.9 * STEPS
