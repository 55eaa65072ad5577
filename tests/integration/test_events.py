"""Events on a real API server: which appear, which are counted in a series, and what happens when they are refused."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hub.events.catalog import REASONS
from hub.events.recorder import Recorder
from hub.events.series import PENDING, EventFinding, Regarding
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.waiting import eventually

NODES = tuple(f"10.1.0.{number}" for number in range(1, 5))


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster eu with four nodes, and a registry that publishes them for the Service payments."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    for number, address in enumerate(NODES):
        add_node(remote_clusters[0], f"n{number}", address)
    made.write()
    return made


def events(world: World, reason: str = "", namespace: str = "edge", **regarding: str) -> list[Object]:
    """The hub's Events, oldest first."""
    selector = ",".join(f"regarding.{key}={value}" for key, value in regarding.items())
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    query = {"fieldSelector": ",".join(filter(None, ["reportingController=endpointslice-hub", selector]))}
    found = world.hub_cluster.api.list(path, **query)
    return sorted(
        (event for event in found if reason in ("", event["reason"])), key=lambda event: str(event["eventTime"])
    )


def awaits(world: World, reason: str, namespace: str = "edge", timeout: float = 15.0) -> Object:
    """Wait for an Event with this reason. Returns the newest one."""
    return eventually(lambda: events(world, reason, namespace), timeout)[-1]


def test_publication_is_an_event_that_describe_shows(world: World) -> None:
    """A publication is one Normal Event with the numbers. It refers to the Service by uid, for ``kubectl describe``."""
    service = world.add_service()
    with RunningHub(world):
        world.awaits(*NODES)
        event = awaits(world, "EndpointsPublished")
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "namespace": "edge",
        "name": "payments",
        "uid": service["metadata"]["uid"],
    }
    assert (event["type"], event["action"]) == ("Normal", "Publish")
    assert event["note"] == "endpoints: 4 of eu; slices: 1 created"
    assert len(events(world, "EndpointsPublished", kind="Service", name="payments")) == 1


def test_a_finding_that_comes_back_is_counted_in_its_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding makes an Event when it appears and none while it lasts. When it returns, the Event becomes a series."""
    monkeypatch.setattr("hub.events.series.UPDATE", 0.1)
    world.add_service(selector={"app": "payments"})
    path = "/api/v1/namespaces/edge/services/payments"
    with RunningHub(world) as running:
        event = awaits(world, "SelectorPresent")
        assert (event["type"], event.get("series")) == ("Warning", None)
        for round_ in range(3):  # further passes in which the finding lasts make no Event
            world.hub_cluster.api.patch(path, {"metadata": {"labels": {"round": str(round_)}}})
            eventually(lambda: "SelectorPresent" in running.findings())
        world.hub_cluster.api.patch(path, {"spec": {"selector": None}})
        world.awaits(*NODES)
        assert [event.get("series") for event in events(world, "SelectorPresent")] == [None]
        world.hub_cluster.api.patch(path, {"spec": {"selector": {"app": "payments"}}})
        eventually(lambda: [event.get("series", {}).get("count") for event in events(world, "SelectorPresent")] == [2])


def test_cluster_and_registry_events_refer_to_the_hub_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of clusters and of the registry, and recoveries, are Events about the Pod that POD_NAME names."""
    monkeypatch.setenv("POD_NAME", "hub-0")
    monkeypatch.setenv("POD_NAMESPACE", "default")
    world.add_service()
    with RunningHub(world):
        world.awaits(*NODES)
        world.remotes["eu"].kill()
        unreachable = awaits(world, "ClusterUnreachable", "default")
        assert (unreachable["regarding"]["kind"], unreachable["regarding"]["name"]) == ("Pod", "hub-0")
        assert unreachable["note"].startswith("eu: https://127.0.0.1:")
        good = world.path.read_text()
        world.write_text(good.replace("version: 1", "version: 7"))
        assert "version: must be 1, not 7" in awaits(world, "RegistryRejected", "default")["note"]
        world.write_text(good)
        world.remotes["eu"].ensure_running()
        recovered = awaits(world, "ClusterRecovered", "default", 40)
        assert (recovered["type"], recovered["note"]) == ("Normal", "eu: its nodes are followed again")
    assert not events(world, "ClusterUnreachable")


def test_withheld_removal_is_an_event_of_the_service(world: World) -> None:
    """A withheld removal is an Event with the approval command. Without POD_NAME, hub Events refer to the Lease."""
    world.add_service()
    remote = world.remotes["eu"]
    with RunningHub(world):
        world.awaits(*NODES)
        for number in range(3):
            remote.api.delete(f"/api/v1/nodes/n{number}")
        withheld = awaits(world, "RemovalWithheld")
        assert "hub approve edge/payments" in withheld["note"]
        assert withheld["type"] == "Warning"
        remote.kill()
        lease = awaits(world, "ClusterUnreachable", "default")["regarding"]
        assert (lease["kind"], lease["name"]) == ("Lease", "endpointslice-hub-default")


