"""Allocations with fewer rights than they need: each missing rule is named, and nothing that needs it is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_testkit.addresses.cloud import CREDENTIAL, SimulatedCloud

from hub.cli import cli
from tests.support.allocation_scene import ONE, Settled
from tests.support.allocations import KIND, add_workload, allocation, define
from tests.support.api import STRATEGIC_PATCH, ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.helm import FULLNAME, NAMESPACE, OWNER, Helm
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.simulated_clouds import install
from tests.support.waiting import eventually

RBAC = "/apis/rbac.authorization.k8s.io/v1"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
GROUP = "netinfra.darkbrains.com"
VALUES: Object = {
    "rbac": {"scope": "namespaced", "namespaces": ["edge"]},
    "allocations": {
        "enabled": True,
        "detach": True,
        "namespaces": ["edge"],
        "eviction": "ForceDelete",
        "interlock": "edge/leader",
    },
}
"""Values with which the chart gives all rights that allocations can need."""
READ = f"netipallocations.{GROUP}: get, list, watch"
WRITE = f"netipallocations.{GROUP}: get, update"
NODES = "nodes: get, list, watch"
WORKLOADS = "deployments, statefulsets, daemonsets, replicasets: get"
PODS = "pods: list, watch"

Right = tuple[str, str, str]
"""Namespace or "", resource, verb."""
CASES: dict[Right, str] = {
    ("", "netipallocations", "list"): READ,
    ("", "netipallocations", "watch"): READ,
    ("", "netipallocations", "get"): WRITE,
    ("", "netipallocations", "update"): WRITE,
    ("", "netipallocations/status", "update"): f"netipallocations/status.{GROUP}: update",
    ("", "nodes", "list"): NODES,
    ("", "nodes", "watch"): NODES,
    ("", "nodes", "patch"): "nodes: patch",
    ("edge", "deployments", "get"): WORKLOADS,
    ("edge", "statefulsets", "get"): WORKLOADS,
    ("edge", "daemonsets", "get"): WORKLOADS,
    ("edge", "replicasets", "get"): WORKLOADS,
    ("edge", "pods", "list"): PODS,
    ("edge", "pods", "watch"): PODS,
    ("edge", "pods/eviction", "create"): "pods/eviction: create",
    ("edge", "pods", "delete"): "pods: delete",
    ("edge", "leases", "get"): "leases: get",
    ("default", "events", "create"): "no Events in namespace default: 403",
}
"""A right of the chart -> what the hub says without it."""
UNNOTICED: frozenset[Right] = frozenset({("", "nodes", "get"), ("default", "events", "patch")})
"""Nodes are only listed and watched. Without patch, a repeated Event is not counted up."""


@pytest.fixture(scope="module")
def rights(tmp_path_factory: pytest.TempPathFactory) -> dict[Right, Any]:
    """The rights that the chart gives for allocations, each with its API group and names."""
    return {
        (role["metadata"].get("namespace", ""), resource, verb): (rule["apiGroups"][0], rule.get("resourceNames"))
        for role in Helm(tmp_path_factory.mktemp("helm")).template(VALUES)
        if role["kind"] in ("ClusterRole", "Role") and role["metadata"]["name"].endswith("-allocations")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
def scene(hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settled:
    """Two addresses at n1 and n2 with labels; n3 is free."""
    return Settled(hub_cluster, tmp_path, monkeypatch)


def forget(server: ApiServer, resource: str = "") -> None:
    """Take the cluster-wide roles of the hub's account away: all, or those with a rule about a resource."""
    for role in server.api.list(f"{RBAC}/clusterroles"):
        resources = {each for rule in role["rules"] or () for each in rule.get("resources", ())}
        if role["metadata"]["name"].startswith("hub-") and (not resource or resource in resources):
            server.api.delete(f"{RBAC}/clusterroles/{role['metadata']['name']}")
            gone = {"apiGroups": [""], "resources": [resource], "verbs": ["list"]}
            if resource:
                eventually(lambda: not server.allows("hub", gone))  # noqa: B023 - called before the next iteration


