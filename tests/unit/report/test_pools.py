"""Reserved addresses on the status page."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from hub.report.page import event, rendered_overview
from hub.report.page.pools import MOST, address_sign, pools
from hub.report.page.search import EVERYTHING, Search
from hub.report.page.signs import attention
from hub.report.site import VersionedStatus
from hub.report.values import Allocation, Allocations, CloudAccount, ReservedAddress, Status
from tests.unit.report.test_page import Tags

A1 = ReservedAddress("34.1.2.1", "Attached", node="n1", since="2026-01-01T00:00:00Z")
A2 = ReservedAddress("34.1.2.2", "Attached", node="n2")
WEB = Allocation("web", "local", "main", "gcp", "True", "Attached", "2 of 2", 2, 2, addresses=(A1, A2))
FOUND = Allocations("enforce", "", (CloudAccount("main", "gcp", ("local",), "ready"),), (WEB,))
FREE = ReservedAddress("34.1.2.2", "Pending", "NoNode", "no node can take it", cause="Free")
STRANGER = ReservedAddress("34.1.2.2", "Elsewhere", "Stranger", "router r has it")
HELD = ReservedAddress(
    "34.1.2.2",
    "Leaving",
    "Withheld",
    "the budget is used up",
    "n2",
    cause="Drained",
    hash="abc",
    approve="hub approve x abc",
)


def having(*addresses: ReservedAddress, ready: str = "True", reason: str = "Attached", **more: object) -> Allocations:
    """The allocations, where ``web`` has these addresses."""
    allocation = replace(WEB, addresses=addresses, ready=ready, reason=reason, attached=len(addresses) - 1)
    return replace(FOUND, allocations=(allocation,), **more)


def overview(found: Allocations | None, search: Search = EVERYTHING) -> str:
    """The first page with these allocations."""
    return rendered_overview(VersionedStatus("v", Status(allocations=found)), search).decode()


def test_a_pool_has_the_addresses_of_all_its_allocations() -> None:
    """There is a pool for each cluster and account, sorted."""
    other = replace(WEB, name="api", cluster="eu")
    found = pools(replace(FOUND, allocations=(replace(WEB, name="api"), WEB, other)))
    assert [(pool.title, pool.sign.words, len(pool.rows)) for pool in found] == [
        ("main on eu", "2 of 2 attached", 2),
        ("main on local", "4 of 4 attached", 4),
    ]
    assert [row.allocation for row in found[1].rows] == ["api", "api", "web", "web"]
    assert pools(None) == ()


def test_the_worst_addresses_come_first() -> None:
    """A pool has the sign of its worst address, which is shown first, also if there are too many."""
    [pool] = pools(having(*[A1] * MOST, STRANGER))
    assert (pool.sign.kind, pool.rows[0].found, len(pool.rows), pool.more) == ("bad", STRANGER, MOST, 1)
    assert "and 1 more" in overview(having(*[A1] * MOST, STRANGER))


@pytest.mark.parametrize(
    ("found", "allocation", "kind", "words"),
    [
        (A1, WEB, "good", "attached"),
        (FREE, WEB, "idle", "pending"),
        (FREE, replace(WEB, ready="False"), "warn", "pending"),
        (replace(FREE, state="Unknown"), WEB, "warn", "unknown"),
        (replace(FREE, state="Detaching"), WEB, "idle", "detaching"),
        (STRANGER, WEB, "bad", "elsewhere"),
        (A1, replace(WEB, paused=True), "good", "attached, paused"),
        (replace(A1, state=""), WEB, "idle", "not decided"),
    ],
)
def test_an_address_is_read_without_colours(
    found: ReservedAddress, allocation: Allocation, kind: str, words: str
) -> None:
    """Each state has words; a spare address that waits is no problem."""
    sign = address_sign(found, allocation)
    assert (sign.kind, sign.words) == (kind, words)


def test_a_pool_without_problems_is_folded() -> None:
    """Its table is closed; it is open where an address has a problem, or in a search."""
    closed = ("details", {"id": "pool:main on local"})
    opened = ("details", {"id": "pool:main on local", "open": None})
    assert closed in Tags(overview(FOUND)).found
    assert opened in Tags(overview(having(A1, STRANGER))).found
    assert opened in Tags(overview(FOUND, Search("n2"))).found


def test_search_finds_addresses_nodes_and_allocations() -> None:
    """Rows that a search does not find are hidden."""
    rows = [attrs for tag, attrs in Tags(overview(FOUND, Search("n2"))).found if tag == "tr" and "data-key" in attrs]
    assert [(attrs["data-key"], "hidden" in attrs) for attrs in rows] == [
        ("34.1.2.1 n1 web", True),
        ("34.1.2.2 n2 web", False),
    ]


def test_page_without_allocations_has_no_part_about_them() -> None:
    """The part is shown only where the registry has allocations, and it says that nothing is moved."""
    assert "Reserved addresses" not in overview(None)
    assert "Mode observe" in overview(replace(FOUND, mode="observe"))
    assert "no allocations" in overview(Allocations("enforce"))


def test_moves_and_reasons_are_shown() -> None:
    """A row has the target of a move, the cause and the reason."""
    text = Tags(overview(having(A1, replace(HELD, to="n3")))).text
    assert "n2 → n3" in text
    assert "Drained: Withheld: the budget is used up" in text


def test_what_keeps_addresses_from_nodes_needs_attention() -> None:
    """Errors of accounts, foreign holders, withheld moves with their command, and allocations that lack addresses."""

    def listed(found: Allocations) -> list[tuple[str, ...]]:
        return [needed[:4] for needed in attention(Status(allocations=found))]

    assert listed(FOUND) == []
    assert listed(having(A1, FREE)) == []
    assert listed(having(A1, FREE, ready="False", reason="WaitingForNodes")) == [
        ("warn", "Allocation web: WaitingForNodes", "2 of 2", "")
    ]
    assert listed(having(A1, STRANGER, ready="False", reason="Conflict")) == [
        ("warn", "Allocation web: Elsewhere", "34.1.2.2: router r has it", "")
    ]
    assert listed(having(A1, HELD)) == [
        ("warn", "Allocation web: moves withheld", "the budget is used up", "hub approve x abc")
    ]
    frozen = CloudAccount("main", "gcp", ("local",), "degraded", "401", frozen=True)
    assert listed(replace(FOUND, trouble="no CRD", accounts=(frozen,))) == [
        ("bad", "Allocations", "no CRD", ""),
        ("bad", "Cloud account main", "401", ""),
    ]


def test_open_pages_get_changed_pools() -> None:
    """An event has the part if it changed; pages load themselves again when the part appears or goes."""

    def sent(old: Allocations | None, new: Allocations | None) -> tuple[str, list[str]]:
        before, after = VersionedStatus("1", Status(allocations=old)), VersionedStatus("2", Status(allocations=new))
        name, data = event(before, after, set()).decode().removeprefix("event: ").split("\ndata: ")
        return name, sorted(json.loads(data).get("html", {}))

    assert sent(FOUND, FOUND) == ("change", [])
    assert sent(FOUND, having(A1, FREE)) == ("change", ["allocations"])
    assert sent(FOUND, having(A1, STRANGER)) == ("change", ["allocations", "attention", "replica"])
    assert sent(None, FOUND) == sent(FOUND, None) == ("reload", [])
