"""Rights that the hub's account loses while it runs: the missing rule is named, and everything else works."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hub.election.elector import Timing
from hub.report.state import Snapshots
from hub.report.values import Status
from tests.support.api import ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.waiting import eventually

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
QUICK = Timing(duration=6, renew_deadline=3.0, retry=0.5, call=1.0)


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster eu with a node, and the Services edge/payments and other/orders, which publish it."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    hub_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    made.add_service()
    made.add_service("orders", "other")
    add_node(remote_clusters[0], "n1", "10.1.0.1")
    made.write(services=[made.service(), made.service("orders", namespace="other")])
    return made


def without(resource: str) -> list[Object]:
    """The hub's rules without those for one resource."""
    return [rule for rule in HUB_RULES if resource not in rule["resources"]]


def allow(world: World, *rules: Object) -> None:
    """Give the hub's account exactly these cluster-wide rules."""
    [role] = [role for role in world.hub_cluster.api.list(ROLES) if role["metadata"]["name"].startswith("hub-")]
    path = f"{ROLES}/{role['metadata']['name']}"
    world.hub_cluster.api.patch(path, {"rules": list(rules)})


def arrives(world: World, number: int, *services: tuple[str, str]) -> None:
    """Add a node, and wait until these Services publish it."""
    add_node(world.remotes["eu"], f"n{number}", f"10.1.0.{number}")
    wanted = services or (("payments", "edge"), ("orders", "other"))
    eventually(lambda: all(f"10.1.0.{number}" in world.published(*service) for service in wanted))


def test_publishing_works_after_the_right_to_write_events_is_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Endpoints still change; the missing rule is named once, and Events return with the right."""
    with RunningHub(world) as running:
        arrives(world, 2)
        allow(world, *without("events"))
        eventually(lambda: refuses(world, "POST", "/apis/events.k8s.io/v1/namespaces/edge/events", EVENT))
        world.hub_cluster.api.patch("/api/v1/namespaces/edge/services/payments", {"spec": {"selector": {"app": "a"}}})
        eventually(lambda: "no Events in namespace edge: 403" in caplog.text)
        assert "Events: no Events in namespace edge: 403" in page(running)
        arrives(world, 3, ("orders", "other"))
        allow(world, *HUB_RULES)
        before = running.hub.recorder.written
        world.hub_cluster.api.patch("/api/v1/namespaces/edge/services/payments", {"spec": {"selector": None}})
        arrives(world, 4)
        eventually(lambda: running.hub.recorder.written > before, 45)
    assert caplog.text.count("no Events in namespace edge") == 1


EVENT: Object = {
    "metadata": {"generateName": "probe-"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "type": "Normal",
    "reason": "Probe",
    "action": "Probe",
    "regarding": {"kind": "Service", "namespace": "edge", "name": "none"},
    "reportingController": "test",
    "reportingInstance": "test",
}


def page(running: RunningHub) -> str:
    """The status page's text about the process."""
    return status(running).hub.error


def status(running: RunningHub) -> Status:
    """The data of the status page and its API, collected in the hub's loop."""

    async def take() -> Status:
        return Snapshots(running.hub).take()

    assert running._loop is not None
    return asyncio.run_coroutine_threadsafe(take(), running._loop).result(10)


def refuses(world: World, method: str, path: str, body: Any = None) -> bool:
    """Whether a request of the hub's account is refused yet: the API server applies roles with a delay."""
    try:
        world.hub_cluster.api_as("hub").call(
            method, path, {**body, "metadata": {"generateName": "p-"}} if body else None
        )
    except ApiRefused as error:
        return error.status == 403
    return False


