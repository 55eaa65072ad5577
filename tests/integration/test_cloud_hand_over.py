"""The hub takes over from goccm, which makes the original's requests, works beside it, and hands back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub_provider_brightbox.cloud import ANNOTATIONS, PREFIX

from tests.support import drop_in
from tests.support.apiserver.process import Process
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE, SERVICES
from tests.support.hub import RunningHub
from tests.support.waiting import eventually

CLASS = "example.com/hub"
RECORD = "endpointslice-hub/load-balancer"
INTERVAL = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval"
WEB = {"name": "http", "port": 80}
TLS = {"name": "https", "port": 443}
HAND_OVER: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "plain": ({}, {}),
    "policy": ({"policy": "round-robin"}, {"ports": [WEB, {"name": "more", "port": 8080}]}),
    "raw": ({"listener-protocol": "tcp", "listener-proxy-protocol": "v2-ssl", "listener-idle-timeout": "9000"}, {}),
    "numbers": (
        {
            "healthcheck-timeout": "4000",
            "healthcheck-healthy-threshold": "4",
            "healthcheck-unhealthy-threshold": "5",
            INTERVAL: "6000",
        },
        {},
    ),
    "check": ({"healthcheck-protocol": "tcp"}, {}),
    "path": ({"healthcheck-request": "/ready"}, {}),
    "tls": ({"listener-proxy-protocol": "v1"}, {"ports": [WEB, TLS]}),
    "domains": (
        {"ssl-ports": "443,8443", "ssl-domains": "www.example.test,example.test"},
        {"ports": [WEB, TLS, {"name": "alt", "port": 8443}]},
    ),
    "reserved": ({"cloudip-allocations": ""}, {}),
    "local": ({"policy": "source-address"}, {"externalTrafficPolicy": "Local"}),
}
"""Service -> its annotations without the prefix, and its spec; all annotations of the original occur."""


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[BrightboxScene]:
    """A cluster with two new Nodes."""
    with BrightboxThread() as cloud:
        made = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        made.remote.kubeconfig(tmp_path / "admin")
        for _ in range(2):
            made.add_node()
        yield made


def process(scene: BrightboxScene, name: str, program: Path | None, *flags: str) -> Process:
    """A cloud controller of the scene's cluster; the hub has only its own rights."""
    argv = drop_in.HUB if program is None else (str(program),)
    access = scene.world.folder / ("eu" if program is None else "admin")
    return drop_in.controller(name, argv, access, scene.cloud.fake.url, *flags)


@contextmanager
def running(made: Process) -> Iterator[Process]:
    """Run a controller until the end of the block."""
    made.start()
    try:
        yield made
    finally:
        made.stop()


def add_services(scene: BrightboxScene) -> None:
    """Create all Services of :data:`HAND_OVER`."""
    reserved = scene.cloud.call(lambda: scene.cloud.fake.account.add_cloud_ip("of a person")["id"])
    for name, (wanted, spec) in HAND_OVER.items():
        values = {key if "/" in key else PREFIX + key: value or reserved for key, value in wanted.items()}
        scene.add_service(name, metadata={"annotations": values}, **spec)


def ingress(scene: BrightboxScene) -> dict[str, str]:
    """Service -> its published status as JSON."""
    return {name: json.dumps(scene.service(name)["status"]["loadBalancer"], sort_keys=True) for name in HAND_OVER}


@contextmanager
def serving(scene: BrightboxScene, program: Path) -> Iterator[Process]:
    """Run goccm, from when it has initialised the Nodes.

    Kubernetes' controllers sync a Service for itself and for changed Nodes at once: of a Service that is created while
    Nodes join, goccm may make two balancers.
    """
    with running(process(scene, "goccm", program)) as made:
        eventually(lambda: all(map(scene.initialized, scene.cloud.fake.account.objects["servers"])), 60)
        yield made


def adopted(scene: BrightboxScene, name: str) -> bool:
    """Whether the hub has written its record into a Service."""
    return RECORD in scene.service(name)["metadata"].get("annotations", {})


def objects(scene: BrightboxScene) -> str:
    """Everything that the cloud has, as JSON."""
    return scene.cloud.call(lambda: json.dumps(scene.cloud.fake.account.objects, sort_keys=True))


def ids(scene: BrightboxScene) -> dict[str, list[str]]:
    """The ids of all objects of the cloud by collection."""
    found = json.loads(objects(scene))
    return {collection: sorted(each) for collection, each in found.items()}


def of(scene: BrightboxScene, name: str) -> dict[str, Any]:
    """Id -> object of everything in the cloud that has the name of a Service's balancer."""
    found = json.loads(objects(scene))
    return {
        id_: each
        for collection in found.values()
        for id_, each in collection.items()
        if each.get("name") == f"{name}.edge.eu"
    }


