"""The chart and the real helm: rendering, installing on a real API server, and running the hub as its Pods would."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver.binaries import KitUnavailable, ensure_helm
from tests.support.apiserver.server import ApiServer
from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "endpointslice-hub"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
RELEASE = "rel"
NAMESPACE = "ops"
FULLNAME = f"{RELEASE}-endpointslice-hub"
OWNER = f"{NAMESPACE}.{RELEASE}"
MOUNTED = "/etc/endpointslice-hub"
SYSTEM_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{FULLNAME}"


class HelmFailed(AssertionError):
    """helm failed; the message is its output."""


class Helm:
    """The program helm, with its own folders and, if there is a server, with its admin's kubeconfig.

    Args:
        folder: for values, caches and the kubeconfig.
        server: the API server for releases.
    """

    def __init__(self, folder: Path, server: ApiServer | None = None) -> None:
        self._program = _program()
        self._folder = folder
        homes = {f"HELM_{kind}_HOME": str(folder / f"helm-{kind.lower()}") for kind in ("CACHE", "CONFIG", "DATA")}
        kubeconfig = str(server.kubeconfig(folder / "helm.kubeconfig")) if server is not None else os.devnull
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": kubeconfig, **homes}

    def run(self, *arguments: str) -> str:
        """Run a command and return its output.

        Raises:
            HelmFailed: the exit code is not 0.
        """
        answer = subprocess.run(
            [str(self._program), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if answer.returncode:
            raise HelmFailed(answer.stdout + answer.stderr)
        return answer.stdout

    def lint(self, *values: Path) -> str:
        """The output of ``helm lint --strict``."""
        return self.run("lint", "--strict", str(CHART), *_files(values))

    def template(self, values: Object | Path | None = None, *more: str) -> list[Object]:
        """The rendered manifests."""
        text = self.run("template", RELEASE, str(CHART), "-n", NAMESPACE, *self._values(values), *more)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    def install(self, values: Object | Path | None = None, *more: str) -> str:
        """Run ``helm install`` and return the notes."""
        where = ("-n", NAMESPACE, "--create-namespace")
        return self.run("install", RELEASE, str(CHART), *where, *self._values(values), *more)

    def upgrade(self, values: Object | Path | None = None, *more: str) -> str:
        """Run ``helm upgrade`` and return the notes."""
        return self.run("upgrade", RELEASE, str(CHART), "-n", NAMESPACE, *self._values(values), *more)

    def manifests(self) -> list[Object]:
        """The manifests of the installed release."""
        return [
            manifest
            for manifest in yaml.safe_load_all(self.run("get", "manifest", RELEASE, "-n", NAMESPACE))
            if manifest
        ]

    def hooks(self) -> list[Object]:
        """The manifests of the installed release's hooks."""
        return [each for each in yaml.safe_load_all(self.run("get", "hooks", RELEASE, "-n", NAMESPACE)) if each]

    def _values(self, values: Object | Path | None) -> list[str]:
        if values is None:
            return []
        if isinstance(values, Path):
            return _files([values])
        with tempfile.NamedTemporaryFile("w", dir=self._folder, suffix=".yaml", delete=False) as file:
            yaml.safe_dump(values, file)
        return _files([Path(file.name)])


def _program() -> Path:
    """The path of helm. If it cannot be built, the test is skipped, or fails in CI."""
    try:
        return ensure_helm()
    except KitUnavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI has no helm to test with: {reason}", pytrace=False)
        pytest.skip(f"NO HELM, NOT TESTED: {reason}")


def _files(values: Sequence[Path]) -> list[str]:
    return [argument for path in values for argument in ("--values", str(path))]


