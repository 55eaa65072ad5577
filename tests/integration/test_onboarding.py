"""`hub cluster add` and `remove` on real API servers, and the hub with exactly the rights that they grant."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.app.hub import assemble
from hub.cli import cli
from hub.kube import credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.tokens import token_life
from hub.observe.remote import cluster as remote_cluster
from hub.onboarding.credential import token_of
from hub.runtime.clock import SystemClock
from tests.support.api import ApiRefused, Object
from tests.support.apiserver.audit import Mark
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node, frozen
from tests.support.waiting import eventually

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECRETS = "/api/v1/namespaces/hub-secrets/secrets"
ROLE = f"{RBAC}/clusterroles/endpointslice-hub-remote"
ACCOUNT = "/api/v1/namespaces/endpointslice-hub/serviceaccounts/endpointslice-hub"
TOKEN_ROLE = f"{RBAC}/namespaces/endpointslice-hub/roles/endpointslice-hub-token"
SECRET_RULE = {
    "apiGroups": [""],
    "resources": ["secrets"],
    "resourceNames": ["eu"],
    "verbs": ["get", "list", "watch", "update"],
}
"""All rules that the hub needs for Secrets, limited to those of its clusters."""
REGISTRY = """\
# who is who
version: 1
clusters:
  - name: legacy            # stays
    allowedCIDRs: [10.9.0.0/24]
    provider: {name: inventory, config: {file: legacy.json}}
    # the last of them

services:
  - {name: payments, namespace: edge, sources: [{cluster: legacy}]}
"""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str


Hub = Callable[..., CommandResult]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Hub:
    """Runs a hub command in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # a proxy from the environment, which must not be used

    def run(*arguments: str) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(args=list(arguments))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return CommandResult(int(end.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """A hub cluster with a namespace for Secrets, and a remote cluster with two nodes that the registry lacks."""
    made = World(tmp_path, hub_cluster, {})
    made.remotes = {"eu": remote_clusters[0]}
    made.prepare()
    hub_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "hub-secrets"}})
    hub_cluster.kubeconfig(tmp_path / "hub-admin", "admin")
    hub_cluster.grant("hub", SECRET_RULE, namespace="hub-secrets")
    remote_clusters[0].kubeconfig(tmp_path / "admin.conf", "admin")
    add_node(remote_clusters[0], "n1", "10.1.0.1")
    add_node(remote_clusters[0], "n2", "10.1.0.2")
    made.add_service()
    made.write_text(REGISTRY)
    (tmp_path / "legacy.json").write_text("[]")
    return made


ADD = ("cluster", "add", "eu", "--from-kubeconfig", "admin.conf")
SECRETS_AT = ("--kubeconfig", "hub-admin", "--secrets-namespace", "hub-secrets")
APPLY = (*ADD, "--apply", "--registry", "clusters.yaml", *SECRETS_AT)


def publish_from_eu(world: World) -> None:
    """Publish the Service from the new cluster only."""
    text = world.path.read_text().replace("sources: [{cluster: legacy}]", "sources: [{cluster: eu}]")
    world.write_text(text)


def running(world: World, **options: Any) -> RunningHub:
    """A hub that reads the Secrets of the test."""
    return RunningHub(world, secrets_namespace="hub-secrets", **options)


def kubeconfig_of(secret: Object) -> bytes:
    """The kubeconfig in a Secret, decoded."""
    return base64.b64decode(secret["data"]["kubeconfig"])


def token(world: World) -> str:
    """The token in the Secret."""
    content = kubeconfig_of(world.hub_cluster.api.get(f"{SECRETS}/eu"))
    found = token_of(parse_kubeconfig(content, origin="test", policy=KubeconfigPolicy()))
    assert found is not None
    return found.reveal()


# --- add ---------------------------------------------------------------------------------------------------


def test_cluster_add_applies_all_that_a_hub_needs(world: World, hub: Hub) -> None:
    """Account, Secret and entry are created, the rest of the file stays, and the hub syncs with these rights."""
    said = hub(*APPLY)

    assert said.code == 0, said.err
    text = world.path.read_text()
    assert text == REGISTRY.replace(
        "legacy.json}}\n",
        "legacy.json}}\n  - name: eu\n    kubeconfig: {secret: eu}\n    allowedCIDRs: [10.1.0.0/24]\n"
        "    provider: {name: node-addresses}\n",
    )
    assert "allowedCIDRs are a proposal, from the addresses of 2 nodes" in said.err
    assert hub("check", "clusters.yaml").code == 0
    publish_from_eu(world)
    with running(world):
        world.awaits("10.1.0.1", "10.1.0.2")


