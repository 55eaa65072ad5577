"""Tests of finding a node's server and the node's addresses."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any
from uuid import UUID

import pytest
from hub_provider_ionos.inventory import Fleet, Nic, PoolNode, Server, fleet
from hub_provider_ionos.match import MISSING, Rules, resolve, resolve_pool_node, servers_of, system_uuids
from hypothesis import given
from hypothesis import strategies as st

from hub.plugin import Absent, Found, Node, NodeAddress, Unknown

A = "20000000-0000-4000-8000-00000000000a"
B = "01234567-89ab-cdef-0123-456789abcdef"
B_SWAPPED = "67452301-ab89-efcd-0123-456789abcdef"
RULES = Rules(lans=(2,))


def server(identity: str = A, name: str = "n1", *nics: Nic, **more: Any) -> Server:
    """Builds a running server with these NICs, or with one address on LAN 2."""
    values: dict[str, Any] = {
        "vm_state": "RUNNING",
        "busy": False,
        "zone": "",
        "nics": nics or (Nic(2, ("10.7.0.1",)),),
    }
    return Server(identity, name, **{**values, **more})


def place(*servers: Server, failover: tuple[tuple[int, str], ...] = ()) -> list[Fleet]:
    """Builds the list of one data center."""
    return [fleet(servers, failover)]


def node(provider_id: str = "", system_uuid: str = "", name: str = "n1", *addresses: str) -> Node:
    """Builds a Node that reports these addresses."""
    reported = tuple(NodeAddress("InternalIP", address) for address in addresses)
    return Node(name, provider_id=provider_id, system_uuid=system_uuid, addresses=reported)


def ids(asked: Node, *servers: Server) -> list[str]:
    """Returns the ids of the servers that may be the node's."""
    return [candidate.id for candidate in servers_of(asked, place(*servers))]


# --- node -> server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider_id", [f"ionos://{A}", f"ionos:///{A}", f"ionos://{A.upper()}"])
def test_provider_id_names_the_server(provider_id: str) -> None:
    """A provider ID names the server in upper or lower case, whatever the node's name is."""
    assert ids(node(provider_id, name="x"), server(A), server(B)) == [A]


@pytest.mark.parametrize(
    "provider_id", ["", A, f"aws://{A}", f"ionos://{A}/../x", f"ionos://{A}\n", "ionos://x", "ionos://" + "-" * 36]
)
def test_other_provider_id_matches_no_server(provider_id: str) -> None:
    """A provider ID other than ``ionos://UUID`` names no server."""
    assert ids(node(provider_id, name="x"), server(A)) == []


@pytest.mark.parametrize("system", [B, B.upper(), B_SWAPPED, B_SWAPPED.upper()])
def test_system_uuid_names_the_server(system: str) -> None:
    """A system UUID names the server in upper or lower case, also with its bytes swapped as by older firmware."""
    assert ids(node(system_uuid=system, name="x"), server(A), server(B)) == [B]


@given(st.uuids())
def test_swapping_bytes_twice_gives_the_uuid_again(uuid: UUID) -> None:
    """The swapped form of the swapped form is the original UUID."""
    plain, swapped = system_uuids(node(system_uuid=str(uuid)))
    assert system_uuids(node(system_uuid=swapped)) == (swapped, plain)


def test_name_counts_where_no_uuid_does() -> None:
    """If no server has the node's UUID, the server with the node's name is the candidate."""
    assert ids(node(f"ionos://{B}"), server(A, "n1"), server("x", "n2")) == [A]


def test_uuid_counts_before_the_name() -> None:
    """If a server has the node's UUID, another server with the node's name is no candidate."""
    assert ids(node(f"ionos://{A}"), server(A, "other"), server(B, "n1")) == [A]


@pytest.mark.parametrize(
    ("asked", "servers"),
    [
        (node(), (server(A), server(B))),
        (node(f"ionos://{A}", B), (server(A, "x"), server(B, "y"))),
        (node(system_uuid=B), (server(B, "x"), server(B_SWAPPED, "y"))),
    ],
    ids=["same name", "IDs that contradict", "both forms of a UUID"],
)
def test_two_candidates_are_ambiguous(asked: Node, servers: tuple[Server, ...]) -> None:
    """With two candidates the node is unknown."""
    said = resolve(asked, place(*servers), RULES)
    assert isinstance(said, Unknown)
    assert said.reason.startswith("ambiguous: servers ")


def test_two_data_centers_with_one_name_are_ambiguous() -> None:
    """Servers with the same name in two data centers make the node unknown."""
    said = resolve(node(), [*place(server(A)), *place(server(B))], RULES)
    assert isinstance(said, Unknown)