def find(manifests: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or the one with a name. Fails unless there is exactly one."""
    found = [
        manifest for manifest in manifests if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
    return found[0]


def collection(api: Api, manifest: Object) -> str:
    """The path at which objects of a manifest's kind are created."""
    version = manifest["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    [resource] = [
        resource
        for resource in api.get(base)["resources"]
        if resource["kind"] == manifest["kind"] and "/" not in resource["name"]
    ]
    if not resource["namespaced"]:
        return f"{base}/{resource['name']}"
    return f"{base}/namespaces/{manifest['metadata'].get('namespace', NAMESPACE)}/{resource['name']}"


def path(api: Api, manifest: Object) -> str:
    """The path of an object."""
    return f"{collection(api, manifest)}/{manifest['metadata']['name']}"


def arguments(manifests: Sequence[Object]) -> list[str]:
    """The arguments of the container that runs the hub."""
    [container] = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def environment(manifests: Sequence[Object]) -> dict[str, str]:
    """The variables with values of the container that runs the hub."""
    [container] = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


class Pod:
    """``hub`` with a container's arguments, a token of its Pod's account and the Pod's projected volume.

    Differences to a Pod: the mount folder, the ports, and a kubeconfig instead of the mounted token.

    Args:
        manifests: those of a release, whose Deployment describes the Pod, or one Pod.

    Attributes:
        environment: the container's variables with values, and those of the tests' process.
    """

    def __init__(self, server: ApiServer, manifests: Sequence[Object], folder: Path, name: str, *more: str) -> None:
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "log"
        self._server = server
        kinds = {each["kind"] for each in manifests}
        owner = find(manifests, "Pod" if kinds == {"Pod"} else "Deployment")
        self._spec: Object = owner["spec"] if owner["kind"] == "Pod" else owner["spec"]["template"]["spec"]
        [container] = self._spec["containers"]
        self._account = self._spec["serviceAccountName"]
        token = server.service_account_token(NAMESPACE, self._account)
        kubeconfig = server.kubeconfig(self.folder / "kubeconfig", token=token)
        self.ports: dict[str, int] = {}
        self._argv = [sys.executable, "-m", "hub", *map(self._argument, container["args"])]
        self._argv += ["--kubeconfig", str(kubeconfig), *more]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "POD_NAME": name, "POD_NAMESPACE": NAMESPACE}
        for variable in container["env"]:
            if "value" in variable:
                self.environment[variable["name"]] = self._placed(variable["value"])
        self._child: subprocess.Popen[bytes] | None = None
        self.project()

    def _argument(self, text: str) -> str:
        flag, _, value = text.partition("=")
        if flag in ("--health-probe-bind-address", "--metrics-bind-address", "--listen"):
            self.ports[flag] = free_port()
            return f"{flag}=127.0.0.1:{self.ports[flag]}"
        return f"{flag}={self._placed(value)}" if value else self._placed(text)

    def _placed(self, value: str) -> str:
        """A setting with the test's folder and ports in place of the Pod's."""
        if value.startswith("http://127.0.0.1:") and "--listen" in self.ports:
            return f"http://127.0.0.1:{self.ports['--listen']}"
        return f"{self.folder}{value.removeprefix(MOUNTED)}" if value.startswith(MOUNTED) else value

    def exec(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``hub`` with arguments in the Pod, as ``kubectl exec`` does."""
        environment = {**self.environment, "KUBECONFIG": str(self.folder / "kubeconfig")}
        command = [sys.executable, "-m", "hub", *arguments]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the container to its end."""
        argv, environment = self._argv, self.environment
        return subprocess.run(argv, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def project(self) -> None:
        """Write the items of the volume ``registry`` as files, as the kubelet does."""
        [volume] = [volume for volume in self._spec["volumes"] if volume["name"] == "registry"]
        for source in volume["projected"]["sources"]:
            [(kind, named)] = source.items()
            assert kind == "configMap"
            held = self._server.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{named['name']}")["data"]
            for item in named["items"]:
                new = self.folder / f".{item['path']}"
                new.write_text(held[item["key"]])
                new.rename(self.folder / item["path"])

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.terminate()
        try:
            self._child.wait(15)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10)

    def ask(self, flag: str, path: str, token: str = "") -> int:
        """The status of a GET at a flag's address; 0 if the connection fails."""
        connection = HTTPConnection("127.0.0.1", self.ports[flag], timeout=10)
        with closing(connection), suppress(OSError):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status
        return 0


@contextmanager
def pods(
    server: ApiServer, manifests: Sequence[Object], folder: Path, count: int = 2, *more: str
) -> Iterator[list[Pod]]:
    """Run ``count`` replicas, which are terminated at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(Pod(server, manifests, folder, f"pod-{n}", *more)) for n in range(count)]


def policy_in_force(admin: Api, account: Api) -> None:
    """Wait until the present admission policy is in force for the hub's account.

    The API server may still apply the policy of an earlier test. So add a rule about slices called probe, and wait
    until it applies.
    """
    sign = f"sign {secrets.token_hex(4)}"
    rule = {"expression": "object == null || object.metadata.name != 'probe'", "message": sign}
    change = [{"op": "add", "path": "/spec/validations/0", "value": rule}]
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    admin.patch(f"{policies}/{OWNER}-endpointslice-hub", change, "application/json-patch+json")

    def refused() -> bool:
        try:
            account.post("/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices", slice_of("probe"), dryRun="All")
        except ApiRefused as error:
            return sign in str(error)
        return False

    eventually(refused, 20)


def slice_of(name: str, *addresses: str, labels: Object | None = None, **more: Any) -> Object:
    """A slice as the release's hub writes it, with changes."""
    ours = {
        "kubernetes.io/service-name": "payments",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-hub",
        "endpointslice-hub/owner": OWNER,
        "multicluster.kubernetes.io/source-cluster": "eu",
    }
    family = "IPv6" if any(":" in address for address in addresses) else "IPv4"
    conditions = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": ours if labels is None else labels},
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
        "ports": [{"name": "https", "port": 30443, "protocol": "TCP"}],
        **more,
    }
