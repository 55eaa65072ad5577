"""``hub run --from-allocator-env`` with the environment of ip-address-controller, in its place."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.integration.test_allocations import RULES
from tests.support.allocations import KIND, allocation, define
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, ROOT, add_node
from tests.support.ports import free_port
from tests.support.waiting import eventually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/ips"
NO_KEY = "/nowhere/key.json"


def scraped(port: int) -> str:
    """What /metrics answers; nothing there yet is an AssertionError."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError as error:
        raise AssertionError(str(error)) from error


def test_hub_takes_the_place_of_ip_address_controller(hub_cluster: ApiServer, tmp_path: Path) -> None:
    """Its variables alone start a hub: its Lease, its ports, its metrics, and it acts: enforce.

    The credential does not exist, so nothing is asked; the status and the log name it, and nothing is changed.
    """
    define(hub_cluster.api)
    add_node(hub_cluster, "n1")
    hub_cluster.api.post(KIND, allocation("web", reservedIPs=["203.0.113.1"]))
    hub_cluster.grant("hub", *HUB_RULES, *RULES)
    kubeconfig = hub_cluster.certificate_kubeconfig(tmp_path / "kubeconfig", "hub")
    port = free_port()
    variables = {
        "LEASE_NAME": "ips",
        "LEASE_DURATION": "7",
        "METRICS_PORT": str(port),
        "CLUSTER_NAME": "prod",
        "GOOGLE_APPLICATION_CREDENTIALS": NO_KEY,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    argv = [sys.executable, "-m", "hub", "run", "--from-allocator-env", "--kubeconfig", str(kubeconfig)]
    log = tmp_path / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [*argv, "--health-probe-bind-address", "0", "--listen", "0"],
            stdout=written,
            stderr=written,
            cwd=tmp_path,
            env={**os.environ, **variables},
        ) as child,
    ):
        try:
            eventually(lambda: hub_cluster.api.exists(LEASE), 30)
            assert hub_cluster.api.get(LEASE)["spec"]["leaseDurationSeconds"] == 7
            eventually(lambda: 'ips_total{cluster="prod",crd_name="web"} 1' in scraped(port), 30)
            eventually(lambda: NO_KEY in str(hub_cluster.api.get(f"{KIND}/web").get("status")), 30)
            assert "ip.ready" not in hub_cluster.api.get("/api/v1/nodes/n1")["metadata"].get("labels", {})
        finally:
            child.terminate()
        assert child.wait(10) == 0, log.read_text()
