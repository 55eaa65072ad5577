"""``hub check --online`` and Services whose ports cannot be published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.settings import Options
from hub.cli.online import check_online
from hub.cli.traps import traps
from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.model import ServicePort
from tests.support import build

CLUSTERS = """
version: 1
clusters:
  - {name: eu, kubeconfig: {path: eu}, allowedCIDRs: [10.0.0.0/8], provider: {name: node-addresses}}
  - name: us
    kubeconfig: {path: us}
    allowedCIDRs: [10.0.0.0/8]
    allowedPorts: [1-65535]
    provider: {name: node-addresses}
services:
"""
PORTS = ServicePort(443, "a"), ServicePort(8443, "b")


@pytest.fixture
async def here() -> AsyncIterator[SimulatedCluster]:
    """A hub cluster with Service web."""
    async with SimulatedCluster("hub") as hub_cluster:
        hub_cluster.put(make_service("default", "web"))
        yield hub_cluster


@pytest.fixture
async def folder(tmp_path: Path, here: SimulatedCluster) -> AsyncIterator[Path]:
    """The files of the hub cluster, of eu with node n0, and of us with nodes n1 and n0.rack."""
    async with SimulatedCluster("eu") as eu, SimulatedCluster("us") as us:
        for number, cluster in enumerate((eu, us)):
            cluster.nodes.add(make_node(f"n{number}", f"10.{number}.0.1", zone=("", "us-1")[number]))
            cluster.write_kubeconfig(tmp_path / cluster.name)
        us.nodes.add(make_node("n0.rack", "10.1.0.2", zone="us-1"))
        here.write_kubeconfig(tmp_path / "hub")
        yield tmp_path


async def check(folder: Path, service: str, networks: str = "10.0.0.0/8") -> bool:
    """Check a registry with this entry for Service web."""
    clusters = CLUSTERS.replace("10.0.0.0/8", networks)
    (folder / "clusters.yaml").write_text(f"{clusters}  - {{name: web, namespace: default, {service}}}\n")
    options = Options(str(folder / "clusters.yaml"), str(folder / "hub"), dry_run=True, leader_elect=False)
    return await check_online(options)


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ("sources: [{cluster: eu}], ports: [{name: nope, port: 30443}]", "PortMismatch: eu: the Service has no TCP"),
        ("sources: [{cluster: eu}]", "PortNotAllowed: eu: port "),
        (
            "sources: [{cluster: eu}], ports: [{nodePort: {service: a/b, port: 1}}]",
            "NodePortUnknown: eu: the node port 1 of Service a/b: ",
        ),
    ],
)
async def test_service_without_usable_ports_fails(
    folder: Path, capsys: pytest.CaptureFixture[str], service: str, problem: str
) -> None:
    """A Service of which nothing can be published because of its ports fails, and the finding is named."""
    assert not await check(folder, service)
    printed = capsys.readouterr().out
    assert f"default/web   {problem}" in printed
    assert printed.endswith("online: 1 of 4 failed\n")


async def test_service_with_one_usable_source_is_ok(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Service that one of its sources can serve does not fail; the problem of the other source is named."""
    assert await check(folder, "sources: [{cluster: eu}, {cluster: us}]")
    assert "default/web   ok, except PortNotAllowed: eu: port " in capsys.readouterr().out


