"""Pods that stay behind, and addresses that leave their allocation, on real API servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hub_testkit.addresses.cloud import CREDENTIAL, EPHEMERAL, SimulatedCloud

from hub.allocations.spec import stamp
from hub.allocations.view import Evict, Finalize, Label, Verdict
from hub.cli import cli
from tests.support.allocation_scene import ONE, RULES, STATUS_RULE, TWO, Settled
from tests.support.allocations import DEFINITION, KIND, add_workload, allocation, define
from tests.support.api import Object
from tests.support.apiserver.controllers import CONTROLLERS, ControllerManager
from tests.support.apiserver.server import ApiServer
from tests.support.helm import FULLNAME, NAMESPACE, OWNER, RELEASE, Helm
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.simulated_clouds import install
from tests.support.waiting import eventually

FINALIZER = "netinfra.darkbrains.com/release"
UPDATE: Object = {
    "apiGroups": ["netinfra.darkbrains.com"],
    "resources": ["netipallocations"],
    "verbs": ["get", "list", "watch", "update"],
}
WORKLOAD: tuple[Object, ...] = (
    {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
)
PODS = "/api/v1/namespaces/edge/pods"
REFERENCE = {"kind": "Deployment", "name": "web", "namespace": "edge"}


@pytest.fixture
def scene(hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settled:
    """Two addresses at n1 and n2 with labels; n3 is free."""
    made = Settled(hub_cluster, tmp_path, monkeypatch)
    hub_cluster.grant("hub", UPDATE)
    hub_cluster.grant("hub", *WORKLOAD, namespace="edge")
    return made


def spec(scene: Settled, **changes: object) -> None:
    """Change the allocation."""
    scene.api.patch(f"{KIND}/web", {"spec": changes})


def notes(scene: Settled, reason: str) -> list[str]:
    """The messages of the Events of the allocation with a reason."""
    events = scene.api.list("/apis/events.k8s.io/v1/namespaces/default/events")
    return [event["note"] for event in events if event["reason"] == reason]


# --- Pods that a drain leaves ------------------------------------------------------------------------------


def pod_on(scene: Settled, name: str, owner: Object | None = None, **annotations: str) -> str:
    """Create a Pod on n1; returns its path."""
    owners = [{**owner, "controller": True}] if owner else []
    meta = {"name": name, "annotations": annotations, "ownerReferences": owners}
    container = {"name": "web", "image": "none"}
    scene.api.post(PODS, {"metadata": meta, "spec": {"nodeName": "n1", "containers": [container]}})
    return f"{PODS}/{name}"


@pytest.mark.parametrize("granted", [True, False], ids=["all Pods", "no right"])
def test_an_autoscaler_ends_the_hold_of_a_daemonset(scene: Settled, hub_cluster: ApiServer, *, granted: bool) -> None:
    """The address leaves when only Pods of DaemonSets and static Pods are left, if the hub may list all Pods."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "none"}]}}
    apps = "/apis/apps/v1/namespaces/edge/daemonsets"
    body = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    uid = scene.api.post(apps, body)["metadata"]["uid"]
    pod_on(scene, "web-1", {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": uid})
    pod_on(scene, "static", None, **{"kubernetes.io/config.mirror": "abc"})
    other = pod_on(scene, "other") if granted else ""
    spec(scene, workloadRef={**REFERENCE, "kind": "DaemonSet"})
    daemonsets = {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]}
    hub_cluster.grant("hub", daemonsets, namespace="edge")
    if granted:
        hub_cluster.grant("hub", {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    with RunningHub(scene.world) as running:
        scene.api.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True, "taints": [taint]}})

        def known() -> list[int]:
            allocating = running.hub.allocating
            assert allocating is not None
            assert "still runs there" in allocating.verdicts.get(ONE, Verdict(ONE, "web", "")).message
            return [pods.others for pods in allocating.pods.found.values()]

        assert eventually(known, 30) == [1], "not known without the right"
        if granted:
            scene.api.delete(other, gracePeriodSeconds=0)
            eventually(lambda: scene.cloud.holder_of(ONE) == "n3", 40)


# --- Pods that stay behind ---------------------------------------------------------------------------------


@pytest.fixture
def controllers(hub_cluster: ApiServer) -> Iterator[ControllerManager]:
    """The controllers of Deployments, ReplicaSets and PodDisruptionBudgets."""
    more = ("deployment-controller", "replicaset-controller", "disruption-controller")
    with ControllerManager(hub_cluster, (*CONTROLLERS, *more)) as manager:
        yield manager


def leaves(scene: Settled, path: str) -> bool:
    """Whether a Pod is gone, or is being deleted: no kubelet ends it here."""
    pod = scene.api.find(path)
    return pod is None or "deletionTimestamp" in pod["metadata"]


