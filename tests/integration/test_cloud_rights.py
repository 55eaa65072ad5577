"""The cloud controller with the role that ``hub cluster add --cloud`` generates, and with each of its rules removed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hub.cli import cli
from hub.cli.cluster import provider_ids
from hub.controller.rights import IDENTITY, PART_RULES, Right, lease_rules, rights_of
from hub.onboarding.manifests import NODE_RULES, Access, manifests
from hub.report.clouds import clouds_of
from tests.support.api import Api, Object, refusal
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import UNINITIALIZED
from tests.support.helm import collection
from tests.support.hub import RunningHub
from tests.support.waiting import eventually

SERVICES = "/api/v1/namespaces/edge/services"
ACCOUNT = f"system:serviceaccount:{':'.join(Access('eu').account)}"
ALL = ("nodes", "load-balancers", "delete-nodes")


@pytest.fixture
def cloud() -> Iterator[BrightboxThread]:
    """The fake of Brightbox."""
    with BrightboxThread() as running:
        yield running


def of_parts(parts: tuple[str, ...], *, allocations: bool = False) -> list[Object]:
    """What ``hub cluster add --cloud`` creates."""
    access = Access("eu", allocations=allocations, cloud=parts, provider_ids=provider_ids("brightbox"))
    return manifests(access)


def scene_of(
    hub_cluster: ApiServer, remote: ApiServer, folder: Path, cloud: BrightboxThread, objects: Sequence[Object]
) -> BrightboxScene:
    """A cluster whose hub has the account of these manifests, and no other rights."""
    scene = BrightboxScene.create(hub_cluster, remote, folder, cloud, granted=False)
    add(remote, objects)
    remote.kubeconfig(scene.world.folder / "eu", token=remote.service_account_token(*Access("eu").account))
    return scene


def add(remote: ApiServer, objects: Sequence[Object]) -> None:
    """Create the objects of manifests, and wait until the account's first role applies."""
    for manifest in objects:
        remote.api.post(collection(remote.api, manifest), manifest)
    eventually(lambda: remote.allows(ACCOUNT, dict(NODE_RULES[0])))


def without(objects: Sequence[Object], right: Right) -> list[Object]:
    """The manifests without one right: its rule keeps the other verbs, resources and names."""
    made: list[Object] = json.loads(json.dumps(objects))
    for role in made:
        namespace = role["metadata"].get("namespace", "")
        rules: list[Object] = []
        for kept in rights_of(role.get("rules", ()), namespace):
            if kept != right:
                rule = {"apiGroups": [kept.group], "resources": [kept.resource], "verbs": [kept.verb]}
                rules.append(rule | ({"resourceNames": [kept.name]} if kept.name else {}))
        if "rules" in role:
            role["rules"] = rules
    return made


def shown(running: RunningHub) -> str:
    """What the hub says about the cluster."""
    return "".join(cluster.message for cluster in clouds_of(running.hub).clusters)


def serve(scene: BrightboxScene, running: RunningHub, *, nodes: bool = True, balancers: bool = True) -> None:
    """Make the hub do everything that these parts do; what the others do must not happen."""
    name = scene.add_node(initialized=not nodes)
    if nodes:
        eventually(lambda: scene.initialized(name), 30)
    scene.add_service()
    if balancers:
        eventually(lambda: scene.hostnames() != [], 40)
        scene.remote.api.delete(f"{SERVICES}/web")
        eventually(lambda: not scene.remote.api.exists(f"{SERVICES}/web"), 60)
        assert scene.cloud.fake.account.named("web.edge.eu") == []
    else:
        assert "finalizers" not in scene.service()["metadata"]
    assert "lacks" not in shown(running)


