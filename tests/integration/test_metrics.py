"""Metrics of a running hub, read by a real Prometheus with the queries of the Grafana dashboard."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hub_testkit.ionos import FakeIonosThread
from prometheus_client.parser import text_string_to_metric_families

from hub.report.metrics_catalog import METRICS, PREFIX
from tests.support.apiserver.server import ApiServer
from tests.support.hub import NODE_RULES, HubProcess, World, add_node
from tests.support.hub import node as node_of
from tests.support.ports import free_port
from tests.support.prometheus import ROOT, Prometheus
from tests.support.waiting import eventually

FILES = ROOT / "helm" / "endpointslice-hub" / "files"
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboards" / "dashboard.json").read_text())
DATACENTER = "10000000-0000-4000-8000-000000000001"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu (with an expiring certificate) and us, a Service for each, and one that does not exist."""
    made = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    made.remotes["eu"].certificate_kubeconfig(tmp_path / "eu", "hub", lifetime=timedelta(days=2))
    made.add_service("payments")
    made.add_service("orders")
    services = [made.service("payments", "eu"), made.service("orders", "us"), made.service("missing", "us")]
    made.write(services=services)
    add_node(made.remotes["eu"], "n1", "10.1.0.1")
    add_node(made.remotes["us"], "n2", "10.2.0.1")
    return made


