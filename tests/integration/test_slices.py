"""The slices of a Service, for every kind of Service and registry entry."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.reconcile import foreign
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node
from tests.support.waiting import eventually

CLUSTER = "multicluster.kubernetes.io/source-cluster"
SERVICES = "/api/v1/namespaces/edge/services"
KUBERNETES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
FAST_FAILOVER = {"minReady": 1, "after": "1s", "failbackAfter": "1s"}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu and us with one node each, and no Service yet."""
    made = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    add_node(made.remotes["eu"], "n1", "10.1.0.1", "fd00:1::1", zone="eu-a")
    add_node(made.remotes["us"], "m1", "10.2.0.1")
    made.write()
    return made


@pytest.fixture
def running(world: World) -> Iterator[RunningHub]:
    """A hub that has published eu's node for the Service ``payments``."""
    world.add_service()
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        yield hub


def by_cluster(world: World, service: str = "payments") -> dict[str, list[str]]:
    """The published addresses by source cluster."""
    found: dict[str, list[str]] = {}
    for slice_ in world.slices(service):
        addresses = [address for endpoint in slice_["endpoints"] or () for address in endpoint["addresses"]]
        found.setdefault(slice_["metadata"]["labels"][CLUSTER], []).extend(addresses)
    return {name: sorted(addresses) for name, addresses in found.items() if addresses}


# contents of a slice


def test_slice_names_its_owner(running: RunningHub, world: World) -> None:
    """A slice has exactly the documented labels, annotation and ownerReference."""
    (slice_,) = world.slices()
    service = world.hub_cluster.api.get(f"{SERVICES}/payments")

    assert slice_["metadata"]["labels"] == {
        "kubernetes.io/service-name": "payments",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-hub",
        "endpointslice-hub/owner": "default",
        CLUSTER: "eu",
    }
    assert slice_["metadata"]["annotations"]["endpointslice-hub/lease"] == "default/endpointslice-hub-default"
    assert slice_["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Service", "name": "payments", "uid": service["metadata"]["uid"]}
    ]


def test_an_endpoint_names_its_node_and_zone(running: RunningHub, world: World) -> None:
    """An endpoint has all conditions, zone and targetRef, but no nodeName, which would mean a node of this cluster."""
    (slice_,) = world.slices()

    assert slice_["endpoints"] == [
        {
            "addresses": ["10.1.0.1"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Node", "name": "n1"},
            "zone": "eu-a",
        }
    ]
    assert slice_["ports"] == [{"name": "https", "port": 30443, "protocol": "TCP"}]


def test_labels_of_the_service_follow(running: RunningHub, world: World) -> None:
    """Changed labels of a Service are copied, except reserved ones."""
    labels = {"team": "a", "endpointslice-hub/owner": "mallory"}

    world.hub_cluster.api.patch(f"{SERVICES}/payments", {"metadata": {"labels": labels}})

    eventually(lambda: world.slices()[0]["metadata"]["labels"].get("team") == "a")
    assert world.slices()[0]["metadata"]["labels"]["endpointslice-hub/owner"] == "default"


def test_ports_of_the_service_follow(running: RunningHub, world: World) -> None:
    """A changed targetPort is one write to the existing slice."""
    mark = world.hub_cluster.audit_mark()
    ports = [{"name": "https", "port": 443, "targetPort": 31000}]

    world.hub_cluster.api.patch(f"{SERVICES}/payments", {"spec": {"ports": ports}})

    eventually(lambda: [port["port"] for port in world.slices()[0]["ports"]] == [31000])
    assert [request.verb for request in world.writes(mark)] == ["update"]


def test_ports_of_the_registry_win(running: RunningHub, world: World) -> None:
    """A port in the registry entry is used even outside allowedPorts; its name is that of the Service's port."""
    world.write(services=[world.service(ports=[{"port": 9443, "appProtocol": "https"}])])

    eventually(lambda: world.slices()[0]["ports"][0]["port"] == 9443)
    assert world.slices()[0]["ports"] == [{"name": "https", "port": 9443, "protocol": "TCP", "appProtocol": "https"}]


def test_a_port_outside_the_range_is_refused_and_nothing_removed(running: RunningHub, world: World) -> None:
    """A port outside allowedPorts is reported as PortNotAllowed, and the published endpoints stay."""
    world.hub_cluster.api.patch(
        f"{SERVICES}/payments", {"spec": {"ports": [{"name": "https", "port": 443, "targetPort": 22}]}}
    )

    eventually(lambda: "PortNotAllowed" in running.findings())
    assert world.published() == ["10.1.0.1"]


def test_each_family_has_its_own_slices(world: World) -> None:
    """A dual-stack Service gets an IPv4 and an IPv6 slice."""
    world.add_service(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])

    with RunningHub(world):
        world.awaits("10.1.0.1", "fd00:1::1")

    assert {slice_["addressType"]: slice_["endpoints"][0]["addresses"] for slice_ in world.slices()} == {
        "IPv4": ["10.1.0.1"],
        "IPv6": ["fd00:1::1"],
    }


