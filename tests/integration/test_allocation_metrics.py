"""Metrics of allocations, scraped from hubs on a real API server that move addresses of a fake Google Cloud."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_provider_gcp.testing import PROJECT
from prometheus_client.parser import text_string_to_metric_families

from hub.allocating.metrics_catalog import FAMILIES, PREFIX
from tests.integration.test_allocations import PATH, RULES
from tests.support import ip_address_controller
from tests.support.allocations import allocation, define
from tests.support.apiserver.server import ApiServer
from tests.support.gcp import GcpThread
from tests.support.hub import HUB_RULES, HubProcess, World, add_node
from tests.support.ports import free_port
from tests.support.prometheus import ALERTS, ALLOCATION_ALERTS, Prometheus
from tests.support.waiting import eventually

JOB = "ip-address-controller"
WEB = {"cluster": "prod", "crd_name": "web"}
DASHBOARD: dict[str, Any] = json.loads((ALERTS.parent / "dashboards" / "ip-address-controller.json").read_text())
REGISTRY = """
version: 1
allocations:
  mode: enforce
  clouds:
    - name: gcp
      provider: gcp
      config: {{project: {project}, regions: [us-west1], endpoint: "{url}", credentials: {{file: key}}}}
      addresses: [203.0.113.0/24]
      interval: 10s