def test_a_second_run_changes_nothing(world: World, hub: Hub) -> None:
    """A second run finds everything and writes nothing, in both clusters and in the file."""
    hub(*APPLY)
    text, mode = world.path.read_text(), world.path.stat()
    marks = world.hub_cluster.audit_mark(), world.remotes["eu"].audit_mark()

    said = hub(*APPLY)

    assert said.code == 0, said.err
    assert {line.split()[0] for line in said.err.splitlines()} == {"unchanged"}
    assert (world.path.read_text(), world.path.stat().st_ino) == (text, mode.st_ino)
    for server, mark in zip((world.hub_cluster, world.remotes["eu"]), marks, strict=True):
        eventually(lambda server=server, mark=mark: server.requests(mark))
        assert [request for request in server.requests(mark) if request.writes] == []


def test_without_apply_the_hub_cluster_is_not_contacted(world: World, hub: Hub) -> None:
    """Without --apply, the Secret and the entry are printed; applying and pasting them by hand has the same result."""
    mark = world.hub_cluster.audit_mark()
    said = hub(*ADD, "--allowed-cidr", "10.1.0.0/16", "--secrets-namespace", "hub-secrets")

    assert said.code == 0, said.err
    assert "# (with Helm: under registry.data.clusters: in your values)" in said.out
    secret_text, _, entry_text = said.out.partition("\n# Put this")
    secret, entry = yaml.safe_load(secret_text), yaml.safe_load("#" + entry_text)
    assert entry == [
        {
            "name": "eu",
            "kubeconfig": {"secret": "eu"},
            "allowedCIDRs": ["10.1.0.0/16"],
            "provider": {"name": "node-addresses"},
        }
    ]
    assert world.hub_cluster.requests(mark) == []
    world.hub_cluster.api.post(SECRETS, secret)
    world.write(clusters=entry)
    with running(world):
        world.awaits("10.1.0.1", "10.1.0.2")


def test_manifests_applied_by_others_have_the_same_result(world: World, hub: Hub, tmp_path: Path) -> None:
    """If the remote's administrators apply the printed manifests and send a kubeconfig, add needs no administrator."""
    remote = world.remotes["eu"]
    printed = hub("cluster", "add", "eu", "--print-manifests", "--allow-services", "edge")
    (tmp_path / "manifests.yaml").write_text(printed.out)
    for manifest in yaml.safe_load_all(printed.out):
        remote.api.post(collection(manifest), manifest)
    made = remote.service_account_token("endpointslice-hub", "endpointslice-hub", 7200)
    kubectl(tmp_path / "kubectl", remote, made)
    script = "".join(line[3:] for line in printed.out.splitlines(keepends=True) if line.startswith("#| "))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=20)

    said = hub(
        "cluster", "add", "eu", "--from-kubeconfig", "eu.kubeconfig", "--apply", "--registry", "clusters.yaml",
        *SECRETS_AT,
    )  # fmt: skip

    assert said.code == 0, said.err
    assert token(world) != made
    publish_from_eu(world)
    with running(world):
        world.awaits("10.1.0.1", "10.1.0.2")


def kubectl(path: Path, server: ApiServer, made: str) -> None:
    """A substitute for the kubectl calls in the printed script."""
    authority = base64.b64encode(server.ca_pem.encode()).decode()
    path.write_text(
        f"""#!/bin/sh
case "$*" in
  *cluster.server*) printf %s {server.url} ;;
  *cluster.certificate-authority-data*) printf %s {authority} ;;
  *"create token endpointslice-hub --duration="*) printf '%s\\n' {made} ;;
  *) exit 1 ;;
esac
"""
    )
    path.chmod(0o755)


def collection(manifest: Object) -> str:
    """The path at which an object is created."""
    base = "/api/v1" if manifest["apiVersion"] == "v1" else f"/apis/{manifest['apiVersion']}"
    namespace = manifest["metadata"].get("namespace")
    return f"{base}{f'/namespaces/{namespace}' if namespace else ''}/{manifest['kind'].lower()}s"


def test_services_may_be_read_in_the_namespaces_named(world: World, hub: Hub) -> None:
    """--allow-services grants reading Services and EndpointSlices in these namespaces only."""
    remote = world.remotes["eu"]
    remote.api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    said = hub(*APPLY, "--allow-services", "edge")
    assert said.code == 0, said.err
    mine = remote.api_with(token(world))
    slices = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
    for path in ("/api/v1/namespaces/edge/services", slices.format("edge")):
        eventually(lambda: mine.may_get(path))  # noqa: B023 - called before the next iteration
        assert mine.list(path) == []
    for path in ("/api/v1/namespaces/other/services", slices.format("other"), "/api/v1/services", "/api/v1/secrets"):
        with pytest.raises(ApiRefused, match="403"):
            mine.list(path)

    less = hub(*APPLY)

    assert "the account may also read Services in edge, from an earlier run" in less.err
    missing = hub(*APPLY, "--allow-services", "edge,nowhere")
    assert (missing.code, "has no namespace nowhere; create it, or leave it out" in missing.err) == (3, True)


