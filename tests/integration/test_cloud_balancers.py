"""The load balancer part on a real API server, with a cloud in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from hub.controller.course import LAG
from hub.controller.record import ANNOTATION
from hub.controller.services import FINALIZER
from hub.errors import ProviderError
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.model import ObjectKey
from hub.plugin.clouds import CloudConflict, CloudRefusal, Done, QuotaExceeded, Step
from hub.report.collect_clouds import original
from hub.runtime.clock import SystemClock
from tests.support.apiserver.server import ApiServer
from tests.support.balancing import KINDS, PREFIX
from tests.support.balancing_site import KEY, SERVICES, Scene, ToySite, running

NAME = "web.edge.eu"
CREATE = [f"create address {NAME}", f"create group {NAME}", f"create balancer {NAME}", "map address-0001"]
DELETE = [
    "unmap address-0001",
    "delete balancer balancer-0003",
    "delete address address-0001",
    "delete group group-0002",
]


@pytest.fixture
async def client(hub_cluster: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    """The cluster, as the hub accesses it."""
    path = tmp_path / "kubeconfig"
    hub_cluster.kubeconfig(path)
    pool = LookupPool()
    async with Client(Credentials(load_hub_access(path), SystemClock()), pool) as found:
        yield found
    pool.close()


@pytest.fixture
async def scene(client: Client, hub_cluster: ApiServer) -> AsyncIterator[Scene]:
    """A cluster with two nodes, and a running part."""
    async with running(ToySite(client), hub_cluster.api) as found:
        yield found


def ingress(scene: Scene) -> list[Any]:
    """The ingress in the Service's status."""
    service = scene.service()
    return list((service or {}).get("status", {}).get("loadBalancer", {}).get("ingress") or ())


async def created(scene: Scene, **spec: Any) -> None:
    """Create the Service and wait for its balancer."""
    scene.add(**spec)
    await scene.state("ready")


async def test_a_service_gets_its_balancer(scene: Scene, hub_cluster: ApiServer) -> None:
    """Finalizer first, then the objects in order, then the ingress: two writes to the Service in all."""
    finalizers: list[bool] = []

    def watched(step: Step) -> str:
        del step
        service = scene.service()
        assert service is not None
        finalizers.append(FINALIZER in service["metadata"].get("finalizers", ()))
        return ""

    scene.cloud.fault = watched
    mark = hub_cluster.audit_mark()
    await created(scene)
    assert scene.cloud.calls == CREATE
    assert finalizers == [True] * 4
    assert ingress(scene) == [{"ip": "203.0.113.1", "ipMode": "VIP"}]
    assert scene.cloud.of(NAME)["balancer"].nodes == ("n1", "n2")
    patches = [request for request in hub_cluster.requests(mark) if request.verb == "patch"]
    assert len(patches) == 2
    assert scene.site.reporter.events == ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]
    assert scene.told is not None
    assert set(scene.told.ids) == set(KINDS)


async def test_a_deleted_service_goes_last(scene: Scene) -> None:
    """First the objects go, then the finalizer, and with it the Service."""
    await created(scene)
    there: list[bool] = []

    def watched(step: Step) -> str:
        del step
        there.append(scene.service() is not None)
        return ""

    scene.cloud.fault = watched
    scene.delete()
    await scene.until(lambda: scene.service() is None)
    assert scene.cloud.calls[4:] == DELETE
    assert there == [True] * 4
    assert scene.cloud.things == {}
    await scene.until(lambda: scene.told is None)
    assert scene.site.reporter.events[2:] == ["DeletingLoadBalancer", "DeletedLoadBalancer"]


async def test_another_type_removes_the_balancer(scene: Scene) -> None:
    """A Service that is no LoadBalancer any more keeps neither objects, finalizer, record nor ingress; and back."""
    await created(scene)
    scene.patch({"spec": {"type": "ClusterIP"}})
    await scene.until(lambda: scene.told is None)
    service = scene.service()
    assert service is not None
    assert FINALIZER not in service["metadata"].get("finalizers", ())
    assert ANNOTATION not in service["metadata"].get("annotations", {})
    assert (ingress(scene), scene.cloud.things) == ([], {})
    scene.patch({"spec": {"type": "LoadBalancer"}})
    await scene.state("ready")
    assert len(scene.cloud.things) == 3