def targets(scene: BrightboxScene, name: str) -> set[str]:
    """The machines that a Service's load balancer sends traffic to."""
    return {node["id"] for each in of(scene, name).values() for node in each.get("nodes", ())}


def test_all_annotations_are_handed_over() -> None:
    """The ten Services have every annotation that the provider knows."""
    used = {key if "/" in key else PREFIX + key for wanted, _ in HAND_OVER.values() for key in wanted}
    known = {name for each in ANNOTATIONS for name in (PREFIX + each.name, *each.aliases)}
    assert used >= known - {f"{PREFIX}healthcheck-interval"}  # the original does not read it


def test_the_hub_takes_over_and_hands_back(scene: BrightboxScene, goccm: Path) -> None:
    """The hub adopts what goccm made without a write to the cloud, with the same ingress; goccm makes nothing new."""
    with serving(scene, goccm):
        add_services(scene)
        eventually(lambda: all(map(scene.hostnames, HAND_OVER)), 120)
    published, made, writes = ingress(scene), objects(scene), scene.writes
    with running(process(scene, "hub", None)):
        eventually(lambda: all(adopted(scene, name) for name in HAND_OVER), 60)
        assert scene.writes == writes
        assert objects(scene) == made
        assert ingress(scene) == published
    assert scene.remote.api.get(LEASE)["spec"]["holderIdentity"] == ""
    with running(process(scene, "goccm-again", goccm)):
        log = scene.world.folder / "goccm-again.log"
        eventually(lambda: log.read_text().count("Ensured load balancer") == len(HAND_OVER), 90)
        assert ids(scene) == {collection: sorted(each) for collection, each in json.loads(made).items()}
        assert ingress(scene) == published
    assert not [text for text in scene.writes[len(writes) :] if not text.startswith("PUT /1.0/load_balancers/")]


def test_the_lease_of_goccm_keeps_the_hub_out(scene: BrightboxScene, goccm: Path) -> None:
    """Beside goccm with its Lease the hub writes nothing; after goccm was killed the hub does its work."""
    with serving(scene, goccm) as first:
        scene.add_service("one")
        eventually(lambda: scene.hostnames("one"), 60)
        holder = scene.remote.api.get(LEASE)["spec"]["holderIdentity"]
        mark, writes = scene.remote.audit_mark(), scene.writes
        with running(process(scene, "hub", None)):
            log = scene.world.folder / "hub.log"
            eventually(lambda: "stands by" in log.read_text(), 30)
            scene.add_service("two")
            eventually(lambda: scene.hostnames("two"), 60)
            by_hub = [each for each in scene.remote.requests(mark, "hub") if each.writes]
            assert [each for each in by_hub if each.resource != "selfsubjectaccessreviews"] == []
            assert scene.remote.api.get(LEASE)["spec"]["holderIdentity"] == holder
            assert len(scene.writes) > len(writes)  # goccm's
            first.kill()
            before = objects(scene)
            scene.add_service("three")
            eventually(lambda: scene.hostnames("three"), 90)
            assert scene.remote.api.get(LEASE)["spec"]["holderIdentity"] != holder
            assert set(json.loads(before)["load_balancers"]) < set(ids(scene)["load_balancers"])


def test_with_a_class_of_its_own_the_hub_works_beside_goccm(scene: BrightboxScene, goccm: Path) -> None:
    """Each creates, changes and deletes the balancer of its own Service only; goccm alone handles the Nodes."""
    scene.write(nodes="off", loadBalancers={"class": CLASS, "settle": "1s"})
    with serving(scene, goccm), RunningHub(scene.world, **scene.options):
        mark = scene.remote.audit_mark()
        scene.add_service("theirs")
        scene.add_service("ours", loadBalancerClass=CLASS)
        eventually(lambda: scene.hostnames("theirs") and scene.hostnames("ours"), 60)
        third = scene.add_node()
        eventually(lambda: third in targets(scene, "theirs") & targets(scene, "ours"), 60)
        assert scene.initialized(third)
        theirs = of(scene, "theirs")
        scene.remote.api.delete(f"{SERVICES}/ours")
        eventually(lambda: not scene.has_service("ours"), 60)
        assert of(scene, "ours") == {}
        assert of(scene, "theirs") == theirs
        by_hub = [each for each in scene.remote.requests(mark, "hub") if each.writes and each.resource != "leases"]
        assert {each.name for each in by_hub if "services" in each.resource} == {"ours"}
        assert not [each for each in by_hub if "nodes" in each.resource]
        by_goccm = [each for each in scene.remote.requests(mark) if each.writes and each.agent.startswith("goccm")]
        assert {each.name for each in by_goccm if "services" in each.resource} == {"theirs"}
        scene.remote.api.delete(f"{SERVICES}/theirs")
        eventually(lambda: not scene.has_service("theirs"), 60)
        assert of(scene, "theirs") == {}
