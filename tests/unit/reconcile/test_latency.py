"""The time from a change to its publication."""

from __future__ import annotations

from hub.model import TargetKey
from hub.reconcile.latency import Latency

ONE, TWO = TargetKey("edge", "one"), TargetKey("edge", "two")


def test_a_change_counts_from_its_arrival_to_the_end_of_its_write() -> None:
    """Of several changes that one pass carries, the first one counts."""
    latency = Latency()
    latency.arrived(ONE, 10.0)
    latency.arrived(ONE, 11.0)
    latency.begin(ONE)
    latency.published(ONE, 12.5)
    assert (sum(latency.seconds.counts), latency.seconds.sum) == (1, 2.5)


def test_a_change_of_a_pass_that_failed_waits_on() -> None:
    """The pass after a failed one carries the older change, even if another one arrived meanwhile."""
    latency = Latency()
    latency.arrived(ONE, 10.0)
    latency.begin(ONE)
    latency.arrived(ONE, 14.0)
    latency.begin(ONE)
    latency.published(ONE, 15.0)
    assert (sum(latency.seconds.counts), latency.seconds.sum) == (1, 5.0)


def test_a_change_during_a_pass_belongs_to_the_next() -> None:
    """A change that arrives during a pass is carried by the next pass."""
    latency = Latency()
    latency.arrived(ONE, 10.0)
    latency.begin(ONE)
    latency.arrived(ONE, 11.0)
    latency.published(ONE, 12.0)
    assert (sum(latency.seconds.counts), latency.oldest(13.0)) == (1, 2.0)


def test_a_change_that_means_no_write_is_not_counted() -> None:
    """A change whose pass needs no write is not measured."""
    latency = Latency()
    latency.arrived(ONE, 10.0)
    latency.begin(ONE)
    latency.wrote_nothing(ONE)
    latency.published(ONE, 12.0)
    assert (sum(latency.seconds.counts), latency.oldest(12.0)) == (0, 0.0)


def test_the_oldest_change_is_known_whether_or_not_a_pass_has_it() -> None:
    """The oldest change counts whether or not a pass carries it, until its target or the Lease is lost."""
    latency = Latency()
    assert latency.oldest(1.0) == 0.0
    latency.arrived(ONE, 10.0)
    latency.begin(ONE)
    latency.arrived(TWO, 11.0)
    assert latency.oldest(20.0) == 10.0
    latency.forget(ONE)
    assert latency.oldest(20.0) == 9.0
    latency.begin(TWO)
    latency.arrived(ONE, 19.0)
    latency.clear()
    assert latency.oldest(20.0) == 0.0