async def test_service_with_usable_ports_is_ok(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Service whose ports are in its registry entry is ok."""
    assert await check(folder, "sources: [{cluster: eu}], ports: [{port: 30443}]")
    assert "default/web   ok\n" in capsys.readouterr().out


async def test_addresses_outside_allowed_cidrs_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If allowedCIDRs exclude every node, the row of the cluster says so and names an address."""
    assert not await check(folder, "sources: [{cluster: eu}], ports: [{port: 30443}]", networks="10.9.0.0/16")
    printed = capsys.readouterr().out
    assert "no node is publishable: 10.0.0.1 outside allowedCIDRs; correct allowedCIDRs, or see hub nodes" in printed


def web(*ports: dict[str, Any], **spec: Any) -> Any:
    """Service web with these ports."""
    service = make_service("default", "web", ports=ports)
    service["spec"].update(spec)
    return service


A = {"name": "a", "port": 443}
TRAPS = [
    pytest.param(
        web(A, type="NodePort", externalTrafficPolicy="Local"),
        "ports: [{port: 30443}]",
        "LocalTrafficPolicy: externalTrafficPolicy of the Service is Local: kube-proxy sends nothing to the 1 of 1",
        id="policy Local",
    ),
    pytest.param(
        web(A, {"name": "b", "port": 80}),
        "ports: [{name: a, port: 30443}]",
        "no source publishes port b (TCP) of the Service, so connections to it fail: add it to the entry's ports",
        id="a port without endpoints",
    ),
    pytest.param(
        web({**A, "appProtocol": "http"}),
        "ports: [{name: a, port: 30443, appProtocol: https}]",
        "appProtocol https of port a (TCP) is in the slices only: consumers that read the Service's",
        id="appProtocol",
    ),
    pytest.param(
        web(A, clusterIP="None"),
        "ports: [{port: 30443}]",
        "the Service is headless, so nothing translates its port 443 (the endpoints listen on 30443) for clients",
        id="headless with another port",
    ),
    pytest.param(
        web(A),
        "ports: [{port: 30443}], zoneMap: {eu-1: a}",
        "ZoneNotMapped: eu: no zone hints: 1 of 1 endpoints are in no known zone, such as 10.0.0.1, which has no zone",
        id="a node without a zone",
    ),
]
"""(Service, keys of its entry, note)."""


@pytest.mark.parametrize(("service", "keys", "note"), TRAPS)
async def test_traps_of_consumers_are_notes(
    folder: Path, here: SimulatedCluster, capsys: pytest.CaptureFixture[str], service: Any, keys: str, note: str
) -> None:
    """What consumers will stumble over is named, and does not fail."""
    here.services.delete("web", namespace="default")
    here.put(service)
    assert await check(folder, f"sources: [{{cluster: eu}}], {keys}")
    assert f"default/web   ok, except {note}" in capsys.readouterr().out


async def test_a_service_without_traps_has_no_note(
    folder: Path, here: SimulatedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal ports of a headless Service, and an appProtocol that is in the Service too, are no traps."""
    here.services.delete("web", namespace="default")
    here.put(web({**A, "port": 30443, "appProtocol": "https"}, clusterIP="None"))
    assert await check(folder, "sources: [{cluster: eu}], ports: [{port: 30443, appProtocol: https}]")
    assert "default/web   ok\n" in capsys.readouterr().out


async def test_sources_with_and_without_hints_are_noted(
    folder: Path, here: SimulatedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """If only one of two sources maps its zones, kube-proxy uses no hint."""
    here.nodes.add(make_node("w1", zone="a"))
    both = "sources: [{cluster: us, zoneMap: {us-1: a}}, {cluster: eu}], ports: [{port: 30443}]"
    assert await check(folder, both)
    assert "kube-proxy ignores the zone hints of us, since endpoints of eu have none: give" in capsys.readouterr().out


async def test_endpoints_without_a_hostname_are_noted(
    folder: Path, here: SimulatedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a headless Service, nodes n0 and n0.rack would share a DNS name, so neither has one."""
    here.services.delete("web", namespace="default")
    here.put(web({**A, "port": 30443}, clusterIP="None"))
    assert await check(folder, "sources: [{cluster: eu}, {cluster: us}], ports: [{port: 30443}]")
    assert "2 of 3 endpoints have no hostname, such as 10.0.0.1, so they have no DNS" in capsys.readouterr().out


@pytest.mark.parametrize(("node", "noted"), [("n0", True), (None, False)])
def test_endpoints_that_all_lack_a_hostname_are_noted_if_they_have_nodes(node: str | None, noted: bool) -> None:
    """The nodes of two clusters have the same names; a source without node names is no surprise."""
    groups = [
        EndpointGroup(GroupKey(name, "IPv4"), build.by_address([build.endpoint(address, node)]), ports=PORTS)
        for name, address in (("eu", "10.0.0.1"), ("us", "10.1.0.1"))
    ]
    found = [*traps(build.service(ports=PORTS, headless=True), build.decision(groups))]
    assert [text.partition(", so")[0] for text in found] == [
        "2 of 2 endpoints have no hostname, such as 10.0.0.1"
    ] * noted


def test_sources_with_different_ports_are_noted() -> None:
    """A port that only one of two sources publishes is named with the source that lacks it."""
    a, b = PORTS
    groups = [
        EndpointGroup(GroupKey(name, "IPv4"), build.by_address(build.endpoints(1)), ports=ports)
        for name, ports in (("eu", (a, b)), ("us", (a,)))
    ]
    [note] = traps(build.service(ports=PORTS), build.decision(groups))
    assert note == (
        "us does not publish port b (TCP) of the Service, so connections to it use the other sources only: give all "
        "sources the same ports"
    )
