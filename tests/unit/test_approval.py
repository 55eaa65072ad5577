"""Approval hashes and the record of withheld sets."""

from __future__ import annotations

from hub.approval import ISSUED_LIMIT, Issued, approval_hash, approved_of, issue


def test_the_hash_is_fixed() -> None:
    """The same removal always has the same hash of 12 hex digits, so replicas and old approvals agree."""
    assert approval_hash("registry", ["cluster eu", "service edge/web"]) == "b1264c864f53"


def test_an_approval_of_an_earlier_set_finds_its_content() -> None:
    """Every recently withheld set can be approved by its hash; any other hash approves nothing."""
    issued = issue(issue((), "one", frozenset("ab")), "two", frozenset("bc"))
    assert approved_of(issued, {"one"}) == {"a", "b"}
    assert approved_of(issued, {"one", "two", "three"}) == {"a", "b", "c"}
    assert approved_of(issued, {"three"}) == frozenset()


def test_only_the_latest_sets_are_remembered() -> None:
    """A set that is withheld again counts as the newest, and the oldest set is forgotten first."""
    issued: Issued = ()
    for number in range(ISSUED_LIMIT):
        issued = issue(issued, str(number), frozenset((str(number),)))
    issued = issue(issue(issued, "0", frozenset("x")), "new", frozenset("y"))
    assert [name for name, _ in issued] == ["2", "3", "4", "5", "6", "7", "0", "new"]
    assert approved_of(issued, {"0", "1"}) == {"x"}
