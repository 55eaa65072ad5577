"""``hub cloud-controller`` as a process with the original's documented command line."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub_provider_brightbox.testing import CLIENT, SECRET

from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import LEASE, BrightboxThread, CloudScene, cloud_scene
from tests.support.hub import ROOT
from tests.support.ports import free_port
from tests.support.waiting import eventually


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[CloudScene]:
    """A cluster without Nodes."""
    with BrightboxThread() as cloud:
        yield cloud_scene(hub_cluster, remote_clusters[0], tmp_path, cloud)


@contextmanager
def controller(scene: CloudScene, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the controller with the documented flags; it must end with 0."""
    argv = [
        *(sys.executable, "-m", "hub", "cloud-controller", "--cloud-provider=brightbox"),
        *("--configure-cloud-routes=false", f"--kubeconfig={scene.world.folder / 'eu'}"),
        *("--cluster-name=My_Cluster_Name", "-v=4", "--use-service-account-credentials=false", *flags),
    ]
    variables = {
        "BRIGHTBOX_CLIENT": CLIENT,
        "BRIGHTBOX_CLIENT_SECRET": SECRET,
        "BRIGHTBOX_API_URL": scene.cloud.fake.url,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    log = scene.world.folder / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen(argv, stdout=written, stderr=written, env={**os.environ, **variables}) as child,
    ):
        try:
            yield child
        finally:
            child.terminate()
        assert child.wait(10) == 0, log.read_text()


def test_the_documented_command_line_serves_a_cluster(scene: CloudScene) -> None:
    """Nodes are initialised, hostnames are published, /healthz answers, and deletion leaves the cloud empty."""
    port = free_port()
    with controller(scene, "--leader-elect=false", "--bind-address=::1", f"--secure-port={port}"):
        node = scene.add_node()
        eventually(lambda: scene.initialized(node), 30)
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 30)
        account = scene.cloud.fake.account
        assert len(account.named("web.edge.My_Cluster_Name")) == 4
        with urllib.request.urlopen(f"http://[::1]:{port}/healthz", timeout=5) as answer:
            assert answer.read() == b"ok"
        scene.remote.api.delete("/api/v1/namespaces/edge/services/web")
        eventually(lambda: not scene.remote.api.exists("/api/v1/namespaces/edge/services/web"), 60)
        assert account.named("web.edge.My_Cluster_Name") == []
        assert not scene.remote.api.exists(LEASE)


def test_the_lease_of_another_controller_keeps_everything_as_it_is(scene: CloudScene) -> None:
    """While another holder renews the Lease nothing is written; once it expires, the work begins."""
    other = {
        "metadata": {"name": "cloud-controller-manager"},
        "spec": {
            "holderIdentity": "brightbox-ccm",
            "leaseDurationSeconds": 8,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }
    scene.remote.api.post(LEASE.rpartition("/")[0], other)
    with controller(scene, "--secure-port=0"):
        node = scene.add_node()
        eventually(lambda: "stands by" in (scene.world.folder / "log").read_text(), 20)
        assert not scene.initialized(node)
        assert scene.writes == []
        eventually(lambda: scene.initialized(node), 30)
        assert scene.remote.api.get(LEASE)["spec"]["leaseTransitions"] == 1
