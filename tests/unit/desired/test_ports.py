"""Which ports a slice carries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hub.desired.ports import PortProblem, Ports, ports
from hub.model import Port, ServicePort
from hub.registry.spec import PortSpec
from tests.support import build

RANGE = ((30000, 32767),)
ONE = (ServicePort(443, "https", target_port=30443),)
TWO = (ServicePort(443, "https", target_port=30443), ServicePort(80, "http", target_port=30080))


def of_service(*service_ports: ServicePort, allowed: Sequence[tuple[int, int]] | None = RANGE) -> Ports | PortProblem:
    """Ports of a target that takes them from its Service."""
    return ports(build.target(), build.service(ports=service_ports), allowed)


def of_entry(*entries: PortSpec, service: Sequence[ServicePort] = ONE) -> Ports | PortProblem:
    """Ports of a target that writes them itself."""
    return ports(build.target(ports=entries), build.service(ports=service), RANGE)


def problem(found: Ports | PortProblem) -> str:
    """The problem's reason, "" where there is none."""
    return found.reason if isinstance(found, PortProblem) else ""


def test_service_numeric_target_port() -> None:
    """A numeric targetPort is the port."""
    assert of_service(*ONE) == Ports((Port("https", 30443, "TCP"),))


@pytest.mark.parametrize("target_port", [None, "https"])
def test_service_port_without_number(target_port: str | None) -> None:
    """Without a numeric targetPort it is the Service's port."""
    assert of_service(ServicePort(30001, "a", target_port=target_port)) == Ports((Port("a", 30001, "TCP"),))


def test_service_named_target_port_from_source() -> None:
    """What a copied Service publishes resolves a named targetPort, by the port's name."""
    service = build.service(ports=(ServicePort(443, "https", target_port="web"),))
    source = [Port("other", 1, "TCP"), Port("https", 6443, "TCP")]
    assert ports(build.target(), service, None, source) == Ports((Port("https", 6443, "TCP"),))


def test_ports_are_sorted() -> None:
    """Whatever the Service's order is, slices carry one order."""
    assert of_service(*TWO) == of_service(*reversed(TWO))


def test_service_app_protocol_is_kept() -> None:
    """AppProtocol comes along."""
    found = of_service(ServicePort(443, "a", app_protocol="h2c", target_port=30001))
    assert found == Ports((Port("a", 30001, "TCP", "h2c"),))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(29999, "PortNotAllowed"), (30000, ""), (32767, ""), (32768, "PortNotAllowed")],
)
def test_service_ports_must_be_allowed(number: int, expected: str) -> None:
    """A port taken from the Service must lie in the range, both ends included."""
    assert problem(of_service(ServicePort(443, "a", target_port=number))) == expected


def test_several_ranges() -> None:
    """Any of the ranges will do."""
    assert problem(of_service(*ONE, allowed=((80, 80), (30443, 30443)))) == ""


def test_no_range_allows_nothing() -> None:
    """A cluster without allowedPorts gets no port from a Service."""
    assert problem(of_service(*ONE, allowed=())) == "PortNotAllowed"


def test_local_copies_need_no_range() -> None:
    """None = any port."""
    assert of_service(ServicePort(443, "a"), allowed=None) == Ports((Port("a", 443, "TCP"),))


def test_entry_ports_extend_the_range() -> None:
    """A port written in the registry entry is allowed by being written there."""
    assert of_entry(PortSpec(8443, "https")) == Ports((Port("https", 8443, "TCP"),))


@pytest.mark.parametrize("number", [0, -1, 65536, 70000])
@pytest.mark.parametrize("written", [False, True])
def test_no_port_number(number: int, written: bool) -> None:
    """The API server takes any number, the hub does not."""
    found = of_entry(PortSpec(number, "https")) if written else of_service(ServicePort(1, "a", target_port=number))
    assert problem(found) == "PortNotAllowed"


def test_sole_unnamed_entry_takes_the_name() -> None:
    """One entry, one Service port: no name needed."""
    assert of_entry(PortSpec(30443)) == Ports((Port("https", 30443, "TCP"),))


@pytest.mark.parametrize(
    ("entries", "service"),
    [
        ([PortSpec(30443)], TWO),
        ([PortSpec(30443), PortSpec(30080)], TWO),
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
    """A name the Service lacks, or one that cannot be told, is refused: traffic would go nowhere."""
    assert problem(of_entry(*entries, service=service)) == "PortMismatch"


def test_entry_app_protocol_wins() -> None:
    """appProtocol: the entry's, else the Service's."""
    service = (ServicePort(443, "a", app_protocol="https"),)
    found = [of_entry(PortSpec(1, "a", "TCP", mine), service=service) for mine in (None, "h2c")]
    assert found == [Ports((Port("a", 1, "TCP", "https"),)), Ports((Port("a", 1, "TCP", "h2c"),))]


def test_a_headless_service_may_have_no_ports() -> None:
    """No ports, no problem; and an unnamed entry needs none."""
    assert [of_service(), of_entry(PortSpec(30443), service=())] == [Ports(()), Ports((Port("", 30443, "TCP"),))]


def test_same_name_for_two_protocols() -> None:
    """A name may serve once per protocol."""
    service = (ServicePort(53, "dns"), ServicePort(53, "dns", "UDP"))
    found = of_entry(PortSpec(53, "dns", "UDP"), PortSpec(53, "dns", "TCP"), service=service)
    assert found == Ports((Port("dns", 53, "TCP"), Port("dns", 53, "UDP")))
