"""``hub check --online`` and Services whose ports cannot be published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.settings import Options
from hub.cli.online import check_online

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


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """The files of a hub cluster with Service web, and of two remote clusters with a node each."""
    async with SimulatedCluster("hub") as here, SimulatedCluster("eu") as eu, SimulatedCluster("us") as us:
        here.put(make_service("default", "web"))
        for number, cluster in enumerate((eu, us)):
            cluster.nodes.add(make_node(f"n{number}", f"10.{number}.0.1"))
            cluster.write_kubeconfig(tmp_path / cluster.name)
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