def test_a_headless_service_gets_hostnames(world: World) -> None:
    """Slices of a headless Service have the headless label, and the node's name as hostname."""
    world.add_service(clusterIP="None", ipFamilyPolicy="SingleStack", ipFamilies=["IPv4"])

    with RunningHub(world):
        world.awaits("10.1.0.1")

    (slice_,) = world.slices()
    assert slice_["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    assert slice_["endpoints"][0]["hostname"] == "n1"


def test_names_of_63_characters_work(world: World) -> None:
    """The longest names of Service, cluster and namespace fit into all limits."""
    cluster, service = "c" * 63, "s" * 63
    (world.folder / cluster).write_bytes((world.folder / "eu").read_bytes())
    world.add_service(service)
    world.write(clusters=[world.cluster(cluster)], services=[world.service(service, cluster)])

    with RunningHub(world):
        world.awaits("10.1.0.1", service=service)


def test_endpoints_beyond_the_limit_get_more_slices(world: World) -> None:
    """The key endpointsPerSlice limits the size of every slice."""
    for number in range(2, 6):
        add_node(world.remotes["eu"], f"n{number}", f"10.1.0.{number}")
    world.add_service()
    world.write(services=[world.service(endpointsPerSlice=2)])

    with RunningHub(world):
        world.awaits(*(f"10.1.0.{number}" for number in range(1, 6)))

    assert sorted(len(slice_["endpoints"]) for slice_ in world.slices()) == [1, 2, 2]


# --- several clusters ----------------------------------------------------------------------------------


def test_merge_publishes_every_source(world: World) -> None:
    """With several sources, each has its own slice."""
    world.add_service()
    world.write(services=[world.service("payments", "eu", "us")])

    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")

    assert by_cluster(world) == {"eu": ["10.1.0.1"], "us": ["10.2.0.1"]}


def test_an_address_of_two_clusters_is_published_once(world: World) -> None:
    """The first source keeps a shared address, AddressConflict reports it, and the other takes over without a gap."""
    world.add_service()
    world.write(services=[world.service("payments", "us", "eu")])

    with RunningHub(world) as hub:
        world.awaits("10.1.0.1", "10.2.0.1")
        add_node(world.remotes["us"], "m2", "10.1.0.1")
        eventually(lambda: "AddressConflict" in hub.findings())
        assert hub.findings()["AddressConflict"].objects == ("10.1.0.1",)
        assert by_cluster(world) == {"eu": ["10.1.0.1"], "us": ["10.2.0.1"]}
        world.remotes["eu"].api.delete("/api/v1/nodes/n1")
        seen = watch_until(world, {"us": ["10.1.0.1", "10.2.0.1"]})

    assert all(any("10.1.0.1" in addresses for addresses in published.values()) for published in seen)


def test_failover_switches_when_nothing_is_ready_and_back(world: World) -> None:
    """The second source takes over after ``after`` and hands back after ``failbackAfter``, without a gap."""
    world.add_service()
    world.write(
        clusters=[
            world.cluster("eu", nodes={"notReadyGrace": "0s", "maxNotReady": "100%"}),
            world.cluster("us"),
        ],
        services=[world.service("payments", "eu", "us", strategy="failover", failover=FAST_FAILOVER)],
    )
    with RunningHub(world):
        world.awaits("10.1.0.1")
        world.remotes["eu"].api.delete("/api/v1/nodes/n1")
        seen = watch_until(world, {"us": ["10.2.0.1"]})
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        seen += watch_until(world, {"eu": ["10.1.0.2"]})

    assert {} not in seen[1:]


def watch_until(world: World, wanted: dict[str, list[str]]) -> list[dict[str, list[str]]]:
    """All states that were published until the wanted one."""
    seen = []

    def check() -> bool:
        seen.append(by_cluster(world))
        return seen[-1] == wanted

    eventually(check, 15, every=0.02)
    return seen


# Services that cannot be targets


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"selector": {"app": "x"}}, "SelectorPresent"),
        ({"type": "ExternalName", "externalName": "example.org", "ports": []}, "ExternalName"),
    ],
)
def test_a_service_that_cannot_be_a_target_is_refused(world: World, spec: Object, reason: str) -> None:
    """A Service with a selector, or an ExternalName, gets no slice, with a reason."""
    world.add_service(**spec)

    with RunningHub(world) as hub:
        eventually(lambda: reason in hub.findings())
        assert world.slices() == []


