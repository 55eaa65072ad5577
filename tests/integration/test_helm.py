"""The Helm chart on a real API server with RBAC: installed by the real helm, with hubs that run as its Pods would."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from click import Context
from click.testing import CliRunner

from hub.app.settings import lease_name
from hub.cli import cli
from hub.cli.exits import Exit
from hub.election import MOST_SHARDS
from hub.election.lease import lease_of
from hub.model import LABEL_SOURCE_CLUSTER
from tests.support import allocations
from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver.audit import Mark
from tests.support.apiserver.controllers import ControllerManager
from tests.support.apiserver.server import ApiServer
from tests.support.helm import (
    CHART,
    EXAMPLES,
    FULLNAME,
    NAMESPACE,
    OWNER,
    RELEASE,
    SYSTEM_ACCOUNT,
    Helm,
    HelmFailed,
    Pod,
    arguments,
    collection,
    find,
    path,
    pods,
    policy_in_force,
    slice_of,
)
from tests.support.hub import NODE_RULES, World, add_node
from tests.support.ports import free_port
from tests.support.waiting import eventually

SECRETS = "hub-clusters"
PROBES, METRICS, PAGE = "--health-probe-bind-address", "--metrics-bind-address", "--listen"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
MONITORING = {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def helm(tmp_path: Path, hub_cluster: ApiServer) -> Helm:
    """Helm as the admin of the hub cluster."""
    return Helm(tmp_path, hub_cluster)


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Remote clusters eu and us with two nodes each. Their kubeconfigs are in Secrets and have the minimal role."""
    made = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False)))
    add_namespace(hub_cluster.api, SECRETS)
    for number, (name, server) in enumerate(made.remotes.items(), 1):
        server.grant("hub", *NODE_RULES)
        kubeconfig = server.kubeconfig(tmp_path / name, "hub").read_bytes()
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        hub_cluster.api.post(f"/api/v1/namespaces/{SECRETS}/secrets", {"metadata": {"name": name}, "data": data})
        for n in (1, 2):
            add_node(server, f"{name}-{n}", f"10.{number}.0.{n}")
    made.add_service()
    return made


ALL = ("10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2")


def cluster(name: str) -> Object:
    """A registry entry of a remote cluster with its kubeconfig in a Secret."""
    return {
        "name": name,
        "kubeconfig": {"secret": name, "key": "kubeconfig"},
        "allowedCIDRs": ["10.0.0.0/8"],  # the hub itself excludes the hub cluster's Service CIDR
        "provider": {"name": "node-addresses"},
    }


def values(**more: object) -> Object:
    """Chart values with a registry of two clusters and one Service."""
    service = {"name": "payments", "namespace": "edge", "sources": [{"cluster": "eu"}, {"cluster": "us"}]}
    return {
        "registry": {"data": {"clusters": [cluster("eu"), cluster("us")], "services": [service]}},
        "secrets": {"namespace": SECRETS, "renewTokens": False},  # renewal would happen only after half a token's life
        "hub": {"removalGrace": "1s"},
        "logFormat": "text",
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "2s", "retryPeriod": "500ms"},
        **more,
    }


def add_namespace(api: Api, name: str, **labels: str) -> None:
    """Create a namespace."""
    api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


# --- manifests -------------------------------------------------------------------------------------


@pytest.fixture
def kinds_of_operators(hub_cluster: ApiServer) -> None:
    """The Prometheus operator's CustomResourceDefinitions, with schemas that allow anything."""
    for kind, plural in MONITORING.items():
        name = f"{plural}.monitoring.coreos.com"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        spec = {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        }
        hub_cluster.api.post(CRDS, {"metadata": {"name": name}, "spec": spec})
    resources = "/apis/monitoring.coreos.com/v1"

    def served() -> bool:
        found = hub_cluster.api.find(resources)
        return found is not None and len(found["resources"]) == len(MONITORING)

    eventually(served, 30)


def test_lint_finds_nothing(helm: Helm) -> None:
    """``helm lint`` finds nothing with the default values or with any example."""
    for example in [None, *EXAMPLES]:
        assert "0 chart(s) failed" in helm.lint(*([example] if example else []))


@pytest.mark.usefixtures("kinds_of_operators")
def test_examples_pass_a_server_side_dry_run(helm: Helm, hub_cluster: ApiServer) -> None:
    """The API server accepts every object of every example, without unknown fields."""
    api = hub_cluster.api
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    add_namespace(api, NAMESPACE, **restricted)
    for name in (SECRETS, "shop"):
        add_namespace(api, name)
    api.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "gvisor"}, "handler": "runsc"})
    seen: set[str] = set()
    for example in [None, *EXAMPLES]:
        rendered = helm.template(example)
        for manifest in rendered:
            seen.add(manifest["kind"])
            api.post(collection(api, manifest), manifest, dryRun="All", fieldValidation="Strict")
        # The Pod template itself is accepted in a namespace that enforces the restricted Pod security standard.
        template = find(rendered, "Deployment")["spec"]["template"]
        pod = {**template, "metadata": {**template["metadata"], "name": "hub"}}
        api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod, dryRun="All", fieldValidation="Strict")
    assert {*MONITORING, "NetworkPolicy", "PodDisruptionBudget", "ValidatingAdmissionPolicy"} <= seen


def test_only_necessary_rules_are_cluster_wide(helm: Helm) -> None:
    """Only the role for Services and slices and the policy are cluster-wide. Other rules come with their feature."""
    scoped = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    scoped |= {"CustomResourceDefinition"}  # with allocations
    for example in [None, *EXAMPLES]:
        rendered = helm.template(example)
        wide = [manifest["kind"] for manifest in rendered if "namespace" not in manifest["metadata"]]
        assert {kind for kind in wide if kind != "ConfigMap"} <= scoped  # which extraObjects of an example adds
        for rule in [rule for each in rendered if each["kind"] == "ClusterRole" for rule in each["rules"]]:
            assert "*" not in str(rule)
            assert "secrets" not in rule["resources"]
    bare = helm.template({"rbac": {"serviceCIDRs": False}, "hub": {"events": False}})
    assert [rule["resources"] for rule in find(bare, "ClusterRole")["rules"]] == [["services"], ["endpointslices"]]
    namespaced = helm.template({"rbac": {"scope": "namespaced", "namespaces": ["edge"], "serviceCIDRs": False}})
    assert not any(manifest["kind"].startswith("ClusterRole") for manifest in namespaced)