class Scraped:
    """A hub process whose metrics can be scraped."""

    def __init__(self, world: World, *arguments: str) -> None:
        self.port = free_port()
        self.process = HubProcess(world, "--metrics-bind-address", f"127.0.0.1:{self.port}", *arguments)

    def scrape(self, accept: str = "", host: str = "") -> tuple[str, str]:
        """The content type and text of a scrape."""
        headers = {"Accept": accept} if accept else {}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers=headers)
        if host:
            asked.add_header("Host", host)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def samples(self) -> Samples:
        """Name without the common prefix, with labels -> value."""
        return {
            (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.scrape()[1])
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None if it does not exist."""
        return self.samples().get((name, tuple(sorted(labels.items()))))


@pytest.fixture
def scraped(world: World) -> Iterator[Scraped]:
    """A running hub that has published."""
    hub = Scraped(world)
    with hub.process:
        world.awaits("10.1.0.1", timeout=30)
        world.awaits("10.2.0.1", service="orders", timeout=30)
        # The slices are visible before the hub has the answers to its writes.
        eventually(lambda: hub.value("writes_total", operation="create") == 2, 10)
        yield hub


def test_metrics_follow_publication(scraped: Scraped, world: World) -> None:
    """Metrics of endpoints, nodes, writes and latency change with each publication."""
    before = scraped.samples()
    assert before["leader", (("shard", "0"),)] == 1
    ready = {"condition": "ready", "family": "IPv4", "target": "edge/payments"}
    assert scraped.value("endpoints", **ready) == 1
    assert scraped.value("findings", target="edge/missing", reason="ServiceMissing") == 1
    assert scraped.value("cluster_state", source_cluster="eu", state="Ready") == 1

    add_node(world.remotes["eu"], "n3", "10.1.0.3")
    world.awaits("10.1.0.1", "10.1.0.3")
    published = ("change_to_publish_seconds_count", ())
    eventually(lambda: scraped.samples()[published] > before[published], 10)
    after = scraped.samples()

    assert scraped.value("endpoints", **ready) == 2
    assert scraped.value("cluster_nodes", source_cluster="eu", reason="published") == 2
    grown = {name: after[name, ()] - before[name, ()] for name, labels in before if not labels and "_count" in name}
    assert grown["change_to_publish_seconds_count"] == 1
    seconds = after["change_to_publish_seconds_sum", ()] - before["change_to_publish_seconds_sum", ()]
    assert 0 < seconds < 2
    update = ("writes_total", (("operation", "update"),))
    assert after[update] - before[update] == 1


def test_metrics_of_removed_objects_disappear(scraped: Scraped, world: World) -> None:
    """The series of a cluster and a Service that leave the registry disappear."""
    assert scraped.value("cluster_state_since_timestamp_seconds", source_cluster="us") is not None

    def gone(names: str) -> bool:
        text = scraped.scrape()[1]
        assert [line for line in text.splitlines() if re.search(names, line)] == []
        return True

    world.write(services=[world.service("payments", "eu")])
    eventually(lambda: gone("edge/orders|edge/missing"), 15)
    world.write([world.cluster("eu")], [world.service("payments", "eu")])
    eventually(lambda: gone('"us"'), 15)
    assert scraped.value("registry_reloads_total", outcome="accepted") == 3


def test_a_withheld_registry_shows(scraped: Scraped, world: World) -> None:
    """Withheld removals of the registry are counted, and their slices are orphaned."""
    world.write([world.cluster("eu")], [world.service("payments", "eu")])
    eventually(lambda: scraped.value("registry_withheld_endpoints") == 1, 10)
    assert scraped.value("orphaned_slices") == 1


def test_a_rejected_registry_shows(scraped: Scraped, world: World) -> None:
    """The gauge is 1 while the file is rejected; the last accepted registry's series stay."""
    world.write_text("version: 2\n")
    eventually(lambda: scraped.value("registry_rejected") == 1, 10)
    assert scraped.value("registry_targets") == 3
    world.write([world.cluster("eu")], [world.service("payments", "eu")])
    eventually(lambda: scraped.value("registry_rejected") == 0, 10)


def test_every_metric_is_in_the_catalog(scraped: Scraped) -> None:
    """Every metric is in the catalog with its type and labels, in both formats."""
    known = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    for accept, kind in (
        ("", "text/plain"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics"),
    ):
        content_type, text = scraped.scrape(accept)
        assert content_type.startswith(kind)
        named = re.findall(rf"^# TYPE ({PREFIX}\w+) (\w+)$", text, re.MULTILINE)
        assert len(named) > 40
        for name, of_type in named:
            assert known[name.removesuffix("_total")].kind == of_type
    for family in text_string_to_metric_families(scraped.scrape()[1]):
        for sample in family.samples:
            if family.name.startswith(PREFIX):
                assert sample.labels.keys() - {"le"} == set(known[family.name].labels)


@pytest.fixture
def clouded(world: World, remote_clusters: tuple[ApiServer, ...]) -> Iterator[Scraped]:
    """A running hub with a third cluster, whose provider counts requests to a cloud."""
    api = world.remotes["ap"] = remote_clusters[2]
    api.grant("hub", *NODE_RULES)
    api.kubeconfig(world.folder / "ap", "hub")
    (world.folder / "token").write_text("fake-token")
    with FakeIonosThread() as fake:
        fake.do(lambda ionos: ionos.add_datacenter(identity=DATACENTER))
        server = fake.do(lambda ionos: ionos.add_server(DATACENTER, "vm", "10.3.0.1"))
        body = node_of("n3")
        api.api.post("/api/v1/nodes", {"metadata": body["metadata"], "spec": {"providerID": f"ionos://{server}"}})
        api.api.patch("/api/v1/nodes/n3/status", {"status": body["status"]})
        config = {"datacenters": [DATACENTER], "lan": 2, "apiUrl": fake.url, "token": {"file": "token"}}
        cloud = world.cluster("ap", provider={"name": "ionos", "config": {**config, "refresh": "1s"}})
        services = [
            world.service("payments", "eu"),
            world.service("orders", "us", "ap"),
            world.service("missing", "us"),
        ]
        world.write(clusters=[*map(world.cluster, ("eu", "us")), cloud], services=services)
        hub = Scraped(world, "--allow-api-host", fake.host)
        with hub.process:
            world.awaits("10.1.0.1", timeout=30)
            world.awaits("10.2.0.1", "10.3.0.1", service="orders", timeout=30)
            yield hub


def expression(text: str) -> str:
    """A panel's query as Grafana sends it, for cluster eu and the Services edge/missing and edge/payments."""
    target = "edge/missing" if "findings" in text else "edge/payments"
    for name, value in {"job": Prometheus.JOB, "source_cluster": "eu", "target": target}.items():
        text = text.replace(f"${name}", value)
    return text.replace("$__rate_interval", "20s")


def test_prometheus_reads_the_hub_and_every_panel_shows_it(clouded: Scraped, tmp_path: Path) -> None:
    """A real Prometheus accepts the metrics and rules, and every query of the dashboard has results."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with Prometheus(folder, f"127.0.0.1:{clouded.port}", free_port()) as prometheus:
        twice = f"rate({PREFIX}writes_total[20s])"
        eventually(lambda: len(prometheus.query(twice)) == 3, 30)
        eventually(lambda: [series["value"][1] for series in prometheus.query("up")] == ["1"], 30)
        for panel in PANELS:
            for target in panel["targets"]:
                asked = expression(target["expr"])
                for series in prometheus.series(asked):
                    assert series["metric"]["job"] == Prometheus.JOB, asked
                    if "source_cluster" in series["metric"]:
                        assert series["metric"]["source_cluster"] in ("eu", "us", "ap", "local")
                    if "$target" in target["expr"]:
                        assert series["metric"]["target"] in ("edge/payments", "edge/missing")
        for variable in DASHBOARD["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert {series["metric"][label] for series in prometheus.series(expression(metric))}
        # Neither a missing Service nor clusters that answer are a reason for an alert.
        eventually(lambda: prometheus.firing() == {}, 30)


def test_alert_becomes_pending_in_a_real_prometheus(scraped: Scraped, world: World, tmp_path: Path) -> None:
    """When the file is rejected, the alert becomes pending."""
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with Prometheus(folder, f"127.0.0.1:{scraped.port}", free_port()) as prometheus:
        world.write_text("version: 2\n")
        eventually(lambda: prometheus.firing() == {"EndpointSliceHubRegistryRejected": "pending"}, 40)


# --- bad input -----------------------------------------------------------------------------------------


def answer(port: int, request: bytes) -> bytes:
    """The first line of the answer to these bytes; empty if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return connection.recv(4096).partition(b"\r\n")[0]


REQUESTS = [
    (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
    (b"GET /metrics HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", b"200"),
    (b"GET /metrics HTTP/1.1\r\nHost: localhost:8080\r\n\r\n", b"200"),
    (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    (b"GET /%2e%2e/metrics HTTP/1.1\r\n\r\n", b"404"),
    (b"GET //metrics HTTP/1.1\r\n\r\n", b"404"),
    (b"GET http://x/metrics HTTP/1.1\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"405"),
    (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", b"431"),
    (b"GET /metrics HTTP/1.1\r\nAccept: " + b"a/b;q=," * 900 + b"\r\n\r\n", b"200"),
    (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1e999;;=\r\n\r\n", b"200"),
]


def test_requests_of_any_kind_are_answered(scraped: Scraped) -> None:
    """Every request gets its status, valid or not, and the next one is answered."""
    for request, status in REQUESTS:
        assert answer(scraped.port, request).split()[1:2] == [status], request
        assert answer(scraped.port, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert "Traceback" not in scraped.process.log.read_text()


def test_silent_or_many_scrapers_delay_nothing(scraped: Scraped, world: World) -> None:
    """Connections that are silent, incomplete or never read delay neither changes nor other scrapes."""
    dead = [socket.create_connection(("127.0.0.1", scraped.port)) for _ in range(30)]
    for number, connection in enumerate(dead):
        connection.sendall((b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n")[number % 3])
    results: list[float] = []

    def hammer() -> None:
        for _ in range(20):
            try:
                scraped.scrape()
            except (OSError, urllib.error.URLError):
                results.append(-1.0)
            else:
                results.append(time.monotonic())

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    add_node(world.remotes["eu"], "n4", "10.1.0.4")
    world.awaits("10.1.0.1", "10.1.0.4")
    took = time.monotonic() - started
    for thread in threads:
        thread.join()
    for connection in dead:
        connection.close()

    assert took < 3
    assert sum(result > 0 for result in results) > 0
    eventually(lambda: scraped.value("leader", shard="0") == 1, 10)