def test_node_without_name_does_not_match_server_without_name() -> None:
    """A node without a name does not match a server without a name."""
    assert resolve(node(name=""), place(server(A, "")), RULES) == MISSING


# --- server -> address -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nics", "rules", "addresses"),
    [
        ((Nic(1, ("203.0.113.1",)), Nic(2, ("10.7.0.1",))), RULES, ("10.7.0.1",)),
        ((Nic(2, ("10.7.0.1", "10.7.0.99")),), RULES, ("10.7.0.1", "10.7.0.99")),
        ((Nic(2, ("185.9.9.9", "10.60.0.7")),), RULES, ("185.9.9.9", "10.60.0.7")),
        ((Nic(2, ("10.7.0.1",)), Nic(2, ("10.7.0.2",))), RULES, ("10.7.0.1", "10.7.0.2")),
        ((Nic(2, ("10.7.0.1", "fd00::1")),), RULES, ("10.7.0.1", "fd00::1")),
        ((Nic(2, ("10.7.0.1", "fd00::1")),), Rules((2,), ("IPv6", "IPv4")), ("fd00::1", "10.7.0.1")),
        ((Nic(2, ("10.7.0.1", "fd00::1")),), Rules((2,), ("IPv6",)), ("fd00::1",)),
        ((Nic(2, ("203.0.113.1", "10.7.0.1")),), Rules((2,), networks=(ip_network("10.0.0.0/8"),)), ("10.7.0.1",)),
        ((Nic(3, ("10.8.0.1",)), Nic(2, ("10.7.0.1",))), Rules((2, 3)), ("10.7.0.1", "10.8.0.1")),
        ((Nic(3, ("10.7.0.1", "10.8.0.1")), Nic(2, ("10.7.0.1",))), Rules((2, 3)), ("10.7.0.1", "10.8.0.1")),
        ((Nic(3, ("10.8.0.1",)), Nic(2, ("fd00::1",))), Rules((2, 3)), ("10.8.0.1", "fd00::1")),
        ((Nic(2, ()), Nic(2, ("10.7.0.1",))), RULES, ("10.7.0.1",)),
    ],
)
def test_addresses_of_the_lan(nics: tuple[Nic, ...], rules: Rules, addresses: tuple[str, ...]) -> None:
    """An answer has all addresses that count, by family, in the order of the LANs, then of the NICs."""
    assert resolve(node(), place(server(A, "n1", *nics)), rules) == Found(addresses)


def test_reported_node_address_precedes_load_balancer_address() -> None:
    """An address that the Node reports comes before a load balancer's, even if that is first on the NIC."""
    nic = Nic(2, ("10.7.0.99", "10.7.0.1"))
    assert resolve(node("", "", "n1", "10.7.0.1"), place(server(A, "n1", nic)), RULES) == Found(
        ("10.7.0.1", "10.7.0.99")
    )


@pytest.mark.parametrize("reported", ["fd00::1", "FD00::1", "fd00:0:0:0:0:0:0:1", "fd00:0000::0001"])
def test_reported_node_address_matches_in_any_spelling(reported: str) -> None:
    """A reported IPv6 address is recognised in every spelling; Kubernetes accepts all, the lists have the shortest."""
    nic = Nic(2, ("fd00::99", "fd00::1"))
    assert resolve(node("", "", "n1", reported, "no address"), place(server(A, "n1", nic)), RULES) == Found(
        ("fd00::1", "fd00::99")
    )


def test_reported_address_not_on_the_server_is_ignored() -> None:
    """A reported address that is not on the server's NICs is ignored, because a Node may claim any address."""
    assert resolve(node("", "", "n1", "10.9.9.9"), place(server()), RULES) == Found(("10.7.0.1",))


def test_failover_addresses_are_left_out_on_their_lan() -> None:
    """Addresses of a LAN's failover group are left out on that LAN only, even if the Node reports them."""
    nic = Nic(2, ("10.7.0.50", "10.7.0.1"))
    places = place(server(A, "n1", nic), failover=((2, "10.7.0.50"), (3, "10.7.0.1")))
    assert resolve(node("", "", "n1", "10.7.0.50"), places, RULES) == Found(("10.7.0.1",))


def test_node_with_only_a_failover_address_is_absent() -> None:
    """A node whose server has only a failover address is absent."""
    places = place(server(A, "n1", Nic(2, ("10.7.0.50",))), failover=((2, "10.7.0.50"),))
    assert resolve(node(), places, RULES) == Absent(f"server {A} has no address of its own in LAN 2")


