"""Copied Services, from the registry and by annotation, on real API servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hub.model import TargetKey
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, RunningHub, World, add_node
from tests.support.waiting import eventually

COPY_RULES: tuple[Object, ...] = (
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
)
"""Rules for copying from a remote cluster, in the source's namespace, besides those for Nodes."""
NODE_PORT_RULES: tuple[Object, ...] = (
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
)
"""Rules for ports by name from a remote cluster, in the Service's namespace, besides those for Nodes."""
HTTPS = {"name": "https", "port": 443, "targetPort": 6443}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """A hub cluster and the remote cluster eu, both empty."""
    return World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()


def copy(namespace: str, name: str, cluster: str = "local") -> Object:
    """A source that copies a Service."""
    return {"cluster": cluster, "provider": {"name": "service-copy", "config": {"namespace": namespace, "name": name}}}


def add_slice(
    server: ApiServer,
    name: str,
    service: str,
    endpoints: Iterable[str | Object],
    *,
    namespace: str = "edge",
    ports: Sequence[Object] = ({"name": "https", "port": 6443, "protocol": "TCP"},),
    labels: Mapping[str, str] | None = None,
    family: str = "IPv4",
) -> Object:
    """Create another controller's slice; plain addresses become ready endpoints."""
    body = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service, **(labels or {})}},
        "addressType": family,
        "endpoints": [
            {"addresses": [endpoint], "conditions": {"ready": True}} if isinstance(endpoint, str) else endpoint
            for endpoint in endpoints
        ],
        "ports": list(ports),
    }
    return server.api.post(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", body)


def set_endpoints(server: ApiServer, name: str, *endpoints: str | Object, namespace: str = "edge") -> None:
    """Replace the endpoints of a slice."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"
    content = [
        {"addresses": [endpoint], "conditions": {"ready": True}} if isinstance(endpoint, str) else endpoint
        for endpoint in endpoints
    ]
    server.api.patch(path, {"endpoints": content})


def service_entry(name: str, *sources: Object, **more: Any) -> Object:
    """A registry entry with these copies as sources."""
    return {"name": name, "namespace": "edge", "sources": list(sources), **more}


def annotations(source: str | None, namespace: str | None = None, enabled: str = "true") -> dict[str, str]:
    """The annotations of endpoint-copier."""
    found = {"endpoint-copier/enabled": enabled}
    if source is not None:
        found["endpoint-copier/default-service-name"] = source
    if namespace is not None:
        found["endpoint-copier/default-service-namespace"] = namespace
    return found


def add_copy(world: World, name: str, source: str | None, namespace: str | None = None, **more: Any) -> None:
    """Create a Service that requests a copy."""
    enabled = more.pop("enabled", "true")
    metadata = {"annotations": annotations(source, namespace, enabled)}
    world.add_service(name, metadata=metadata, **{"ports": [HTTPS], **more})


def annotate(world: World, name: str, **values: str | None) -> None:
    """Change annotations of endpoint-copier on a Service; None removes one."""
    changed = {f"endpoint-copier/{key.replace('_', '-')}": value for key, value in values.items()}
    world.hub_cluster.api.patch(f"/api/v1/namespaces/edge/services/{name}", {"metadata": {"annotations": changed}})


def ports(world: World, service: str) -> list[list[tuple[str, int]]]:
    """The names and numbers of the ports in each slice of a Service, sorted."""
    return sorted(
        [(port.get("name", ""), port["port"]) for port in slice_["ports"]] for slice_ in world.slices(service)
    )


ALLOW_EDGE = {"enabled": True, "allow": [{"from": "edge/*", "to": ["edge/*"]}]}


# --- from the registry ---------------------------------------------------------------------------------


def test_the_api_servers_address_is_copied(world: World) -> None:
    """The copy has the endpoints of ``kubernetes``, whichever controller wrote them, and follows changes."""
    world.add_service("kubernetes-vip", ports=[HTTPS])
    world.write(services=[service_entry("kubernetes-vip", copy("edge", "kubernetes"))])
    add_slice(world.hub_cluster, "kubernetes", "kubernetes", ["10.96.0.11", "10.96.0.12"])
    with RunningHub(world):
        world.awaits("10.96.0.11", "10.96.0.12", service="kubernetes-vip")
        set_endpoints(world.hub_cluster, "kubernetes", "10.96.0.12", "10.96.0.13")
        world.awaits("10.96.0.12", "10.96.0.13", service="kubernetes-vip")
        world.hub_cluster.api.delete(world.slice_path("kubernetes"))
        world.awaits(service="kubernetes-vip")

    assert ports(world, "kubernetes-vip") == [[("https", 6443)]]


def test_an_endpoint_is_copied_whole_within_the_cluster(world: World) -> None:
    """Conditions, zone, hints, hostname, nodeName and targetRef are copied, also for a Service that is not headless."""
    whole = {
        "addresses": ["10.20.0.1"],
        "conditions": {"ready": False, "serving": True, "terminating": True},
        "hostname": "web-0",
        "nodeName": "worker-1",
        "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "edge", "uid": "1234"},
        "zone": "eu-a",
        "hints": {"forZones": [{"name": "eu-a"}]},
    }
    add_slice(world.hub_cluster, "web-1", "web", [whole, {"addresses": ["10.20.0.2"]}])
    world.add_service("mirror", ports=[HTTPS])
    world.write(services=[service_entry("mirror", copy("edge", "web"))])
    with RunningHub(world):
        world.awaits("10.20.0.1", "10.20.0.2", service="mirror")

    (slice_,) = world.slices("mirror")
    unset = {"addresses": ["10.20.0.2"], "conditions": {"ready": True, "serving": True, "terminating": False}}
    assert slice_["endpoints"] == [whole, unset]


def test_every_slice_and_family_of_a_source_is_copied(world: World) -> None:
    """1,500 endpoints in several slices of both families, one slice with more than the hub's limit, are all copied."""
    wanted = [f"10.30.{number >> 8}.{number & 255}" for number in range(1500)]
    add_slice(world.hub_cluster, "big-1", "big", wanted[:1000])
    add_slice(world.hub_cluster, "big-2", "big", wanted[1000:])
    add_slice(world.hub_cluster, "big-6", "big", ["fd00:30::1", "fd00:30::2"], family="IPv6")
    world.add_service("mirror", ports=[HTTPS], ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
    world.write(services=[service_entry("mirror", copy("edge", "big"))])
    with RunningHub(world):
        world.awaits(*wanted, "fd00:30::1", "fd00:30::2", service="mirror", timeout=20)
        mark = world.hub_cluster.audit_mark()
        set_endpoints(world.hub_cluster, "big-2", *wanted[1000:1499])
        world.awaits(*wanted[:1499], "fd00:30::1", "fd00:30::2", service="mirror")
        assert [request.verb for request in world.writes(mark)].count("update") <= 1


def test_slices_with_other_ports_stay_apart(world: World) -> None:
    """A named targetPort has the number of each source slice, and an endpoint whose port changes is never missing."""
    add_slice(world.hub_cluster, "web-a", "web", ["10.20.0.1", "10.20.0.2"], ports=[{"name": "http", "port": 8080}])
    add_slice(world.hub_cluster, "web-b", "web", ["10.20.0.3"], ports=[{"name": "http", "port": 9090}])
    world.add_service("mirror", ports=[{"name": "http", "port": 80, "targetPort": "http"}])
    world.write(services=[service_entry("mirror", copy("edge", "web"))])

    def found() -> dict[int, list[str]]:
        return {
            slice_["ports"][0]["port"]: sorted(
                address for one in slice_["endpoints"] or () for address in one["addresses"]
            )
            for slice_ in world.slices("mirror")
        }

    with RunningHub(world) as hub:
        eventually(lambda: found() == {8080: ["10.20.0.1", "10.20.0.2"], 9090: ["10.20.0.3"]})
        seen: list[list[str]] = []
        world.hub_cluster.api.delete(world.slice_path("web-b"))
        add_slice(world.hub_cluster, "web-c", "web", ["10.20.0.2", "10.20.0.3"], ports=[{"name": "http", "port": 9090}])
        set_endpoints(world.hub_cluster, "web-a", "10.20.0.1")

        def moved() -> bool:
            seen.append(world.published("mirror"))
            return found() == {8080: ["10.20.0.1"], 9090: ["10.20.0.2", "10.20.0.3"]}

        eventually(moved, every=0.01)
        assert all("10.20.0.2" in addresses for addresses in seen)
        hub.stop()
    with RunningHub(world):  # a restarted hub has nothing to write
        mark = world.hub_cluster.audit_mark()
        assert world.writes(mark, settle=1.5) == []


def test_a_remote_service_is_copied_and_its_ports_followed(world: World) -> None:
    """A copy from another cluster has neither nodeName nor a reference to a Pod; changes of ports are followed."""
    remote = world.remotes["eu"]
    remote.grant("hub", *COPY_RULES, namespace="edge")
    endpoint = {
        "addresses": ["10.20.0.1"],
        "nodeName": "worker-1",
        "targetRef": {"kind": "Pod", "name": "web-0"},
        "zone": "eu-a",
    }
    add_slice(remote, "web-1", "web", [endpoint], ports=[{"name": "http", "port": 30080}])
    world.add_service("mirror", ports=[{"name": "http", "port": 80, "targetPort": "http"}])
    world.write(services=[service_entry("mirror", copy("edge", "web", "eu"))])
    with RunningHub(world):
        world.awaits("10.20.0.1", service="mirror")
        assert ports(world, "mirror") == [[("http", 30080)]]
        remote.api.patch(world.slice_path("web-1"), {"ports": [{"name": "http", "port": 30081}]})
        eventually(lambda: ports(world, "mirror") == [[("http", 30081)]])

    (slice_,) = world.slices("mirror")
    ready = {"ready": True, "serving": True, "terminating": False}
    assert slice_["endpoints"] == [{"addresses": ["10.20.0.1"], "conditions": ready, "zone": "eu-a"}]


def test_a_remote_that_is_away_keeps_endpoints_and_ports(world: World) -> None:
    """Endpoints and ports stay, even if the hub restarts while the remote is away."""
    remote = world.remotes["eu"]
    remote.grant("hub", *COPY_RULES, namespace="edge")
    add_slice(remote, "web-1", "web", ["10.20.0.1"], ports=[{"name": "http", "port": 30080}])
    add_slice(remote, "web-2", "web", ["10.20.0.2"], ports=[{"name": "http", "port": 30090}])
    world.add_service("mirror", ports=[{"name": "http", "port": 80, "targetPort": "http"}])
    world.write(services=[service_entry("mirror", copy("edge", "web", "eu"))])
    with RunningHub(world):
        world.awaits("10.20.0.1", "10.20.0.2", service="mirror")
    before = world.versions("mirror")
    remote.stop()
    with RunningHub(world) as hub:
        eventually(lambda: hub.state("eu").startswith("Unreachable"))
        world.hub_cluster.api.patch("/api/v1/namespaces/edge/services/mirror", {"metadata": {"labels": {"team": "a"}}})
        eventually(lambda: all(slice_["metadata"]["labels"].get("team") == "a" for slice_ in world.slices("mirror")))

    assert world.versions("mirror").keys() == before.keys()
    assert world.published("mirror") == ["10.20.0.1", "10.20.0.2"]
    assert ports(world, "mirror") == [[("http", 30080)], [("http", 30090)]]


def test_a_remote_that_may_not_be_read_is_named(world: World) -> None:
    """A 403 names the missing rule and the cluster, affects nothing else, and recovers once the right is granted."""
    remote = world.remotes["eu"]
    add_slice(remote, "web-1", "web", ["10.20.0.1"], ports=[{"name": "https", "port": 30443}])
    world.add_service("mirror", ports=[{"name": "https", "port": 443, "targetPort": 30443}])
    world.write(services=[service_entry("mirror", copy("edge", "web", "eu"))])
    with RunningHub(world) as hub:
        key = TargetKey("edge", "mirror")
        eventually(lambda: (last := hub.hub.reconciler.last(key)) is not None and "403" in last.unknown.get("eu", ""))
        last = hub.hub.reconciler.last(key)
        assert last is not None
        assert "endpointslices.discovery.k8s.io: get, list, watch" in last.unknown["eu"]
        remote.grant("hub", *COPY_RULES, namespace="edge")
        world.awaits("10.20.0.1", service="mirror", timeout=20)


# --- by annotation --------------------------------------------------------------------------------------


def test_annotations_ask_for_copies(world: World) -> None:
    """Two copies of one source and a copy of a copy follow every change; removing the annotation ends a copy."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    world.write(annotations=ALLOW_EDGE, services=[world.service("unrelated")])
    add_copy(world, "one", "web", "edge")
    add_copy(world, "two", "web")
    add_copy(world, "three", "one", "edge")
    with RunningHub(world):
        for name in ("one", "two", "three"):
            world.awaits("10.20.0.1", service=name)
        set_endpoints(world.hub_cluster, "web-1", "10.20.0.1", "10.20.0.2")
        for name in ("three", "two", "one"):
            world.awaits("10.20.0.1", "10.20.0.2", service=name)
        annotate(world, "one", enabled=None)
        world.awaits(service="one")
        world.awaits(service="three")
        world.awaits("10.20.0.1", "10.20.0.2", service="two")
        assert world.slices("one") == []
        annotate(world, "one", enabled="true")
        world.awaits("10.20.0.1", "10.20.0.2", service="three")
        world.hub_cluster.api.delete("/api/v1/namespaces/edge/services/two")
        world.awaits(service="two")


@pytest.mark.parametrize("value", ["True", "1", ""])
def test_only_the_value_true_requests_a_copy(world: World, value: str) -> None:
    """Any other value copies nothing and is reported, as with endpoint-copier."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    world.write(annotations=ALLOW_EDGE, services=[world.service("unrelated")])
    add_copy(world, "mirror", "web", "edge", enabled=value)
    with RunningHub(world) as hub:
        eventually(lambda: "AnnotationIgnored" in hub.findings("mirror"))
        assert repr(value) in hub.findings("mirror")["AnnotationIgnored"].message
        assert world.slices("mirror") == []
        annotate(world, "mirror", enabled="true")
        world.awaits("10.20.0.1", service="mirror")


def test_bad_annotations_are_reported_and_harmless(world: World) -> None:
    """A missing source name, a copy of itself, a loop, a selector and a missing permission have different reasons."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    world.write(
        annotations=ALLOW_EDGE, services=[world.service("unrelated"), service_entry("mine", copy("edge", "web"))]
    )
    world.add_service("mine", metadata={"annotations": annotations("other", "edge")}, ports=[HTTPS])
    add_copy(world, "nameless", None)
    add_copy(world, "itself", "itself")
    add_copy(world, "ping", "pong")
    add_copy(world, "pong", "ping")
    add_copy(world, "chosen", "web", selector={"app": "web"})
    add_copy(world, "greedy", "kubernetes", "default")
    add_copy(world, "good", "web")
    wanted = {
        "nameless": "CopyInvalid",
        "itself": "CopyLoop",
        "ping": "CopyLoop",
        "pong": "CopyLoop",
        "chosen": "SelectorPresent",
        "greedy": "CopyNotAllowed",
        "mine": "AnnotationIgnored",
    }
    with RunningHub(world) as hub:
        world.awaits("10.20.0.1", service="good")
        world.awaits("10.20.0.1", service="mine")
        for name, reason in wanted.items():
            eventually(lambda name=name, reason=reason: reason in hub.findings(name))
        for name in wanted.keys() - {"mine"}:
            assert world.slices(name) == []
        assert "annotations.allow" in hub.findings("greedy")["CopyNotAllowed"].message
        annotate(world, "pong", default_service_name="web")  # ends the loop
        world.awaits("10.20.0.1", service="ping")


def test_rules_come_and_go_with_the_file(world: World) -> None:
    """A copy without a rule is removed after the grace; without the block nothing is copied."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    add_copy(world, "mirror", "web", "edge")
    world.write(annotations={"enabled": True}, services=[world.service("unrelated")])  # no rule = same namespace
    with RunningHub(world) as hub:
        world.awaits("10.20.0.1", service="mirror")
        world.write(
            annotations={"enabled": True, "allow": [{"from": "team-a/*", "to": ["edge/*"]}]},
            services=[world.service("unrelated")],
        )
        eventually(lambda: "CopyNotAllowed" in hub.findings("mirror"))
        world.awaits(service="mirror")
        assert world.slices("mirror") == []


def test_a_restarted_hub_adopts_its_copies(world: World) -> None:
    """A restarted hub writes nothing, and does not take copies for dropped before it knows the Services."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    world.write(annotations=ALLOW_EDGE, services=[world.service("unrelated")])
    for name in ("one", "two", "three"):
        add_copy(world, name, "web")
    with RunningHub(world):
        for name in ("one", "two", "three"):
            world.awaits("10.20.0.1", service=name)
    mark = world.hub_cluster.audit_mark()
    with RunningHub(world, removal_grace=0.0) as hub:
        eventually(lambda: hub.hub.reconciler.last(TargetKey("edge", "three")))
        assert world.writes(mark, settle=1.0) == []
        add_slice(world.hub_cluster, "web-2", "web", ["10.20.0.2"])
        for name in ("one", "two", "three"):
            world.awaits("10.20.0.1", "10.20.0.2", service=name)


def test_once_and_status_include_copies(world: World) -> None:
    """``hub run --once`` writes copies; ``hub status`` shows which were refused and why."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1"])
    world.write(annotations=ALLOW_EDGE, services=[service_entry("mine", copy("edge", "web"))])
    world.add_service("mine", ports=[HTTPS])
    add_copy(world, "good", "web")
    add_copy(world, "greedy", "kubernetes", "default")
    access = ["--registry", str(world.path), "--kubeconfig", str(world.kubeconfig)]

    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        argv = (sys.executable, "-m", "hub", *argv, *access)
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)

    done = command("run", "--once", "--leader-elect=false")
    assert world.published("good") == ["10.20.0.1"], done.stderr
    assert world.published("mine") == ["10.20.0.1"]
    shown = command("status", "-o", "json")
    assert shown.stdout, shown.stderr
    status = json.loads(shown.stdout)
    found = {service["name"]: [one["reason"] for one in service["findings"]] for service in status["services"]}
    assert found == {"edge/good": [], "edge/greedy": ["CopyNotAllowed"], "edge/mine": []}
    assert "may not copy default/kubernetes" in command("why", "edge/greedy").stdout