def test_allocations_may_label_nodes_and_evict_in_the_namespaces_named(world: World, hub: Hub) -> None:
    """--allow-allocations grants patching Nodes; --allow-evictions grants watching and evicting Pods there only."""
    remote = world.remotes["eu"]
    remote.api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    said = hub(*APPLY, "--allow-allocations", "--allow-evictions", "edge")
    assert said.code == 0, said.err
    account = "system:serviceaccount:endpointslice-hub:endpointslice-hub"

    def may(verb: str, resource: str, namespace: str = "", group: str = "") -> bool:
        rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        return remote.allows(account, rule, namespace or None)

    eventually(lambda: may("patch", "nodes") and may("create", "pods/eviction", "edge"))
    for kind in ("deployments", "statefulsets", "daemonsets", "replicasets"):
        assert may("get", kind, "edge", "apps")
        assert not may("list", kind, "edge", "apps")
    assert may("list", "pods", "edge")
    assert may("watch", "pods", "edge")
    for verb, resource in (("create", "pods/eviction"), ("list", "pods")):
        assert not may(verb, resource, "other")
    for verb, resource in (("delete", "pods"), ("get", "secrets"), ("create", "pods")):
        assert not may(verb, resource, "edge")
    for verb, resource in (("update", "nodes"), ("delete", "nodes"), ("patch", "nodes/status")):
        assert not may(verb, resource)

    less = hub(*APPLY)

    assert "the account may also change labels of Nodes, from an earlier run" in less.err
    assert "the account may also evict Pods in edge, from an earlier run" in less.err


RULES = {
    "nodes": (ROLE, 0),
    "kube-system": (ROLE, 1),
    "token": (TOKEN_ROLE, 0),
}


@pytest.mark.parametrize("name", RULES)
def test_every_granted_rule_is_needed(world: World, hub: Hub, name: str) -> None:
    """Without any one of the rules something fails and the rule is named; a renewal is tried again."""
    hub(*APPLY, "--token-lifetime", "10m")
    publish_from_eu(world)
    path, number = RULES[name]
    role = world.remotes["eu"].api.get(path)
    rules = role["rules"]
    world.remotes["eu"].api.put(path, {**role, "rules": rules[:number] + rules[number + 1 :]})
    with running_late(world, 310.0) as late:
        match name:
            case "nodes":
                eventually(lambda: "lacks the rule «nodes: get, list, watch»" in late.state("eu"))
            case "kube-system":
                eventually(lambda: late.state("eu").startswith("Ready"))
                assert late.cluster("eu").uid == ""
            case "token":
                eventually(lambda: "serviceaccounts/token: create" in late.hub.renewal.problems.get("eu", ""), 20.0)
                before, mended = token(world), world.remotes["eu"].api.get(path)
                world.remotes["eu"].api.put(path, {**mended, "rules": rules})
                eventually(lambda: token(world) != before, 40.0)  # a renewal is tried again
                eventually(lambda: late.hub.renewal.problems == {})


@pytest.mark.parametrize("missing", ["get", "list", "update"])
def test_every_secret_rule_of_the_hub_is_needed(world: World, hub: Hub, missing: str) -> None:
    """Without get or update no token is renewed, without list and watch the Secrets are not followed."""
    hub(*APPLY, "--token-lifetime", "10m")
    publish_from_eu(world)
    roles = f"{RBAC}/namespaces/hub-secrets/roles"
    (role,) = world.hub_cluster.api.list(roles)
    role["rules"][0]["verbs"].remove(missing)
    world.hub_cluster.api.put(f"{roles}/{role['metadata']['name']}", role)
    with running_late(world, 310.0) as late:
        if missing == "list":
            eventually(lambda: late.hub.renewal.counts["eu", "succeeded"], 20.0)
            assert late.hub.secrets.version("eu") is None
        elif missing == "get":
            eventually(lambda: "«secrets eu: get»" in late.state("eu"))
        else:
            eventually(lambda: "«secrets eu: get, update»" in late.hub.renewal.problems.get("eu", ""), 20.0)


# problems