"""


@dataclass
class Scene:
    """Three nodes with two reserved addresses, and the hub ``hub-0`` for the allocation ``web``."""

    world: World
    gcp: GcpThread
    addresses: list[str]
    port: int

    def scrape(self, port: int | None = None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """(name without prefix, labels) -> value. A hub that does not serve them yet is an AssertionError."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError as error:
            raise AssertionError(str(error)) from error
        return {
            (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(PREFIX)
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None if it does not exist."""
        return self.scrape().get((name, frozenset(labels.items())))

    def holders(self) -> dict[str, str]:
        """Address -> node, as the metrics say."""
        return {
            dict(labels)["ip"]: dict(labels)["node"]
            for (name, labels), value in self.scrape().items()
            if name == "ip_attached" and value == 1
        }

    def hub(self, port: int) -> HubProcess:
        """A replica that serves metrics."""
        more = ("--metrics-bind-address", f"127.0.0.1:{port}", "--allow-api-host", self.gcp.fake.host)
        return HubProcess(self.world, *more)

    def awaits(self, count: int = 2) -> dict[str, str]:
        """Wait until so many addresses are attached and their nodes labelled; returns address -> node."""

        def check() -> bool:
            holders = self.holders()
            ready = [self.value("node_ip_ready", **WEB, node=node) for node in holders.values()]
            assert ready == [1] * count, (holders, ready)
            return True

        eventually(check, 40)
        return self.holders()


@pytest.fixture
def scene(hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The scene, in which both addresses are attached."""
    define(hub_cluster.api)
    world = World(tmp_path, hub_cluster, {})
    hub_cluster.grant("hub", *HUB_RULES, *RULES)
    hub_cluster.kubeconfig(world.kubeconfig, "hub")
    for name, value in {"CLUSTER_NAME": "prod", "CONTROLLER_VERSION": "1.1.0", "POD_NAME": "hub-0"}.items():
        monkeypatch.setenv(name, value)
    with GcpThread() as gcp:
        for name in ("n1", "n2", "n3"):
            gcp.fake.cloud.add_vm(name, ephemeral="external-nat")
            add_node(hub_cluster, name)
            provider_id = f"gce://{PROJECT}/us-west1-a/{name}"
            hub_cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": provider_id}})
        addresses = [gcp.fake.cloud.reserve() for _ in range(2)]
        key = tmp_path / "key"
        key.touch(mode=0o600)
        key.write_text(gcp.fake.key_file())
        world.write_text(REGISTRY.format(project=PROJECT, url=gcp.fake.url))
        spec = {"reservedIPs": addresses, "cloud": {"provider": "gcp"}, "reconcileInterval": 10}
        hub_cluster.api.post(PATH, allocation("web", **spec))
        made = Scene(world, gcp, addresses, free_port())
        with made.hub(made.port):
            made.awaits()
            yield made


def test_metrics_follow_a_move(scene: Scene) -> None:
    """A cordon moves an address: its series, the labels of the nodes, the counts and the durations follow."""
    before = scene.scrape()
    assert scene.value("crd_status", **WEB) == 1
    assert [scene.value(f"{name}_ips_total", **WEB) for name in ("reserved", "attached", "unattached")] == [2, 2, 0]
    assert scene.value("controller_info", cluster="prod", pod_name="hub-0", version="1.1.0") == 1
    address, node = next(iter(scene.holders().items()))
    scene.world.hub_cluster.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    eventually(lambda: scene.value("node_cordoned", cluster="prod", node=node) == 1, 10)
    eventually(lambda: scene.holders().get(address) not in (None, node), 60)

    assert scene.awaits()[address] != node
    assert scene.value("node_ip_ready", **WEB, node=node) == 0
    assert scene.value("ip_attached", **WEB, ip=address, node=node) is None
    assert scene.value("ip_detach_total", **WEB, status="success") == 1
    attached = ("ip_attach_total", frozenset({**WEB, "status": "success"}.items()))
    assert scene.scrape()[attached] - before[attached] == 1
    assert scene.value("move_duration_seconds_count", cluster="prod", cause="Drained") == 1
    assert scene.value("move_duration_seconds_count", cluster="prod", cause="Free") == 2
    seconds = scene.value("move_duration_seconds_sum", cluster="prod", cause="Drained")
    assert seconds is not None
    assert 5 <= seconds < 60
    for operation in ("describe", "attach", "detach"):
        assert scene.value("gcp_api_duration_seconds_count", cluster="prod", operation=operation)
    known = {family.name.removeprefix(PREFIX) for family in FAMILIES}
    found = {name.removesuffix("_count").removesuffix("_sum").removesuffix("_bucket") for name, _ in scene.scrape()}
    assert found - {"waiting"} == known - {"waiting"}


def test_silent_cloud_is_counted_and_moves_nothing_in_the_metrics(scene: Scene) -> None:
    """While the cloud fails, addresses stay attached to their nodes, wait as Unknown, and errors are counted."""
    holders = scene.holders()
    scene.gcp.fail("html")
    eventually(lambda: scene.value("waiting", **WEB, reason="Unknown") == 2, 90)
    assert scene.holders() == holders
    assert scene.value("crd_status", **WEB) == 1
    assert scene.value("unattached_ips_total", **WEB) == 0
    error = {"cluster": "prod", "operation": "describe", "error_type": "TransientProviderError"}
    assert scene.value("gcp_api_errors_total", **error)
    scene.gcp.heal()
    eventually(lambda: scene.value("waiting", **WEB, reason="Unknown") is None, 60)


def test_series_end_with_their_objects(scene: Scene) -> None:
    """A deleted allocation has no series, and a registry without allocations has no family."""
    scene.world.hub_cluster.api.delete(f"{PATH}/web")
    eventually(lambda: {dict(labels).get("crd_name") for _, labels in scene.scrape()} == {None}, 10)
    assert scene.value("controller_is_leader", cluster="prod", pod_name="hub-0") == 1
    scene.world.write_text("version: 1\n")
    eventually(lambda: scene.scrape() == {}, 20)


def test_standby_reports_only_about_itself(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica serves only the controller's families, is ready, and does not lead."""
    monkeypatch.setenv("POD_NAME", "hub-1")
    port, me = free_port(), frozenset({"cluster": "prod", "pod_name": "hub-1"}.items())
    with scene.hub(port):

        def ready() -> bool:
            return scene.scrape(port).get(("controller_ready", me)) == 1

        eventually(ready, 30)
        found = scene.scrape(port)
    assert found["controller_is_leader", me] == 0
    assert {name for name, _ in found} == {f"controller_{name}" for name in ("is_leader", "healthy", "ready", "info")}


# --- Prometheus ------------------------------------------------------------------------------------------


def check_with_prometheus(scene: Scene, folder: Path, dashboard: dict[str, Any], rules: Path) -> None:
    """Every query of a dashboard has series, every rule can be evaluated, and nothing fires."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 25
    with Prometheus(folder, f"127.0.0.1:{scene.port}", free_port(), job=JOB, rules=[rules]) as prometheus:
        eventually(lambda: prometheus.query(f"rate({PREFIX}reconcile_total[20s]) > 0"), 60)
        for query in queries:
            if f"{PREFIX}waiting" not in query:  # nothing waits
                assert prometheus.series(query.replace("$__rate_interval", "20s").replace("$cluster", "prod")), query
        [definition] = [found["definition"] for found in dashboard["templating"]["list"] if found["name"] == "cluster"]
        name = definition.removeprefix("label_values(").partition(",")[0]
        assert {series["metric"]["cluster"] for series in prometheus.query(name)} == {"prod"}
        assert prometheus.faulty_rules() == []
        eventually(lambda: prometheus.firing() == {}, 30)


def test_prometheus_evaluates_the_shipped_dashboard_and_rules(scene: Scene, tmp_path: Path) -> None:
    """The dashboard and the alerts of the chart work on the metrics of a running hub."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    check_with_prometheus(scene, folder, DASHBOARD, ALLOCATION_ALERTS)


def test_prometheus_evaluates_the_files_of_ip_address_controller(scene: Scene, tmp_path: Path) -> None:
    """Its own dashboard and alerts work unedited on the metrics of a running hub."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": ip_address_controller.rules()}))
    check_with_prometheus(scene, folder, ip_address_controller.dashboard(), rules)