# --- taking over from endpoint-copier -----------------------------------------------------------------------


def test_slices_of_endpoint_copier_are_taken_over_without_a_gap(world: World) -> None:
    """Slices of endpoint-copier are deleted once the hub's cover them, even with stale addresses, and without a gap."""
    add_slice(world.hub_cluster, "web-1", "web", ["10.20.0.1", "10.20.0.2"])
    add_slice(
        world.hub_cluster,
        "mirror",
        "mirror",
        ["10.20.0.1", "10.20.0.2", "10.20.0.99"],  # the last one is stale, a known bug of endpoint-copier
        labels={"endpoint-copier/source": "web-1"},
    )
    add_copy(world, "mirror", "web", "edge")
    world.write(annotations=ALLOW_EDGE, services=[world.service("unrelated")])
    seen: list[set[str]] = []

    def look() -> list[Object]:
        every = world.slices("mirror", selector="kubernetes.io/service-name")
        seen.append({address for slice_ in every for one in slice_["endpoints"] or () for address in one["addresses"]})
        return every

    def gone() -> bool:
        return not any("endpoint-copier/source" in slice_["metadata"]["labels"] for slice_ in look())

    with RunningHub(world):
        eventually(gone, 20, 0.02)

    assert all({"10.20.0.1", "10.20.0.2"} <= addresses for addresses in seen)
    assert seen[-1] == {"10.20.0.1", "10.20.0.2"}


