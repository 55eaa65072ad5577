"""Tests of the ledger: latencies, losses and the verdict."""

from __future__ import annotations

import pytest
from hub_testkit.demo.ledger import Ledger, Verdict, differences, verdict
from hub_testkit.demo.world import Shown, Spot

A, B = Spot("payments", "10.7.0.1"), Spot("payments", "10.7.0.2")
UP, DRAINING = Shown("eu", 30443, ready=True), Shown("eu", 30443, ready=False)


def summed_up(ledger: Ledger, published: dict[Spot, Shown], wanted: dict[Spot, Shown]) -> Verdict:
    """Returns the verdict for a small world."""
    return verdict(ledger, published, wanted, clusters=1, nodes=2, services=1, writes=3)


def settled() -> Ledger:
    """Returns a ledger in which A and B are wanted since second 0 and published since second 0.1."""
    ledger = Ledger()
    ledger.happened("start", {A: UP, B: UP}, 0.0)
    ledger.observed({A: UP, B: UP}, 1, 0.1)
    return ledger


def test_change_is_done_when_everything_it_changed_is_published() -> None:
    """A change is done, and its time measured, when the last of its endpoints is published."""
    ledger = Ledger()
    change = ledger.happened("start", {A: UP, B: UP}, 1.0)
    assert ledger.observed({A: UP}, 1, 1.2) == []
    assert ledger.observed({A: UP, B: UP}, 2, 1.5) == [change]
    assert change.seconds == pytest.approx(0.5)
    assert list(ledger.latencies) == [change.seconds]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({A: UP}, "1 endpoint out of 1 service"),
        ({A: UP, B: DRAINING}, "1 endpoint not ready in 1 service"),
        ({A: UP, B: UP, B._replace(service="search"): UP}, "1 endpoint into 1 service"),
        ({}, "2 endpoints out of 1 service"),
    ],
)
def test_change_effect_is_stated_in_endpoints_and_services(wanted: dict[Spot, Shown], words: str) -> None:
    """The effect of a change is described by numbers of endpoints and services."""
    assert settled().happened("something", wanted, 10.0).effect == words


def test_change_that_is_overtaken_has_no_latency() -> None:
    """A change that a later one replaces before it is published is done, but has no latency."""
    ledger = settled()
    first = ledger.happened("cordoned", {A: UP, B: DRAINING}, 10.0)
    second = ledger.happened("left", {A: UP}, 10.1)
    assert ledger.observed({A: UP}, 3, 10.2) == [first, second]
    assert first.seconds is None
    assert second.seconds == pytest.approx(0.1)


def test_wanted_endpoint_that_disappears_counts_as_lost() -> None:
    """A wanted endpoint that is removed or becomes not ready counts as lost, once each time."""
    ledger = settled()
    ledger.observed({A: UP}, 2, 10.0)
    assert ledger.lost == 1
    ledger.observed({A: UP, B: UP}, 3, 10.1)
    ledger.observed({A: DRAINING, B: UP}, 4, 10.2)
    assert ledger.lost == 2
    assert not summed_up(ledger, {A: UP, B: UP}, {A: UP, B: UP}).ok


def test_removed_unwanted_endpoint_is_not_lost() -> None:
    """Removing a failed node's endpoint is no loss, even a moment after the node has recovered."""
    ledger = settled()
    ledger.happened("failed", {A: UP}, 10.0)
    ledger.happened("recovered", {A: UP, B: UP}, 10.1)
    ledger.observed({A: UP}, 2, 10.2)
    assert ledger.lost == 0


def test_write_without_a_change_is_an_idle_write() -> None:
    """Writes count as idle if no change was pending for a while."""
    ledger = settled()
    ledger.observed({A: UP, B: UP}, 2, 0.3)
    assert ledger.idle_writes == 0
    ledger.observed({A: UP, B: UP}, 5, 10.0)
    assert ledger.idle_writes == 3


def test_verdict_is_good_when_published_equals_expected() -> None:
    """The verdict is good if the published endpoints equal the expected ones; its text has the numbers."""
    assert summed_up(settled(), {A: UP, B: UP}, {B: UP, A: UP}) == Verdict(
        "demo: 1 clusters, 2 nodes, 1 services: 1 change, 3 writes, 0 endpoints lost; published = expected", ok=True
    )


@pytest.mark.parametrize(
    ("published", "says"),
    [
        ({A: UP}, "payments lacks 10.7.0.2 of eu"),
        ({}, "payments lacks 10.7.0.1 of eu (and 1 more)"),
        ({A: UP, B: UP, Spot("search", "10.7.0.1"): UP}, "search still has 10.7.0.1 of eu"),
        ({A: UP, B: DRAINING}, "payments shows 10.7.0.2"),
        ({A: UP, B: UP._replace(port=80)}, "payments shows 10.7.0.2"),
        ({A: UP, B: UP._replace(cluster="us")}, "payments shows 10.7.0.2"),
    ],
)
def test_verdict_is_bad_when_anything_published_is_wrong(published: dict[Spot, Shown], says: str) -> None:
    """A missing, extra or different endpoint is named, and the demo has failed."""
    result = summed_up(settled(), published, {A: UP, B: UP})
    assert not result.ok
    assert "published is NOT as expected: " in result.text
    assert says in result.text


def test_equal_worlds_have_no_differences() -> None:
    """Equal endpoints in another order have no differences."""
    assert differences({A: UP, B: UP}, {B: UP, A: UP}) == []