def running_pod(scene: Settled) -> Object:
    """The Pod of a Deployment edge/web with one replica, running on n1 and protected by a PodDisruptionBudget."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "none"}]}}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    budgets = "/apis/policy/v1/namespaces/edge/poddisruptionbudgets"
    scene.api.post("/apis/apps/v1/namespaces/edge/deployments", {"metadata": {"name": "web"}, "spec": deployment})
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    scene.api.post(budgets, {"metadata": {"name": "web"}, "spec": budget})
    [pod] = eventually(lambda: scene.api.list(PODS), 30)
    path = f"{PODS}/{pod['metadata']['name']}"
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    scene.api.post(f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})
    condition = {"type": "Ready", "status": "True"}
    pod = scene.api.patch(f"{path}/status", {"status": {"phase": "Running", "conditions": [condition]}})
    eventually(lambda: scene.api.get(f"{budgets}/web")["status"].get("currentHealthy") == 1, 30)
    return pod


def test_pod_disruption_budget_keeps_the_pod_while_the_address_moves(
    scene: Settled, controllers: ControllerManager
) -> None:
    """The eviction gets a real 429: the Pod stays, the address moves, an Event says why; without the budget it goes."""
    pod = running_pod(scene)
    spec(scene, workloadRef=REFERENCE, cordonedHold="1s")
    path = f"{PODS}/{pod['metadata']['name']}"
    scene.cordon("n1")
    with RunningHub(scene.world):
        scene.moved(60)
        [note] = eventually(lambda: notes(scene, "EvictionBlocked"), 40)
        assert "stays on node n1" in note
        assert "429" in note
        assert "deletionTimestamp" not in scene.api.get(path)["metadata"]
        scene.api.delete("/apis/policy/v1/namespaces/edge/poddisruptionbudgets/web")
        eventually(lambda: leaves(scene, path), 60)
    assert controllers.process.alive


@pytest.mark.parametrize("ceiling", ["Evict", pytest.param("ForceDelete", marks=pytest.mark.nightly)])
def test_force_delete_needs_the_ceiling(scene: Settled, hub_cluster: ApiServer, ceiling: str) -> None:
    """An allocation that asks for ForceDelete gets evictions, unless the registry permits ForceDelete too."""
    scene.registry(eviction=ceiling)
    add_workload(scene.api)
    spec(scene, workloadRef=REFERENCE, cordonedHold="1s", eviction="ForceDelete")
    mark = hub_cluster.audit_mark()
    scene.cordon("n1")

    def writes() -> set[tuple[str, str]]:
        found = hub_cluster.requests(mark, "hub")
        return {(each.verb, each.resource) for each in found if each.resource.startswith("pods") and each.writes}

    with RunningHub(scene.world):
        scene.moved(60)
        found = eventually(writes, 40)
        eventually(lambda: leaves(scene, f"{PODS}/web-1-a"))
    assert found == ({("delete", "pods")} if ceiling == "ForceDelete" else {("create", "pods/eviction")})


# --- mode observe ------------------------------------------------------------------------------------------


def test_mode_observe_writes_statuses_only(scene: Settled, hub_cluster: ApiServer) -> None:
    """A move, a label, a finalizer and an eviction are due: the hub shows them all, and writes only the status."""
    scene.registry(mode="observe")
    add_workload(scene.api, "n3")
    spec(scene, workloadRef=REFERENCE, cordonedHold="1s", releasePolicy="Detach")
    object_ = scene.api.get(f"{KIND}/web")
    object_["status"]["addresses"][1].update(lastNode="n3", moves=[stamp(time.time() + 1)])
    scene.api.put(f"{KIND}/web/status", object_)
    scene.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"ip.ready": None}}})
    scene.cordon("n1")
    mark = hub_cluster.audit_mark()

    def due(running: RunningHub) -> bool:
        allocating = running.hub.allocating
        plan = allocating.plans.get("main") if allocating is not None else None
        assert plan is not None
        assert {type(act) for act in plan.halted} == {Label, Evict, Finalize}, plan.halted
        assert (plan.verdicts[ONE].reason, plan.verdicts[ONE].to) == ("Observe", "n3"), plan.verdicts
        return True

    with RunningHub(scene.world) as running:
        eventually(lambda: due(running), 30)
        eventually(lambda: scene.entry().get("reason") == "Observe")
        time.sleep(2.0)
    assert not [call for call in scene.cloud.log if call.kind == "write"]
    written = {each.resource for each in hub_cluster.requests(mark, "hub") if each.writes}
    assert written - {"leases", "events", "configmaps"} == {"netipallocations/status"}


# --- release -----------------------------------------------------------------------------------------------


def test_retain_changes_nothing_when_the_allocation_is_deleted(scene: Settled) -> None:
    """The default: the object is gone at once; addresses and labels stay."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 20)
        scene.api.delete(f"{KIND}/web")
        assert not scene.api.exists(f"{KIND}/web")
        scene.untouched(3.0)