def test_refused_namespace_keeps_its_slices(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The Service there keeps its endpoints and names the missing right; others change; afterwards it catches up."""
    read = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    write = {**read, "verbs": ["create", "update", "delete"]}
    for namespace in ("edge", "other"):
        world.hub_cluster.grant("hub", write, namespace=namespace)
    allow(world, *without("endpointslices"), read)
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/other/rolebindings"
    with RunningHub(world) as running:
        arrives(world, 2)
        [binding] = world.hub_cluster.api.list(bindings)
        world.hub_cluster.api.delete(f"{bindings}/{binding['metadata']['name']}")
        path = "/apis/discovery.k8s.io/v1/namespaces/other/endpointslices/none"
        eventually(lambda: refuses(world, "DELETE", path))
        arrives(world, 3, ("payments", "edge"))
        eventually(
            lambda: "other/orders: PUT /apis/discovery.k8s.io/v1/namespaces/other/endpointslices/" in caplog.text
        )
        assert 'cannot update resource "endpointslices"' in caplog.text
        assert world.published("orders", "other") == ["10.1.0.1", "10.1.0.2"]
        problems = {service.name: service.problem for service in status(running).services}
        assert 'cannot update resource "endpointslices"' in problems["other/orders"]
        assert problems["edge/payments"] == ""
        world.hub_cluster.grant("hub", write, namespace="other")
        eventually(lambda: "10.1.0.3" in world.published("orders", "other"), 30)


def test_publishing_works_after_the_right_to_read_services_is_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub still uses the Services it knows; log and status name the missing rule."""
    with RunningHub(world) as running:
        arrives(world, 2)
        allow(world, *without("services"))
        eventually(lambda: refuses(world, "GET", "/api/v1/services"))
        world.hub_cluster.restart()
        rule = "lacks the rule «services: get, list, watch» in the hub cluster"
        eventually(lambda: f"cannot follow Services: 403: the hub's account {rule}" in caplog.text, 30)
        eventually(lambda: rule in page(running), 30)
        eventually(lambda: running.hub.writing, 30)
        arrives(world, 3)
        allow(world, *HUB_RULES)
        eventually(lambda: running.hub.local.error == "", 40)
        world.hub_cluster.api.patch("/api/v1/namespaces/edge/services/payments", {"spec": {"selector": {"app": "a"}}})
        eventually(lambda: "SelectorPresent" in running.findings())


def test_hub_steps_down_after_the_right_to_renew_its_lease_is_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub that cannot renew its Lease steps down with the reason, and leads again when it may."""
    with RunningHub(world, timing=QUICK) as running:
        arrives(world, 2)
        allow(world, *without("leases"))
        eventually(lambda: not running.hub.writing, 20)
        assert 'cannot update resource "leases"' in caplog.text
        assert "no longer leads" in caplog.text
        eventually(lambda: 'resource "leases"' in page(running))
        add_node(world.remotes["eu"], "n3", "10.1.0.3")
        eventually(lambda: len(running.cluster("eu").nodes) == 3)
        assert world.published() == ["10.1.0.1", "10.1.0.2"]
        allow(world, *HUB_RULES)
        eventually(lambda: "10.1.0.3" in world.published() and "10.1.0.3" in world.published("orders", "other"), 20)


def test_registry_applies_after_the_right_to_config_maps_is_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Approvals are not read and registries not stored, with one log line each; a new registry is used."""
    with RunningHub(world) as running:
        arrives(world, 2)
        allow(world, *without("configmaps"))
        eventually(lambda: refuses(world, "GET", "/api/v1/namespaces/default/configmaps"))
        world.add_service("third")
        world.write(services=[*world.registry["services"], world.service("third")])
        eventually(lambda: "10.1.0.2" in world.published("third"))
        eventually(lambda: "the registry is not kept for a restart: 403" in caplog.text)
        assert "last accepted registry: 403" in page(running)
        world.hub_cluster.restart()
        eventually(lambda: "approvals are not known, 'hub approve' has no effect: 403" in caplog.text, 30)
        arrives(world, 3)
    assert caplog.text.count("the registry is not kept for a restart") == 1
    assert caplog.text.count("has no effect: 403") == 1