async def test_finalizers_of_others_stay(scene: Scene) -> None:
    """Only the hub's own finalizer comes and goes (row 55)."""
    await created(scene, metadata={"finalizers": ["example.com/other"]})
    scene.delete()
    await scene.until(lambda: scene.told is None)
    service = scene.service()
    assert service is not None
    assert service["metadata"]["finalizers"] == ["example.com/other"]
    scene.patch({"metadata": {"finalizers": None}})
    await scene.until(lambda: scene.service() is None)


async def test_nodes_are_followed_in_rounds(scene: Scene) -> None:
    """Changes close together make one write; UpdatedLoadBalancer is the Event."""
    await created(scene)
    scene.nodes("n1", "n2", "n3")
    scene.nodes("n1", "n2", "n3", "n4")
    await scene.until(lambda: scene.cloud.of(NAME)["balancer"].nodes == ("n1", "n2", "n3", "n4"))
    await scene.state("ready")
    assert scene.cloud.calls[4:] == ["change balancer balancer-0003: ['nodes']"]
    assert scene.site.reporter.events[2:] == ["UpdatedLoadBalancer"]


async def test_a_mass_removal_of_nodes_is_withheld(scene: Scene) -> None:
    """All nodes but one disappear: they stay, a finding says so, and an approval lets them go."""
    scene.site.set_nodes("n1", "n2", "n3")
    await created(scene)
    scene.nodes("n3")
    [finding] = await scene.until(lambda: scene.site.reporter.findings["web"])
    assert finding.reason == "NodeRemovalWithheld"
    assert scene.cloud.calls == CREATE
    scene.site.approvals.add(finding.message.split("cloud/eu ")[1].split()[0])
    scene.part.state_changed()
    await scene.until(lambda: scene.cloud.of(NAME)["balancer"].nodes == ("n3",))
    scene.nodes()
    [finding] = await scene.until(lambda: scene.site.reporter.findings["web"])
    assert finding.reason == "UnAvailableLoadBalancer"
    assert scene.cloud.of(NAME)["balancer"].nodes == ("n3",)


async def test_a_restart_writes_nothing(scene: Scene, hub_cluster: ApiServer) -> None:
    """The next process finds everything as wanted: one observation, no write to the cloud or to the Service."""
    await created(scene)
    mark, observations = hub_cluster.audit_mark(), scene.cloud.observations
    async with running(scene.site, hub_cluster.api) as again:
        await again.state("ready")
        assert again.cloud.observations == observations + 1
    assert scene.cloud.calls == CREATE
    assert [request for request in hub_cluster.requests(mark) if request.verb == "patch"] == []


async def test_a_balancer_of_the_original_is_adopted(scene: Scene) -> None:
    """Objects of our name and a finalizer, but no record: only the record is written; all goes with the Service."""
    address, _, balancer = (scene.cloud.add(kind, NAME, foreign=False) for kind in KINDS)
    things = scene.cloud.things
    things[address] = replace(things[address], holds=balancer)
    things[balancer] = replace(things[balancer], nodes=("n1", "n2"), ports=(80,))
    await created(scene, metadata={"finalizers": [FINALIZER]})
    assert scene.cloud.calls == []
    assert scene.site.reporter.events == []
    scene.ahead(LAG + 1)
    scene.delete()
    await scene.until(lambda: scene.service() is None)
    assert scene.cloud.things == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_creation_without_an_answer_is_not_repeated(scene: Scene, when: str) -> None:
    """It fails, waits 30 s, and goes on with what there is then (row 36)."""
    lost = iter([when])
    scene.cloud.fault = lambda step: next(lost, "") if step.creates == "group" else ""
    scene.add()
    told = await scene.state("failing")
    assert "Service edge/web of cluster eu: create group web.edge.eu: " in told.message
    [finding] = scene.site.reporter.findings["web"]
    assert finding.reason == "SyncLoadBalancerFailed"
    scene.ahead(6)
    if when == "before":
        await scene.state("waiting")
        assert scene.cloud.calls == CREATE[:1]
        scene.ahead(LAG)
    await scene.state("ready")
    assert scene.cloud.calls == CREATE
    assert scene.cloud.breaches == []


async def test_a_lost_lease_stops_between_two_steps(scene: Scene) -> None:
    """After the fence refuses, no further request is sent; the next writer goes on without a second object (row 39)."""

    def lose(step: Step) -> str:
        if step.creates == "group":
            scene.site.leads, scene.site.halted = False, ("OtherCloudController", "another holds the Lease")
            scene.part.state_changed()
        return ""

    scene.cloud.fault = lose
    scene.add()
    told = await scene.state("waiting")
    assert told.message == "another holds the Lease"
    assert scene.cloud.calls == CREATE[:2]
    scene.cloud.fault = lambda _: ""
    scene.site.leads, scene.site.halted = True, None
    scene.site.creates_after = scene.site.clock.now() + 15
    scene.part.state_changed()
    await scene.until(lambda: scene.told is not None and "may still become visible" in scene.told.message)
    scene.ahead(LAG)
    await scene.state("ready")
    assert scene.cloud.calls == CREATE


