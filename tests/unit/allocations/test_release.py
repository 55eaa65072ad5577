"""A deleted allocation with ``releasePolicy: Detach`` whose cluster cannot be reached."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from hub.allocations.plan import plan
from hub.allocations.spec import Allocation, Entry, Status
from hub.allocations.view import Account, Answer, Finalize, Plan, Site, View
from hub.cloud.addresses import AddressState, Free, Held

NOW = 1_800_000_000.0
ADDRESS = "198.18.0.1"
AWAY = Site("eu", problem="cluster eu is Unreachable: connection refused")


def decided(answer: AddressState | None, node: str) -> Plan:
    """The plan of a hub that has never read the nodes; ``node`` is that of the stored status."""
    entry = Entry(ADDRESS, "Attached", node=node, instance="i-m1")
    status = Status(writer="me", cluster="eu", addresses=(entry,))
    allocation = Allocation(
        "web", "u1", ("", "u1"), (ADDRESS,), cluster="eu", release=True, deleting=True, finalizer=True, status=status
    )
    return plan(
        View(
            Account("main", "gcp", ("eu",), (IPv4Network("198.18.0.0/15"),)),
            sites={"eu": AWAY},
            allocations=(allocation,),
            answers={ADDRESS: Answer(answer, NOW)} if answer is not None else {},
            identity="me",
        ),
        NOW,
    )


@pytest.mark.parametrize(
    ("answer", "node"), [(Held("i-m1"), "m1"), (Held("i-m1"), ""), (Free(), "m1"), (None, "m1")], ids=str
)
def test_release_waits_while_a_node_may_have_address_or_label(answer: AddressState | None, node: str) -> None:
    """The finalizer stays, nothing is done, and the status says how to let the object go."""
    found = decided(answer, node)
    [entry] = found.statuses["web"].addresses
    assert found.acts == ()
    assert (entry.state, entry.reason) == ("Released", "ClusterUnknown")
    assert entry.message == f"{AWAY.problem}; remove the finalizer to let it go as it is"


def test_release_ends_if_no_node_has_anything() -> None:
    """An address that is free and was at no node does not wait for the cluster."""
    assert decided(Free(), "").acts == (Finalize("web", present=False),)