# --- node ports by name ---------------------------------------------------------------------------------------


def test_a_port_is_read_from_a_remote_service(world: World) -> None:
    """The number follows the remote Service; a deleted port keeps its number, even after a restart of the hub."""
    remote = world.remotes["eu"]
    remote.grant("hub", *NODE_PORT_RULES, namespace="edge")
    add_node(remote, "n1", "10.1.0.1")
    services = "/api/v1/namespaces/edge/services"
    port = {"name": "https", "port": 443, "nodePort": 30500}
    remote.api.post(services, {"metadata": {"name": "envoy"}, "spec": {"type": "NodePort", "ports": [port]}})
    world.add_service()
    entry = {"name": "https", "nodePort": {"service": "edge/envoy", "port": "https"}}
    world.write(services=[world.service(ports=[entry])])
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        assert ports(world, "payments") == [[("https", 30500)]]
        remote.api.patch(f"{services}/envoy", {"spec": {"ports": [{**port, "nodePort": 30501}]}})
        eventually(lambda: ports(world, "payments") == [[("https", 30501)]])
        remote.api.delete(f"{services}/envoy")
        eventually(lambda: "NodePortUnknown" in hub.findings())
    with RunningHub(world) as hub:
        add_node(remote, "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")
        assert ports(world, "payments") == [[("https", 30501)]]
        remote.api.post(
            services,
            {"metadata": {"name": "envoy"}, "spec": {"type": "NodePort", "ports": [{**port, "nodePort": 30502}]}},
        )
        eventually(lambda: ports(world, "payments") == [[("https", 30502)]])
        assert "NodePortUnknown" not in hub.findings()


def test_a_port_that_was_never_read_publishes_nothing(world: World) -> None:
    """A port that was never read publishes nothing, and the source is named."""
    remote = world.remotes["eu"]
    remote.grant("hub", *NODE_PORT_RULES, namespace="edge")
    add_node(remote, "n1", "10.1.0.1")
    world.add_service()
    entry = {"name": "https", "nodePort": {"service": "edge/nobody", "port": "https"}}
    world.write(services=[world.service(ports=[entry])])
    with RunningHub(world) as hub:
        eventually(lambda: "does not exist" in getattr(hub.findings().get("NodePortUnknown"), "message", ""))
        assert world.slices() == []