def test_a_kubeconfig_without_rights_is_an_error_with_both_solutions(world: World, hub: Hub) -> None:
    """Without the right to create roles, the error suggests an administrator's kubeconfig or the printed manifests."""
    world.remotes["eu"].kubeconfig(world.folder / "admin.conf", "nobody")
    said = hub(*APPLY)
    assert said.code == 3
    assert "this kubeconfig may not do that; use one of an administrator" in said.err
    assert "hub cluster add eu --print-manifests" in said.err
    assert world.hub_cluster.api.find(f"{SECRETS}/eu") is None
    assert world.path.read_text() == REGISTRY


def test_account_without_the_rights_cannot_grant_them(world: World, hub: Hub) -> None:
    """If the API server refuses an account that grants rights which it lacks, the error says so."""
    remote = world.remotes["eu"]
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "serviceaccounts"], "verbs": ["get", "create"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "create", "update"]},
    ]
    remote.grant("nobody", *rules)
    remote.kubeconfig(world.folder / "admin.conf", "nobody")
    said = hub(*APPLY)
    assert said.code == 3
    assert "attempting to grant RBAC permissions not currently held" in said.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "kubeconfig admin.conf"),
        ("a: [", "kubeconfig admin.conf:2:1: not valid YAML; check indentation and quotes there"),
        (None, "kubeconfig admin.conf: cannot be read: No such file or directory; check its path and mode"),
    ],
)
def test_a_wrong_kubeconfig_is_named(world: World, hub: Hub, content: str | None, words: str) -> None:
    """A wrong kubeconfig is named with its problem before anything is written."""
    path = world.folder / "admin.conf"
    path.unlink()
    if content is not None:
        path.write_text(content)
    said = hub(*APPLY)
    assert (said.code, words in said.err) == (3, True), said.err


def test_the_kubeconfig_of_the_hub_cluster_is_refused(world: World, hub: Hub) -> None:
    """The hub cluster's own kubeconfig is refused, because the registry has that cluster built in."""
    said = hub("cluster", "add", "eu", "--from-kubeconfig", "hub-admin", "--apply", *SECRETS_AT)
    assert (said.code, "leads to the hub cluster itself" in said.err) == (3, True)
    assert world.hub_cluster.api.find(ACCOUNT) is None


def test_a_context_that_is_not_there_is_named(world: World, hub: Hub) -> None:
    """A context that does not exist is an error that suggests similar ones."""
    said = hub(*APPLY, "--context", "remote-l")
    assert (said.code, "did you mean remote-1?" in said.err) == (3, True), said.err


@pytest.mark.parametrize(
    ("name", "words"), [("EU", "DNS label"), ("local", "is built in: the hub cluster itself"), ("a" * 64, "63")]
)
def test_an_impossible_name_is_refused(world: World, hub: Hub, name: str, words: str) -> None:
    """An invalid name is refused before anything is read."""
    said = hub("cluster", "add", name, "--from-kubeconfig", "admin.conf")
    assert (said.code, words in said.err) == (2, True), said.err


def test_a_name_in_the_registry_is_refused(world: World, hub: Hub) -> None:
    """A name in the registry with another kubeconfig is refused with line and next step, and nothing is created."""
    said = hub("cluster", "add", "legacy", *APPLY[3:])
    assert said.code == 3
    assert "clusters.yaml:4: there is a cluster legacy, with another kubeconfig" in said.err
    assert not world.remotes["eu"].api.exists(ACCOUNT)


def test_a_registry_that_cannot_be_edited_safely_stays(world: World, hub: Hub) -> None:
    """If the clusters are written on one line, add does not edit the file and writes no Secret."""
    text = "version: 1\nclusters: [{name: a, allowedCIDRs: [10.9.0.0/24], provider: {name: node-addresses}}]\n"
    world.write_text(f"{text}services: []\n")
    said = hub(*APPLY)
    assert said.code == 3, said.err
    assert world.path.read_text() == f"{text}services: []\n"
    assert world.hub_cluster.api.find(f"{SECRETS}/eu") is None
    assert "add the entry by hand: without --registry it is printed" in said.err


def test_cluster_under_a_second_name_is_reported(world: World, hub: Hub) -> None:
    """A cluster that is in the registry under another name is refused, as it would be published twice."""
    hub(*APPLY)
    said = hub("cluster", "add", "eu-2", *APPLY[3:])
    assert (said.code, "was made for the name eu: this is that cluster" in said.err) == (3, True), said.err