def test_retain_takes_only_the_label_when_an_entry_is_removed(scene: Settled) -> None:
    """An address that leaves reservedIPs stays at its node, which loses the label."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 20)
        spec(scene, reservedIPs=[TWO])
        eventually(lambda: scene.labelled() == ["n2"], 20)
        eventually(lambda: not scene.entry(ONE), 20)
    assert scene.cloud.changes == scene.written


def detached(scene: Settled, *addresses: str) -> None:
    """Wait until addresses are free, and their nodes are without label and have their ephemeral addresses back."""
    nodes = {ONE: "n1", TWO: "n2"}
    left = {nodes[address] for address in addresses}

    def check() -> bool:
        assert [scene.cloud.holder_of(address) for address in addresses] == [""] * len(addresses), scene.cloud.effects
        assert scene.labelled() == sorted(set(nodes.values()) - left)
        assert all(scene.cloud.instance(node).ephemeral == EPHEMERAL for node in left), scene.cloud.effects
        return True

    eventually(check, 40)


def test_detach_releases_the_addresses_of_a_deleted_allocation(scene: Settled) -> None:
    """The finalizer keeps the object until its addresses are detached, their nodes restored and without label."""
    spec(scene, releasePolicy="Detach")
    with RunningHub(scene.world):
        eventually(lambda: scene.api.get(f"{KIND}/web")["metadata"].get("finalizers") == [FINALIZER], 20)
        scene.api.delete(f"{KIND}/web")
        detached(scene, ONE, TWO)
        eventually(lambda: not scene.api.exists(f"{KIND}/web"), 20)
    assert sorted(effect.action for effect in scene.cloud.effects) == ["detach", "detach", "restore", "restore"]


def test_detach_releases_an_entry_that_is_removed(scene: Settled) -> None:
    """The address is detached and its node restored; the rest of the allocation stays."""
    spec(scene, releasePolicy="Detach")
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 20)
        spec(scene, reservedIPs=[TWO])
        detached(scene, ONE)
        eventually(lambda: not scene.entry(ONE), 20)
    assert scene.cloud.holder_of(TWO) == "n2"


def test_finalizer_goes_with_the_policy(scene: Settled) -> None:
    """Back at Retain the finalizer is taken off, and deleting the allocation changes nothing."""
    spec(scene, releasePolicy="Detach")
    with RunningHub(scene.world):
        eventually(lambda: scene.api.get(f"{KIND}/web")["metadata"].get("finalizers") == [FINALIZER], 20)
        spec(scene, releasePolicy="Retain")
        eventually(lambda: "finalizers" not in scene.api.get(f"{KIND}/web")["metadata"], 20)
        scene.api.delete(f"{KIND}/web")
        scene.untouched(3.0)


@pytest.mark.nightly
def test_cloud_that_fails_keeps_the_finalizer(scene: Settled) -> None:
    """Without an answer of the cloud the deletion waits, and the status says how to let the object go."""
    spec(scene, releasePolicy="Detach")
    with RunningHub(scene.world):
        eventually(lambda: scene.api.get(f"{KIND}/web")["metadata"].get("finalizers") == [FINALIZER], 20)
        scene.cloud.fail("error", times=None)
        eventually(lambda: scene.entry().get("state") == "Unknown", 40)
        scene.api.delete(f"{KIND}/web")
        eventually(lambda: "remove the finalizer" in scene.entry().get("message", ""), 20)
        assert scene.cloud.changes == scene.written
        scene.cloud.heal()
        eventually(lambda: not scene.api.exists(f"{KIND}/web"), 60)
    detached(scene, ONE, TWO)


# --- uninstall -----------------------------------------------------------------------------------------------


def test_uninstalled_chart_leaves_everything_and_purge_lets_go(
    hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind, allocation, finalizer, labels and addresses stay; after a purge the allocation can go; addresses stay."""
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    meta = DEFINITION["metadata"]
    meta = {**meta, "annotations": meta["annotations"] | owner, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    scene = Settled(hub_cluster, tmp_path, monkeypatch, definition={**DEFINITION, "metadata": meta})
    helm = Helm(tmp_path, hub_cluster)
    values = {"allocations": {"enabled": True, "detach": True}}
    notes = helm.install(values)
    hub_cluster.kubeconfig(scene.world.kubeconfig, token=hub_cluster.service_account_token(NAMESPACE, FULLNAME))
    scene.world.write_text(f"owner: {OWNER}\n{scene.world.path.read_text()}")
    spec(scene, releasePolicy="Detach")
    with RunningHub(scene.world, namespace=NAMESPACE):
        eventually(lambda: scene.api.get(f"{KIND}/web")["metadata"].get("finalizers") == [FINALIZER], 20)

    roles = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OWNER}-endpointslice-hub-allocations"
    assert scene.api.exists(roles)
    helm.run("uninstall", RELEASE, "-n", NAMESPACE)
    assert not scene.api.exists(roles)
    scene.api.delete(f"{KIND}/web")
    assert scene.api.get(f"{KIND}/web")["metadata"]["finalizers"] == [FINALIZER]
    scene.untouched(0.5)

    command = "hub purge --allocations"
    assert command in notes
    kubeconfig = str(hub_cluster.kubeconfig(tmp_path / "admin"))
    result = CliRunner().invoke(cli, [*command.split()[1:], "--yes", "--kubeconfig", kubeconfig])
    assert result.output.splitlines()[-1] == "1 finalizer and the labels of 2 nodes removed"
    assert not scene.api.exists(f"{KIND}/web")
    assert scene.labelled() == []
    assert (scene.cloud.holder_of(ONE), scene.cloud.holder_of(TWO)) == ("n1", "n2")
    assert scene.cloud.changes == scene.written
    helm.install(values)  # the release may come back, with the definition that stayed


