"""Slices as a release wrote them, stored in files. Later versions must adopt them without a write.

``python -m tests.support.golden`` writes tests/data/slices-MAJOR.MINOR.json with this version of the hub, on real API
servers. docs/release.md says when to do so. An existing file is never overwritten, since it is what users have.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hub
from hub.model import ANNOTATION_CLUSTER_UID
from tests.support.api import Object
from tests.support.apiserver.fleet import ServerFleet
from tests.support.apiserver.server import ApiServer
from tests.support.hub import OURS, RunningHub, World, node
from tests.support.waiting import eventually

DATA = Path(__file__).parents[1] / "data"
SERVICES = "/api/v1/namespaces/edge/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
DUAL = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}
SINGLE = {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}
HTTPS = [{"name": "https", "port": 443, "targetPort": 30443}]


def scene() -> Object:
    """Inputs that lead to every form of a slice: families, several slices, headless, failover, conditions, labels."""
    eu = [node(f"eu-{n}", f"10.1.0.{n}", f"fd00:1::{n}", zone=f"eu-{'ab'[n % 2]}") for n in range(1, 8)]
    eu.append({**node("eu-8", "10.1.0.8", zone="eu-a"), "spec": {"unschedulable": True}})
    us = [node(f"us-{n}", f"10.2.0.{n}", zone="us-a") for n in range(1, 4)]
    both = ("eu", "us")
    return {
        "clusters": [_cluster("eu", nodes={"cordoned": "not-ready"}), _cluster("us")],
        "services": [
            {"metadata": {"name": "merged", "labels": {"team": "edge", "app.kubernetes.io/name": "x"}}, "spec": {}},
            {"metadata": {"name": "dual"}, "spec": DUAL},
            {"metadata": {"name": "headless"}, "spec": {**SINGLE, "clusterIP": "None"}},
            {"metadata": {"name": "standby"}, "spec": {}},
            {"metadata": {"name": "many"}, "spec": {}},
        ],
        "targets": [
            World.service("merged", *both, ports=[{"name": "https", "port": 30443, "appProtocol": "https"}]),
            World.service("dual", "eu"),
            World.service("headless", *both),
            World.service("standby", *both, strategy="failover"),
            World.service("many", "eu", endpointsPerSlice=3),
        ],
        "nodes": {"eu": eu, "us": us},
    }


def _cluster(name: str, **more: Any) -> Object:
    return {
        "name": name,
        "kubeconfig": {"path": name},
        "allowedCIDRs": ["10.0.0.0/8", "fd00::/8"],
        "provider": {"name": "node-addresses"},
        **more,
    }


def prepare(world: World, inputs: Object) -> None:
    """Create the nodes and Services, and write the registry."""
    for cluster, nodes in inputs["nodes"].items():
        api = world.remotes[cluster].api
        for item in nodes:
            api.post("/api/v1/nodes", {"metadata": item["metadata"], "spec": item.get("spec", {})})
            api.patch(f"/api/v1/nodes/{item['metadata']['name']}/status", {"status": item["status"]})
    for service in inputs["services"]:
        world.hub_cluster.api.post(SERVICES, {**service, "spec": {"ports": HTTPS, **service["spec"]}})
    world.write(clusters=inputs["clusters"], services=inputs["targets"])


def observed(world: World) -> list[Object]:
    """Every slice of the hub, by name, as stored."""
    return sorted(
        world.hub_cluster.api.list(SLICES, labelSelector=OURS), key=lambda slice_: str(slice_["metadata"]["name"])
    )


def portable(slices: list[Object]) -> list[Object]:
    """Slices without the UIDs, versions and times of their cluster."""
    return [
        {
            **{key: slice_[key] for key in ("addressType", "endpoints", "ports")},
            "metadata": {key: slice_["metadata"][key] for key in ("name", "labels", "annotations")}
            | {"ownerReferences": [{**owner, "uid": ""} for owner in slice_["metadata"]["ownerReferences"]]},
        }
        for slice_ in slices
    ]


def restore(world: World, slices: list[Object], **annotations: str) -> None:
    """Create stored slices in a hub cluster, with the UIDs of its Services and of the remote clusters."""
    for slice_ in slices:
        body = json.loads(json.dumps(slice_))
        for owner in body["metadata"]["ownerReferences"]:
            owner["uid"] = world.hub_cluster.api.get(f"{SERVICES}/{owner['name']}")["metadata"]["uid"]
        own = body["metadata"]["annotations"]
        own.update(annotations)
        if ANNOTATION_CLUSTER_UID in own:
            own[ANNOTATION_CLUSTER_UID] = uid(world.remotes[source(slice_)])
        world.hub_cluster.api.post(SLICES, body)


def source(slice_: Object) -> str:
    """The source cluster of a slice."""
    return str(slice_["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"])


def uid(server: ApiServer) -> str:
    """The UID of a cluster."""
    return str(server.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])


def settled(world: World) -> list[Object]:
    """The slices, once every Service has some and two reads a second apart are equal."""
    last: list[Object] = []

    def check() -> bool:
        nonlocal last
        before, last = last, observed(world)
        names = {slice_["metadata"]["labels"]["kubernetes.io/service-name"] for slice_ in last}
        assert names == {service["name"] for service in world.registry["services"]}
        if before != last:
            time.sleep(1)
        return before == last

    eventually(check, 30)
    return last


def write(file: Path) -> None:
    """Run this version with the inputs of :func:`scene`, and store the slices that it wrote."""
    with tempfile.TemporaryDirectory() as name:
        fleet = ServerFleet(Path(name) / "servers")
        try:
            remotes: Mapping[str, ApiServer] = {cluster: fleet.get(cluster) for cluster in ("eu", "us")}
            world = World(Path(name), fleet.get("hub"), remotes).prepare()
            inputs = scene()
            prepare(world, inputs)
            with RunningHub(world):
                content: dict[str, Any] = {"inputs": inputs, "slices": portable(settled(world))}
        finally:
            fleet.stop()
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Write the file of this version, unless it exists."""
    file = DATA / f"slices-{'.'.join(hub.__version__.split('.')[:2])}.json"
    if file.exists():
        sys.exit(f"{file} is there: slices that were released do not change")
    write(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
