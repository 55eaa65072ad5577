"""README.md: its quickstart on real API servers in place of kind's clusters, and commands that every shell accepts."""

from __future__ import annotations

import base64
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.helm import CHART, Helm, find, pods
from tests.support.hub import ROOT, World, node
from tests.support.page import blocks
from tests.support.waiting import eventually

VALUES = CHART / "examples" / "kind.yaml"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("providers/*/README.md")])
COMMANDS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, (kind, text) in enumerate(blocks(page.read_text()))
    if kind == "sh"
]


def readme() -> list[str]:
    """The command lines of the README."""
    text = "".join(text for kind, text in blocks((ROOT / "README.md").read_text()) if kind == "sh")
    return text.replace("\\\n", " ").splitlines()


def test_quickstart_publishes_the_node_of_the_remote_cluster(
    tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]
) -> None:
    """Helm installs the values of the quickstart, and the hub publishes the remote node at the NodePort."""
    lines = readme()
    [install] = [line for line in lines if "helm --kube-context kind-hub install" in line]
    assert ROOT / install.rpartition("-f ")[2] == VALUES
    assert ROOT / shlex.split(install)[5] == CHART
    [secret] = [shlex.split(line) for line in lines if "create secret generic" in line]
    where, name = secret[secret.index("-n") + 1], secret[secret.index("generic") + 1]
    key = secret[-1].removeprefix("--from-file=").partition("=")[0]
    [expose] = [line for line in lines if "--node-port=" in line]

    remote, api = remote_clusters[0], hub_cluster.api
    kubeconfig = remote.kubeconfig(tmp_path / "remote").read_bytes()
    api.post("/api/v1/namespaces", {"metadata": {"name": where}})
    data = {key: base64.b64encode(kubeconfig).decode()}
    api.post(f"/api/v1/namespaces/{where}/secrets", {"metadata": {"name": name}, "data": data})
    body = node("remote-control-plane", "172.18.0.3", labels={"node-role.kubernetes.io/control-plane": ""})
    remote.api.post("/api/v1/nodes", {"metadata": body["metadata"]})
    remote.api.patch("/api/v1/nodes/remote-control-plane/status", {"status": body["status"]})

    helm = Helm(tmp_path, hub_cluster)
    helm.install(VALUES)
    manifests = helm.manifests()
    [container] = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("localhost/endpointslice-hub:")
    world = World(tmp_path, hub_cluster, {})
    with pods(hub_cluster, manifests, tmp_path, 1):
        eventually(lambda: world.published("web", "default") == ["172.18.0.3"], 30)
    [slice_] = world.slices("web", "default")
    assert f"--node-port={slice_['ports'][0]['port']}" in expose
    assert f"name={slice_['metadata']['labels']['kubernetes.io/service-name']}" in "".join(lines)


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_can_be_pasted_into_bash_and_zsh(text: str) -> None:
    """A block of commands is valid in bash, has no comment (interactive zsh has none), and splits no variable."""
    assert re.findall(r"(?:^|\s)#.*", text) == []
    assert re.findall(r"(?<![\"/\w=])\$\w+", text) == []
    for shell in filter(shutil.which, ("bash", "zsh")):
        done = subprocess.run([shell, "-n", "-c", text], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
