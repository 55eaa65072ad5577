"""When the prober itself is suspected."""

from __future__ import annotations

import pytest

from hub.observe.health.suspicion import LastAnswer, calm, suspicious

NOW = 1000.0


def failing(count: int, cluster: str, *, since: float = NOW - 2) -> list[LastAnswer]:
    """Addresses that have stopped answering."""
    return [LastAnswer(cluster, passing=False, at=NOW - 1, since=since, interval=5.0)] * count


def answering(count: int, cluster: str = "eu", *, at: float = NOW - 1) -> list[LastAnswer]:
    """Addresses that answer."""
    return [LastAnswer(cluster, passing=True, at=at, since=NOW - 100, interval=5.0)] * count


def test_more_than_half_in_two_clusters_is_suspicious() -> None:
    """51 of 100 failing addresses in two clusters are suspicious, 50 are not."""
    assert suspicious([*failing(26, "eu"), *failing(25, "us"), *answering(49)], NOW)
    assert not suspicious([*failing(25, "eu"), *failing(25, "us"), *answering(50)], NOW)


def test_failure_of_one_cluster_is_not_suspicious() -> None:
    """A failure of one cluster alone is never suspicious."""
    assert not suspicious([*failing(100, "eu"), *answering(10, "us")], NOW)


def test_earlier_failures_do_not_count_as_sudden() -> None:
    """Addresses that began to fail before their last interval do not count."""
    old = failing(40, "eu", since=NOW - 60)
    assert not suspicious([*old, *failing(5, "eu"), *failing(5, "us"), *answering(60)], NOW)


def test_late_probes_do_not_hide_an_outage() -> None:
    """Addresses that were not probed within their last interval do not count as answering."""
    stale = answering(4000, at=NOW - 6)
    assert suspicious([*failing(300, "eu"), *failing(300, "us"), *stale, *answering(100)], NOW)


def test_nothing_seen_is_not_suspicious() -> None:
    """Without any answer, the prober is not suspected."""
    assert not suspicious([], NOW)


def test_calm_returns_below_thirty_percent() -> None:
    """29 of 100 failing addresses end a suspicion, 30 do not; no address at all ends it too."""
    assert calm([*failing(29, "eu"), *answering(71)])
    assert not calm([*failing(30, "eu"), *answering(70)])
    assert calm([])


@pytest.mark.parametrize(("seconds", "suspected"), [(5.4, True), (5.5, True), (5.6, False)])
def test_failure_is_sudden_within_one_interval_and_a_tenth(seconds: float, *, suspected: bool) -> None:
    """A failure is sudden if it began at most 1.1 intervals ago."""
    lost = [*failing(1, "eu", since=NOW - seconds), *failing(1, "us", since=NOW - seconds)]
    assert suspicious(lost, NOW) is suspected


@pytest.mark.parametrize(("seconds", "suspected"), [(5.4, False), (5.5, False), (5.6, True)])
def test_answer_counts_within_one_interval_and_a_tenth(seconds: float, *, suspected: bool) -> None:
    """An answer counts if it came at most 1.1 intervals ago."""
    seen = [*failing(1, "eu"), *failing(1, "us"), *answering(2, at=NOW - seconds)]
    assert suspicious(seen, NOW) is suspected
