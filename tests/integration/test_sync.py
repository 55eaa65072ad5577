"""A running hub with real API servers: which requests it writes, and which it avoids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.reconcile import repeats
from tests.support.api import ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node, heartbeat
from tests.support.waiting import eventually

DRIFT: Object = {"endpoints": [{"addresses": ["10.99.0.1"], "conditions": {"ready": True}}]}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The clusters ``eu`` and ``us``, a Service ``payments`` without slices, and a registry that publishes eu."""
    made = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    made.add_service()
    made.write()
    return made


@pytest.fixture
def running(world: World) -> Iterator[RunningHub]:
    """A running hub that has published one node of eu."""
    add_node(world.remotes["eu"], "n1", "10.1.0.1")
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        yield hub


# unnecessary writes


def test_documented_rbac_rules_are_sufficient(world: World) -> None:
    """With exactly the documented rules no request is refused."""
    servers = (world.hub_cluster, *world.remotes.values())
    marks = [server.audit_mark() for server in servers]
    add_node(world.remotes["eu"], "n1", "10.1.0.1")

    with RunningHub(world):
        world.awaits("10.1.0.1")
        time.sleep(0.5)

    for server, mark in zip(servers, marks, strict=True):
        requests = server.requests(mark, "hub")
        assert len(requests) >= 2
        assert [request for request in requests if request.status in (401, 403)] == []


def test_a_restart_adopts_without_a_write(world: World) -> None:
    """A restarted hub adopts the slices of the previous run without a write."""
    for number in range(1, 4):
        add_node(world.remotes["eu"], f"n{number}", f"10.1.0.{number}")
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3")
    before, mark = world.versions(), world.hub_cluster.audit_mark()

    with RunningHub(world) as again:
        eventually(lambda: again.state("eu") == "Ready: " and again.hub.elector.leading)
        assert world.writes(mark, settle=1.0) == []

    assert world.versions() == before


def test_heartbeats_write_nothing(running: RunningHub, world: World) -> None:
    """Heartbeats cause no request."""
    mark, before = world.hub_cluster.audit_mark(), running.cluster("eu").version

    for number in range(50):
        heartbeat(world.remotes["eu"], "n1", f"2026-01-02T00:00:{number:02}Z")

    assert world.writes(mark, settle=0.5) == []
    assert running.cluster("eu").version == before


def test_changed_node_among_a_thousand_is_one_write(world: World) -> None:
    """A changed node among 1,000 causes exactly one PUT, of a slice with 100 endpoints."""
    eu = world.remotes["eu"]
    for number in range(1000):
        add_node(eu, f"n{number}", f"10.1.{number // 250}.{number % 250 + 1}")
    with RunningHub(world):
        eventually(lambda: len(world.published()) == 1000, 20)
        assert len(world.slices()) == 10
        mark = world.hub_cluster.audit_mark()
        address = [{"type": "InternalIP", "address": "10.2.0.1"}]
        eu.api.patch("/api/v1/nodes/n500/status", {"status": {"addresses": address}}, "application/merge-patch+json")
        eventually(lambda: "10.2.0.1" in world.published())
        assert [(request.verb, request.status) for request in world.writes(mark)] == [("update", 200)]


# edits by others


def test_an_edited_slice_is_repaired_at_once(running: RunningHub, world: World) -> None:
    """Another client's edit is undone with one write."""
    (slice_,) = world.slices()
    mark = world.hub_cluster.audit_mark()

    world.hub_cluster.api.patch(world.slice_path(slice_["metadata"]["name"]), DRIFT)

    world.awaits("10.1.0.1", timeout=1.0)
    assert [request.verb for request in world.writes(mark)] == ["update"]


def test_a_deleted_slice_is_made_again_at_once(running: RunningHub, world: World) -> None:
    """A deleted slice is created again with one write."""
    (slice_,) = world.slices()
    mark = world.hub_cluster.audit_mark()

    world.hub_cluster.api.delete(world.slice_path(slice_["metadata"]["name"]))

    world.awaits("10.1.0.1", timeout=1.0)
    assert [request.verb for request in world.writes(mark)] == ["create"]


def test_a_slice_that_a_finalizer_holds_is_made_again_under_another_name(running: RunningHub, world: World) -> None:
    """If a finalizer holds a deleted slice, another one replaces it with one write and is kept up to date."""
    (slice_,) = world.slices()
    path = world.slice_path(slice_["metadata"]["name"])
    world.hub_cluster.api.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    mark = world.hub_cluster.audit_mark()

    world.hub_cluster.api.delete(path)
    eventually(lambda: len(world.slices()) == 2)
    assert [request.verb for request in world.writes(mark)] == ["create"]
    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    eventually(lambda: world.published() == ["10.1.0.1", "10.1.0.1", "10.1.0.2"])

    mark = world.hub_cluster.audit_mark()
    world.hub_cluster.api.patch(path, {"metadata": {"finalizers": None}})
    world.awaits("10.1.0.1", "10.1.0.2")
    assert world.writes(mark) == []


