"""Checks that go to a Service's healthCheckNodePort."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub.decide.checks import Check
from hub.decide.health import NoPort, check_for
from hub.decide.ports import PortReading
from hub.model import Port, TargetKey
from hub.observe.remote.fleet import node_ports
from hub.registry.load import loads
from hub.registry.spec import HEALTH_CHECK, HealthPolicy, NodePortRef, ProviderRef, Registry, SourceSpec
from tests.support.registry import strict

ENVOY = TargetKey("ingress", "envoy")
REF = NodePortRef(ENVOY, HEALTH_CHECK)
SOURCE = SourceSpec("eu", ProviderRef("x"), health=HealthPolicy("tcp", service=ENVOY))
PUBLISHED = (Port("https", 30443),)


def test_the_port_is_the_one_that_was_read() -> None:
    """The healthCheckNodePort is probed instead of the published port."""
    assert check_for(SOURCE, PUBLISHED, {REF: PortReading(31000)}, unreachable=False) == Check("tcp", 31000)


@pytest.mark.parametrize("number", [1, 65535])
def test_lowest_and_highest_port_are_probed(number: int) -> None:
    """The lowest and the highest port number are valid."""
    assert check_for(SOURCE, PUBLISHED, {REF: PortReading(number)}, unreachable=False) == Check("tcp", number)


def test_last_known_port_is_still_probed() -> None:
    """If the Service is gone, its last known port is still probed."""
    found = check_for(SOURCE, PUBLISHED, {REF: PortReading(31000, "it does not exist")}, unreachable=False)
    assert found == Check("tcp", 31000)


def test_unknown_port_is_not_checked() -> None:
    """If the port is not known, the addresses are not checked, and a finding names the Service."""
    found = check_for(SOURCE, PUBLISHED, {REF: PortReading(None, "it does not exist")}, unreachable=False)
    assert found == NoPort("eu: Service ingress/envoy: it does not exist; nothing is probed")
    assert isinstance(check_for(SOURCE, PUBLISHED, unreachable=False), NoPort)


@pytest.mark.parametrize("number", [-1, 0, 65536, 70000])
def test_invalid_port_number_is_not_probed(number: int) -> None:
    """A number that is not a port is not probed, because the socket would raise an error."""
    found = check_for(SOURCE, PUBLISHED, {REF: PortReading(number)}, unreachable=False)
    message = f"eu: Service ingress/envoy: its healthCheckNodePort {number} is not a valid port; nothing is probed"
    assert found == NoPort(message)


def registry(health: str) -> Registry:
    """A registry with one Service and its health block."""
    text = f"""
version: 1
clusters:
  - {{name: eu, kubeconfig: {{path: eu}}, allowedCIDRs: [10.0.0.0/8], provider: {{name: x}}}}
services:
  - name: payments
    namespace: edge
    sources: [{{cluster: eu}}]
    health: {health}
    ports: [{{name: https, nodePort: {{service: ingress/envoy, port: 443}}}}]
"""
    return strict(loads(text.encode(), Path("clusters.yaml")))


def test_registry_names_the_service_of_the_port() -> None:
    """The registry names the Service of the port; with checks off only the port is used."""
    (target,) = registry("{mode: tcp, healthCheckNodePort: ingress/envoy}").targets.values()
    assert node_ports(target, target.sources[0]) == [NodePortRef(ENVOY, 443), REF]
    (target,) = registry('{mode: "off", healthCheckNodePort: ingress/envoy}').targets.values()
    assert node_ports(target, target.sources[0]) == [NodePortRef(ENVOY, 443)]
