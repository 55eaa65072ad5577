"""Tests of parsing the API's JSON: malformed data is reported."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hub_provider_ionos.inventory import (
    Malformed,
    Nic,
    failover_addresses,
    lan_of,
    page,
    pool_node,
    server,
    uuid_of,
)
from hypothesis import given
from hypothesis import strategies as st

A = "20000000-0000-4000-8000-00000000000a"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["items", "id", "properties", "ips", "lan"]), inner)
    ),
)


def item(nics: Any, **properties: Any) -> dict[str, Any]:
    """Builds a server as the API returns it."""
    return {"properties": {"name": "n1", "vmState": "RUNNING", **properties}, "entities": {"nics": nics}}


def card(**properties: Any) -> dict[str, Any]:
    """Builds a list with one NIC."""
    return {"items": [{"properties": {"lan": 2, "ips": ["10.7.0.1"], **properties}}]}


def test_nics_are_read_with_all_their_addresses() -> None:
    """Addresses are normalised, IPv4 before IPv6; ``null`` means no address; a LAN is a number, also as a string."""
    read = server(A, item(card(ips=["10.7.0.2", "10.7.0.1"], ipv6Ips=["FD00::0001"], lan="2")))
    assert read.nics == (Nic(2, ("10.7.0.2", "10.7.0.1", "fd00::1")),)
    assert server(A, item(card(ips=None))).nics == (Nic(2, ()),)


@pytest.mark.parametrize(
    ("nics", "problem"),
    [
        (None, "entities.nics is null, not an object"),
        ({"id": "x", "type": "collection"}, "its NICs are not in the answer"),
        ({"items": None}, "its NICs are not in the answer"),
        ({"items": [{"id": "x"}]}, "NIC 0: properties is null, not an object"),
        (card(ips="10.7.0.1"), "NIC 0: ips is text, not a list"),
        (card(ips=["10.7.0.1/24"]), "NIC 0: an entry is not an IP address"),
        (card(ips=["fe80::1%eth0"]), "NIC 0: an entry is not an IP address"),
        (card(ips=[7]), "NIC 0: an entry is not an IP address"),
        (card(lan=None), "NIC 0: its LAN is null, not a number"),
        (card(lan=True), "NIC 0: its LAN is a boolean, not a number"),
        (card(lan="two"), "NIC 0: its LAN is text, not a number"),
        ({"items": [{"properties": {"lan": 2}}]}, "NIC 0: ips is missing"),
    ],
)
def test_nics_that_cannot_be_read_are_a_problem(nics: Any, problem: str) -> None:
    """NICs that are not expanded, or one malformed address, give a problem and no NICs at all."""
    read = server(A, item(nics))
    assert (read.nics, read.problem) == ((), problem)


def test_nics_stand_in_the_order_of_their_slots() -> None:
    """NICs are sorted by slot, in whatever order the API lists them."""
    cards: list[Any] = [
        {"properties": {"lan": lan, "ips": [], "pciSlot": slot}} for lan, slot in ((3, 8), (1, 6), (2, 7))
    ]
    assert [nic.lan for nic in server(A, item({"items": cards})).nics] == [1, 2, 3]


def test_zone_auto_means_no_zone() -> None:
    """The zone AUTO counts as no zone, because it only says that the cloud chose one."""
    assert server(A, item(card(), availabilityZone="AUTO")).zone == ""
    assert server(A, item(card(), availabilityZone="ZONE_1")).zone == "ZONE_1"


def test_failover_addresses_belong_to_a_lan() -> None:
    """Failover addresses are paired with their LAN's number; ``null`` means no group, other values are errors."""
    group = {"properties": {"ipFailover": [{"ip": "10.7.0.50", "nicUuid": "x"}, {"ip": None}]}}
    assert failover_addresses("2", group) == [(2, "10.7.0.50")]
    assert failover_addresses("2", {"properties": {"ipFailover": None}}) == []
    mistakes: list[dict[str, Any]] = [
        {},
        {"properties": {"ipFailover": {}}},
        {"properties": {"ipFailover": [{"ip": "x"}]}},
    ]
    for wrong in mistakes:
        with pytest.raises(Malformed, match=r"^LAN 2"):
            failover_addresses("2", wrong)


def test_a_page_knows_whether_there_are_more() -> None:
    """A page has whether it links to the next one, and how many items it can hold, which may be less than requested."""
    items = [{"id": A}]
    assert page({"items": items}, 1000, uuid_of)[1:] == (1000, None)
    assert page({"items": items, "limit": 100.0, "_links": {"next": "x"}}, 1000, uuid_of)[1:] == (100, True)
    assert page({"items": items, "limit": 5000, "_links": {}}, 1000, uuid_of)[1:] == (1000, False)
    assert page({"items": [{"id": "12"}]}, 1000, lan_of).items[0][0] == "12"


@given(JSON)
def test_any_json_is_a_page_or_malformed(data: Any) -> None:
    """Parsing a page never raises anything but Malformed."""
    for identify in (uuid_of, lan_of):
        with suppress(Malformed):
            page(data, 1000, identify)


@given(JSON)
def test_any_json_is_an_object_or_malformed(data: Any) -> None:
    """Parsing a server, a LAN or a node never raises anything but Malformed."""
    whole = {"properties": data, "entities": {"nics": {"items": [data, {"properties": data}]}}}
    for read in (server, failover_addresses, pool_node):
        with suppress(Malformed):
            read("2", whole)