def test_removed_labels_are_set_back(running: RunningHub, world: World) -> None:
    """A label of the Service that was removed from the slice is added again."""
    service = "/api/v1/namespaces/edge/services/payments"
    world.hub_cluster.api.patch(service, {"metadata": {"labels": {"team": "a"}}})
    eventually(lambda: world.slices()[0]["metadata"]["labels"].get("team") == "a")

    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    world.hub_cluster.api.patch(path, {"metadata": {"labels": {"team": None}}})

    eventually(lambda: world.slices()[0]["metadata"]["labels"].get("team") == "a")


def test_a_slice_under_another_clusters_name_is_replaced(running: RunningHub, world: World) -> None:
    """If a slice gets the label of a cluster that is no source, its addresses move to a new slice."""
    label = "multicluster.kubernetes.io/source-cluster"
    path = world.slice_path(world.slices()[0]["metadata"]["name"])

    world.hub_cluster.api.patch(path, {"metadata": {"labels": {label: "x"}}})

    eventually(lambda: [slice_["metadata"]["labels"][label] for slice_ in world.slices()] == ["eu"])
    assert world.published() == ["10.1.0.1"]


def test_a_contended_slice_is_repaired_with_growing_delays(running: RunningHub, world: World) -> None:
    """Repeated edits by others are undone after 0, 1 and 2 s, and reported."""
    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    mark = world.hub_cluster.audit_mark()
    for _ in range(3):
        world.hub_cluster.api.patch(path, DRIFT)
        world.awaits("10.1.0.1", timeout=5.0)

    # by the server's clock, since this process may be slow to observe
    repairs = world.writes(mark)
    edits = [request for request in world.hub_cluster.requests(mark, "admin") if request.verb == "patch"]
    delays = [repair.received - edit.ended for edit, repair in zip(edits, repairs, strict=True)]
    assert [round(delay) for delay in delays] == [0, 1, 2]
    world.hub_cluster.api.patch(path, DRIFT)
    eventually(lambda: "SliceContended" in running.findings())
    assert running.findings()["SliceContended"].objects == (path.rpartition("/")[2],)


def test_a_new_endpoint_reaches_a_contended_slice_at_once(running: RunningHub, world: World) -> None:
    """A new endpoint is published at once, even in a slice whose repairs are delayed."""
    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    for _ in range(3):
        world.hub_cluster.api.patch(path, DRIFT)
        world.awaits("10.1.0.1", timeout=5.0)
    world.hub_cluster.api.patch(path, DRIFT)

    add_node(world.remotes["eu"], "n2", "10.1.0.2")

    world.awaits("10.1.0.1", "10.1.0.2", timeout=1.0)


def test_foreign_annotation_is_kept(running: RunningHub, world: World) -> None:
    """Annotations of others cause no write, and survive the hub's next write."""
    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    mark = world.hub_cluster.audit_mark()

    world.hub_cluster.api.patch(path, {"metadata": {"annotations": {"tool.example/seen": "yes"}}})
    assert world.writes(mark) == []
    add_node(world.remotes["eu"], "n2", "10.1.0.2")

    world.awaits("10.1.0.1", "10.1.0.2")
    assert world.slices()[0]["metadata"]["annotations"]["tool.example/seen"] == "yes"