def test_name_of_another_cluster_is_refused(world: World, hub: Hub, remote_clusters: tuple[ApiServer, ...]) -> None:
    """A name that belongs to another cluster is refused, unless a flag says that the cluster has moved."""
    hub(*APPLY)
    before = token(world)
    remote_clusters[1].kubeconfig(world.folder / "admin.conf", "admin")
    said = hub(*APPLY)
    assert (said.code, "the name is taken; choose another, or give --rotate if eu has moved" in said.err) == (3, True)
    assert token(world) == before
    assert not remote_clusters[1].api.exists(ACCOUNT)
    assert hub(*APPLY, "--rotate").code == 0
    assert remote_clusters[1].url.encode() in kubeconfig_of(world.hub_cluster.api.get(f"{SECRETS}/eu"))


def test_foreign_secret_is_not_overwritten(world: World, hub: Hub) -> None:
    """A Secret that the hub does not own is refused before the remote cluster is changed."""
    world.hub_cluster.api.post(SECRETS, {"metadata": {"name": "eu"}, "stringData": {"kubeconfig": "mine"}})
    said = hub(*APPLY)
    assert said.code == 3
    assert (
        "Secret hub-secrets/eu of the hub cluster exists and was not made by 'hub cluster add'; delete it" in said.err
    )
    assert kubeconfig_of(world.hub_cluster.api.get(f"{SECRETS}/eu")) == b"mine"
    assert not world.remotes["eu"].api.exists(ACCOUNT)


def test_a_namespace_that_exists_is_used_and_stays(world: World, hub: Hub) -> None:
    """An existing namespace gets no label, and remove does not delete it."""
    remote = world.remotes["eu"]
    remote.api.post("/api/v1/namespaces", {"metadata": {"name": "endpointslice-hub"}})
    said = hub(*APPLY)
    assert (said.code, "kept     Namespace endpointslice-hub" in said.err) == (0, True), said.err
    namespace = remote.api.get("/api/v1/namespaces/endpointslice-hub")
    assert "app.kubernetes.io/managed-by" not in namespace["metadata"].get("labels", {})
    assert hub("cluster", "remove", *APPLY[2:]).code == 0
    assert not remote.api.exists(ACCOUNT)
    assert "deletionTimestamp" not in remote.api.get("/api/v1/namespaces/endpointslice-hub")["metadata"]


POD = {"spec": {"containers": [{"name": "hub", "image": "hub"}]}}


@pytest.mark.parametrize(("kind", "content"), [("serviceaccounts", {}), ("pods", POD)], ids=["account", "pod"])
def test_a_namespace_in_which_others_live_stays(world: World, hub: Hub, kind: str, content: Object) -> None:
    """If the namespace has other content, such as the remote cluster's own hub, remove deletes only the account."""
    hub(*APPLY)
    api = world.remotes["eu"].api
    api.post(f"/api/v1/namespaces/endpointslice-hub/{kind}", {"metadata": {"name": "own"}, **content})
    remove = ("cluster", "remove", *APPLY[2:])

    for said in (hub(*(argument for argument in remove if argument != "--apply")), hub(*remove)):
        assert said.code == 0, said.err
        assert ["kept", "Namespace", "endpointslice-hub"] in [line.split() for line in said.err.splitlines()]

    assert not api.exists(ACCOUNT)
    assert "deletionTimestamp" not in api.get("/api/v1/namespaces/endpointslice-hub")["metadata"]


def test_foreign_role_is_not_overwritten(world: World, hub: Hub) -> None:
    """If a role with the name exists in the remote cluster, nothing is created there."""
    world.remotes["eu"].api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "endpointslice-hub-remote"}})
    said = hub(*APPLY)
    assert said.code == 3
    assert "ClusterRole endpointslice-hub-remote exists and was not made by 'hub cluster add'" in said.err
    assert not world.remotes["eu"].api.exists("/api/v1/namespaces/endpointslice-hub")