def test_a_missing_service_is_waited_for(world: World) -> None:
    """A missing Service is waited for; once it exists, its endpoints are published at once."""
    with RunningHub(world) as hub:
        eventually(lambda: hub.status() == "the Service does not exist")
        world.add_service()
        world.awaits("10.1.0.1", timeout=1.0)


def test_a_selector_that_appears_leaves_the_slices(running: RunningHub, world: World) -> None:
    """If a target gets a selector, its published endpoints stay."""
    world.hub_cluster.api.patch(f"{SERVICES}/payments", {"spec": {"selector": {"app": "x"}}})

    eventually(lambda: "SelectorPresent" in running.findings())
    assert world.published() == ["10.1.0.1"]


def test_a_recreated_service_keeps_its_slices(running: RunningHub, world: World) -> None:
    """A recreated Service has a new UID: one write replaces the ownerReference, and nothing is removed."""
    before, mark = world.slices(), world.hub_cluster.audit_mark()

    world.hub_cluster.api.delete(f"{SERVICES}/payments")
    uid = world.add_service()["metadata"]["uid"]

    eventually(lambda: [slice_["metadata"]["ownerReferences"][0]["uid"] for slice_ in world.slices()] == [uid])
    assert [slice_["metadata"]["uid"] for slice_ in world.slices()] == [slice_["metadata"]["uid"] for slice_ in before]
    assert [request.verb for request in world.writes(mark)] == ["update"]


def test_paused_target_is_not_written(running: RunningHub, world: World) -> None:
    """While the annotation pauses a target, it is not written; afterwards it catches up."""
    paused = {"metadata": {"annotations": {"endpointslice-hub/paused": "true"}}}
    world.hub_cluster.api.patch(f"{SERVICES}/payments", paused)
    eventually(lambda: running.status() == "paused")
    mark = world.hub_cluster.audit_mark()

    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    assert world.writes(mark, settle=0.5) == []
    paused["metadata"]["annotations"]["endpointslice-hub/paused"] = "false"
    world.hub_cluster.api.patch(f"{SERVICES}/payments", paused)

    world.awaits("10.1.0.1", "10.1.0.2")


def test_a_namespace_being_deleted_makes_no_storm(world: World) -> None:
    """While slices cannot be created, the status says why, and there are few attempts, however much changes."""
    world.hub_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
    world.add_service(namespace="doomed")
    world.write(services=[world.service(namespace="doomed", endpointsPerSlice=1)])
    with RunningHub(world) as hub:
        eventually(lambda: world.published(namespace="doomed") == ["10.1.0.1"])
        mark = world.hub_cluster.audit_mark()
        world.hub_cluster.api.delete("/api/v1/namespaces/doomed")
        for number in range(2, 22):
            add_node(world.remotes["eu"], f"n{number}", f"10.1.0.{number}")
        eventually(lambda: hub.status(namespace="doomed") == "its namespace does not exist or is being deleted")
        assert 1 <= len(world.writes(mark, settle=1.0)) <= 3


# addresses that may not be published


def test_service_cidrs_of_the_hub_cluster_are_never_published(running: RunningHub, world: World) -> None:
    """A node with a ClusterIP of the hub cluster is left out, even if allowedCIDRs has it."""
    add_node(world.remotes["eu"], "n2", "10.96.0.1")
    add_node(world.remotes["eu"], "n3", "10.1.0.3")

    world.awaits("10.1.0.1", "10.1.0.3")


def test_api_servers_of_the_hub_cluster_are_never_published(world: World) -> None:
    """A node with an address of the hub cluster's API server is left out, and ``hub why`` gives the reason."""
    server = world.hub_cluster
    world.add_service()
    add_node(world.remotes["eu"], "n2", "10.1.0.77")
    server.restart("--endpoint-reconciler-type=lease", "--advertise-address=10.1.0.77")
    eventually(lambda: server.api.exists(KUBERNETES), 30)
    try:
        with RunningHub(world):
            world.awaits("10.1.0.1")
            add_node(world.remotes["eu"], "n3", "10.1.0.3")
            world.awaits("10.1.0.1", "10.1.0.3")
        asked = ["why", "10.1.0.77", "--registry", str(world.path), "--kubeconfig", str(world.kubeconfig)]
        answer = subprocess.run([sys.executable, "-m", "hub", *asked], capture_output=True, text=True, timeout=60)
        assert "it is the hub cluster's API server" in " ".join(answer.stdout.split()), answer
    finally:
        server.ensure_running()
        server.api.delete(KUBERNETES)


