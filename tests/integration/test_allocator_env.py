"""``hub run --from-allocator-env`` with the environment of ip-address-controller, in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hub_provider_gcp.testing import PROJECT
from hub_provider_gcp.testing.cloud import Address

from tests.integration.test_allocation_release import WORKLOAD
from tests.integration.test_allocations import RULES
from tests.support.allocations import KIND, add_workload, allocation, define, printed
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.gcp import GcpThread
from tests.support.hub import HUB_RULES, ROOT, add_node
from tests.support.ports import free_port
from tests.support.waiting import eventually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NO_KEY = "/nowhere/key.json"
COLUMNS = ["Name", "Provider", "Cluster", "Reserved", "Attached", "Ready", "Reason", "Age"]
HELD, FREE = "34.123.45.67", "34.123.45.68"
ZONES: Final[Mapping[str, str]] = {"n1": "us-east1-d", "n2": "us-east1-b", "n3": "us-east1-c", "other": "us-east1-b"}
"""The zones of the nodes. All but ``other`` have the label that the allocation selects."""
SPEC: Final[Object] = {
    "reservedIPs": [HELD, FREE],
    "nodeSelector": {"role": "edge"},
    "deploymentRef": {"name": "web", "namespace": "edge"},
    "cloud": {"provider": "gcp", "region": "us-east1", "zones": ["us-east1-d", "us-east1-b", "us-east1-c"]},
    "strategy": {"maxSurge": 1, "maxUnavailable": 0},
    "reconcileInterval": 15,
}
"""As users of ip-address-controller write it: with the field of version 1.0, and with one that has no effect."""


def scraped(port: int, path: str = "metrics") -> str:
    """What a port answers; nothing there yet is an AssertionError."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError as error:
        raise AssertionError(str(error)) from error


@contextmanager
def running(server: ApiServer, folder: Path, *command: str, **variables: str) -> Iterator[None]:
    """Runs ``hub run --from-allocator-env`` with these variables; it must end well on SIGTERM.

    Args:
        server: the API server; the account ``hub`` has the rights that the chart gives.
        folder: the working directory, with the log.
        command: modules and options in the place of ``hub``.
        variables: of the environment.
    """
    server.grant("hub", *HUB_RULES, *RULES)
    kubeconfig = server.certificate_kubeconfig(folder / "kubeconfig", "hub")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    argv = [sys.executable, "-m", *(command or ("hub",)), "run", "--from-allocator-env", "--listen", "0"]
    argv += ["--kubeconfig", str(kubeconfig), "--allow-api-host", "127.0.0.1"]
    log = folder / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [*argv, "--health-probe-bind-address", variables.pop("probes", "0")],
            stdout=written,
            stderr=written,
            cwd=folder,
            env={**os.environ, **variables, "PYTHONPATH": path},
        ) as child,
    ):
        try:
            yield
        except AssertionError as error:
            error.add_note(log.read_text())
            raise
        finally:
            child.terminate()
        assert child.wait(10) == 0, log.read_text()


def test_hub_takes_the_place_of_ip_address_controller(hub_cluster: ApiServer, tmp_path: Path) -> None:
    """Its variables alone start a hub: its Lease, its ports, its metrics, and it acts: enforce.

    The credential does not exist, so nothing is asked; the status and the log name it, and nothing is changed.
    """
    define(hub_cluster.api)
    add_node(hub_cluster, "n1")
    hub_cluster.api.post(KIND, allocation("web", reservedIPs=["203.0.113.1"]))
    port = free_port()
    variables = {"LEASE_NAME": "ips", "LEASE_DURATION": "7", "METRICS_PORT": str(port), "CLUSTER_NAME": "prod"}
    with running(hub_cluster, tmp_path, **variables, GOOGLE_APPLICATION_CREDENTIALS=NO_KEY):
        eventually(lambda: hub_cluster.api.exists(f"{LEASE}/ips"), 30)
        assert hub_cluster.api.get(f"{LEASE}/ips")["spec"]["leaseDurationSeconds"] == 7
        eventually(lambda: 'ips_total{cluster="prod",crd_name="web"} 1' in scraped(port), 30)
        eventually(lambda: NO_KEY in str(hub_cluster.api.get(f"{KIND}/web").get("status")), 30)
        assert "ip.ready" not in hub_cluster.api.get("/api/v1/nodes/n1")["metadata"].get("labels", {})