def test_local_traffic_policy_has_a_warning_event(world: World) -> None:
    """An Event warns that kube-proxy sends no traffic to the endpoints when externalTrafficPolicy is Local."""
    world.add_service(type="NodePort", externalTrafficPolicy="Local")
    with RunningHub(world):
        world.awaits(*NODES)
        event = awaits(world, "LocalTrafficPolicy")
        assert event["note"].startswith("externalTrafficPolicy of the Service is Local: kube-proxy sends nothing to")


def test_expiring_client_certificate_has_an_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Event names the time at which a client certificate that expires soon ends."""
    monkeypatch.setattr("hub.kube.credentials.SOON_SHARE", 1.0)
    remote = world.remotes["eu"]
    remote.certificate_kubeconfig(world.folder / "eu", "hub", lifetime=timedelta(days=3))
    monkeypatch.setattr("hub.events.watch.reasons.CREDENTIAL", replace(REASONS["CredentialExpiring"], after=0.0))
    world.add_service()
    with RunningHub(world):
        world.awaits(*NODES)
        note = awaits(world, "CredentialExpiring", "default")["note"]
    assert note.startswith("eu: the credential of kubeconfig ")
    assert "ends at 20" in note


def test_publishing_works_without_permission_for_events(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without the right to write Events, the log names the missing rule once per namespace; endpoints still change."""
    world.hub_cluster.grant("nobody", *(rule for rule in HUB_RULES if "events" not in rule["resources"]))
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    for name in ("payments", "orders"):
        world.add_service(name)
    world.write(services=[world.service("payments"), world.service("orders")])
    with RunningHub(world) as running:
        world.awaits(*NODES)
        eventually(lambda: running.hub.recorder.refused >= 2)
        add_node(world.remotes["eu"], "n9", "10.1.0.9")
        world.awaits(*NODES, "10.1.0.9")
    assert caplog.text.count("no Events in namespace edge") == 1
    assert "lacks the rule «events.events.k8s.io: create, patch»" in caplog.text
    assert events(world) == []


def test_events_can_be_turned_off(world: World) -> None:
    """With --events=false the hub makes no request for Events."""
    world.add_service()
    mark = world.hub_cluster.audit_mark()
    with RunningHub(world, events=False):
        world.awaits(*NODES)
        time.sleep(1.0)
    assert [request for request in world.hub_cluster.requests(mark, "hub") if request.resource == "events"] == []


def test_a_full_queue_holds_up_no_publication(world: World) -> None:
    """When thousands of Events are queued, the oldest are dropped and counted, and a new node is published at once."""
    world.add_service()
    with RunningHub(world) as running:
        world.awaits(*NODES)
        recorder = running.hub.recorder
        loop = running._loop
        assert loop is not None
        loop.call_soon_threadsafe(flood, recorder)
        add_node(world.remotes["eu"], "n9", "10.1.0.9")
        world.awaits(*NODES, "10.1.0.9")
        eventually(lambda: recorder.suppressed >= PENDING)
        assert 0 < recorder._series.pending <= 2 * PENDING  # sending the rest takes about a minute


def flood(recorder: Recorder) -> None:
    """Report a finding for each of 3 * PENDING Services, with a long message full of control characters."""
    reason = REASONS["PortMismatch"]
    for number in range(3 * PENDING):
        regarding = Regarding("v1", "Service", "edge", f"s{number}")
        recorder.set_findings(
            f"s{number}", [EventFinding(reason, regarding, "eu", "eu: ports\x1b[31m\n\u202e" + "é" * 1000)]
        )


def test_a_hostile_message_is_one_clean_line_of_at_most_1024_bytes(world: World) -> None:
    """The API server accepts the Event, and its note has no control characters that a terminal would interpret."""
    world.add_service()
    with RunningHub(world) as running:
        world.awaits(*NODES)
        assert running._loop is not None
        running._loop.call_soon_threadsafe(flood, running.hub.recorder)
        note = awaits(world, "PortMismatch")["note"]
    assert note.startswith("eu: ports[31m é")
    assert len(note.encode()) <= 1024


def test_a_standby_writes_no_events(world: World) -> None:
    """Only the leader writes Events."""
    world.add_service()
    with RunningHub(world), RunningHub(world) as second:
        world.awaits(*NODES)
        awaits(world, "EndpointsPublished")
        add_node(world.remotes["eu"], "n9", "10.1.0.9")
        world.awaits(*NODES, "10.1.0.9")
        leaders = {event["reportingInstance"] for event in events(world)}
        assert len(leaders) == 1
        identity = second.hub.elector.identity
        assert (identity in leaders) == second.hub.elector.leading