# --- a release's life --------------------------------------------------------------------------------


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path
) -> None:
    """Slices are the same before and after each step. Uninstalling keeps them, and the notes name ``hub purge``."""
    api = hub_cluster.api
    notes = helm.install(values())
    assert f"kubectl -n {NAMESPACE} rollout status deployment/{FULLNAME}" in notes
    assert f"hub purge --owner {OWNER}" in notes
    first = helm.manifests()
    assert all(api.exists(path(api, manifest)) for manifest in first)
    deployment = path(api, find(first, "Deployment"))
    with pods(hub_cluster, first, tmp_path, 1):
        world.awaits(*ALL)
    before = world.versions()

    changed = values(replicaCount=3)
    del changed["registry"]["data"]["clusters"][1], changed["registry"]["data"]["services"][0]["sources"][1]
    helm.upgrade(changed)
    assert api.get(deployment)["spec"]["replicas"] == 3
    registry = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{FULLNAME}-registry"
    assert [cluster["name"] for cluster in yaml.safe_load(api.get(registry)["data"]["clusters.yaml"])["clusters"]] == [
        "eu"
    ]

    helm.run("rollback", RELEASE, "1", "-n", NAMESPACE)
    assert api.get(deployment)["spec"]["replicas"] == 2
    assert helm.manifests() == first
    # No replica ran after the rollback. The next one finds nothing to write.
    mark = hub_cluster.audit_mark()
    with pods(hub_cluster, helm.manifests(), tmp_path, 1) as [pod]:
        eventually(lambda: leads(hub_cluster) and pod.ask(PROBES, "/readyz") == 200, 20)
        world.awaits(*ALL)
        assert account_writes(hub_cluster, mark) == []
    assert world.versions() == before

    helm.run("uninstall", RELEASE, "-n", NAMESPACE)
    assert not any(api.exists(path(api, manifest)) for manifest in first)
    assert world.versions() == before
    kubeconfig = str(hub_cluster.kubeconfig(tmp_path / "admin"))
    result = CliRunner().invoke(cli, ["purge", "--owner", OWNER, "--yes", "--kubeconfig", kubeconfig])
    assert result.exit_code == 0, result.output
    assert world.slices() == []