def test_conflict_rereads_the_slice_and_plans_again(
    running: RunningHub, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a slice changes before the hub's PUT, the PUT is a 409, and the hub reads, plans and writes again."""
    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    local = running.hub.local
    # The watch is delayed, so that the hub does not see the foreign write before its own.
    monkeypatch.setattr(local.slices, "upsert", lambda *_: None)
    mark = world.hub_cluster.audit_mark()
    world.hub_cluster.api.patch(path, {"metadata": {"annotations": {"tool.example/seen": "yes"}}})

    add_node(world.remotes["eu"], "n2", "10.1.0.2")

    world.awaits("10.1.0.1", "10.1.0.2")
    time.sleep(0.3)
    requests = [request for request in world.hub_cluster.requests(mark, "hub") if request.resource == "endpointslices"]
    assert [(request.verb, request.status) for request in requests] == [("update", 409), ("get", 200), ("update", 200)]
    assert world.slices()[0]["metadata"]["annotations"]["tool.example/seen"] == "yes"


def test_foreign_slice_with_our_name_is_not_written(world: World) -> None:
    """If another controller's slice has the name, the next free name is used, and ForeignSlice is reported."""
    add_node(world.remotes["eu"], "n1", "10.1.0.1")
    with RunningHub(world):
        world.awaits("10.1.0.1")
    (ours,) = world.slices()
    name = ours["metadata"]["name"]
    world.hub_cluster.api.delete(world.slice_path(name))
    collection = world.slice_path(name).rpartition("/")[0]
    meta = {"name": name, "labels": {"kubernetes.io/service-name": "payments"}}
    foreign = world.hub_cluster.api.post(
        collection, {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["10.5.5.5"]}]}
    )

    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        eventually(lambda: "ForeignSlice" in hub.findings())
        assert hub.findings()["ForeignSlice"].objects == (name,)

    assert [slice_["metadata"]["name"] for slice_ in world.slices()] == [f"{name[:-1]}1"]
    assert world.hub_cluster.api.get(world.slice_path(name)) == foreign


def test_slices_of_another_hub_are_not_written(running: RunningHub, world: World) -> None:
    """A slice with this owner but another lease belongs to another hub, and is reported as OwnerConflict."""
    path = world.slice_path(world.slices()[0]["metadata"]["name"])
    lease = {"endpointslice-hub/lease": "other/endpointslice-hub-default"}

    theirs = world.hub_cluster.api.patch(path, {"metadata": {"annotations": lease}})

    eventually(lambda: "OwnerConflict" in running.findings())
    world.awaits("10.1.0.1", "10.1.0.1")
    assert world.hub_cluster.api.get(path) == theirs


# refused writes


def test_only_the_refused_address_is_dropped(world: World) -> None:
    """If a 422 names an endpoint, only that one is left out and reported."""
    (world.folder / "inventory.json").write_text(
        '[{"name": "a", "private_ip": "0.0.0.0", "ready": true, "worker": true},'
        ' {"name": "b", "private_ip": "10.1.0.2", "ready": true, "worker": true}]'
    )
    provider = {"name": "inventory", "config": {"file": "inventory.json", "interval": "1s"}}
    world.write(services=[world.service(sources=[{"cluster": "local", "provider": provider}])])

    with RunningHub(world) as hub:
        world.awaits("10.1.0.2")
        eventually(lambda: "InvalidAddressSkipped" in hub.findings())
        mark = world.hub_cluster.audit_mark()
        assert hub.findings()["InvalidAddressSkipped"].objects == ("0.0.0.0",)
        assert world.writes(mark, settle=1.0) == []


def test_a_refused_slice_is_tried_again_with_growing_delays(
    running: RunningHub, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an admission policy refuses a slice without naming an endpoint, only that slice waits, and it is retried."""
    monkeypatch.setattr(repeats, "FIRST", 0.5)
    world.write(services=[world.service(sources=[{"cluster": "eu"}, {"cluster": "us"}])])
    refuse_slices(world.hub_cluster, "!('10.2.0.1' in object.endpoints.map(e, e.addresses[0]))")
    mark = world.hub_cluster.audit_mark()

    add_node(world.remotes["us"], "m1", "10.2.0.1")
    eventually(lambda: "SliceRefused" in running.findings())
    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    world.awaits("10.1.0.1", "10.1.0.2")
    time.sleep(2.0)

    assert "not in this cluster" in running.status()
    assert 2 <= sum(request.status == 422 for request in world.writes(mark)) <= 4
    world.hub_cluster.api.delete(f"{POLICIES}bindings/slices")
    world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")


POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicy"


def refuse_slices(server: ApiServer, expression: str) -> None:
    """Create an admission policy for slices, and wait until it is in force."""
    rules = [
        {
            "apiGroups": ["discovery.k8s.io"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["endpointslices"],
        }
    ]
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": expression, "message": "not in this cluster"}],
    }
    server.api.post(f"{POLICIES[:-1]}ies", {"metadata": {"name": "slices"}, "spec": spec})
    binding = {"policyName": "slices", "validationActions": ["Deny"]}
    server.api.post(f"{POLICIES}bindings", {"metadata": {"name": "slices"}, "spec": binding})
    probe = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.2.0.1"]}], "metadata": {"name": "probe"}}

    def refused() -> bool:
        try:
            server.api.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", probe, dryRun="All")
        except ApiRefused as error:
            return error.status == 422
        return False

    eventually(refused)