def test_hub_publishes_without_permission_for_service_cidrs(world: World) -> None:
    """Without the right to list Service CIDRs, a hub of one namespace publishes without delay."""
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    rules: list[Object] = [
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["*"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
    ]
    world.hub_cluster.grant("nobody", *rules, namespace="edge")
    world.add_service()
    mark = world.hub_cluster.audit_mark()

    with RunningHub(world, target_namespaces=("edge",), namespace="edge"):
        world.awaits("10.1.0.1", timeout=3.0)
        asked = world.hub_cluster.requests(mark, "nobody")
    assert "servicecidrs" in {request.resource for request in asked if request.status == 403}
    assert {request.namespace for request in asked if request.resource == "endpointslices"} == {"edge"}


def test_upsert_only_removes_nothing(world: World) -> None:
    """With policy upsert-only, removed endpoints stay, even after a restart and without the source."""
    world.add_service()
    world.write(services=[world.service(policy="upsert-only")])
    with RunningHub(world):
        world.awaits("10.1.0.1")
        world.remotes["eu"].api.delete("/api/v1/nodes/n1")
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")

    world.write(services=[world.service("payments", "us", policy="upsert-only")])
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")


# slices of other controllers


def test_foreign_slices_of_the_service_are_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """ForeignEndpoints names the slices and their controller; they are not touched, and the report ends with them."""
    monkeypatch.setattr(foreign, "PERIOD", 0.2)
    monkeypatch.setattr(foreign, "IDLE", 0.1)
    world.add_service()
    labels = {"kubernetes.io/service-name": "payments", "endpointslice.kubernetes.io/managed-by": "somebody"}
    body = {"metadata": {"name": "theirs", "labels": labels}, "addressType": "IPv4", "endpoints": []}
    theirs = world.hub_cluster.api.post(world.slice_path("").rstrip("/"), body)

    with RunningHub(world) as hub:
        eventually(lambda: "ForeignEndpoints" in hub.findings())
        finding = hub.findings()["ForeignEndpoints"]
        assert (finding.objects, finding.message.endswith(": somebody")) == (("theirs",), True)
        assert world.hub_cluster.api.get(world.slice_path("theirs")) == theirs
        world.hub_cluster.api.delete(world.slice_path("theirs"))
        eventually(lambda: "ForeignEndpoints" not in hub.findings())


# --- owners ----------------------------------------------------------------------------------------------


def test_slices_of_a_previous_owner_are_adopted(world: World) -> None:
    """The owner label of a previous owner's slices is replaced with one write each, and nothing is removed."""
    world.add_service()
    with RunningHub(world):
        world.awaits("10.1.0.1")
    before, mark = world.slices(), world.hub_cluster.audit_mark()
    world.write(owner="new", previousOwners=["default"])

    with RunningHub(world):
        eventually(lambda: world.slices()[0]["metadata"]["labels"]["endpointslice-hub/owner"] == "new")
        assert [request.verb for request in world.writes(mark)] == ["update"]

    (slice_,) = world.slices()
    assert slice_["metadata"]["uid"] == before[0]["metadata"]["uid"]
    assert slice_["metadata"]["annotations"]["endpointslice-hub/lease"] == "default/endpointslice-hub-new"


def test_reload_with_another_owner_is_rejected(running: RunningHub, world: World) -> None:
    """A reload with another owner is rejected: the last good registry stays in force."""
    mark = world.hub_cluster.audit_mark()

    world.write(owner="new")

    eventually(lambda: running.hub.rejected is not None)
    assert "restart the hub" in str(running.hub.rejected)
    assert world.writes(mark) == []


# removed entries


def test_a_service_gone_from_the_file_loses_its_slices_after_the_grace(running: RunningHub, world: World) -> None:
    """The slices of a removed Service are deleted after --removal-grace, and not before."""
    world.add_service("other")

    world.write(services=[world.service("other")])
    written = time.monotonic()
    eventually(lambda: world.slices() == [], 5)

    assert 0.5 <= time.monotonic() - written < 4.0
    world.awaits("10.1.0.1", service="other")


def test_orphans_are_collected_at_the_start(world: World) -> None:
    """Slices that belong to no registry entry are found by their labels and deleted when the hub starts."""
    world.add_service()
    with RunningHub(world):
        world.awaits("10.1.0.1")
    world.write(services=[world.service("other")])

    with RunningHub(world):
        eventually(lambda: world.slices() == [], 5)


def test_a_source_gone_from_the_file_loses_its_slices_after_the_grace(world: World) -> None:
    """A removed source's slices are deleted even while it is unreachable; the other source's are not written."""
    world.add_service()
    world.write(services=[world.service("payments", "eu", "us")])
    with RunningHub(world, removal_grace=1.5) as hub:
        world.awaits("10.1.0.1", "10.2.0.1")
        world.remotes["us"].kill()
        eventually(lambda: hub.state("us").startswith("Unreachable"))
        mark = world.hub_cluster.audit_mark()
        world.write(clusters=[world.cluster("eu")], services=[world.service()])
        eventually(lambda: "RemovalPending" in hub.findings())
        assert by_cluster(world) == {"eu": ["10.1.0.1"], "us": ["10.2.0.1"]}
        eventually(lambda: by_cluster(world) == {"eu": ["10.1.0.1"]}, 5)
        assert [request.verb for request in world.writes(mark)] == ["delete"]


def test_a_renamed_cluster_keeps_its_slices(running: RunningHub, world: World) -> None:
    """With ``formerly``, the source label is replaced in place, and nothing is removed."""
    before, mark = world.slices(), world.hub_cluster.audit_mark()
    renamed = {**world.cluster("europe", formerly=["eu"]), "kubeconfig": {"path": "eu"}}

    world.write(clusters=[renamed], services=[world.service("payments", "europe")])

    eventually(lambda: by_cluster(world) == {"europe": ["10.1.0.1"]})
    assert [request.verb for request in world.writes(mark)] == ["update"]
    assert world.slices()[0]["metadata"]["uid"] == before[0]["metadata"]["uid"]


# reloads


def test_a_reload_touches_only_what_changed(running: RunningHub, world: World) -> None:
    """A second Service is published within 2 s; the first one's slices and the connections stay."""
    world.add_service("other")
    before, lists, mark = world.versions(), running.cluster("eu").lists, world.hub_cluster.audit_mark()

    world.write(services=[world.service(), world.service("other")])

    world.awaits("10.1.0.1", service="other", timeout=2.5)
    assert [request.verb for request in world.writes(mark)] == ["create"]
    assert (world.versions(), running.cluster("eu").lists) == (before, lists)


def test_changed_allowed_cidrs_apply_without_a_new_list(running: RunningHub, world: World) -> None:
    """A changed address policy applies to known addresses, without a new list or provider."""
    lists = running.cluster("eu").lists
    add_node(world.remotes["eu"], "n2", "10.9.0.2")
    world.awaits("10.1.0.1", "10.9.0.2")

    world.write(clusters=[world.cluster("eu", allowedCIDRs=["10.1.0.0/16"]), world.cluster("us")])

    world.awaits("10.1.0.1")
    assert running.cluster("eu").lists == lists


def test_a_rejected_file_changes_nothing(running: RunningHub, world: World) -> None:
    """A rejected file changes nothing, and a repaired one is used."""
    mark = world.hub_cluster.audit_mark()
    world.write_text("version: 1\nclusters: [")

    eventually(lambda: running.hub.rejected is not None)
    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    world.awaits("10.1.0.1", "10.1.0.2")
    assert [request.verb for request in world.writes(mark)] == ["update"]
    world.write()
    eventually(lambda: running.hub.rejected is None)


def test_a_broken_entry_freezes_that_entry_only(world: World) -> None:
    """The slices of a cluster with a broken entry stay, and other clusters are followed."""
    world.add_service()
    world.write(services=[world.service("payments", "eu", "us")])
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")
        world.write(
            clusters=[world.cluster("eu", allowedCIDRs=["nonsense"]), world.cluster("us")],
            services=[world.service("payments", "eu", "us")],
        )
        time.sleep(1.5)
        world.remotes["eu"].api.delete("/api/v1/nodes/n1")
        add_node(world.remotes["us"], "m2", "10.2.0.2")
        world.awaits("10.1.0.1", "10.2.0.1", "10.2.0.2")
        time.sleep(1.0)

    assert by_cluster(world) == {"eu": ["10.1.0.1"], "us": ["10.2.0.1", "10.2.0.2"]}