def test_an_address_two_servers_have_is_ambiguous() -> None:
    """If two servers have the node's address on one LAN, the node is unknown; on another LAN it is another address."""
    same = Nic(2, ("10.7.0.1",))
    said = resolve(node(f"ionos://{A}"), place(server(A, "n1", same), server(B, "n2", same)), RULES)
    assert said == Unknown(f"ambiguous: servers {B} and {A} have the same address 10.7.0.1 in LAN 2")
    apart = place(server(A, "n1", same), server(B, "n2", Nic(3, ("10.7.0.1",))))
    assert resolve(node(f"ionos://{A}"), apart, RULES) == Found(("10.7.0.1",))


def test_shared_address_on_a_later_lan_is_left_out() -> None:
    """A shared address on a later LAN is left out if an earlier LAN has an address of its family."""
    mine, shared = Nic(2, ("10.7.0.1",)), Nic(3, ("10.8.0.9", "fd00::1"))
    places = place(server(A, "n1", mine, shared), server(B, "n2", Nic(3, ("10.8.0.9",))))
    assert resolve(node(), places, Rules((2, 3))) == Found(("10.7.0.1", "fd00::1"))
    assert isinstance(resolve(node(), places, Rules((3, 2))), Unknown)


def test_a_later_address_that_two_servers_have_is_left_out() -> None:
    """An address that two servers have is left out if the server has an own address before it."""
    mine, other = Nic(2, ("10.7.0.1", "10.7.0.50", "10.7.0.2")), Nic(2, ("10.7.0.3", "10.7.0.50"))
    places = place(server(A, "n1", mine), server(B, "n2", other))
    assert resolve(node(), places, RULES) == Found(("10.7.0.1", "10.7.0.2"))


def test_a_server_answers_with_a_bounded_number_of_addresses() -> None:
    """An answer has at most 50 addresses per family: the hub refuses one with more than 100 addresses for a node."""
    many = Nic(2, (*(f"10.7.0.{number}" for number in range(1, 200)), "fd00::1"))
    said = resolve(node(), place(server(A, "n1", many)), RULES)
    assert said == Found((*(f"10.7.0.{number}" for number in range(1, 51)), "fd00::1"))


def test_a_server_being_changed_without_address_is_unknown() -> None:
    """A node whose server is BUSY and has no address is unknown, because the address may follow."""
    said = resolve(node(), place(server(A, "n1", Nic(2, ()), busy=True)), RULES)
    assert said == Unknown(f"server {A} is being changed and has no address in LAN 2 yet")


def test_nics_that_cannot_be_read_are_unknown() -> None:
    """A node whose server has unreadable NICs is unknown; other nodes are not affected."""
    places = place(server(A, "n1", problem="its NICs are not in the answer"), server(B, "n2", Nic(2, ("10.7.0.2",))))
    assert resolve(node(), places, RULES) == Unknown(f"server {A}: its NICs are not in the answer")
    assert resolve(node(name="n2"), places, RULES) == Found(("10.7.0.2",))


@pytest.mark.parametrize("state", ["SHUTOFF", "CRASHED", "PAUSED", "SUSPENDED", "NOSTATE"])
def test_a_server_that_is_not_running_is_leaving(state: str) -> None:
    """A node whose server is in any state but RUNNING is absent; a server without a state counts as running."""
    assert resolve(node(), place(server(vm_state=state)), RULES) == Absent(f"server {A} is {state}")
    assert resolve(node(), place(server(vm_state="")), RULES) == Found(("10.7.0.1",))


def test_a_servers_zone_comes_along() -> None:
    """The answer has the server's availability zone."""
    assert resolve(node(), place(server(zone="ZONE_2")), RULES) == Found(("10.7.0.1",), "ZONE_2")


# --- managed Kubernetes ----------------------------------------------------------------------------------


def test_a_managed_node_is_found_by_id_then_by_name() -> None:
    """A managed node is found by id, then by name; two candidates make it unknown, TERMINATING makes it absent."""
    nodes = [PoolNode(A, "p1", "READY", ("10.7.0.1", "203.0.113.1")), PoolNode(B, "p2", "TERMINATING", ("10.7.0.2",))]
    assert resolve_pool_node(node(f"ionos://{A}", name="p2"), nodes, RULES) == Found(("10.7.0.1", "203.0.113.1"))
    assert resolve_pool_node(node(name="p2"), nodes, RULES) == Absent(f"node {B} is TERMINATING")
    assert resolve_pool_node(node(name="p3"), nodes, RULES) == MISSING
    assert isinstance(resolve_pool_node(node(name="p1"), [*nodes, nodes[0]._replace(id="x")], RULES), Unknown)
    assert isinstance(resolve_pool_node(node(name="p1"), nodes, Rules((), ("IPv6",))), Absent)