@pytest.mark.parametrize("parts", [ALL, ("nodes",), ("load-balancers",)], ids=",".join)
def test_the_generated_role_is_enough(
    hub_cluster: ApiServer,
    remote_clusters: Sequence[ApiServer],
    tmp_path: Path,
    cloud: BrightboxThread,
    parts: tuple[str, ...],
) -> None:
    """With the rights of its parts and no others, the hub does what these parts do, and misses nothing."""
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, of_parts(parts))
    nodes, balancers = "nodes" in parts, "load-balancers" in parts
    scene.write(
        nodes={"deleteAfter": "1s", "monitor": "5s"} | ({} if "delete-nodes" in parts else {"delete": "never"})
        if nodes
        else "off",
        **({} if balancers else {"loadBalancers": "off"}),
    )
    mark = scene.remote.audit_mark()
    with RunningHub(scene.world, **scene.options) as running:
        serve(scene, running, nodes=nodes, balancers=balancers)
    refused = [found for found in scene.remote.requests(mark, ACCOUNT) if found.status == 403]
    assert refused == []


RIGHTS = tuple(
    dict.fromkeys(
        [
            *(right for part in ALL for right in rights_of(PART_RULES[part])),
            *rights_of(lease_rules(("cloud-controller-manager",)), "kube-system"),
            IDENTITY,
        ]
    )
)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.verb} {right.what}")
def test_a_missing_right_is_named_and_its_part_stops(
    hub_cluster: ApiServer,
    remote_clusters: Sequence[ApiServer],
    tmp_path: Path,
    cloud: BrightboxThread,
    right: Right,
) -> None:
    """Without one right the hub names it and what grants it; its part writes nothing, the other part works."""
    objects = of_parts(ALL)
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, without(objects, right))
    with RunningHub(scene.world, **scene.options) as running:
        eventually(lambda: f"«{right.what}: {right.verb}»" in shown(running), 20)
        assert "hub cluster add eu --cloud=nodes,load-balancers,delete-nodes grants it" in shown(running)
        node = scene.add_node()
        scene.add_service()
        lease = right.resource == "leases"
        if lease or (right.resource.startswith("nodes") and right.verb == "patch"):
            if not lease:
                eventually(lambda: scene.hostnames() != [], 40)
            assert not scene.initialized(node)
        else:
            eventually(lambda: scene.initialized(node), 40)
        if right == Right("get", "services"):
            time.sleep(5.0)  # no request needs it: a part that began anyway would write by now
        if lease or right.resource.startswith(("services", "namespaces")):
            assert "finalizers" not in scene.service()["metadata"]
            assert scene.writes == []
        else:
            eventually(lambda: scene.hostnames() != [], 40)


def test_a_part_begins_when_its_right_is_granted(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path, cloud: BrightboxThread
) -> None:
    """Once the role has the missing rule, the hub begins without a restart, and names nothing any more."""
    right = Right("patch", "nodes/status")
    objects = of_parts(ALL)
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, without(objects, right))
    with RunningHub(scene.world, **scene.options) as running:
        eventually(lambda: "«nodes/status: patch»" in shown(running), 20)
        node = scene.add_node()
        [role] = [each for each in objects if each["kind"] == "ClusterRole" and "cloud" in each["metadata"]["name"]]
        path = f"{collection(scene.remote.api, role)}/{role['metadata']['name']}"
        scene.remote.api.patch(path, {"rules": role["rules"]})
        eventually(lambda: scene.initialized(node), 40)
        assert "lacks" not in shown(running)


# --- the admission policies ------------------------------------------------------------------------------

