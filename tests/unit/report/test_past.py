"""The history as API values and as steps of an explanation."""

from __future__ import annotations

import pytest

from hub.decide.history import Entry, Named
from hub.model import TargetKey
from hub.report.past import (
    REMEMBERED,
    described,
    history,
    remembered_address,
    remembered_node,
    remembered_service,
)
from hub.report.values import History, HistoryEndpoint, HistoryEntry, Step

KEY, OTHER = TargetKey("edge", "payments"), TargetKey("edge", "orders")
ONE, TWO = Named("10.0.0.1", "n1"), Named("10.0.0.2")


def entry(at: int, *endpoints: Named, kind: str = "added", count: int | None = None, cluster: str = "eu") -> Entry:
    """An entry ``at`` seconds after the beginning of 2027-01-15 08:00 UTC."""
    number = len(endpoints) if count is None else count
    return Entry(1_800_000_000 + at, kind, "new node", cluster, "IPv4", endpoints, number)  # type: ignore[arg-type]


def test_the_newest_entries_of_all_services_are_in_order() -> None:
    """Entries of all Services are sorted by time, then by Service; the newest are returned, and all are counted."""
    entries = {KEY: (entry(1, ONE), entry(3, TWO)), OTHER: (entry(1, ONE), entry(2))}
    found = history(entries, None, 3, "not stored")
    assert (found.number, found.problem) == (4, "not stored")
    assert [(one.at[-3:-1], one.service) for one in found.entries] == [
        ("01", str(KEY)),
        ("02", str(OTHER)),
        ("03", str(KEY)),
    ]
    assert [one.service for one in history(entries, None, 9).entries][:2] == [str(OTHER), str(KEY)]
    assert history(entries, None, 0).entries == ()


def test_whole_history_of_a_service() -> None:
    """A Service has its own entries only; an unknown one has none."""
    entries = {KEY: (entry(1, ONE, TWO),), OTHER: (entry(2),)}
    assert history(entries, KEY, 1) == History(
        (
            HistoryEntry(
                "2027-01-15T08:00:01Z",
                "edge/payments",
                "added",
                "new node",
                "eu",
                "IPv4",
                (HistoryEndpoint("10.0.0.1", "n1"), HistoryEndpoint("10.0.0.2")),
                2,
            ),
        ),
        1,
    )
    assert history(entries, TargetKey("edge", "none"), 1) == History()


@pytest.mark.parametrize(
    ("given", "named", "text"),
    [
        (entry(0, ONE), (ONE,), "10.0.0.1, node n1 of eu: new node"),
        (entry(0, ONE, TWO), (ONE, TWO), "10.0.0.1, node n1; 10.0.0.2 of eu: new node"),
        (entry(0, ONE, TWO, count=3), (TWO,), "10.0.0.2 and 2 more of eu: new node"),
        (entry(0, ONE, TWO), (ONE,), "10.0.0.1, node n1 and 1 more of eu: new node"),
        (entry(0, ONE, cluster=""), (ONE,), "10.0.0.1, node n1: new node"),
        (entry(0, count=3), (), "new node"),
    ],
)
def test_an_entry_is_one_line(given: Entry, named: tuple[Named, ...], text: str) -> None:
    """The line has the named endpoints, the number of the others, the source and the reason."""
    assert described(given, named) == text


def test_what_is_gone_is_remembered() -> None:
    """A Service, an address and a node have their entries of all Services, oldest first, at most ten."""
    entries = {KEY: (entry(1, TWO, ONE), entry(3, ONE, kind="removed")), OTHER: (entry(2, ONE),)}
    first = Step("history", str(KEY), "added", "2027-01-15T08:00:01Z: 10.0.0.1, node n1 and 1 more of eu: new node")
    second = Step("history", str(OTHER), "added", "2027-01-15T08:00:02Z: 10.0.0.1, node n1 of eu: new node")
    third = Step("history", str(KEY), "removed", "2027-01-15T08:00:03Z: 10.0.0.1, node n1 of eu: new node")
    assert remembered_address(entries, "10.0.0.1") == remembered_node(entries, "n1") == (first, second, third)
    assert remembered_address(entries, "10.0.0.9") == remembered_node(entries, "n9") == ()
    assert remembered_service(entries, KEY) == (
        Step("history", str(KEY), "added", "2027-01-15T08:00:01Z: 10.0.0.2 and 1 more of eu: new node"),
        third,
    )
    many = {KEY: tuple(entry(number, ONE) for number in range(REMEMBERED + 5))}
    for found in (remembered_address(many, "10.0.0.1"), remembered_service(many, KEY)):
        assert [step.why[17:19] for step in found] == [f"{number:02}" for number in range(5, REMEMBERED + 5)]
