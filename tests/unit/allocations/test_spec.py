"""What an allocation asks for, from its object: entries that are no addresses, references, and defaults."""

from __future__ import annotations

import pytest

from hub.allocations.plan import plan
from hub.allocations.spec import Allocation, Meta, NetIPAllocation, Spec, WorkloadRef, read
from tests.support.address_views import A1, NOW, machine, site, view


def web(**spec: object) -> Allocation:
    """The value of an object with this spec."""
    return read(NetIPAllocation(Meta("web", uid="u1"), Spec(**spec)))  # type: ignore[arg-type]


BAD = {
    "34.1.2": "is not an IPv4 address such as 34.123.45.67",
    "010.0.0.1": "is not an IPv4 address such as 34.123.45.67",
    " 34.1.2.3 ": "is not an IPv4 address such as 34.123.45.67",
    "34.1.2.3\n": "is not an IPv4 address such as 34.123.45.67",
    "::ffff:1.2.3.4": "is not an IPv4 address such as 34.123.45.67",
    "2001:db8::1": "is not an IPv4 address such as 34.123.45.67",
    "34.1.2.3/32": "is not an IPv4 address such as 34.123.45.67",
    "partner.example": "is not an IPv4 address such as 34.123.45.67",
    "\u0661.1.1.1": "is not an IPv4 address such as 34.123.45.67",
    "": "is not an IPv4 address such as 34.123.45.67",
    "\x1b[31m\x00" * 1024: "is too long for an IPv4 address",
    "9" * 10_240: "is too long for an IPv4 address",
}


@pytest.mark.parametrize("text", BAD, ids=[repr(text[:20]) for text in BAD])
def test_an_entry_that_is_no_address_is_invalid_and_the_others_work(text: str) -> None:
    """The entry is shown cut and printable with the reason; the other entry gets a node."""
    value = web(reserved_ips=(text, A1))
    assert value.addresses == (A1,)
    [bad] = value.bad
    assert bad.why == BAD[text]
    assert len(bad.text) <= 64
    assert bad.text.isprintable()
    found = plan(view(site(machine("n1")), value), NOW)
    good, invalid = found.statuses["web"].addresses
    assert (good.address, good.state) == (A1, "Pending")
    assert (invalid.address, invalid.state, invalid.reason) == (bad.text, "Invalid", "NotAnAddress")
    assert [finding.reason for _, finding in found.findings] == ["AddressInvalid"]


def test_entries_that_are_written_twice_count_once() -> None:
    """Each address and each bad entry is there once; the status says once that one is written more than once."""
    value = web(reserved_ips=(A1, "x", A1, "x", A1))
    assert (value.addresses, value.twice, [bad.text for bad in value.bad]) == ((A1,), (A1,), ["x"])
    found = plan(view(site(machine("n1")), value), NOW).statuses["web"]
    assert found.reserved == 1
    assert found.conditions[0].message.count("written more than once") == 1


def test_no_addresses_are_ready() -> None:
    """An allocation without reservedIPs has nothing to do."""
    for value in (web(), web(reserved_ips=())):
        found = plan(view(site(machine("n1")), value), NOW)
        assert (found.statuses["web"].conditions[0].status, found.acts) == ("True", ())


def test_min_attached_is_all_entries_by_default() -> None:
    """A bad entry is one that is missing; repeated entries are not."""
    assert web(reserved_ips=(A1, A1, "x")).min_attached == 2
    assert web(reserved_ips=(A1, "x"), min_attached=1).min_attached == 1
    assert web(reserved_ips=(A1, A1), min_attached=2).min_attached == 1
    assert web(reserved_ips=(A1,), min_attached=0).min_attached == 0


def test_workload_ref_wins_over_deployment_ref() -> None:
    """DeploymentRef means a Deployment where workloadRef is missing; both are in namespace default without one."""
    old, new = WorkloadRef("old"), WorkloadRef("new", kind="StatefulSet", namespace="edge")
    assert web(workload_ref=new, deployment_ref=old).workload == new
    assert str(web(deployment_ref=old).workload) == "Deployment default/old"
    assert str(web(workload_ref=WorkloadRef("web", kind="DaemonSet", namespace="")).workload) == "DaemonSet default/web"
    assert web().workload is None
