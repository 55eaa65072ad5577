"""The whole hub under random faults, judged by a model; see docs/reliability.md."""

from __future__ import annotations

import math
import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import HubMachine

STEPS = int(os.environ.get("MODEL_STEPS", "1000"))
"""Set by ``make test-model``."""
LENGTH = 80
"""The steps of one history: enough for three faults to meet, and few enough to shrink."""
PLAYED = 0.85
"""The part of the steps that is played on average: hypothesis ends a history that has used up its choices."""


def test_hub_keeps_its_promises_under_faults() -> None:
    """A hub makes no write that is not allowed, and in the end publishes exactly the true endpoints."""
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
    print(f"{HubMachine.steps:,} steps")  # noqa: T201 - the number of steps
    assert HubMachine.steps >= 0.9 * STEPS
