"""The cloud controller with the role that ``hub cluster add --cloud`` generates, and with each of its rules removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hub.controller.rights import IDENTITY, PART_RULES, Right, lease_rules, rights_of
from hub.onboarding.manifests import NODE_RULES, Access, manifests
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxThread, CloudScene, cloud_scene
from tests.support.helm import collection
from tests.support.hub import RunningHub
from tests.support.waiting import eventually

SERVICES = "/api/v1/namespaces/edge/services"
ALL = ("nodes", "load-balancers", "delete-nodes")


@pytest.fixture
def cloud() -> Iterator[BrightboxThread]:
    """The fake of Brightbox."""
    with BrightboxThread() as running:
        yield running


def scene_of(
    hub_cluster: ApiServer, remote: ApiServer, folder: Path, cloud: BrightboxThread, objects: Sequence[Object]
) -> CloudScene:
    """A cluster whose hub has the account of these manifests, and no other rights."""
    scene = cloud_scene(hub_cluster, remote, folder, cloud, granted=False)
    for manifest in objects:
        remote.api.post(collection(remote.api, manifest), manifest)
    access = Access("eu")
    eventually(lambda: remote.allows(f"system:serviceaccount:{':'.join(access.account)}", dict(NODE_RULES[0])))
    remote.kubeconfig(scene.world.folder / "eu", token=remote.service_account_token(*access.account))
    return scene


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
    controlling = running.hub.controlling
    assert controlling is not None
    found = controlling.clusters["eu"]
    halted = found.halted
    return f"{found.lacking}; {halted[1] if halted else ''}"


def serve(scene: CloudScene, running: RunningHub, *, nodes: bool = True, balancers: bool = True) -> None:
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
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, manifests(Access("eu", cloud=parts)))
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
    refused = [
        found
        for found in scene.remote.requests(mark, "system:serviceaccount:endpointslice-hub:endpointslice-hub")
        if found.status == 403
    ]
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
    objects = manifests(Access("eu", cloud=ALL))
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, without(objects, right))
    with RunningHub(scene.world, **scene.options) as running:
        eventually(lambda: f"«{right.what}: {right.verb}»" in shown(running), 20)
        assert "hub cluster add eu --cloud=nodes,load-balancers,delete-nodes grants it" in shown(running)
        node = scene.add_node()
        scene.add_service()
        lease = right.resource == "leases" and right.verb in ("get", "create")
        if lease or (right.resource.startswith("nodes") and right.verb == "patch"):
            if not lease:
                eventually(lambda: scene.hostnames() != [], 40)
            assert not scene.initialized(node)
        else:
            eventually(lambda: scene.initialized(node), 40)
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
    objects = manifests(Access("eu", cloud=ALL))
    scene = scene_of(hub_cluster, remote_clusters[0], tmp_path, cloud, without(objects, right))
    with RunningHub(scene.world, **scene.options) as running:
        eventually(lambda: "«nodes/status: patch»" in shown(running), 20)
        node = scene.add_node()
        [role] = [each for each in objects if each["kind"] == "ClusterRole" and "cloud" in each["metadata"]["name"]]
        path = f"{collection(scene.remote.api, role)}/{role['metadata']['name']}"
        scene.remote.api.patch(path, {"rules": role["rules"]})
        eventually(lambda: scene.initialized(node), 40)
        assert "lacks" not in shown(running)