async def test_the_fence_is_asked_before_every_write(scene: Scene) -> None:
    """Twice for each of two patches and four steps: for the timeout, and right before sending."""
    await created(scene)
    assert scene.site.fenced == 2 * (2 + 4)


async def test_mode_observe_shows_the_steps_and_writes_nothing(scene: Scene) -> None:
    """Everything is decided and shown; neither cloud nor Service changes."""
    scene.site.halted = "Observe", "nothing is written in mode observe"
    scene.add()
    told = await scene.state("waiting")
    assert told.message == "nothing is written in mode observe"
    finalizer, ingress = "write the Service's finalizer and record", "write the Service's ingress and record"
    assert told.steps == (finalizer, *CREATE[:3], "map the new address", ingress)
    service = scene.service()
    assert service is not None
    assert "finalizers" not in service["metadata"]
    assert scene.cloud.calls == []


async def test_a_standby_does_not_ask_the_cloud(scene: Scene) -> None:
    """Another replica does; this one begins as soon as it is its turn."""
    scene.site.halted = "Standby", "another replica acts for cluster eu"
    scene.add()
    await scene.state("waiting")
    assert scene.cloud.observations == 0
    scene.site.halted = None
    scene.part.state_changed()
    await scene.state("ready")


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({"loadBalancerClass": "example.com/other"}, "foreign"),
        ({"metadata": {"annotations": {"endpointslice-hub/paused": "true"}}}, "waiting"),
    ],
)
async def test_what_is_not_the_hub_s_stays_untouched(scene: Scene, spec: dict[str, Any], state: str) -> None:
    """A Service of another class, and a paused one, get neither a finalizer nor a balancer."""
    scene.add(**spec)
    await scene.state(state)
    service = scene.service()
    assert service is not None
    assert "finalizers" not in service["metadata"]
    assert scene.cloud.calls == []


async def test_a_foreign_balancer_needs_an_approval(scene: Scene) -> None:
    """An ingress that somebody else published: nothing is made until an operator approves it."""
    scene.site.halted = "Standby", "not yet"
    scene.add()
    await scene.state("waiting")
    scene.patch({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}, "/status")
    await scene.until(lambda: scene.told is not None and scene.told.ingress)
    scene.site.halted = None
    scene.part.state_changed()
    told = await scene.state("withheld")
    assert ingress(scene)[0]["ip"] == "192.0.2.7"
    assert [finding.reason for finding in told.findings] == ["ForeignLoadBalancer"]
    scene.site.approvals.add(told.message.split("cloud/eu ")[1].split()[0])
    scene.part.state_changed()
    await scene.state("ready")
    assert ingress(scene)[0]["ip"] == "203.0.113.1"


async def test_a_mistake_is_reported_and_its_correction_acts_at_once(scene: Scene) -> None:
    """The Service fails with the key and the values; once it is right, the balancer is made."""
    scene.add(metadata={"annotations": {PREFIX + "policy": "worst", PREFIX + "intervall": "5"}})
    told = await scene.state("failing")
    assert "toy.example.com/policy must be one of first, random, not 'worst'" in told.message
    assert [finding.reason for finding in told.findings] == ["AnnotationIgnored", "AnnotationInvalid"]
    scene.patch({"metadata": {"annotations": {PREFIX + "policy": "first"}}})
    await scene.state("ready")
    assert [finding.reason for finding in scene.site.reporter.findings["web"]] == ["AnnotationIgnored"]