def leads(server: ApiServer) -> bool:
    """Whether a replica holds the Lease."""
    lease = server.api.find(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/endpointslice-hub-{OWNER}")
    return lease is not None and bool(lease["spec"].get("holderIdentity"))


def account_writes(server: ApiServer, mark: Mark) -> list[str]:
    """The names of the slices that the hub's account wrote since a mark."""
    time.sleep(0.5)
    return [
        request.name
        for request in server.requests(mark, SYSTEM_ACCOUNT)
        if request.writes and request.resource == "endpointslices"
    ]


# --- the hub with nothing but what the chart gives it ----------------------------------------------------


def granted(manifests: Sequence[Object]) -> set[tuple[str, str]]:
    """The (resource, verb) pairs that the roles grant."""
    rules = [
        rule for manifest in manifests if manifest["kind"] in ("ClusterRole", "Role") for rule in manifest["rules"]
    ]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def used(server: ApiServer, mark: Mark) -> set[tuple[str, str]]:
    """The (resource, verb) pairs that the hub's account requested since a mark. Fails if a request was forbidden."""
    asked = server.requests(mark, SYSTEM_ACCOUNT)
    refused = [request for request in asked if request.status == 403]
    assert not refused, refused[0]
    return {(request.resource, request.verb) for request in asked}


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
def test_the_hub_syncs_two_remotes_and_uses_each_of_its_rights(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path, scope: str
) -> None:
    """Two replicas with the chart's flags, ConfigMap and account are refused nothing, and use all their rights."""
    rbac = {"scope": scope, "namespaces": ["edge"]}
    settings = values(rbac=rbac)
    helm.install(settings)
    manifests = helm.manifests()
    mark = hub_cluster.audit_mark()
    with pods(hub_cluster, manifests, tmp_path) as replicas:
        world.awaits(*ALL, timeout=30)
        for pod in replicas:
            eventually(lambda pod=pod: pod.ask(PROBES, "/readyz") == 200, 20)
            for flag, asked in ((PROBES, "/healthz"), (METRICS, "/metrics"), (PAGE, "/")):
                assert pod.ask(flag, asked) == 200
        add_node(world.remotes["eu"], "eu-3", "10.1.0.3")
        world.awaits(*ALL, "10.1.0.3")
        contend(world, hub_cluster)
        # Add a Service to the registry and remove it again: the hub stores each new registry and deletes its slices.
        world.add_service("other")
        more = copy.deepcopy(settings)
        more["registry"]["data"]["services"].append(
            {"name": "other", "namespace": "edge", "sources": [{"cluster": "us"}]}
        )
        deliver(helm, replicas, more)
        eventually(lambda: world.published("other") == ["10.2.0.1", "10.2.0.2"], 20)
        deliver(helm, replicas, settings)
        eventually(lambda: world.published("other") == [], 20)
        assert replicas[0].exec("plan").returncode == Exit.OK
        wanted = granted(manifests)
        eventually(lambda: no_more(wanted - used(hub_cluster, mark), flips(hub_cluster)), 40, every=1.0)
    assert used(hub_cluster, mark) == wanted


def test_commands_in_the_pod_need_no_options(helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path) -> None:
    """In the hub's Pod, commands find the hub, its owner, registry and namespaces; approving works more than once."""
    for number, (name, server) in enumerate(world.remotes.items(), 1):
        add_node(server, f"{name}-3", f"10.{number}.0.3")
    published = {*ALL, "10.1.0.3", "10.2.0.3"}
    helm.install(values())
    with pods(hub_cluster, helm.manifests(), tmp_path, 1) as [pod]:
        world.awaits(*sorted(published), timeout=30)
        assert ": leader" in pod.exec("status").stdout
        assert "10.1.0.1" in pod.exec("nodes", "eu").stdout
        assert "edge/payments" in pod.exec("why", "10.1.0.1").stdout
        assert pod.exec("plan").returncode == Exit.OK
        assert pod.exec("approve").stdout == "nothing is withheld\n"
        for number, (name, server) in enumerate(world.remotes.items(), 1):
            for node in (1, 2):
                server.api.delete(f"/api/v1/nodes/{name}-{node}")
            [line] = eventually(lambda: settled_lines(pod), 40, every=1.0)
            _, hash_, _, *command = line.split()
            assert command[:4] == ["hub", "approve", "edge/payments", hash_]
            wrong = hash_[:-1] + ("0" if hash_[-1] != "0" else "1")
            refused = pod.exec("approve", "edge/payments", wrong)
            assert refused.returncode == Exit.CHANGES
            assert f"no removal with the hash {wrong} is withheld (did you mean {hash_}?)" in refused.stderr
            done = pod.exec(*command[1:])
            assert (done.returncode, done.stderr) == (0, "")
            published -= {f"10.{number}.0.1", f"10.{number}.0.2"}
            world.awaits(*sorted(published))


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
def test_helm_test_fails_while_a_cluster_does_not_answer(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path, scope: str
) -> None:
    """``helm test`` succeeds if every cluster answers the hub's account, and fails if one does not."""
    api = hub_cluster.api
    assert world.remotes
    helm.install(values(rbac={"scope": scope, "namespaces": ["edge"]}))
    [hook] = helm.hooks()
    mark = hub_cluster.audit_mark()
    done, said = helm_test(helm, hub_cluster, hook, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "online: 0 of 4 failed" in done.stdout
    assert "Succeeded" in said
    assert used(hub_cluster, mark) <= granted(helm.manifests())  # fails if a request was forbidden

    secret = f"/api/v1/namespaces/{SECRETS}/secrets/eu"
    kubeconfig = yaml.safe_load(base64.b64decode(api.get(secret)["data"]["kubeconfig"]))
    kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    unreachable = base64.b64encode(yaml.safe_dump(kubeconfig).encode()).decode()
    api.patch(secret, {"data": {"kubeconfig": unreachable}})
    done, said = helm_test(helm, hub_cluster, hook, tmp_path)
    assert done.returncode == Exit.CHANGES
    assert re.search(r"^eu .*Unreachable: .*connection refused", done.stdout, re.MULTILINE | re.IGNORECASE)
    assert "online: 1 of 4 failed" in done.stdout
    assert f"pod {hook['metadata']['name']} failed" in said


def helm_test(
    helm: Helm, server: ApiServer, hook: Object, folder: Path
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run ``helm test``, and do what a kubelet does with the Pod that it creates; the Pod's end, and helm's output.

    The Pod of an earlier test is replaced.
    """
    where = path(server.api, hook)
    earlier = server.api.find(where)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(helm.run, "test", RELEASE, "-n", NAMESPACE, "--timeout", "90s")

        def created() -> Object | None:
            found = server.api.find(where)
            return found if found and (not earlier or found["metadata"]["uid"] != earlier["metadata"]["uid"]) else None

        done = Pod(server, [eventually(created, 30)], folder, "test").run()
        phase = "Failed" if done.returncode else "Succeeded"
        server.api.patch(f"{where}/status", {"status": {"phase": phase}})
        try:
            return done, running.result()
        except HelmFailed as failed:
            return done, str(failed)


def settled_lines(pod: Pod) -> list[str]:
    """The lines of `hub approve` without arguments that name a Service, once they stay the same for a second."""
    first = withheld_lines(pod)
    time.sleep(1)
    return first if withheld_lines(pod) == first else []


def withheld_lines(pod: Pod) -> list[str]:
    """The lines of `hub approve` without arguments that name a Service."""
    return [line for line in pod.exec("approve").stdout.splitlines() if line.startswith("edge/")]


def flips(server: ApiServer) -> Object:
    """Add a selector to the Service or remove it, so that its finding returns and its Event becomes a series."""
    where = "/api/v1/namespaces/edge/services/payments"
    selector = server.api.get(where)["spec"].get("selector")
    return server.api.patch(where, {"spec": {"selector": None if selector else {"app": "payments"}}})


def no_more(left: set[tuple[str, str]], _: Object) -> bool:
    """True when no right is left. Fails with those that were never used."""
    assert not left, f"never used: {sorted(left)}"
    return True


def deliver(helm: Helm, replicas: Sequence[Pod], settings: Object) -> None:
    """Run ``helm upgrade``, and update the Pods' volumes as kubelets do."""
    helm.upgrade(settings)
    for pod in replicas:
        pod.project()


def contend(world: World, server: ApiServer) -> None:
    """Change a slice until a write of the hub meets a conflict and the hub reads the slice with ``get``."""
    [name] = [slice_["metadata"]["name"] for slice_ in world.slices(selector=f"{LABEL_SOURCE_CLUSTER}=eu")]
    numbers = itertools.count(4)

    def read_again() -> bool:
        mark, number = server.audit_mark(), next(numbers)
        add_node(world.remotes["eu"], f"eu-{number}", f"10.1.0.{number}")
        for _ in range(20):
            server.api.patch(world.slice_path(name), {"metadata": {"labels": {"touched": str(time.monotonic_ns())}}})
        return any(
            request.verb == "get" and request.resource == "endpointslices"
            for request in server.requests(mark, SYSTEM_ACCOUNT)
        )

    eventually(read_again, 60)


CLUSTER_IP = "10.96.7.7"
"""An address in the hub cluster's Service CIDR."""
PUBLISHED, REFUSED, TOLD = "all is published", "no address of the Service CIDRs is", "Events tell of it"
LED, KEPT, APPROVABLE = "the Lease is held", "the registry is kept", "approvals are followed"
EVERYTHING = frozenset((PUBLISHED, REFUSED, TOLD, LED, KEPT, APPROVABLE))
WRITTEN = frozenset((PUBLISHED, REFUSED, TOLD))
MISSING = {
    "services list,watch": EVERYTHING - {APPROVABLE},
    "endpointslices get,list,watch,create,update,delete": EVERYTHING - {APPROVABLE},
    "servicecidrs list": {REFUSED},
    "events create,patch": {TOLD},
    "leases create": EVERYTHING - {APPROVABLE},
    "leases get,watch,update": EVERYTHING - {APPROVABLE},
    "configmaps get,list,watch,update": {APPROVABLE},
    "configmaps create": {KEPT},
    "configmaps get,update": {KEPT},
    "secrets get,list,watch": WRITTEN,
}
"""Rule -> the facts (see :func:`facts`) that hold without it."""


def facts(world: World, server: ApiServer, mark: Mark) -> set[str]:
    """The facts that hold now."""
    api = server.api
    published = world.published()
    events = api.list("/apis/events.k8s.io/v1/namespaces/edge/events")
    kept = api.find(f"/api/v1/namespaces/{NAMESPACE}/configmaps/endpointslice-hub-registry-{OWNER}")
    answered = [request for request in server.requests(mark, SYSTEM_ACCOUNT) if request.status == 200]
    found = {
        PUBLISHED: set(ALL) <= set(published),
        REFUSED: bool(published) and CLUSTER_IP not in published,
        TOLD: any(event["reason"] == "EndpointsPublished" for event in events),
        LED: leads(server),
        KEPT: kept is not None and "payments" in str(kept.get("data")),
        APPROVABLE: any((request.resource, request.verb) == ("configmaps", "watch") for request in answered),
    }
    return {name for name, true in found.items() if true}


def test_rules_are_all_there(helm: Helm) -> None:
    """:data:`MISSING` has every rule of the chart."""
    roles = [manifest for manifest in helm.template(values()) if manifest["kind"] in ("ClusterRole", "Role")]
    assert sorted(name_of(rule) for role in roles for rule in role["rules"]) == sorted(MISSING)


@pytest.mark.parametrize("rule", ["", *MISSING])
def test_each_missing_rule_breaks_only_its_facts(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path, rule: str
) -> None:
    """With all rules every fact holds. Without one rule, only the facts that :data:`MISSING` lists for it hold."""
    api = hub_cluster.api
    add_node(world.remotes["eu"], "eu-odd", CLUSTER_IP)
    helm.install(values())
    manifests = helm.manifests()
    for role in [manifest for manifest in manifests if manifest["kind"] in ("ClusterRole", "Role")]:
        kept = [entry for entry in role["rules"] if name_of(entry) != rule]
        api.put(path(api, role), {**role, "rules": kept})
    expected = EVERYTHING - MISSING.get(rule, set())
    mark = hub_cluster.audit_mark()
    with pods(hub_cluster, manifests, tmp_path, 1):

        def settled() -> bool:
            asked = hub_cluster.requests(mark, SYSTEM_ACCOUNT)
            assert not rule or any(request.status == 403 and request.resource == rule.split()[0] for request in asked)
            assert facts(world, hub_cluster, mark) == expected
            return True

        eventually(settled, 30, every=0.2)
        time.sleep(2.0)  # the missing facts stay missing, and are not just late
        assert facts(world, hub_cluster, mark) == expected


def name_of(rule: Object) -> str:
    """A rule's name in :data:`MISSING`."""
    return f"{','.join(rule['resources'])} {','.join(rule['verbs'])}"


def test_a_namespaced_hub_reads_and_writes_nowhere_else(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path
) -> None:
    """A namespaced hub follows its two namespaces, each with its own watches, and can read or write no other one."""
    add_namespace(hub_cluster.api, "shop")
    add_namespace(hub_cluster.api, "other")
    for namespace in ("shop", "other"):
        world.add_service("orders", namespace)
    settings = values(rbac={"scope": "namespaced", "namespaces": ["edge", "shop"], "serviceCIDRs": False})
    services = settings["registry"]["data"]["services"]
    services.append({"name": "orders", "namespace": "shop", "sources": [{"cluster": "us"}]})
    helm.install(settings)
    mark = hub_cluster.audit_mark()
    with pods(hub_cluster, helm.manifests(), tmp_path, 1) as [pod]:
        world.awaits(*ALL, timeout=30)
        eventually(lambda: world.published("orders", "shop") == ["10.2.0.1", "10.2.0.2"])
        [orders] = world.slices("orders", "shop")
        hub_cluster.api.delete(world.slice_path(orders["metadata"]["name"], "shop"))
        eventually(lambda: world.published("orders", "shop") == ["10.2.0.1", "10.2.0.2"])
        # A registry from elsewhere names a namespace that --target-namespace does not list.
        registry = yaml.safe_load((pod.folder / "clusters.yaml").read_text())
        registry["services"].append({"name": "orders", "namespace": "other", "sources": [{"cluster": "us"}]})
        (pod.folder / "clusters.yaml").write_text(yaml.safe_dump(registry))
        status = pod.exec("status", "--registry", "clusters.yaml", "-o", "json")
        said = json.loads(status.stdout)["services"]
        assert ["--target-namespace" in str(each) for each in said] == [False, True, False], said
        asked = hub_cluster.requests(mark, SYSTEM_ACCOUNT)
    kinds = [request for request in asked if request.resource in ("services", "endpointslices")]
    assert {request.namespace for request in kinds} == {"edge", "shop"}
    account = hub_cluster.api_with(hub_cluster.service_account_token(NAMESPACE, FULLNAME))
    other = SLICES.replace("/edge/", "/other/")
    calls: tuple[Callable[[], Object], ...] = (
        lambda: account.post(other, slice_of("a", "10.1.0.1")),
        lambda: account.get(other),
        lambda: account.get("/api/v1/services"),
    )
    for call in calls:
        with pytest.raises(ApiRefused, match=r"cannot (create|list) resource"):
            call()


@pytest.mark.parametrize("renew", [True, False])
def test_secrets_are_updated_only_to_renew_tokens(
    helm: Helm, world: World, hub_cluster: ApiServer, renew: bool
) -> None:
    """Only with secrets.renewTokens may the account update the Secrets it reads. It can read no other Secrets."""
    assert world.remotes
    helm.install(values(secrets={"namespace": SECRETS, "names": ["eu", "us"], "renewTokens": renew}))
    account = hub_cluster.api_with(hub_cluster.service_account_token(NAMESPACE, FULLNAME))
    secrets = f"/api/v1/namespaces/{SECRETS}/secrets"
    eventually(lambda: account.may_get(f"{secrets}/eu"))
    found = account.get(f"{secrets}/eu")
    if renew:
        account.put(f"{secrets}/eu", found)
    else:
        with pytest.raises(ApiRefused, match="cannot update resource"):
            account.put(f"{secrets}/eu", found)
    hub_cluster.api.post(secrets, {"metadata": {"name": "other"}})
    for hidden in (f"{secrets}/other", f"/api/v1/namespaces/{NAMESPACE}/secrets/sh.helm.release.v1.{RELEASE}.v1"):
        assert hub_cluster.api.exists(hidden)
        with pytest.raises(ApiRefused, match="cannot get resource"):
            account.get(hidden)


@pytest.mark.parametrize("missing", ["", "tokenreviews", "subjectaccessreviews"])
def test_exposed_page_authenticates_callers(
    helm: Helm, world: World, hub_cluster: ApiServer, tmp_path: Path, missing: str
) -> None:
    """An exposed page answers callers whose token may get it, and no one if a right to check tokens is missing."""
    assert world.remotes
    helm.install(values(page={"expose": True}))
    manifests = helm.manifests()
    role = find(manifests, "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["resources"] != [missing]]
    hub_cluster.api.put(path(hub_cluster.api, role), {**role, "rules": rules})
    with pods(hub_cluster, manifests, tmp_path, 1) as [pod]:
        eventually(lambda: pod.ask(PROBES, "/readyz") == 200, 20)
        admin, nobody = (pod.ask(PAGE, "/api/v1/status", hub_cluster.token(user)) for user in ("admin", "nobody"))
        assert pod.ask(PAGE, "/api/v1/status") == 401
        assert (admin, nobody) == ((503, 503) if missing else (200, 403))


# --- the admission policy --------------------------------------------------------------------------------


@pytest.fixture
def account(helm: Helm, hub_cluster: ApiServer) -> Api:
    """The hub's account, which the policy restricts."""
    helm.install({"admission": {"adopt": ["old-controller", "endpoint-copier"], "previousOwners": ["edge-hub"]}})
    return held(hub_cluster)


def held(server: ApiServer) -> Api:
    """The hub's account, once the policy is in force."""
    api = server.api_with(server.service_account_token(NAMESPACE, FULLNAME))
    policy_in_force(server.api, api)
    return api


def labelled(**changes: str | None) -> Object:
    """The labels of one of the release's slices, with some changed, or left out where None."""
    short = {
        "service": "kubernetes.io/service-name",
        "managed": "endpointslice.kubernetes.io/managed-by",
        "owner": "endpointslice-hub/owner",
        "cluster": "multicluster.kubernetes.io/source-cluster",
    }
    labels = {**slice_of("x")["metadata"]["labels"], **{short[key]: value for key, value in changes.items()}}
    return {key: value for key, value in labels.items() if value is not None}


BAD_LABELS = [
    {"managed": None},
    {"managed": "somebody-else"},
    {"owner": None},
    {"owner": "default"},
    {"owner": "edge-hub"},
    {"service": None},
    {"cluster": None},
]
BAD_FOR_THE_SERVER = (
    *("127.0.0.1", "::1", "169.254.169.254", "169.254.1.1", "fe80::1"),
    *("224.0.0.1", "ff02::1", "::ffff:10.1.2.3", "010.1.2.3", "FD00::1", "fd00:0:0::1"),
)
"""Addresses that Kubernetes itself refuses."""
BAD_FOR_THE_POLICY = (
    *("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42"),
    *("0.1.2.3", "239.1.2.3", "240.0.0.1", "255.255.255.255", "ff0e::1"),
    *("2002:a01:203::1", "64:ff9b::a01:203", "64:ff9b:1::1", "2001::1", "::a01:203"),
)
"""Addresses that Kubernetes accepts and the policy refuses: metadata services, reserved, broadcast, multicast and
addresses that embed an IPv4 address.
"""
BAD_PORTS: list[Object] = [
    {"name": "https", "protocol": "TCP"},
    {"name": "https", "port": 0},
    {"name": "https", "port": 70000},
]


def test_the_policy_holds_the_hubs_account(account: Api, hub_cluster: ApiServer) -> None:
    """The policy refuses wrong labels, denied ranges, host names and odd ports, but only for the hub's account."""
    for labels in BAD_LABELS:
        with pytest.raises(ApiRefused, match=r"ValidatingAdmissionPolicy .* this account writes slices of"):
            account.post(SLICES, slice_of("bad", "10.1.0.1", labels=labelled(**labels)))
    for address in (*BAD_FOR_THE_SERVER, *BAD_FOR_THE_POLICY):
        good = "fd00::7" if ":" in address else "10.1.0.1"
        with pytest.raises(ApiRefused) as refused:
            account.post(SLICES, slice_of("bad", good, address))
        assert refused.value.status == 422
        if address in BAD_FOR_THE_POLICY:
            assert f"never published: {address}" in str(refused.value)
    for port in BAD_PORTS:
        with pytest.raises(ApiRefused, match=r"must be between 1 and 65535|every port is a number"):
            account.post(SLICES, slice_of("bad", "10.1.0.1", ports=[port]))
    named = {
        **slice_of("bad", labels=labelled()),
        "addressType": "FQDN",
        "endpoints": [{"addresses": ["a.example.com"]}],
    }
    with pytest.raises(ApiRefused, match="IP addresses only"):
        account.post(SLICES, named)
    assert hub_cluster.api.list(SLICES) == []
    for good in (
        slice_of("v4", "10.1.0.1", "100.64.0.1", "203.0.113.7"),
        slice_of("v6", "fd00::1", "2a01:db8::1"),
        slice_of("empty"),
        slice_of("portless", "10.1.0.1", ports=[]),
        slice_of("ends", "10.1.0.1", ports=[{"name": "a", "port": 1}, {"name": "b", "port": 65535}]),
    ):
        account.post(SLICES, good)
    # The policy does not apply to other accounts.
    hub_cluster.api.post(SLICES, slice_of("free", "100.100.100.200", labels={"kubernetes.io/service-name": "x"}))


def test_admission_policy_checks_updates_and_deletes(account: Api, hub_cluster: ApiServer) -> None:
    """The account may take over a previous owner's slices, delete those to adopt, and change no one else's."""
    api = hub_cluster.api
    foreign: dict[str, Object] = {
        "unlabelled": {"kubernetes.io/service-name": "payments"},
        "builtin": labelled(managed="endpointslice-controller.k8s.io", owner=None, cluster=None),
        "other-owner": labelled(owner="default"),
        "someone": labelled(managed="someone", owner=None),
    }
    for name, labels in foreign.items():
        made = api.post(SLICES, slice_of(name, "10.1.0.1", labels=labels))
        with pytest.raises(ApiRefused, match="does not change or delete slices of others"):
            account.put(f"{SLICES}/{name}", {**made, "metadata": {**made["metadata"], "labels": labelled()}})
        with pytest.raises(ApiRefused, match="does not change or delete slices of others"):
            account.delete(f"{SLICES}/{name}")
    adopted: dict[str, Object] = {
        "old": labelled(managed="old-controller", owner=None, cluster=None),
        "copied": {"kubernetes.io/service-name": "payments", "endpoint-copier/source": "a.b"},
    }
    for name, labels in adopted.items():
        made = api.post(SLICES, slice_of(name, "10.1.0.1", labels=labels))
        with pytest.raises(ApiRefused, match="does not change or delete slices of others"):
            account.put(f"{SLICES}/{name}", {**made, "metadata": {**made["metadata"], "labels": labelled()}})
        account.delete(f"{SLICES}/{name}")
    made = api.post(SLICES, slice_of("previous", "10.1.0.1", labels=labelled(owner="edge-hub")))
    account.put(f"{SLICES}/previous", {**made, "metadata": {**made["metadata"], "labels": labelled()}})
    account.delete(f"{SLICES}/previous")
    assert sorted(slice_["metadata"]["name"] for slice_ in api.list(SLICES)) == sorted(foreign)
    # The hub's slices must keep their labels, and their new addresses are checked too.
    made = account.post(SLICES, slice_of("ours", "10.1.0.1"))
    with pytest.raises(ApiRefused, match="this account writes slices of"):
        account.put(f"{SLICES}/ours", {**made, "metadata": {**made["metadata"], "labels": labelled(owner="default")}})
    with pytest.raises(ApiRefused, match=r"never published: 100\.100\.100\.200"):
        account.put(f"{SLICES}/ours", {**made, "endpoints": [{"addresses": ["100.100.100.200"]}]})


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_the_policy_affords_a_thousand_endpoints(helm: Helm, hub_cluster: ApiServer, family: str) -> None:
    """1,000 endpoints stay within the policy's cost limit, even with many CIDRs, and the last address is checked."""
    cidrs = [f"192.168.{n}.0/24" for n in range(20)] + [f"fd00:{n + 1:x}::/64" for n in range(20)]
    settings = {"cidrs": [*cidrs, "10.0.0.0/8", "fd00::/64"], "deniedCIDRs": [f"172.16.{n}.0/24" for n in range(20)]}
    helm.install({"admission": settings})
    account = held(hub_cluster)
    prefix = "10.1.{}.{}" if family == "IPv4" else "fd00::{:x}:{:x}"
    thousand = [prefix.format(n // 250 + 1, n % 250 + 1) for n in range(1000)]
    made = account.post(SLICES, slice_of("large", *thousand))
    assert len(made["endpoints"]) == 1000
    bad, message = ("100.100.100.200", "never published") if family == "IPv4" else ("fd00:ec2::254", "never published")
    for last, why in ((bad, message), ("11.0.0.1" if family == "IPv4" else "2a01:db8::1", "outside admission.cidrs")):
        with pytest.raises(ApiRefused, match=why):
            account.put(f"{SLICES}/large", {**made, "endpoints": [*made["endpoints"][:-1], {"addresses": [last]}]})
    account.put(f"{SLICES}/large", {**made, "endpoints": made["endpoints"][::-1]})
    account.delete(f"{SLICES}/large")
    assert hub_cluster.api.list(SLICES) == []


def test_the_policy_knows_copies_within_the_hub_cluster(helm: Helm, hub_cluster: ApiServer) -> None:
    """With admission.localCopies, slices of cluster local may have reserved addresses, but no metadata service."""
    helm.install({"admission": {"localCopies": True}})
    account = held(hub_cluster)
    local = labelled(cluster="local")
    account.post(SLICES, slice_of("local", "240.1.2.3", labels=local))
    for bad, labels in (("240.1.2.3", labelled()), ("168.63.129.16", local)):
        with pytest.raises(ApiRefused, match="never published"):
            account.post(SLICES, slice_of("bad", bad, labels=labels))


def test_the_policy_has_no_type_errors(helm: Helm, hub_cluster: ApiServer) -> None:
    """Kubernetes' type check of the policy's expressions finds nothing, with default values and with any example."""
    api = hub_cluster.api
    made = []
    allocations.define(api)  # one policy is about its objects
    for number, example in enumerate([None, *EXAMPLES]):
        for policy in helm.template(example):
            if policy["kind"] == "ValidatingAdmissionPolicy":
                policy["metadata"]["name"] += f"-{number}"
                made.append(path(api, api.post(collection(api, policy), policy)))
    policy = find(helm.template(), "ValidatingAdmissionPolicy")
    with ControllerManager(hub_cluster, ["validatingadmissionpolicy-status-controller"]):
        for policy_path in made:
            status = eventually(lambda policy_path=policy_path: checked(api.get(policy_path)), 30)
            assert "expressionWarnings" not in status.get("typeChecking", {}), status
        # The check works: it reports a field that slices do not have.
        policy["spec"]["validations"] = [{"expression": "object.endpoint == []"}]
        policy["metadata"]["name"] = "wrong"
        wrong = path(api, api.post(collection(api, policy), policy))
        assert "expressionWarnings" in eventually(lambda: checked(api.get(wrong)), 30)["typeChecking"]


def checked(policy: Object) -> Object | None:
    """The policy's status, once its controller has set it."""
    status: Object = policy.get("status") or {}
    return status if status.get("observedGeneration") else None


# --- values that cannot be ----------------------------------------------------------------------------------

Refusal = tuple[Object, tuple[str, ...], tuple[str, ...]]
REFUSALS: dict[str, Refusal] = {
    "unknown key": ({"replicas": 2}, (), ("replicas",)),
    "wrong type": ({"replicaCount": "two"}, (), ("/replicaCount", "got string, want integer")),
    "number for text": ({"owner": 5}, (), ("/owner", "got number, want string")),
    "misspelt security setting": (
        {"securityContext": {"readOnlyRootFileSystem": True}},
        (),
        ("/securityContext", "readOnlyRootFileSystem"),
    ),
    "no choice": ({"rbac": {"scope": "global"}}, (), ("/rbac/scope", "'cluster', 'namespaced'")),
    "bad CIDR": ({"admission": {"cidrs": ["10.0.0.0"]}}, (), ("/admission/cidrs/0", "does not match pattern")),
    "host with port": (
        {"page": {"allowedHosts": ["hub.example.com", "fd00::5", "hub.example.com:443"]}},
        (),
        ("/page/allowedHosts/2", "does not match pattern"),
    ),
    "duration without unit": ({"hub": {"removalGrace": "60"}}, (), ("/hub/removalGrace", "does not match pattern")),
    "registry: unknown key": ({"registry": {"data": {"cluster": []}}}, (), ("/registry/data", "cluster")),
    "registry: owner": ({"registry": {"data": {"owner": "x"}}}, (), ("/registry/data", "owner")),
    "registry: a word YAML 1.1 takes for false": (
        {"registry": {"data": {"defaults": {"health": {"mode": False}}}}},
        (),
        ("/registry/data/defaults/health/mode", "got boolean, want string"),
    ),
    "registry: cluster without allowedCIDRs": (
        {"registry": {"data": {"clusters": [{"name": "eu", "provider": {"name": "inventory"}}]}}},
        (),
        ("/registry/data/clusters/0", "allowedCIDRs"),
    ),
    "two registries": (
        {"registry": {"existingConfigMap": "a", "existingSecret": "b"}},
        (),
        ("registry.existingConfigMap and registry.existingSecret are all set", "keep one of them"),
    ),
    "Secrets that may not be read": (
        {"registry": {"data": {"clusters": [cluster("eu")]}}},
        (),
        ("names the Secrets eu", "set secrets.namespace"),
    ),
    "a Secret that is not listed": (
        {"registry": {"data": {"clusters": [cluster("eu")]}}, "secrets": {"namespace": "x", "names": ["us"]}},
        (),
        ("names the Secret eu, which secrets.names lacks", "add it there"),
    ),
    "Secrets of no namespace": ({"secrets": {"names": ["a"]}}, (), ("name the namespace these Secrets are in",)),
    "an API server without the policy": (
        {"admission": {"enabled": True}},
        ("--kube-version", "1.30.9"),
        ("needs Kubernetes 1.31, this is v1.30.9", "--set admission.enabled=auto"),
    ),
    "an API server that is too old": ({}, ("--kube-version", "1.21.14"), ("kubeVersion: >=1.22.0-0", "v1.21.14")),
    "namespaces that are missing": (
        {"rbac": {"scope": "namespaced"}},
        (),
        ("rbac.namespaces is empty", "list the namespaces of the registry's Services"),
    ),
    "a Service elsewhere": (
        {
            "rbac": {"scope": "namespaced", "namespaces": ["edge"]},
            "registry": {"data": {"services": [{"name": "a", "namespace": "shop", "sources": [{"cluster": "local"}]}]}},
        },
        (),
        ("Service shop/a", "rbac.namespaces lacks that namespace: add it there"),
    ),
    "two monitors": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        (),
        ("scraped twice", "keep one of them"),
    ),
    "a monitor of nothing": (
        {"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}},
        (),
        ("metrics.serviceMonitor needs metrics.enabled",),
    ),
    "wheels without a volume": (
        {"providers": {"wheels": {"install": ["acme"]}}},
        (),
        ("needs both a volume and what to install from it",),
    ),
    "Pods without a shard": (
        {"shards": 2, "replicaCount": 3},
        (),
        ("shards is 2 and replicaCount 3", "set shards to 3 or more"),
    ),
    "too many shards": ({"shards": 65}, (), ("/shards", "maximum: got 65, want 64")),
    "one port for two": ({"ports": {"probes": 9090}}, (), ("must be three ports",)),
    "a page that is off and shown": (
        {"page": {"enabled": False, "expose": True}},
        (),
        ("page.expose needs page.enabled",),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_values_are_refused_with_the_next_step(helm: Helm, case: str) -> None:
    """The error names the bad value and the next step."""
    given, more, said = REFUSALS[case]
    with pytest.raises(HelmFailed) as refused:
        helm.template(given, *more)
    for text in said:
        assert text in str(refused.value)


def test_values_that_do_not_parse_name_file_and_line(helm: Helm, tmp_path: Path) -> None:
    """For broken YAML, helm's error names the file and the line."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("registry:\n  data: [\n")
    with pytest.raises(HelmFailed, match=r"bad\.yaml: .*line 2"):
        helm.template(bad)


def test_installation_fails_without_the_registry(helm: Helm, hub_cluster: ApiServer) -> None:
    """Without the registry's ConfigMap, Secret or key, installation fails with the command or value that helps."""
    api = hub_cluster.api
    add_namespace(api, NAMESPACE)
    for kind, flag in (("ConfigMap", "existingConfigMap"), ("Secret", "existingSecret")):
        given = {"registry": {flag: "clusters"}}
        command = (
            f"create {'configmap' if kind == 'ConfigMap' else 'secret generic'} clusters --from-file=clusters.yaml="
        )
        with pytest.raises(HelmFailed) as refused:
            helm.install(given)
        assert f"no {kind} clusters in namespace {NAMESPACE}" in str(refused.value)
        assert command in str(refused.value)
        data = {"stringData": {"other": "x"}} if kind == "Secret" else {"data": {"other": "x"}}
        api.post(f"/api/v1/namespaces/{NAMESPACE}/{kind.lower()}s", {"metadata": {"name": "clusters"}, **data})
        with pytest.raises(HelmFailed, match=r"has no key clusters\.yaml: it has other; set registry.key"):
            helm.install(given)
        assert "helm" not in helm.run("list", "-q", "-n", NAMESPACE)
    notes = helm.install({"registry": {"existingConfigMap": "missing"}, "lookup": False})
    assert f"owner: {OWNER}" in notes


def test_missing_secrets_are_in_the_notes(helm: Helm, world: World) -> None:
    """A missing kubeconfig Secret does not prevent installation. The notes show the command that creates it."""
    assert world.remotes
    given = values()
    given["registry"]["data"]["clusters"].append(cluster("asia"))
    notes = helm.install(given)
    assert "MISSING: the registry names Secret asia" in notes
    assert f"kubectl -n {SECRETS} create secret generic asia --from-file=kubeconfig=FILE" in notes
    assert "Secret eu" not in notes


def test_missing_services_are_in_the_notes(helm: Helm, world: World) -> None:
    """The notes name Services of the registry that do not exist, but not those that exist or that the release makes."""
    given = values()
    here = world.hub_cluster.api
    there, made = (
        {"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [{"port": 443}]}}
        for name in ("there", "made")
    )
    here.post("/api/v1/namespaces/default/services", there)
    names = ("there", "made", "missing")
    sources = [{"cluster": "eu"}]
    given["registry"]["data"]["services"] = [
        {"name": name, "namespace": "default", "sources": sources} for name in names
    ]
    given["extraObjects"] = [{"apiVersion": "v1", "kind": "Service", **made}]
    notes = helm.install(given)
    assert "MISSING: the registry names Service default/missing, which does not exist" in notes
    assert "Service default/there" not in notes
    assert "Service default/made" not in notes


def test_long_names_are_shortened_to_a_label(helm: Helm) -> None:
    """The owner of a release with long names is shortened to 63 characters, and differs between releases."""
    owners = set()
    for last in ("a", "b"):
        text = helm.run("template", "r" * 50, str(CHART), "-n", "n" * 40 + last)
        [owner] = {
            yaml.safe_load(manifest["data"]["clusters.yaml"])["owner"]
            for manifest in yaml.safe_load_all(text)
            if manifest and "clusters.yaml" in manifest.get("data", {})
        }
        assert len(owner) <= 63
        owners.add(owner)
    assert len(owners) == 2


def test_shards_are_an_argument_and_the_leases_are_those_of_any_number(helm: Helm) -> None:
    """``shards`` is an argument of the hub. The role names the Leases of all possible shards, with any number."""

    def leases(objects: list[Object]) -> list[str]:
        rules = [rule for manifest in objects if manifest["kind"] == "Role" for rule in manifest["rules"]]
        return [name for rule in rules if rule["resources"] == ["leases"] for name in rule.get("resourceNames", ())]

    one, three = helm.template({}), helm.template({"shards": 3, "replicaCount": 3})
    expected = [lease_of(lease_name(OWNER), number) for number in range(MOST_SHARDS)]
    assert leases(one) == leases(three) == expected
    assert [argument for argument in arguments(three) if argument not in arguments(one)] == ["--shards=3"]


def test_arguments_are_those_of_hub_run(helm: Helm) -> None:
    """``hub run`` has every flag that any example renders."""
    command = cli.get_command(Context(cli), "run")
    assert command is not None
    known = {flag for option in command.params for flag in option.opts}
    for example in [None, *EXAMPLES]:
        given = [argument.partition("=")[0] for argument in arguments(helm.template(example))]
        assert given[0] == "run"
        assert set(given[1:]) <= known
