"""Answers that are not complete, and texts of a remote cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hub_provider_gcp import shapes
from hub_provider_gcp.testing import Cloud

from hub.plugin import TransientProviderError, Unknown
from hub.plugin.addresses import Changing, Elsewhere, Free, Held, UnsupportedInstance

CLOUD = Cloud("team-project")
ROW = CLOUD.show_address(CLOUD.addresses[CLOUD.reserve()])
CLOUD.add_vm("n1", ephemeral="External NAT", nics=2)
VM = CLOUD.show_vm("us-west1-a", "n1")
NIC: dict[str, Any] = VM["networkInterfaces"][0]
USER = "https://www.googleapis.com/compute/v1/projects/{}/zones/us-west1-a/instances/n1"


@pytest.mark.parametrize(
    ("provider_id", "expected"),
    [
        ("gce://team-project/us-west1-a/n1", "zones/us-west1-a/instances/n1"),
        (
            "gce://team-project/northamerica-northeast1-b/gke-pool-1",
            "zones/northamerica-northeast1-b/instances/gke-pool-1",
        ),
        ("gce://team-projects/us-west1-a/n1", None),
        ("gce://team-project/us-west1-a/n1/", None),
        ("gce://team-project/us-west1-a/-n1", None),
        ("gce://team-project/us-west1-a/" + "n" * 64, None),
        ("gce://team-project/uswest1a/n1", None),
        ("gce:///us-west1-a/n1", None),
        ("gce://team-project/us-west1-a/n1\n", None),
        ("gce://team-project/us-west1-a/ñ", None),
    ],
)
def test_instance_id_accepts_only_instances_of_the_project(provider_id: str, expected: str | None) -> None:
    """A providerID leads to an instance only if each part is valid and the project is the account's."""
    assert shapes.instance_id(provider_id, "team-project") == expected


def test_instance_id_accepts_a_domain_scoped_project() -> None:
    """Old projects have a domain and a colon before their name."""
    found = shapes.instance_id("gce://example.com:project/us-west1-a/n1", "example.com:project")
    assert found == "zones/us-west1-a/instances/n1"


def test_zone_of_refuses_other_texts() -> None:
    """Only a canonical id has a zone."""
    with pytest.raises(UnsupportedInstance):
        shapes.zone_of("regions/us-west1/instances/n1")


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        "203.0.113.1",
        {},
        {**ROW, "address": None},
        {**ROW, "address": ""},
        {**ROW, "status": 1},
        {**ROW, "users": "n1"},
        {**ROW, "users": [1]},
        {**ROW, "users": None},
        {**ROW, "region": 5},
        {**ROW, "networkTier": {}},
    ],
)
def test_incomplete_entry_is_an_error(row: object) -> None:
    """An entry of a list that is not complete makes the list an error."""
    with pytest.raises(TransientProviderError, match="GET x: the answer has"):
        shapes.reserved(row, "GET x")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, Free("us-west1")),
        ({"status": "IN_USE"}, Unknown("status IN_USE without a user")),
        ({"status": "RESERVING"}, Changing()),
        ({"users": [USER.format("team-project")]}, Held("zones/us-west1-a/instances/n1", region="us-west1")),
        ({"users": [USER.format("other-project")]}, Elsewhere("instances/n1")),
        ({"users": [USER.format("team-project") + "/x"]}, Elsewhere("n1/x")),
        ({"users": ["junk"]}, Elsewhere("something with an invalid URL")),
    ],
)
def test_state_follows_users_and_status(more: dict[str, Any], expected: object) -> None:
    """Only an address that is RESERVED and has no user is free."""
    assert shapes.state_of(shapes.reserved({**ROW, **more}, ""), "team-project", "") == expected


def test_entry_without_address_yet_is_left_out() -> None:
    """An address that is being reserved has no value yet."""
    assert shapes.reserved({"status": "RESERVING", "name": "ip-1"}, "") is None


INCOMPLETE: list[dict[str, Any]] = [
    {},
    {**VM, "kind": "compute#other"},
    {**VM, "name": "n2"},
    {**VM, "status": None},
    {**VM, "networkInterfaces": None},
    {**VM, "networkInterfaces": []},
    {**VM, "networkInterfaces": [{**NIC, "name": "nic1"}]},
    {**VM, "networkInterfaces": [{**NIC, "accessConfigs": {}}]},
    {**VM, "networkInterfaces": [{**NIC, "accessConfigs": [{}]}]},
    {**VM, "networkInterfaces": [{**NIC, "accessConfigs": [{"name": "a"}, {"name": "b"}]}]},
    {**VM, "networkInterfaces": [{**NIC, "accessConfigs": [{"name": "a", "natIP": 5}]}]},
]


@pytest.mark.parametrize("body", INCOMPLETE)
def test_incomplete_instance_is_an_error(body: dict[str, Any]) -> None:
    """An instance that is not complete is an error, never one with room."""
    with pytest.raises(TransientProviderError, match="GET x: "):
        shapes.instance(body, "n1", "GET x")


def test_instance_is_read_by_the_name_of_its_interface() -> None:
    """The first interface is found by name, whatever the order."""
    found = shapes.instance({**VM, "networkInterfaces": VM["networkInterfaces"][::-1]}, "n1", "")
    assert found.access is not None
    assert (found.running, found.access.before) == (True, "PREMIUM/External NAT")
    assert shapes.split_before(found.access.before) == ("PREMIUM", "External NAT")


@pytest.mark.parametrize("text", ["", "PREMIUM", "PREMIUM/", "premium/x", "PREMIUM/a\nb", "PREMIUM/" + "x" * 64])
def test_invalid_before_is_nothing(text: str) -> None:
    """A text that is not of this provider gives nothing back."""
    assert shapes.split_before(text) is None