# --- an unreachable cluster --------------------------------------------------------------------------------


class Remote:
    """A node m1 of the cluster eu with an address, in an allocation with releasePolicy Detach."""

    def __init__(self, server: ApiServer, remote: ApiServer, folder: Path, patch: pytest.MonkeyPatch) -> None:
        define(server.api)
        self.api, self.remote = server.api, remote
        self.cloud = SimulatedCloud()
        install(patch)["main"] = self.cloud
        self.world = World(folder, server, {"eu": remote}).prepare()
        server.grant("hub", *HUB_RULES, *RULES, UPDATE, STATUS_RULE)
        remote.grant("hub", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]})
        (folder / "credential").write_text(CREDENTIAL)
        node = self.cloud.add_instance("m1", ephemeral=True)
        add_node(remote, "m1", "10.1.0.1")
        remote.api.patch("/api/v1/nodes/m1", {"spec": {"providerID": node.provider_id}})
        self.cloud.reserve(ONE)
        account = {
            "name": "main",
            "provider": "simulated-cloud",
            "config": {"cloud": "main", "credential": {"file": "credential"}},
            "addresses": ["198.18.0.0/24"],
            "clusters": ["eu"],
            "interval": "10s",
        }
        text = {"version": 1, "clusters": [self.world.cluster("eu")]}
        self.world.write_text(yaml.safe_dump({**text, "allocations": {"mode": "enforce", "clouds": [account]}}))
        cloud = {"provider": "simulated-cloud"}
        wanted = {"cloud": cloud, "cluster": "eu", "reconcileInterval": 5, "releasePolicy": "Detach"}
        self.api.post(KIND, allocation("web", reservedIPs=[ONE], **wanted))

    def labelled(self) -> list[str]:
        """The nodes of eu with the label."""
        found = self.remote.api.list("/api/v1/nodes", labelSelector="ip.ready=true")
        return [node["metadata"]["name"] for node in found]

    def message(self) -> str:
        """State and message of the address."""
        entries = self.api.get(f"{KIND}/web").get("status", {}).get("addresses", ())
        return " ".join(f"{entry['state']}: {entry.get('message', '')}" for entry in entries)


@pytest.mark.nightly
def test_unreachable_cluster_keeps_the_finalizer(
    hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion waits, also in a hub that has never reached the cluster; the status says how to let go."""
    scene = Remote(hub_cluster, remote_clusters[0], tmp_path, monkeypatch)
    with RunningHub(scene.world):
        eventually(lambda: (scene.cloud.holder_of(ONE), scene.labelled()) == ("m1", ["m1"]), 40)
        eventually(lambda: scene.message() == "Attached: ", 20)
        written = scene.cloud.changes
        scene.remote.kill()
        eventually(lambda: "eu" in conditions(scene).get("Stalled", ""), 40)
        scene.api.delete(f"{KIND}/web")
        eventually(lambda: "remove the finalizer" in scene.message(), 20)
    with RunningHub(scene.world):
        time.sleep(12.0)  # two looks at the cloud
        assert "remove the finalizer" in scene.message()
        assert scene.api.get(f"{KIND}/web")["metadata"]["finalizers"] == [FINALIZER]
        assert (scene.cloud.holder_of(ONE), scene.cloud.changes) == ("m1", written)
        scene.remote.restart()
        eventually(lambda: not scene.api.exists(f"{KIND}/web"), 90)
    assert (scene.cloud.holder_of(ONE), scene.labelled()) == ("", [])


def conditions(scene: Remote) -> dict[str, str]:
    """The messages of the conditions that are true, by type."""
    found = scene.api.get(f"{KIND}/web").get("status", {}).get("conditions", ())
    return {each["type"]: each["message"] for each in found if each["status"] == "True"}