@dataclass
class Replaced:
    """What ip-address-controller left: its object, the Deployment ``web``, and one of two addresses on n1."""

    server: ApiServer
    gcp: GcpThread

    def prepare(self) -> None:
        """Make the scene."""
        api, cloud = self.server.api, self.gcp.fake.cloud
        define(api)
        for name, zone in ZONES.items():
            role = {"role": "edge"} if name != "other" else {}
            add_node(self.server, name, zone=zone, labels=role)
            api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": f"gce://{PROJECT}/{zone}/{name}"}})
            cloud.add_vm(name, zone, ephemeral="external-nat")
        for number, address in enumerate((HELD, FREE)):
            cloud.addresses[address] = Address(address, f"edge-{number}", "us-east1")
        cloud.hold(HELD, "n1")
        api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"ip.ready": "true"}}})
        add_workload(api)
        made = allocation("edge", **SPEC)
        made["metadata"]["namespace"] = "edge"  # its example has one, although the kind has no namespaces
        api.post(KIND, made)
        self.server.grant("hub", *WORKLOAD, namespace="edge")

    def attached(self) -> list[str]:
        """The nodes that ``kubectl get nodes -l ip.ready=true`` prints; fails unless both addresses are on these."""
        columns, rows = printed(self.server)
        assert columns == COLUMNS
        assert [cells[:-1] for cells in rows] == [["edge", "gcp", "local", 2, 2, "True", "Attached"]]
        nodes = self.server.api.list("/api/v1/nodes", labelSelector="ip.ready=true")
        labelled = sorted(node["metadata"]["name"] for node in nodes)
        assert labelled == sorted(map(self.holder, (HELD, FREE)))
        return labelled

    def holder(self, address: str) -> str:
        """The instance that has an address at the cloud."""
        return "".join(user.rpartition("/")[2] for user in self.gcp.fake.cloud.users(address))


@pytest.fixture
def replaced(hub_cluster: ApiServer) -> Iterator[Replaced]:
    """The scene."""
    with GcpThread() as gcp:
        made = Replaced(hub_cluster, gcp)
        made.prepare()
        yield made


@contextmanager
def replacement(replaced: Replaced, folder: Path) -> Iterator[tuple[int, int]]:
    """The hub with all variables of the controller; yields the ports of metrics and probes."""
    ports = free_port(), free_port()
    fake = replaced.gcp.fake
    key = folder / "key.json"
    key.write_text(json.dumps({**json.loads(fake.key_file()), "project_id": PROJECT}))
    variables = {
        "LEASE_NAME": "ip-address-controller-leader",
        "LEASE_DURATION": "60",
        "LEASE_SKEW_GRACE_SEC": "2",
        "METRICS_PORT": str(ports[0]),
        "CONTROLLER_VERSION": "1.1.0",
        "CLUSTER_NAME": "prod",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "probes": f"127.0.0.1:{ports[1]}",
    }
    with running(replaced.server, folder, "tests.support.google", fake.url, **variables):
        yield ports


def test_hub_serves_the_objects_of_ip_address_controller(replaced: Replaced, tmp_path: Path) -> None:
    """An attached address stays, a free one is attached, and ``kubectl get nia`` and the label show both."""
    with replacement(replaced, tmp_path) as (metrics, probes):
        nodes = eventually(replaced.attached, 40)
        assert replaced.holder(HELD) == "n1"
        assert nodes in (["n1", "n2"], ["n1", "n3"])
        assert scraped(probes, "healthz")
        assert scraped(probes, "readyz")
        text = scraped(metrics)
        assert 'netipallocation_attached_ips_total{cluster="prod",crd_name="edge"} 2' in text
        assert "netipallocation_controller_info{" in text
        assert 'version="1.1.0"' in text
        message = str(replaced.server.api.get(f"{KIND}/edge")["status"]["conditions"])
        assert "strategy has no effect" in message


@pytest.mark.nightly
def test_hub_moves_the_address_of_a_drained_node_in_its_place(replaced: Replaced, tmp_path: Path) -> None:
    """A cordoned node keeps its address while a Pod of the Deployment runs there; then another node has it."""
    api = replaced.server.api
    with replacement(replaced, tmp_path):
        eventually(replaced.attached, 40)
        api.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
        eventually(lambda: "PodsRunning" in str(api.get(f"{KIND}/edge")["status"]["addresses"]), 60)
        assert replaced.holder(HELD) == "n1"
        api.delete("/api/v1/namespaces/edge/pods/web-1-a", gracePeriodSeconds=0)
        eventually(lambda: replaced.attached() == ["n2", "n3"], 60)