def test_a_hub_cluster_that_is_away_leaves_the_remote_untouched(world: World, hub: Hub) -> None:
    """With --apply the hub cluster is contacted first; the error says what to check."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        edit(world.folder / "hub-admin", f"https://127.0.0.1:{closed.getsockname()[1]}")
        said = hub(*APPLY)
    assert said.code == 3
    assert "connection refused; check that --kubeconfig is that of the hub cluster" in said.err
    assert not world.remotes["eu"].api.exists(ACCOUNT)


def test_a_remote_cluster_that_is_away_is_named(world: World, hub: Hub) -> None:
    """If the remote cluster does not answer, nothing is written in the hub cluster or the registry."""
    world.remotes["eu"].kill()
    said = hub(*APPLY)
    assert said.code == 3
    assert "cluster eu: https://127.0.0.1" in said.err
    assert "connection refused; run this command where that address can be reached" in said.err
    assert (world.hub_cluster.api.find(f"{SECRETS}/eu"), world.path.read_text()) == (None, REGISTRY)


def edit(path: Path, server: str) -> None:
    """Change the server in a kubeconfig."""
    content = yaml.safe_load(path.read_text())
    content["clusters"][0]["cluster"]["server"] = server
    path.write_text(yaml.safe_dump(content))


def test_a_namespace_for_secrets_that_is_missing_is_named(world: World, hub: Hub) -> None:
    """If the namespace for Secrets is missing, the error names it, and nothing is created in the remote cluster."""
    said = hub(*APPLY[:-1], "nowhere")
    assert said.code == 3
    assert "create namespace nowhere, or give the one where the hub reads Secrets: --secrets-namespace" in said.err
    assert "created" not in said.err


def test_an_interrupted_run_is_completed_by_the_next(world: World, hub: Hub) -> None:
    """The next run finds what exists and creates what is missing."""
    hub(*APPLY)
    world.remotes["eu"].api.delete(ROLE)
    world.hub_cluster.api.delete(f"{SECRETS}/eu")
    said = hub(*APPLY)
    assert said.code == 0, said.err
    made = sorted(line.split(maxsplit=1)[1] for line in said.err.splitlines() if line.startswith("created"))
    assert made == ["ClusterRole endpointslice-hub-remote", "Secret hub-secrets/eu"]


# --- remove -------------------------------------------------------------------------------------------------


def test_remove_takes_everything_back(world: World, hub: Hub) -> None:
    """Remove deletes the entry, the Secret, the account with its rights and namespace; a second run finds nothing."""
    hub(*APPLY, "--allow-services", "edge", "--allow-allocations", "--allow-evictions", "edge")
    looked = hub(
        "cluster", "remove", "eu", "--from-kubeconfig", "admin.conf", "--registry", "clusters.yaml", *SECRETS_AT
    )
    assert (looked.code, "Nothing was changed; repeat with --apply to make these changes." in looked.err) == (
        0,
        True,
    ), looked.err
    assert world.hub_cluster.api.exists(f"{SECRETS}/eu")
    stale = world.remotes["eu"].api_with(token(world))
    stale.list("/api/v1/nodes")

    said = hub("cluster", "remove", *APPLY[2:])

    assert said.code == 0, said.err
    assert world.path.read_text() == REGISTRY
    assert not world.hub_cluster.api.exists(f"{SECRETS}/eu")
    api = world.remotes["eu"].api
    assert not api.exists(ROLE)
    assert api.list(f"{RBAC}/clusterroles", labelSelector="endpointslice-hub/cluster=eu") == []
    assert api.list(f"{RBAC}/roles", labelSelector="endpointslice-hub/cluster=eu") == []
    assert api.get("/api/v1/namespaces/endpointslice-hub")["status"]["phase"] == "Terminating"

    def refused() -> bool:
        try:
            stale.list("/api/v1/nodes")
        except ApiRefused as error:
            return error.status == 401
        return False

    eventually(refused, 20.0)
    assert "absent" in hub("cluster", "remove", "eu", "--apply", *SECRETS_AT).err


def test_remove_names_what_remains_in_an_unreachable_cluster(world: World, hub: Hub) -> None:
    """If the remote cluster is unreachable, the hub's side is removed, the rest is named, and the command fails."""
    hub(*APPLY)
    world.remotes["eu"].kill()
    said = hub("cluster", "remove", *APPLY[2:])
    assert said.code == 3
    assert "connection refused" in said.err
    assert "the hub's side is done, see above" in said.err
    assert "kubectl delete clusterrolebinding,clusterrole -l" in said.err
    assert world.path.read_text() == REGISTRY
    assert not world.hub_cluster.api.exists(f"{SECRETS}/eu")


def test_remove_reports_what_was_done_before_a_refusal(world: World, hub: Hub) -> None:
    """If the account may not delete Secrets, the entry is removed all the same, which a running hub applies."""
    hub(*APPLY)
    said = hub("cluster", "remove", *APPLY[2:-4], "--kubeconfig", world.kubeconfig.name, *SECRETS_AT[2:])
    assert said.code == 3
    done, error = said.err.splitlines()
    assert done == "deleted  cluster eu in clusters.yaml"
    assert "delete Secret hub-secrets/eu: 403" in error
    assert world.path.read_text() == REGISTRY
    again = hub("cluster", "remove", *APPLY[2:])
    assert (again.code, world.hub_cluster.api.exists(f"{SECRETS}/eu")) == (0, False), again.err


