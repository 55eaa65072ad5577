"""Backoff: delays that grow after each failure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.runtime.backoff import Backoff


def test_delay_doubles_up_to_the_cap() -> None:
    """The delays are those of client-go's reflector: 0.8 s, doubled up to 30 s."""
    backoff = Backoff(jitter=0.0)
    assert [backoff.next(0.0) for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_jitter_only_stretches(seed: int, failures: int) -> None:
    """With jitter, a delay is between its plain value and twice that."""
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
    """Two minutes after the end of the last delay, the first delay is back."""
    backoff = Backoff(jitter=0.0)
    backoff.next(0.0)
    end = 10.0 + backoff.next(10.0)
    assert backoff.next(end + calm) == delay


def test_delays_longer_than_the_calm_reach_the_cap() -> None:
    """Failures right after each delay grow up to the cap, although the delays are longer than `reset_after`."""
    backoff, now, delays = Backoff(base=10.0, cap=600.0, jitter=0.0), 0.0, []
    for _ in range(9):
        delays.append(backoff.next(now))
        now += delays[-1]
    assert delays == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]


def test_reset_starts_over() -> None:
    """After a reset the first delay is back."""
    backoff = Backoff(jitter=0.0)
    backoff.next(0.0)
    backoff.reset()
    assert backoff.next(0.0) == 0.8


def test_failures_without_end_do_not_overflow() -> None:
    """A cluster that has been gone for weeks is tried every 30 s."""
    backoff = Backoff(jitter=0.0)
    assert {backoff.next(float(n)) for n in range(5000)} <= {0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0}