def give(server: ApiServer, rights: dict[Right, Any]) -> None:
    """Give the hub's account the hub's own rights, these ones, and no others."""
    forget(server)
    own = [rule for rule in HUB_RULES if not {"events", "leases"} & set(rule["resources"])]
    leases = [rule for rule in HUB_RULES if "leases" in rule["resources"]]
    events = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
    for namespace in sorted({namespace for namespace, _, _ in rights}):
        rules = [
            {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
            | ({"resourceNames": names} if names else {})
            for (where, resource, verb), (group, names) in rights.items()
            if where == namespace
        ]
        server.grant("hub", *rules, namespace=namespace or None)
    server.grant("hub", events, namespace="edge")
    server.grant("hub", *leases, namespace="default")
    server.grant("hub", *own)


def needs(scene: Settled, right: Right) -> None:
    """Make the hub need a right."""
    _, resource, verb = right
    kinds = {"statefulsets": "StatefulSet", "daemonsets": "DaemonSet"}
    match resource:
        case "netipallocations" if verb in ("get", "update"):
            scene.api.patch(f"{KIND}/web", {"spec": {"releasePolicy": "Detach"}})
        case "nodes" if verb == "patch":
            scene.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"ip.ready": None}}})
        case "leases":
            scene.registry(interlock="edge/leader")
        case "deployments" | "statefulsets" | "daemonsets" | "replicasets" | "pods" | "pods/eviction":
            add_workload(scene.api)
            reference = {"kind": kinds.get(resource, "Deployment"), "name": "web", "namespace": "edge"}
            scene.api.patch(f"{KIND}/web", {"spec": {"workloadRef": reference}})
            if verb in ("create", "delete"):
                scene.registry(eviction="ForceDelete")
                eviction = "ForceDelete" if verb == "delete" else "Evict"
                scene.api.patch(f"{KIND}/web", {"spec": {"cordonedHold": "1s", "eviction": eviction}})
            scene.cordon("n1")
        case "events":
            scene.cloud.reserve("198.18.0.9")
            scene.api.patch(f"{KIND}/web", {"spec": {"reservedIPs": [ONE, "198.18.0.2", "198.18.0.9"]}})


def said(scene: Settled, running: RunningHub) -> list[str]:
    """What the status of the allocation, its Events and the hub itself say is wrong."""
    stalled = scene.condition("Stalled")
    return [
        running.hub.trouble,
        *([f"{stalled['reason']}: {stalled['message']}"] if stalled.get("status") == "True" else ()),
        *(event["note"] for event in scene.api.list(EVENTS) if event["regarding"]["kind"] == "NetIPAllocation"),
    ]


def test_cases_are_all_rights_of_the_chart(rights: dict[Right, Any]) -> None:
    """Each right that the chart gives for allocations has a case below."""
    assert rights.keys() == CASES.keys() | UNNOTICED


LONG: frozenset[Right] = frozenset({("edge", "pods/eviction", "create"), ("edge", "pods", "delete")})
"""Rights that are needed only after a whole move."""


@pytest.mark.parametrize(
    "right",
    [pytest.param(right, marks=[pytest.mark.nightly] if right in LONG else []) for right in CASES],
    ids=lambda right: " ".join(filter(None, right)),
)
def test_missing_right_is_named(
    scene: Settled, hub_cluster: ApiServer, rights: dict[Right, Any], right: Right, caplog: pytest.LogCaptureFixture
) -> None:
    """With all rights of the chart but one, the hub names that rule in the status, in an Event or on its page."""
    needs(scene, right)
    give(hub_cluster, {each: group for each, group in rights.items() if each != right})
    with RunningHub(scene.world) as running:
        eventually(lambda: any(CASES[right] in text for text in said(scene, running)), 60)
        texts = [text for text in said(scene, running) if CASES[right] in text]
        if right[1] != "events" and right[2] not in ("list", "watch"):
            assert any("the chart's value allocations." in text for text in texts), texts
    warned = [record.message for record in caplog.records if f"«{CASES[right]}»" in record.message]
    assert len(warned) == len(set(warned))


def test_hub_continues_when_a_right_is_granted(
    scene: Settled, hub_cluster: ApiServer, rights: dict[Right, Any]
) -> None:
    """Without the right to write statuses nothing changes; with it the hub puts the label back."""
    status = ("", "netipallocations/status", "update")
    give(hub_cluster, {each: group for each, group in rights.items() if each != status})
    scene.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"ip.ready": None}}})
    with RunningHub(scene.world) as running:
        eventually(lambda: "netipallocations/status" in running.hub.trouble, 20)
        time.sleep(2.0)
        assert scene.labelled() == ["n2"]
        hub_cluster.grant("hub", {"apiGroups": [GROUP], "resources": ["netipallocations/status"], "verbs": ["update"]})
        eventually(lambda: scene.labelled() == ["n1", "n2"], 40)
        eventually(lambda: "netipallocations/status" not in running.hub.trouble)
        eventually(lambda: scene.condition("Stalled").get("status") == "False")


ORIGINAL: Sequence[Object] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete", "patch"]},
    {
        "apiGroups": ["apps"],
        "resources": ["deployments", "statefulsets", "daemonsets", "replicasets"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "update", "patch"],
    },
    {"apiGroups": [GROUP], "resources": ["netipallocations"], "verbs": ["get", "list", "watch"]},
)
"""The role of ip-address-controller v1.1.0."""


