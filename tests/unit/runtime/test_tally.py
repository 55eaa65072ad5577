"""The buckets of histograms."""

from __future__ import annotations

import pytest

from hub.runtime.tally import CALL_BOUNDS, WRITE_BOUNDS


@pytest.mark.parametrize("bounds", [WRITE_BOUNDS, CALL_BOUNDS])
def test_no_two_buckets_have_the_same_bound(bounds: tuple[float, ...]) -> None:
    """The bounds ascend strictly: two buckets with the same bound would be the same series twice."""
    assert list(bounds) == sorted(set(bounds))