def test_remove_refuses_while_a_service_names_the_cluster(world: World, hub: Hub) -> None:
    """A cluster that a Service uses is not removed: the Service is named, and nothing is deleted."""
    hub(*APPLY)
    publish_from_eu(world)
    said = hub("cluster", "remove", *APPLY[2:])
    assert said.code == 3
    assert "clusters.yaml stays as it is: with that change," in said.err
    assert "services[0].sources[0].cluster" in said.err
    assert world.hub_cluster.api.exists(f"{SECRETS}/eu")
    assert world.remotes["eu"].api.exists(ACCOUNT)


# --- tokens while a hub runs --------------------------------------------------------------------------------


class AheadWallClock(SystemClock):
    """A wall clock that is ahead; API servers use their own."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def wall(self) -> float:
        """The time in seconds since 1970, ahead."""
        return super().wall() + self.seconds


@contextlib.contextmanager
def running_late(world: World, seconds: float) -> Iterator[RunningHub]:
    """A hub whose clock is ahead."""
    hub = running(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.hub.assemble", lambda options: assemble(options, AheadWallClock(seconds)))
        with hub:
            yield hub


@pytest.fixture
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check kubeconfigs twice a second."""
    monkeypatch.setattr(remote_cluster, "ACCESS_CHECK", 0.5)


@pytest.mark.usefixtures("fast_checks")
def test_a_token_is_renewed_at_half_its_life(world: World, hub: Hub) -> None:
    """The leader writes a new token with the same lifetime into the Secret, and uses it; a standby writes nothing."""
    hub(*APPLY, "--token-lifetime", "10m")
    publish_from_eu(world)
    before = token(world)
    with running_late(world, 290.0) as young:
        world.awaits("10.1.0.1", "10.1.0.2")
        assert token(world) == before
        assert young.hub.renewal.counts == {}
    mark = world.remotes["eu"].audit_mark()
    with running_late(world, 310.0) as late:
        eventually(lambda: token(world) != before, 20.0)
        eventually(lambda: credential(late) == token(world))
        add_node(world.remotes["eu"], "n3", "10.1.0.3")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3")
        assert late.hub.renewal.counts == {("eu", "succeeded"): 1}
    asked = [
        request
        for request in world.remotes["eu"].requests(mark)
        if request.writes and "serviceaccounts" in str(request)
    ]
    assert len([request for request in asked if request.user.startswith("system:serviceaccount:")]) == 1
    old, new = (token_life(secret_value(text)) for text in (before, token(world)))
    assert old is not None
    assert new is not None
    assert new[1] > old[1]


def secret_value(text: str) -> Any:
    """A secret value as the hub stores it."""
    from hub.kube.secret import Secret

    return Secret(text)


def credential(hub: RunningHub) -> str:
    """The token of the hub's connection."""
    client = hub.cluster("eu").client
    found = token_of(client.access.access) if client is not None else None  # type: ignore[attr-defined]
    return found.reveal() if found is not None else ""