@pytest.mark.parametrize(
    "own", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["alone", "with the hub's own"]
)
def test_role_of_the_original_controller_lets_the_hub_read_only(
    scene: Settled, hub_cluster: ApiServer, caplog: pytest.LogCaptureFixture, *, own: bool
) -> None:
    """The hub reads allocations, nodes and the cloud, names each missing rule once, and changes nothing."""
    give(hub_cluster, {})
    hub_cluster.grant("hub", *ORIGINAL)
    if not own:
        forget(hub_cluster, "services")
    scene.cordon("n1")
    scene.api.patch("/api/v1/nodes/n2", {"metadata": {"labels": {"ip.ready": None}}})
    before = scene.api.get(f"{KIND}/web")
    mark = hub_cluster.audit_mark()
    with RunningHub(scene.world) as running:
        rule = f"«netipallocations/status.{GROUP}: update»" if own else "«services: get, list, watch»"
        eventually(lambda: rule in running.hub.trouble, 20)
        eventually(lambda: running.hub.allocating is not None and running.hub.allocating.verdicts, 20)
        time.sleep(12.0)  # two looks at the cloud, and the time that a drained node keeps its address
    assert scene.cloud.log
    assert scene.cloud.changes == scene.written
    assert scene.labelled() == ["n1"]
    assert scene.api.get(f"{KIND}/web") == before
    writes = [found for found in hub_cluster.requests(mark, "hub") if found.writes]
    assert {found.resource for found in writes if found.status < 400} <= ({"leases", "configmaps"} if own else set())
    assert "nodes" not in {found.resource for found in writes}
    warned = [record.getMessage() for record in caplog.records if "lacks the rule" in record.getMessage()]
    assert [rule in text for text in warned].count(True) == 1, warned
    assert len(warned) == len(set(warned)), warned


# --- another cluster -------------------------------------------------------------------------------------