async def test_a_record_of_another_service_is_ignored(scene: Scene) -> None:
    """A copied record counts as none, and is replaced (row 16)."""
    copied = '{"v":1,"provider":"toy","cluster":"eu","uid":"other","ids":{"balancer":"balancer-0009"}}'
    scene.add(metadata={"annotations": {ANNOTATION: copied}})
    await scene.state("ready")
    assert scene.cloud.calls == CREATE
    service = scene.service()
    assert service is not None
    assert "balancer-0003" in service["metadata"]["annotations"][ANNOTATION]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (CloudConflict("balancer is locked"), (4, 6)),
        (QuotaExceeded("no more balancers"), (300, 300)),
        (CloudRefusal("the name is too long"), None),
        (ValueError("a defect"), (4, 6)),
    ],
)
async def test_a_failure_ends_the_pass_and_is_tried_again(
    scene: Scene, error: Exception, seconds: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later step is made; the wait depends on the error; a changed Service is tried at once (rows 26, 32, 34)."""
    waits: list[float] = []
    add_after = scene.part._queue.add_after

    def note(key: ObjectKey, wait: float) -> None:
        waits.append(wait)
        add_after(key, wait)

    monkeypatch.setattr(scene.part._queue, "add_after", note)
    failing = [error]

    def fail(step: Step) -> str:
        if step.creates == "balancer" and failing:
            raise failing.pop()
        return ""

    scene.cloud.fault = fail
    scene.add()
    told = await scene.state("failing")
    assert told.message.startswith("Service edge/web of cluster eu: ")
    assert scene.cloud.calls == CREATE[:2]
    waits = [wait for wait in waits if wait > 0]
    assert waits == [] if seconds is None else seconds[0] <= waits[0] <= seconds[1]
    if isinstance(error, ValueError):
        scene.ahead(LAG + 1)  # it may have been made
    scene.patch({"metadata": {"labels": {"changed": "yes"}}})
    await scene.state("ready")
    assert scene.cloud.calls == CREATE


async def test_an_update_that_fails_is_told_and_counted(scene: Scene) -> None:
    """UpdateLoadBalancerFailed as long as the new nodes are not in; the metric counts the change once, retries not."""
    await created(scene)
    locked = CloudConflict("balancer is locked")

    def fail(step: Step) -> str:
        raise locked

    scene.cloud.fault = fail
    scene.nodes("n1", "n2", "n3")
    told = await scene.state("failing")
    assert [finding.reason for finding in told.findings] == ["UpdateLoadBalancerFailed"]
    assert "balancer is locked" in told.findings[0].message
    scene.ahead(7)
    await scene.until(lambda: scene.part.failures == 2)
    cluster = SimpleNamespace(balancers_part=scene.part, nodes_part=None)
    counted = {metric.name: rows[0].value for metric, rows in original(cluster)}  # type: ignore[arg-type]
    assert counted["service_controller_nodesync_error_total"] == 1
    scene.cloud.fault = lambda _: ""
    scene.ahead(13)
    await scene.state("ready")
    assert scene.cloud.of(NAME)["balancer"].nodes == ("n1", "n2", "n3")
    assert scene.site.reporter.findings["web"] == ()
    assert scene.site.reporter.events[2:] == ["UpdatedLoadBalancer"]
    assert scene.part.node_failures == 1


async def test_an_unknown_cloud_changes_nothing(scene: Scene) -> None:
    """While nothing can be observed, a deletion waits, and so does everything else."""
    await created(scene)
    scene.site.account.error = ProviderError("the cloud does not answer")
    scene.delete()
    scene.part._observe_after = scene.site.clock.now()
    told = await scene.state("failing")
    assert "the cloud does not answer" in told.message
    assert scene.site.reporter.findings["web"][0].reason == "DeleteLoadBalancerFailed"
    assert len(scene.cloud.things) == 3
    scene.site.account.error = None
    scene.part.state_changed()
    await scene.until(lambda: scene.service() is None)
    assert scene.cloud.things == {}


async def test_a_cluster_that_is_not_ready_changes_nothing(scene: Scene) -> None:
    """Neither fewer nodes, a new observation nor a deletion changes the cloud, until the cluster is READY (row 43)."""
    await created(scene)
    observations = scene.cloud.observations
    scene.site.problem = "cluster eu is Unreachable: timeout"
    scene.nodes("n1")
    scene.ahead(700)
    told = await scene.state("waiting")
    assert told.message == scene.site.problem
    scene.delete()
    await scene.until(lambda: (found := scene.part.services.objects.get(KEY)) and found.deleting)
    scene.ahead(700)
    await scene.until(lambda: not len(scene.part._queue) and not scene.part._queue.working)
    service = scene.service()
    assert service is not None
    assert service["metadata"]["finalizers"] == [FINALIZER]
    assert (scene.cloud.calls, scene.cloud.observations) == (CREATE, observations)
    assert scene.cloud.of(NAME)["balancer"].nodes == ("n1", "n2")
    scene.site.problem = ""
    scene.part.state_changed()
    await scene.until(lambda: scene.service() is None)
    assert scene.cloud.things == {}


async def test_objects_without_a_service_are_reported(scene: Scene) -> None:
    """They have this cluster's name exactly; nothing is deleted by default."""
    await created(scene)
    left = scene.cloud.add("balancer", "gone.edge.eu", foreign=False)
    scene.cloud.add("balancer", "gone.edge.other.eu")
    scene.cloud.add("balancer", "gone.eu")
    await scene.part._leftovers.look()
    assert scene.part.leftovers == (f"gone.edge.eu: balancer {left}",)
    scene.site.clock.ahead += 700
    await scene.part._leftovers.look()
    assert left in scene.cloud.things


async def test_a_balancer_that_its_service_let_go_is_reported(scene: Scene) -> None:
    """Someone took the finalizer off a Service that is of another type now: its balancer is left, its record aside."""
    await created(scene)
    scene.site.problem = "eu is down"
    scene.patch({"metadata": {"finalizers": None}, "spec": {"type": "ClusterIP"}})
    await scene.until(lambda: (held := scene.part.services.objects.get(KEY)) is not None and not held.held)
    scene.site.problem = ""
    await scene.part._leftovers.look()
    assert scene.part.leftovers == (f"{NAME}: address address-0001, group group-0002, balancer balancer-0003",)


async def test_a_balancer_that_another_finalizer_holds_is_not_reported(client: Client, hub_cluster: ApiServer) -> None:
    """A hub with a class leaves a Service of another type to the controller whose finalizer it has."""
    async with running(ToySite(client, class_="example.com/hub"), hub_cluster.api) as scene:
        scene.add(type="ClusterIP", metadata={"finalizers": [FINALIZER]})
        scene.cloud.add("balancer", NAME, foreign=False)
        await scene.until(lambda: KEY in scene.part.services.objects)
        await scene.part._leftovers.look()
        assert scene.part.leftovers == ()


async def test_objects_without_a_service_are_deleted_if_asked(client: Client, hub_cluster: ApiServer) -> None:
    """With ``orphans: delete`` they go once two observations ten minutes apart show them, and no Service came."""
    async with running(ToySite(client, orphans="delete"), hub_cluster.api) as scene:
        await created(scene)
        left = scene.cloud.add("group", "gone.edge.eu", foreign=False)
        await scene.part._leftovers.look()
        scene.site.clock.ahead += 599
        await scene.part._leftovers.look()
        assert left in scene.cloud.things
        scene.site.clock.ahead += 2
        await scene.part._leftovers.look()
        assert left not in scene.cloud.things
        assert len(scene.cloud.of(NAME)) == 3
        await scene.part._leftovers.look()
        assert scene.part.leftovers == ()


async def test_many_objects_without_a_service_need_an_approval(client: Client, hub_cluster: ApiServer) -> None:
    """If more than half of all balancers have no Service, the list of Services may be wrong."""
    async with running(ToySite(client, orphans="delete"), hub_cluster.api) as scene:
        await created(scene)
        left = [scene.cloud.add("group", f"gone{number}.edge.eu", foreign=False) for number in range(2)]
        await scene.part._leftovers.look()
        scene.site.clock.ahead += 601
        await scene.part._leftovers.look()
        assert set(left) <= scene.cloud.things.keys()
        text = scene.part.leftovers[0]
        scene.site.approvals.add(text.split("cloud/eu ")[1].split()[0])
        await scene.part._leftovers.look()
        assert not set(left) & scene.cloud.things.keys()


async def test_a_few_services_change_the_cloud_while_all_others_get_ready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight Services at a time change the cloud; meanwhile all others get their finalizer, and share observations."""
    busy, most, first_end = 0, 0, asyncio.Event()
    perform = scene.site.account.perform

    async def slowly(step: Step, *arguments: Any) -> Done:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await (asyncio.sleep(0) if first_end.is_set() else first_end.wait())
        busy -= 1
        return await perform(step, *arguments)

    monkeypatch.setattr(scene.site.account, "perform", slowly)
    names = [f"web-{number}" for number in range(12)]
    for name in names:
        scene.add(metadata={"name": name})

    def held() -> bool:
        return all(scene.api.get(f"{SERVICES}/{name}")["metadata"].get("finalizers") for name in names)

    await scene.until(held)
    assert most == 8
    before = scene.cloud.observations
    first_end.set()
    await scene.until(lambda: [told.state for told in scene.part.told.values()] == ["ready"] * 12)
    assert most == 8
    assert scene.cloud.observations - before <= 12
