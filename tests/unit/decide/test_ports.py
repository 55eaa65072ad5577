"""The ports of slices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hub.decide.ports import PortProblem, PortReading, Ports, ports, ports_of_published
from hub.model import Port, ServicePort, TargetKey
from hub.registry.spec import NodePortRef, PortSpec
from tests.support import build

RANGE = ((30000, 32767),)
ONE = (ServicePort(443, "https", target_port=30443),)
TWO = (ServicePort(443, "https", target_port=30443), ServicePort(80, "http", target_port=30080))


def of_service(*service_ports: ServicePort, allowed: Sequence[tuple[int, int]] | None = RANGE) -> Ports | PortProblem:
    """Ports of a target that takes them from its Service."""
    return ports(build.target(), build.service(ports=service_ports), allowed)


def of_entry(*entries: PortSpec, service: Sequence[ServicePort] = ONE) -> Ports | PortProblem:
    """Ports of a target whose registry entry has them."""
    return ports(build.target(ports=entries), build.service(ports=service), RANGE)


def problem(found: Ports | PortProblem) -> str:
    """The problem's reason; "" if there is none."""
    return found.reason if isinstance(found, PortProblem) else ""


def test_service_numeric_target_port() -> None:
    """A numeric targetPort is the port."""
    assert of_service(*ONE) == Ports((Port("https", 30443, "TCP"),))


@pytest.mark.parametrize("target_port", [None, "https"])
def test_service_port_without_number(target_port: str | None) -> None:
    """Without a targetPort, the Service's port is used."""
    assert of_service(ServicePort(30001, "a", target_port=target_port)) == Ports((Port("a", 30001, "TCP"),))


def test_service_named_target_port_from_source() -> None:
    """A named targetPort is resolved by the port of the same name of the copied Service."""
    service = build.service(ports=(ServicePort(443, "https", target_port="web"),))
    source = (Port("other", 1, "TCP"), Port("https", 6443, "TCP"))
    assert ports(build.target(), service, None, source) == Ports((Port("https", 6443, "TCP"),))


def test_ports_are_sorted() -> None:
    """Slices have sorted ports, whatever the Service's order is."""
    assert of_service(*TWO) == of_service(*reversed(TWO))


def test_service_app_protocol_is_kept() -> None:
    """The Service's appProtocol is kept."""
    found = of_service(ServicePort(443, "a", app_protocol="h2c", target_port=30001))
    assert found == Ports((Port("a", 30001, "TCP", "h2c"),))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(29999, "PortNotAllowed"), (30000, ""), (32767, ""), (32768, "PortNotAllowed")],
)
def test_service_ports_must_be_allowed(number: int, expected: str) -> None:
    """A port from the Service must be in the range, both ends included."""
    assert problem(of_service(ServicePort(443, "a", target_port=number))) == expected


OUTSIDE = (
    "is outside the cluster's allowedPorts; write the number on which the nodes listen, such as a NodePort, "
    "in the registry entry's ports, or extend allowedPorts"
)


def test_a_port_of_a_name_is_not_allowed_in_words() -> None:
    """The message says where the number comes from: the Service's port, or the source's port of that name."""
    named = ServicePort(443, "a", target_port="https")
    assert of_service(named) == PortProblem(
        "PortNotAllowed", f"port 443, the Service's port, as its targetPort 'https' is a name, {OUTSIDE}"
    )
    assert ports(build.target(), build.service(ports=(named,)), RANGE, (Port("https", 8443),)) == PortProblem(
        "PortNotAllowed", f"port 8443, which targetPort 'https' of the Service stands for, {OUTSIDE}"
    )
    assert of_service(ServicePort(443, "a")) == PortProblem(
        "PortNotAllowed", f"port 443, the Service's port, {OUTSIDE}"
    )


def test_a_port_that_is_not_allowed_in_words() -> None:
    """The message names the port and two ways to allow it."""
    assert of_service(ServicePort(443, "a", target_port=443)) == PortProblem(
        "PortNotAllowed",
        f"port 443, the Service's targetPort, {OUTSIDE}",
    )
    assert of_entry(PortSpec(0, "https")) == PortProblem("PortNotAllowed", "port 0 is not a valid port")


@pytest.mark.parametrize("number", [1, 65535])
def test_the_first_and_the_last_port(number: int) -> None:
    """Ports 1 and 65535 are valid."""
    assert of_entry(PortSpec(number, "https")) == Ports((Port("https", number, "TCP"),))


def test_several_ranges() -> None:
    """A port may be in any of the ranges."""
    assert problem(of_service(*ONE, allowed=((80, 80), (30443, 30443)))) == ""


