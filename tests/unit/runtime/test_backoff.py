"""Growing delays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.runtime.backoff import Backoff


def test_delay_doubles_up_to_the_cap() -> None:
    """client-go's reflector: 0.8 s, doubled, 30 s at most."""
    backoff = Backoff(jitter=0.0)
    assert [backoff.next(0.0) for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_jitter_only_stretches(seed: int, failures: int) -> None:
    """With jitter a delay is between itself and its double."""
    backoff, plain = Backoff(rng=random.Random(seed)), Backoff(jitter=0.0)
    for _ in range(failures):
        backoff.next(0.0)
        plain.next(0.0)
    delay = plain.next(0.0)
    assert delay <= backoff.next(0.0) < 2 * delay


def test_fleet_does_not_come_back_at_once() -> None:
    """Two clusters that fail together do not try again together."""
    assert Backoff().next(0.0) != Backoff().next(0.0)


@pytest.mark.parametrize(("calm", "delay"), [(120.0, 3.2), (120.1, 0.8)])
def test_calm_starts_over(calm: float, delay: float) -> None:
    """After two minutes without a failure the first delay is back."""
    backoff = Backoff(jitter=0.0)
    backoff.next(0.0)
    backoff.next(10.0)
    assert backoff.next(10.0 + calm) == delay


def test_reset_starts_over() -> None:
    """Something worked."""
    backoff = Backoff(jitter=0.0)
    backoff.next(0.0)
    backoff.reset()
    assert backoff.next(0.0) == 0.8


def test_failures_without_end_do_not_overflow() -> None:
    """A cluster that is gone for weeks is asked every 30 s."""
    backoff = Backoff(jitter=0.0)
    assert {backoff.next(float(n)) for n in range(5000)} <= {0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0}
