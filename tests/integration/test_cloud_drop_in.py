"""``hub cloud-controller`` as a process with the original's documented command line."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hub_provider_brightbox.testing import CLIENT, SECRET
from prometheus_client.parser import text_string_to_metric_families

from hub.cli import cli
from hub.report.collect_clouds import ORIGINAL
from tests.support.api import Object
from tests.support.apiserver.pki import Authority
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE
from tests.support.helm import collection
from tests.support.hub import REVIEW_RULES, ROOT
from tests.support.ports import free_port
from tests.support.waiting import eventually


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[BrightboxScene]:
    """A cluster without Nodes."""
    with BrightboxThread() as cloud:
        yield BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)


@contextmanager
def controller(scene: BrightboxScene, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
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


def test_the_documented_command_line_serves_a_cluster(scene: BrightboxScene) -> None:
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
        with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=5) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        assert {metric.name.removesuffix("_total") for metric in ORIGINAL} <= families.keys()
        assert "endpointslice_hub_cloud_balancers" in families
        [syncs] = families["service_controller_loadbalancer_sync"].samples
        assert syncs.value >= 1
        delay = families["node_controller_cloud_provider_taint_removal_delay_seconds"].samples
        buckets = [sample.labels["le"] for sample in delay if "le" in sample.labels]
        assert buckets == ["1.0", "4.0", "16.0", "64.0", "256.0", "1024.0", "+Inf"]
        assert delay[len(buckets) - 1].value == 1
        scene.remote.api.delete("/api/v1/namespaces/edge/services/web")
        eventually(lambda: not scene.remote.api.exists("/api/v1/namespaces/edge/services/web"), 60)
        assert account.named("web.edge.My_Cluster_Name") == []
        assert not scene.remote.api.exists(LEASE)


def test_the_lease_of_another_controller_keeps_everything_as_it_is(scene: BrightboxScene) -> None:
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


def fetch(url: str, context: ssl.SSLContext, token: str = "") -> tuple[int, str]:
    """Status and body of a GET."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_beyond_loopback_there_is_tls_and_metrics_need_a_token(scene: BrightboxScene) -> None:
    """/healthz answers over TLS to everybody, /metrics to callers whose role has its path, and to nobody else."""
    folder, port, authority = scene.world.folder, free_port(), Authority("drop-in-ca")
    made = authority.server("127.0.0.1")
    (folder / "tls.crt").write_text(made.pem)
    (folder / "tls.key").write_text(made.key_pem)
    scene.remote.grant("hub", *REVIEW_RULES)
    scene.remote.grant("reader", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]})
    tls = (f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}")
    context = ssl.create_default_context(cadata=authority.pem)
    url = f"https://127.0.0.1:{port}"
    with controller(scene, "--leader-elect=false", "--bind-address=0.0.0.0", f"--secure-port={port}", *tls):
        eventually(lambda: _listens(port), 20)
        assert fetch(f"{url}/healthz", context) == (200, "ok")
        assert fetch(f"{url}/metrics", context)[0] == 401
        eventually(lambda: fetch(f"{url}/metrics", context, scene.remote.token("reader"))[0] == 200, 20)
        status, text = fetch(f"{url}/metrics", context, scene.remote.token("hub"))
        assert (status, "may not get /metrics" in text) == (403, True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_writes_are_bounded(scene: BrightboxScene) -> None:
    """With one write per second and one in a row, the six writes for three new Nodes take five seconds."""
    mark = scene.remote.audit_mark()
    for _ in range(3):
        scene.add_node()
    with controller(scene, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1", "--kube-api-burst=1"):
        eventually(lambda: all(scene.initialized(node["metadata"]["name"]) for node in nodes(scene)), 90)
        writes = [
            found for found in scene.remote.requests(mark, "hub") if found.resource.startswith("nodes") and found.writes
        ]
    times = sorted(found.received for found in writes)
    assert len(times) == 6  # addresses, and the rest, of three Nodes
    assert times[-1] - times[0] > 4.0


def nodes(scene: BrightboxScene) -> list[Object]:
    """The Nodes of the cluster."""
    return scene.remote.api.list("/api/v1/nodes")


def test_the_printed_rights_are_enough(scene: BrightboxScene) -> None:
    """With what --print-rbac prints for its account, and nothing else, a controller without load balancers works."""
    parts = ("--controllers=*,-service", "--leader-elect-resource-name=my-ccm")
    arguments = [*("cloud-controller", "--cloud-provider=brightbox", "--cluster-name=my", "--print-rbac"), *parts]
    environment = {"BRIGHTBOX_CLIENT": CLIENT, "BRIGHTBOX_CLIENT_SECRET": SECRET}
    printed = CliRunner().invoke(cli, arguments, env=environment)
    assert printed.exit_code == 0, printed.output
    remote, account = scene.remote, ("kube-system", "cloud-controller-manager")
    token = remote.service_account_token(*account)
    for manifest in yaml.safe_load_all(printed.stdout):
        remote.api.post(collection(remote.api, manifest), manifest)
    user = f"system:serviceaccount:{':'.join(account)}"
    eventually(lambda: remote.allows(user, {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}))
    remote.kubeconfig(scene.world.folder / "eu", token=token)
    mark = remote.audit_mark()
    with controller(scene, "--secure-port=0", *parts):
        node = scene.add_node()
        eventually(lambda: scene.initialized(node), 40)
    found = remote.requests(mark, user)
    assert [each.uri for each in found if each.status in (403, 422)] == []
    assert any("/leases/my-ccm" in each.uri for each in found)