EVERYTHING = (
    {"apiGroups": [""], "resources": ["nodes", "nodes/status", "services", "services/status"], "verbs": ["*"]},
)
NODE, STATUS = "/api/v1/nodes/srv-aaaaa", "/api/v1/nodes/srv-aaaaa/status"
NEW = "/api/v1/nodes/srv-bbbbb"
SERVICE = f"{SERVICES}/web"
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
OTHER: Object = {"key": "team", "value": "a", "effect": "NoSchedule"}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RECORD = "endpointslice-hub/load-balancer"
CLEANUP, OWN_CLEANUP = "service.kubernetes.io/load-balancer-cleanup", "endpointslice-hub/load-balancer-cleanup"
REFUSED: Sequence[tuple[str, str, Object, str]] = (
    ("PATCH", NODE, {"metadata": {"labels": {"role": "web"}}}, "does not change the label role of Nodes"),
    ("PATCH", NODE, {"metadata": {"labels": {"a": None}}}, "does not change the label a of Nodes"),
    ("PATCH", STATUS, {"metadata": {"labels": {"role": "web"}}}, "does not change the label role of Nodes"),
    ("PATCH", NODE, {"metadata": {"annotations": {"a": "b"}}}, "no annotations, finalizers and owners of Nodes"),
    ("PATCH", NODE, {"metadata": {"finalizers": ["a.b/c"]}}, "no annotations, finalizers and owners of Nodes"),
    ("PATCH", NODE, {"spec": {"unschedulable": True}}, "nothing in the spec of Nodes but"),
    ("PATCH", NODE, {"spec": {"taints": [OTHER, {"key": "a", "effect": "NoExecute"}]}}, "only the taints"),
    ("PATCH", NODE, {"spec": {"taints": []}}, "only the taints"),
    ("PATCH", NODE, {"spec": {"taints": [OTHER, UNINITIALIZED]}}, "only the taints"),
    ("PATCH", NODE, {"spec": {"taints": [OTHER, {"key": SHUTDOWN, "effect": "NoExecute"}]}}, "only the taints"),
    ("PATCH", NEW, {"spec": {"providerID": "aws:///a/i-1"}}, "only an empty provider ID"),
    ("PATCH", NEW, {"spec": {"providerID": "brightbox://srv-bbbbb/x"}}, "only an empty provider ID"),
    ("PATCH", STATUS, {"status": {"capacity": {"cpu": "64"}}}, "nothing in the status of Nodes but"),
    ("PATCH", STATUS, {"status": {"conditions": None}}, "nothing in the status of Nodes but"),
    ("DELETE", NEW, {}, "only Nodes with a provider ID of its cloud"),
    ("POST", "/api/v1/nodes", {"metadata": {"name": "made"}}, "creates no Nodes"),
    ("PATCH", SERVICE, {"spec": {"externalName": "evil.example.com"}}, "does not change the spec of Services"),
    ("PATCH", SERVICE, {"spec": {"selector": {"app": "other"}}}, "does not change the spec of Services"),
    ("PATCH", f"{SERVICE}/status", {"metadata": {"annotations": {"a": "b"}}}, f"only the annotation {RECORD}"),
    (
        "PATCH",
        f"{SERVICE}/status",
        {"metadata": {"finalizers": ["a.b/c"]}},
        "only the finalizers",
    ),
    ("PATCH", f"{SERVICE}/status", {"metadata": {"labels": {"a": "b"}}}, "no labels and owners of Services"),
    (
        "PATCH",
        f"{SERVICE}/status",
        {"status": {"conditions": [{**dict.fromkeys(("type", "reason", "message"), "A"), "status": "True"}]}},
        "nothing in the status of Services but loadBalancer",
    ),
    ("DELETE", SERVICE, {}, "neither creates nor deletes Services"),
    (
        "POST",
        SERVICES,
        {"metadata": {"name": "made"}, "spec": {"ports": [{"port": 80}]}},
        "neither creates nor deletes Services",
    ),
)
"""Method, path and body of a request -> what the refusal says."""
ACCEPTED: Sequence[tuple[str, str, Object]] = (
    ("PATCH", NODE, {"metadata": {"labels": {"topology.kubernetes.io/zone": "gb1-a"}}}),
    ("PATCH", NODE, {"spec": {"taints": [OTHER, {"key": SHUTDOWN, "effect": "NoSchedule"}]}}),
    ("PATCH", NEW, {"spec": {"providerID": "brightbox://srv-bbbbb", "taints": []}}),
    ("PATCH", STATUS, {"status": {"addresses": [{"type": "Hostname", "address": "a"}]}}),
    ("DELETE", NODE, {}),
    ("PATCH", f"{SERVICE}/status", {"metadata": {"finalizers": [CLEANUP, OWN_CLEANUP], "annotations": {RECORD: "{}"}}}),
    ("PATCH", f"{SERVICE}/status", {"status": {"loadBalancer": {"ingress": [{"hostname": "a.example.com"}]}}}),
)
"""Requests that are accepted."""


