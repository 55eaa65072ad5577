"""The buckets of histograms."""

from __future__ import annotations

import pytest

from hub.runtime.tally import CALL_BOUNDS, WRITE_BOUNDS, Tally


@pytest.mark.parametrize("bounds", [WRITE_BOUNDS, CALL_BOUNDS])
def test_no_two_buckets_have_the_same_bound(bounds: tuple[float, ...]) -> None:
    """The bounds ascend strictly: two buckets with the same bound would be the same series twice."""
    assert list(bounds) == sorted(set(bounds))


def test_a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    """Bounds are inclusive; the last bucket counts durations above the highest bound."""
    tally = Tally([1.0, 2.0])
    assert (tally.bounds, tally.counts, tally.sum) == ((1.0, 2.0), [0, 0, 0], 0.0)
    for seconds in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        tally.note(seconds)
    assert (tally.counts, tally.sum) == ([3, 2, 1], 7.5)