@pytest.mark.usefixtures("fast_checks")
def test_unlabelled_secret_is_not_renewed(world: World, hub: Hub) -> None:
    """A Secret without the hub's label is not renewed, because someone else maintains it."""
    hub(*APPLY, "--token-lifetime", "10m")
    publish_from_eu(world)
    world.hub_cluster.api.patch(f"{SECRETS}/eu", {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    before = world.hub_cluster.api.get(f"{SECRETS}/eu")
    mark = world.hub_cluster.audit_mark()
    with running_late(world, 310.0) as late:
        world.awaits("10.1.0.1", "10.1.0.2")
        eventually(lambda: looks(world, mark), 20.0)
        assert late.hub.renewal.counts == {}
    assert world.hub_cluster.api.get(f"{SECRETS}/eu") == before


def looks(world: World, mark: Mark) -> bool:
    """Whether the Secret was read by name once more than for connecting, which the renewal does to check its owner."""
    asked = [request for request in world.hub_cluster.requests(mark, "hub") if request.resource == "secrets"]
    return len([request for request in asked if request.verb == "get"]) >= 2


@pytest.mark.usefixtures("fast_checks")
def test_a_changed_secret_moves_one_connection_and_loses_nothing(
    world: World, hub: Hub, remote_clusters: tuple[ApiServer, ...]
) -> None:
    """After `--rotate` the hub uses the new token while nodes change, and removes nothing."""
    us = remote_clusters[1]
    us.kubeconfig(world.folder / "us", "admin")
    add_node(us, "m1", "10.2.0.1")
    hub(*APPLY)
    publish_from_eu(world)
    entry = "  - {name: us, kubeconfig: {path: us}, allowedCIDRs: [10.2.0.0/16], provider: {name: node-addresses}}\n"
    text = world.path.read_text().replace("{cluster: eu}", "{cluster: eu}, {cluster: us}")
    text = text.replace("clusters:\n", f"clusters:\n{entry}")
    world.write_text(text)
    with running(world) as run:
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
        other, first, before = run.cluster("us").client, credential(run), token(world)
        mark = world.hub_cluster.audit_mark()
        said = hub("cluster", "add", "eu", "--rotate", "--apply", *SECRETS_AT)
        assert said.code == 0, said.err
        assert token(world) != before
        add_node(world.remotes["eu"], "n3", "10.1.0.3")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.2.0.1")
        eventually(lambda: credential(run) == token(world) != first)
        add_node(world.remotes["eu"], "n4", "10.1.0.4")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.2.0.1")
        assert run.cluster("us").client is other
        assert [request.verb for request in world.writes(mark) if request.verb != "create"] == ["update", "update"]


@pytest.mark.usefixtures("fast_checks")
def test_a_changed_token_file_is_used_and_nothing_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the token file of a kubeconfig is replaced, the next request uses the new token, and no endpoint is lost."""
    monkeypatch.setattr(credentials, "CHECK_INTERVAL", 0.2)
    remote = world.remotes["eu"]
    rules = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    remote.grant("nobody", rules)
    path = remote.kubeconfig(world.folder / "eu", "hub")
    (world.folder / "token").write_text(remote.token("hub"))
    content = yaml.safe_load(path.read_text())
    content["users"][0]["user"] = {"tokenFile": "token"}
    path.write_text(yaml.safe_dump(content))
    world.write(clusters=[world.cluster("eu")])
    with running(world) as run:
        world.awaits("10.1.0.1", "10.1.0.2")
        mark = remote.audit_mark()
        (world.folder / "token").write_text(remote.token("nobody"))
        add_node(remote, "n3", "10.1.0.3")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3")
        time.sleep(0.3)  # the file is checked five times a second
        remote.restart()
        add_node(remote, "n4", "10.1.0.4")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", timeout=30)
        assert run.state("eu").startswith("Ready")
        asked = [
            request for request in remote.requests(mark) if request.resource == "nodes" and request.user != "admin"
        ]
        assert asked[-1].user == "nobody"


@pytest.mark.usefixtures("fast_checks")
def test_a_changed_kubeconfig_file_moves_one_connection_and_loses_nothing(world: World) -> None:
    """If the kubeconfig file gets another credential, the hub opens a new connection, and removes nothing."""
    remote = world.remotes["eu"]
    remote.grant("nobody", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]})
    path = remote.kubeconfig(world.folder / "eu", "hub")
    world.write(clusters=[world.cluster("eu")])
    with running(world) as run:
        world.awaits("10.1.0.1", "10.1.0.2")  # the audit log may have the requests of its creation late
        first, mark = run.cluster("eu").client, world.hub_cluster.audit_mark()
        remote.certificate_kubeconfig(path, "nobody")
        add_node(remote, "n3", "10.1.0.3")
        eventually(lambda: run.cluster("eu").client not in (None, first))
        add_node(remote, "n4", "10.1.0.4")
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4")
        assert [request.verb for request in world.writes(mark) if request.verb != "create"] == ["update", "update"]


def test_a_secret_is_followed_by_one_watch(world: World, hub: Hub) -> None:
    """While a Secret is watched it is not read by name; a change is used at once."""
    hub(*APPLY)
    publish_from_eu(world)
    with running(world) as run:
        world.awaits("10.1.0.1", "10.1.0.2")
        eventually(lambda: run.hub.secrets.version("eu"))
        before, mark = run.hub.secrets.version("eu"), world.hub_cluster.audit_mark()
        time.sleep(6.0)  # long enough for a check of the kubeconfig
        world.hub_cluster.api.patch(f"{SECRETS}/eu", {"metadata": {"annotations": {"touched": "yes"}}})
        eventually(lambda: run.hub.secrets.version("eu") != before, 2.0)
        asked = [request for request in world.hub_cluster.requests(mark, "hub") if request.resource == "secrets"]
        assert asked == []


def test_frozen_hub_cluster_is_an_error_within_the_deadline(world: World, hub: Hub) -> None:
    """If the hub cluster accepts connections but never answers, the command fails within its deadline."""
    with frozen(world.hub_cluster):
        started = time.monotonic()
        said = hub(*APPLY)
    assert (said.code, "no answer in time" in said.err) == (3, True), said.err
    assert time.monotonic() - started < 25