@pytest.fixture
def account(remote_clusters: Sequence[ApiServer]) -> Api:
    """The account in a cluster with the policies, two Nodes and a Service, where RBAC allows it everything."""
    remote = remote_clusters[0]
    add(remote, of_parts(ALL))
    remote.grant(ACCOUNT, *EVERYTHING)
    labels, condition = {"a": "b"}, {"type": "Ready", "status": "True", "reason": "A", "message": ""}
    spec: Object = {"providerID": "brightbox://srv-aaaaa"}
    remote.api.post("/api/v1/nodes", {"metadata": {"name": "srv-aaaaa", "labels": labels}, "spec": spec})
    remote.api.post("/api/v1/nodes", {"metadata": {"name": "srv-bbbbb"}})
    for path, taint in ((NODE, OTHER), (NEW, UNINITIALIZED)):  # the API server has added one of its own
        remote.api.patch(path, {"spec": {"taints": [taint]}})
    remote.api.patch(STATUS, {"status": {"conditions": [condition]}})
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    remote.api.post(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
    return remote.api_with(remote.service_account_token(*Access("eu").account))


def test_the_policies_hold_the_account_to_what_the_hub_changes(account: Api) -> None:
    """Whatever RBAC allows, every other change of a Node or a Service is refused, and the message says why."""
    eventually(lambda: all(refusal(account, *REFUSED[index][:3]) for index in (0, -1)), 20)
    for method, path, body, said in REFUSED:
        found = refusal(account, method, path, body)
        assert said in found, (method, path, body, found)
        assert "ValidatingAdmissionPolicy" in found
    for method, path, body in ACCEPTED:
        assert refusal(account, method, path, body) == "", (method, path, body)


def onboard(folder: Path, *arguments: str) -> str:
    """Run ``hub cluster`` with the remote cluster's administrator; returns what it did."""
    kubeconfigs = ("--from-kubeconfig", str(folder / "admin"), "--kubeconfig", str(folder / "hub-admin"))
    done = CliRunner().invoke(cli, ["cluster", *arguments, *kubeconfigs])
    assert done.exit_code == 0, done.stderr
    return done.stderr


def test_onboarding_creates_and_removes_the_policies(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path
) -> None:
    """A second run finds everything unchanged; --without-policy creates none; removing the cluster leaves nothing."""
    remote = remote_clusters[0]
    remote.kubeconfig(tmp_path / "admin")
    hub_cluster.kubeconfig(tmp_path / "hub-admin")
    add_cloud = ("add", "eu", f"--cloud={','.join(ALL)}", "--cloud-provider", "brightbox")
    onboard(tmp_path, "remove", "eu", "--apply")
    onboard(tmp_path, *add_cloud, "--without-policy")
    assert [each for each in remote.api.list(POLICIES) if "endpointslice-hub" in each["metadata"]["name"]] == []
    first = onboard(tmp_path, *add_cloud)
    names = [f"endpointslice-hub-cloud-{what}" for what in ("nodes", "services")]
    for name in names:
        assert f"created    ValidatingAdmissionPolicy {name}\n" in first
        assert f"created    ValidatingAdmissionPolicyBinding {name}\n" in first
    second = onboard(tmp_path, *add_cloud)
    assert "created" not in second
    assert "updated" not in second
    [nodes] = [each for each in remote.api.list(POLICIES) if each["metadata"]["name"] == names[0]]
    assert nodes.get("status", {}).get("typeChecking") in (None, {})
    removed = onboard(tmp_path, "remove", "eu", "--apply")
    assert all(f"deleted  ValidatingAdmissionPolicy {name}\n" in removed for name in names)
    assert [each for each in remote.api.list(POLICIES) if each["metadata"]["name"] in names] == []
