"""What an approval names."""

from __future__ import annotations

from hub.approval import ISSUED_LIMIT, Issued, approval_hash, approved_of, issue


def test_the_hash_is_fixed() -> None:
    """Replicas and earlier approvals name the same removal by the same 12 hex digits."""
    assert approval_hash("registry", ["cluster eu", "service edge/web"]) == "b1264c864f53"


def test_an_approval_of_an_earlier_set_finds_its_content() -> None:
    """Every set that was withheld lately can be approved; no other hash approves anything."""
    issued = issue(issue((), "one", frozenset("ab")), "two", frozenset("bc"))
    assert approved_of(issued, {"one"}) == {"a", "b"}
    assert approved_of(issued, {"one", "two", "three"}) == {"a", "b", "c"}
    assert approved_of(issued, {"three"}) == frozenset()


def test_only_the_latest_sets_are_remembered() -> None:
    """A set that is withheld again counts as the latest, and the oldest is forgotten first."""
    issued: Issued = ()
    for number in range(ISSUED_LIMIT):
        issued = issue(issued, str(number), frozenset((str(number),)))
    issued = issue(issue(issued, "0", frozenset("x")), "new", frozenset("y"))
    assert [name for name, _ in issued] == ["2", "3", "4", "5", "6", "7", "0", "new"]
    assert approved_of(issued, {"0", "1"}) == {"x"}