@pytest.fixture
def two(
    hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, SimulatedCloud]:
    """The nodes m1 and m2 in another cluster, which the hub does not know yet, and an allocation for it."""
    monkeypatch.chdir(tmp_path)
    define(hub_cluster.api)
    cloud = SimulatedCloud()
    install(monkeypatch)["main"] = cloud
    remote = remote_clusters[0]
    world = World(tmp_path, hub_cluster, {"eu": remote})
    hub_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "hub-secrets"}})
    read = {"apiGroups": [GROUP], "resources": ["netipallocations"], "verbs": ["get", "list", "watch"]}
    status = {"apiGroups": [GROUP], "resources": ["netipallocations/status"], "verbs": ["update"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    hub_cluster.grant("hub", *HUB_RULES, read, status, nodes)
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch", "update"]}
    hub_cluster.grant("hub", secrets, namespace="hub-secrets")
    hub_cluster.kubeconfig(world.kubeconfig, "hub")
    hub_cluster.kubeconfig(tmp_path / "hub-admin")
    remote.kubeconfig(tmp_path / "admin.conf")
    (tmp_path / "credential").write_text(CREDENTIAL)
    for name in ("m1", "m2"):
        node = cloud.add_instance(name, ephemeral=True)
        add_node(remote, name, f"10.1.0.{name[1]}")
        remote.api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": node.provider_id}})
    cloud.reserve(ONE)
    account = {
        "name": "main",
        "provider": "simulated-cloud",
        "config": {"cloud": "main", "credential": {"file": "credential"}},
        "addresses": ["198.18.0.0/24"],
        "clusters": ["eu"],
        "interval": "10s",
    }
    world.write_text(
        "version: 1\nclusters:\n  - name: legacy\n    allowedCIDRs: [10.9.0.0/24]\n"
        "    provider: {name: inventory, config: {file: legacy.json}}\n"
    )
    (tmp_path / "legacy.json").write_text("[]")
    add(())
    text = yaml.safe_load(world.path.read_text())
    world.write_text(yaml.safe_dump({**text, "allocations": {"mode": "enforce", "clouds": [account]}}))
    spec = {"reservedIPs": [ONE], "cloud": {"provider": "simulated-cloud"}, "cluster": "eu", "reconcileInterval": 5}
    hub_cluster.api.post(KIND, allocation("web", **spec))
    return world, cloud


def add(options: Sequence[str]) -> None:
    """Run ``hub cluster add eu`` with these options."""
    where = ("--kubeconfig", "hub-admin", "--secrets-namespace", "hub-secrets", "--registry", "clusters.yaml")
    with pytest.raises(SystemExit) as end:
        cli.main(args=["cluster", "add", "eu", "--from-kubeconfig", "admin.conf", "--apply", *where, *options])
    assert not end.value.code


def stalled(world: World) -> str:
    """Reason and message of the condition Stalled; "" if it is not true."""
    conditions = world.hub_cluster.api.get(f"{KIND}/web").get("status", {}).get("conditions", ())
    found = [each for each in conditions if each["type"] == "Stalled" and each["status"] == "True"]
    return f"{found[0]['reason']}: {found[0]['message']}" if found else ""


def labelled(world: World) -> list[str]:
    """The nodes of the other cluster with the label."""
    found = world.remotes["eu"].api.list("/api/v1/nodes", labelSelector="ip.ready=true")
    return [node["metadata"]["name"] for node in found]


def test_address_of_another_cluster_needs_the_option(two: tuple[World, SimulatedCloud]) -> None:
    """Without --allow-allocations the status names that command; with it, the node with the address has the label."""
    world, cloud = two
    with RunningHub(world, secrets_namespace="hub-secrets"):
        eventually(lambda: "Forbidden" in stalled(world), 40)
        message = stalled(world)
        assert "«nodes: patch» in cluster eu; hub cluster add eu --allow-allocations grants it" in message
        assert labelled(world) == []
        add(["--allow-allocations"])
        eventually(lambda: cloud.holder_of(ONE) and labelled(world) == [cloud.holder_of(ONE)], 60)
        eventually(lambda: not stalled(world))


@pytest.mark.nightly
def test_pods_of_another_cluster_need_the_option(two: tuple[World, SimulatedCloud]) -> None:
    """Without --allow-evictions the status names it, and the address still moves; with it, the Pod left is evicted."""
    world, cloud = two
    add(["--allow-allocations"])
    remote = world.remotes["eu"].api
    with RunningHub(world, secrets_namespace="hub-secrets"):
        eventually(lambda: cloud.holder_of(ONE) and labelled(world) == [cloud.holder_of(ONE)], 60)
        first = cloud.holder_of(ONE)
        other = "m2" if first == "m1" else "m1"
        add_workload(remote, first)
        reference = {"kind": "Deployment", "name": "web", "namespace": "edge"}
        changes = {"workloadRef": reference, "cordonedHold": "1s"}
        world.hub_cluster.api.patch(f"{KIND}/web", {"spec": changes})
        remote.patch(f"/api/v1/nodes/{first}", {"spec": {"unschedulable": True}})
        option = "hub cluster add eu --allow-allocations --allow-evictions edge grants it"
        eventually(lambda: WORKLOADS in stalled(world) and option in stalled(world), 40)
        eventually(lambda: (cloud.holder_of(ONE), labelled(world)) == (other, [other]), 60)

        def entry() -> list[str]:
            [found] = world.hub_cluster.api.get(f"{KIND}/web")["status"]["addresses"]
            return [found.get(key) for key in ("state", "node", "lastNode")]

        eventually(lambda: entry() == ["Attached", other, first])
        pod = "/api/v1/namespaces/edge/pods/web-1-a"
        assert "deletionTimestamp" not in remote.get(pod)["metadata"]
        add(["--allow-allocations", "--allow-evictions", "edge"])
        eventually(
            lambda: "deletionTimestamp" in (remote.find(pod) or {"metadata": "deletionTimestamp"})["metadata"], 60
        )
        eventually(lambda: not stalled(world), 40)


# --- the admission policy --------------------------------------------------------------------------------


def labels(scene: Settled) -> dict[str, str]:
    """The nodes with an address label, and its value."""
    found = scene.api.list("/api/v1/nodes", labelSelector="example.com/address")
    return {node["metadata"]["name"]: node["metadata"]["labels"]["example.com/address"] for node in found}


def test_hub_labels_under_the_charts_admission_policy(scene: Settled, hub_cluster: ApiServer, tmp_path: Path) -> None:
    """With the chart's account and policy the hub moves labels; every other change of a Node is refused."""
    values = {"allocations": {"enabled": True, "crd": False, "addressLabels": ["example.com/address"]}}
    Helm(tmp_path, hub_cluster).install(values)
    token = hub_cluster.service_account_token(NAMESPACE, FULLNAME)
    hub_cluster.kubeconfig(scene.world.kubeconfig, token=token)
    scene.world.write_text(f"owner: {OWNER}\n{scene.world.path.read_text()}")
    account = hub_cluster.api_with(token)

    def refusal(change: Object) -> str:
        try:
            account.patch("/api/v1/nodes/n1", change, STRATEGIC_PATCH, dryRun="All")
        except ApiRefused as refused:
            return str(refused)
        return ""

    eventually(lambda: "changes nothing but labels of Nodes" in refusal({"spec": {"unschedulable": True}}), 20)
    scene.api.patch(f"{KIND}/web", {"spec": {"addressLabel": "example.com/address"}})
    with RunningHub(scene.world, namespace=NAMESPACE):
        eventually(lambda: labels(scene) == {"n1": ONE, "n2": "198.18.0.2"}, 30)
        scene.cordon("n1")
        scene.moved(60)
    assert labels(scene) == {"n2": "198.18.0.2", "n3": ONE}
    for change in (
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"labels": {"role": "web"}}},
    ):
        assert "this account" in refusal(change), change