def test_no_range_allows_nothing() -> None:
    """A cluster without allowedPorts gets no port from a Service."""
    assert problem(of_service(*ONE, allowed=())) == "PortNotAllowed"


def test_local_copies_need_no_range() -> None:
    """Without ranges (None), any port is allowed."""
    assert of_service(ServicePort(443, "a"), allowed=None) == Ports((Port("a", 443, "TCP"),))


def test_entry_ports_extend_the_range() -> None:
    """A port in the registry entry need not be in allowedPorts."""
    assert of_entry(PortSpec(8443, "https")) == Ports((Port("https", 8443, "TCP"),))


@pytest.mark.parametrize("number", [0, -1, 65536, 70000])
@pytest.mark.parametrize("written", [False, True])
def test_no_port_number(number: int, written: bool) -> None:
    """A number that is not a port is rejected, although the API server accepts it."""
    found = of_entry(PortSpec(number, "https")) if written else of_service(ServicePort(1, "a", target_port=number))
    assert problem(found) == "PortNotAllowed"


def test_sole_unnamed_entry_takes_the_name() -> None:
    """A single unnamed entry takes the name of the Service's single port."""
    assert of_entry(PortSpec(30443)) == Ports((Port("https", 30443, "TCP"),))


@pytest.mark.parametrize(
    ("entries", "service"),
    [
        ([PortSpec(30443)], TWO),
        ([PortSpec(30443), PortSpec(30080)], TWO),
        ([PortSpec(30443), PortSpec(30080)], ONE),
        ([PortSpec(30443), PortSpec(30080)], ()),
        ([PortSpec(30443), PortSpec(30080, "http")], TWO),
        ([PortSpec(30443, "grpc")], ONE),
        ([PortSpec(30443, "")], ONE),
        ([PortSpec(30443, "https", "UDP")], ONE),
        ([PortSpec(30443, None, "UDP")], ONE),
        ([PortSpec(30443, "https"), PortSpec(30444, "https")], ONE),
        ([PortSpec(30443, "https")], ()),
    ],
)
def test_entries_that_do_not_fit(entries: list[PortSpec], service: Sequence[ServicePort]) -> None:
    """An entry whose name the Service lacks, or that could mean several ports, is rejected."""
    assert problem(of_entry(*entries, service=service)) == "PortMismatch"


@pytest.mark.parametrize(
    ("entries", "service", "message"),
    [
        ([PortSpec(30443)], TWO, "port 30443 needs a name: the Service has 'https' (TCP), 'http' (TCP)"),
        ([PortSpec(30443), PortSpec(30080)], ONE, "port 30443 needs a name: the Service has 'https' (TCP)"),
        ([PortSpec(1, "grpc")], ONE, "the Service has no TCP port named 'grpc', but 'https' (TCP)"),
        ([PortSpec(1, "grpc")], (), "the Service has no TCP port named 'grpc', but none"),
        ([PortSpec(1, "https"), PortSpec(2, "https")], ONE, "two ports are named 'https'"),
    ],
)
def test_a_mismatch_in_words(entries: list[PortSpec], service: Sequence[ServicePort], message: str) -> None:
    """The message names the port and the Service's ports."""
    assert of_entry(*entries, service=service) == PortProblem("PortMismatch", message)


def test_entry_app_protocol_wins() -> None:
    """The entry's appProtocol takes precedence over the Service's."""
    service = (ServicePort(443, "a", app_protocol="https"),)
    found = [of_entry(PortSpec(1, "a", "TCP", mine), service=service) for mine in (None, "h2c")]
    assert found == [Ports((Port("a", 1, "TCP", "https"),)), Ports((Port("a", 1, "TCP", "h2c"),))]


def test_a_headless_service_may_have_no_ports() -> None:
    """A headless Service may have no ports, and an unnamed entry then needs none."""
    assert [of_service(), of_entry(PortSpec(30443), service=())] == [Ports(()), Ports((Port("", 30443, "TCP"),))]


def test_same_name_for_two_protocols() -> None:
    """A name may be used once per protocol."""
    service = (ServicePort(53, "dns"), ServicePort(53, "dns", "UDP"))
    found = of_entry(PortSpec(53, "dns", "UDP"), PortSpec(53, "dns", "TCP"), service=service)
    assert found == Ports((Port("dns", 53, "TCP"), Port("dns", 53, "UDP")))


# --- copied Services -------------------------------------------------------------------------------------

NAMED = ServicePort(80, "http", target_port="web")


def test_the_name_of_the_target_port_is_looked_up_second() -> None:
    """If no source port has the Service port's name, the name in its targetPort is used."""
    service = build.service(ports=(NAMED,))
    assert ports(build.target(), service, None, (Port("web", 8080),)) == Ports((Port("http", 8080),))
    both = (Port("web", 1), Port("http", 8080))
    assert ports(build.target(), service, None, both) == Ports((Port("http", 8080),))


