"""Which allocation has an address, and to which account an allocation belongs."""

from __future__ import annotations

import pytest

from hub.allocations.claims import HANDOVER, Claims, account_of, claims
from hub.allocations.view import Account
from tests.support.address_views import A1, A2, NETWORK, NOW, allocation

OLD = allocation("old", A1, created="2026-01-01T00:00:00Z")
YOUNG = allocation("young", A1, A2, created="2026-01-02T00:00:00Z")


def test_the_oldest_allocation_has_the_address() -> None:
    """The order of the objects decides nothing; the others are told who has it."""
    for both in ((OLD, YOUNG), (YOUNG, OLD)):
        found = claims(both, Claims(), NOW)
        assert found.holders == {A1: "old", A2: "young"}
        assert found.conflicts == {("young", A1): "old"}
        assert found.wake is None


def test_allocations_of_the_same_second_are_ordered_by_their_uid() -> None:
    """Two replicas choose the same one."""
    first, second = allocation("a", A1), allocation("b", A1)
    assert claims((second, first), Claims(), NOW).holders == {A1: "a"}


def test_the_next_claim_begins_30_s_after_the_end_of_the_older_one() -> None:
    """Meanwhile nobody has the address; the other addresses of the allocation are not concerned."""
    both = claims((OLD, YOUNG), Claims(), NOW)
    ended = claims((YOUNG,), both, NOW + 100)
    assert (ended.holders, ended.wake) == ({A1: "", A2: "young"}, NOW + 100 + HANDOVER)
    later = claims((YOUNG,), ended, NOW + 129)
    assert (later.holders[A1], later.wake) == ("", NOW + 130)
    begun = claims((YOUNG,), later, NOW + 130)
    assert (begun.holders[A1], begun.ended, begun.wake) == ("young", {}, None)


def test_a_claim_that_comes_back_within_30_s_goes_on() -> None:
    """A deletion by mistake can be taken back: the same object, or the same entry, has the address again."""
    ended = claims((YOUNG,), claims((OLD, YOUNG), Claims(), NOW), NOW + 100)
    again = claims((OLD, YOUNG), ended, NOW + 110)
    assert (again.holders[A1], again.wake) == ("old", None)


def test_a_claim_that_comes_after_the_end_of_an_older_one_waits_too() -> None:
    """The end of a claim is remembered for 30 s, also while nobody asks for the address."""
    gone = claims((), claims((OLD,), Claims(), NOW), NOW + 100)
    assert gone.holders == {A1: ""}
    created = claims((YOUNG,), gone, NOW + 110)
    assert (created.holders[A1], created.wake) == ("", NOW + 130)
    assert claims((), gone, NOW + 130).holders == {}


def test_an_entry_that_was_taken_out_ends_the_claim() -> None:
    """The older allocation still exists, but does not list the address any more."""
    both = claims((OLD, YOUNG), Claims(), NOW)
    without = allocation("old", A2, created="2026-01-01T00:00:00Z")
    ended = claims((without, YOUNG), both, NOW + 100)
    assert ended.holders[A1] == ""
    assert claims((without, YOUNG), ended, NOW + 130).holders[A1] == "young"


# --- accounts ----------------------------------------------------------------------------------------------


def account(name: str, provider: str = "gcp", *clusters: str) -> Account:
    """An account that serves these clusters."""
    return Account(name, provider, clusters or ("local",), (NETWORK,))


ACCOUNTS = {
    found.name: found
    for found in (account("prod"), account("test"), account("aws", "aws"), account("far", "gcp", "eu"))
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"account": "test"}, ("test", "", "")),
        ({"provider": "aws"}, ("aws", "", "")),
        ({"cluster": "eu"}, ("far", "", "")),
        ({"provider": "gcp", "account": "prod"}, ("prod", "", "")),
        (
            {"provider": "gcp"},
            ("", "AccountAmbiguous", "accounts prod, test fit; name one in spec.cloud.account"),
        ),
        ({}, ("", "AccountAmbiguous", "accounts aws, prod, test fit; name one in spec.cloud.account")),
        (
            {"provider": "azure"},
            (
                "",
                "ProviderUnavailable",
                "no account of allocations.clouds fits provider 'azure' and cluster 'local'",
            ),
        ),
        ({"cluster": "us"}, ("", "ProviderUnavailable", "no account of allocations.clouds fits cluster 'us'")),
        (
            {"account": "prod", "cluster": "us"},
            ("", "ClusterUnknown", "account 'prod' does not list cluster 'us'"),
        ),
        (
            {"account": "gone"},
            (
                "",
                "AccountUnknown",
                "allocations.clouds has no account 'gone' (there: aws, far, prod, test)",
            ),
        ),
        (
            {"account": "prod", "provider": "aws"},
            ("", "AccountUnknown", "account 'prod' is of provider 'gcp', not 'aws'"),
        ),
    ],
)
def test_account_of_an_allocation(spec: dict[str, str], expected: tuple[str, str, str]) -> None:
    """The account that is named, or the only one that fits; otherwise the reason, and what to write."""
    assert account_of(allocation("web", A1, **spec), ACCOUNTS) == expected