def test_the_sources_app_protocol_comes_along() -> None:
    """The source's appProtocol is used unless the Service has one."""
    offered = (Port("http", 8080, "TCP", "h2c"),)
    silent = build.service(ports=(NAMED,))
    said = build.service(ports=(ServicePort(80, "http", app_protocol="ws", target_port="web"),))
    found = [ports(build.target(), service, None, offered) for service in (silent, said)]
    assert found == [Ports((Port("http", 8080, "TCP", "h2c"),)), Ports((Port("http", 8080, "TCP", "ws"),))]


def test_numbers_of_the_service_need_no_source() -> None:
    """With numeric targetPorts, the source's port numbers are ignored, as in endpoint-copier."""
    service = build.service(ports=(ServicePort(443, "https", target_port=6443), ServicePort(80, "http")))
    found = ports(build.target(), service, None, (Port("https", 1), Port("http", 2)))
    assert found == Ports((Port("http", 80), Port("https", 6443)))


def test_endpoints_with_other_ports_have_their_own_set() -> None:
    """Addresses whose resulting ports differ from the others have an entry in ``sets``."""
    service = build.service(ports=(NAMED,))
    sets = {"10.0.0.2": (Port("http", 9090),), "10.0.0.3": (Port("http", 8080), Port("admin", 1))}
    found = ports(build.target(), service, None, (Port("http", 8080),), sets)
    assert found == Ports((Port("http", 8080),), {"10.0.0.2": (Port("http", 9090),)})


def test_a_port_that_is_served_elsewhere_is_left_out() -> None:
    """An endpoint that does not serve a port is published without it."""
    service = build.service(ports=(NAMED, ServicePort(90, "metrics", target_port="metrics")))
    found = ports(build.target(), service, None, (Port("http", 8080),), {"10.0.0.2": (Port("metrics", 9090),)})
    assert found == Ports((Port("http", 8080),), {"10.0.0.2": (Port("metrics", 9090),)})


def test_every_set_must_be_allowed() -> None:
    """Every port set must be in allowedPorts, so the editor of a remote Service cannot open other ports."""
    service = build.service(ports=(NAMED,))
    found = ports(build.target(), service, RANGE, (Port("http", 30080),), {"10.0.0.2": (Port("http", 22),)})
    assert problem(found) == "PortNotAllowed"


def test_unknown_source_keeps_the_published_port_number() -> None:
    """While the source is unknown, a named port keeps its published number, even after a restart."""
    service = build.service(ports=(NAMED,))
    found = ports(build.target(), service, None, None, last=(Port("http", 8080),))
    assert found == Ports((Port("http", 8080),))
    assert ports_of_published(service, (Port("http", 9090),)) == (Port("http", 9090),)


# --- ports read from remote Services -----------------------------------------------------------------------

REF = NodePortRef(TargetKey("ingress", "envoy"), "https")
READ = PortSpec(0, "https", node_port=REF)


def read(number: int | None, why: str = "", *, last: tuple[Port, ...] = ()) -> Ports | PortProblem:
    """Ports of an entry that reads one port."""
    service = build.service(ports=ONE)
    return ports(build.target(ports=(READ,)), service, RANGE, None, None, {REF: PortReading(number, why)}, last)


def test_a_node_port_is_the_port() -> None:
    """A nodePort that was read is the published port."""
    assert read(30500) == Ports((Port("https", 30500),))


def test_a_node_port_must_be_allowed() -> None:
    """A nodePort must be in allowedPorts, because it comes from a Service and not from the registry."""
    assert read(22) == PortProblem(
        "PortNotAllowed",
        "port 22, the nodePort that was read, is outside the cluster's allowedPorts; extend allowedPorts",
    )


def test_a_node_port_that_cannot_be_read_stays() -> None:
    """An unreadable nodePort keeps its published number and is reported."""
    found = read(None, "it does not exist", last=(Port("http", 1), Port("https", 30500)))
    assert found == Ports(
        (Port("https", 30500),),
        unread=("the node port https of Service ingress/envoy: it does not exist; 30500 stays",),
    )


def test_a_node_port_that_was_never_read_is_a_problem() -> None:
    """A nodePort that is neither readable nor published is a problem."""
    assert read(None, "it does not exist") == PortProblem(
        "NodePortUnknown", "the node port https of Service ingress/envoy: it does not exist"
    )
    nothing = ports(build.target(ports=(READ,)), build.service(ports=ONE), RANGE)
    assert problem(nothing) == "NodePortUnknown"
