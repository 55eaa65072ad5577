"""Faults of the cloud and of the hub cluster while a reserved address should move: the hub in this process."""

from __future__ import annotations

import copy
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
import yaml

from tests.support.allocation_scene import LONG_AGO, ONE, RULES, STATUS_RULE, TWO, Settled
from tests.support.allocations import CRD, DEFINITION, KIND
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.faults.proxy import Fault, Kind, Proxy, ProxyThread, answer, where
from tests.support.hub import RunningHub, add_node
from tests.support.killing.stage import serving_certificate
from tests.support.waiting import eventually

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
INVALID = answer(422, "Unprocessable Entity", b'{"kind": "Status", "reason": "Invalid"}')
CONFLICT = answer(409, "Conflict", b'{"kind": "Status", "reason": "Conflict"}')
STATUS = where("update", path="/netipallocations/web/status")


@pytest.fixture
def scene(hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settled:
    """Two settled addresses, and a registry in mode enforce."""
    return Settled(hub_cluster, tmp_path, monkeypatch)


@pytest.fixture
def proxy(scene: Settled, hub_cluster: ApiServer) -> Iterator[Proxy]:
    """A proxy between the hub and its API server."""
    with ProxyThread() as thread:
        client = ssl.create_default_context(cadata=hub_cluster.ca_pem)
        made = thread.proxy(hub_cluster.port, client, serving_certificate(hub_cluster, scene.world.folder))
        content = yaml.safe_load(scene.world.kubeconfig.read_text())
        content["clusters"][0]["cluster"]["server"] = made.url
        scene.world.kubeconfig.write_text(yaml.safe_dump(content))
        yield made


# --- the cloud ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.nightly) for name in ("garbage", "error", "no-key", "lost-page")]
)
def test_a_broken_description_moves_nothing(
    scene: Settled, fault: Literal["error", "garbage", "no-key", "lost-page"]
) -> None:
    """While the cloud's list is broken, a drained node keeps address and label; afterwards the address moves."""
    scene.cloud.reserve("198.18.0.3")  # so that the list has two pages
    scene.cordon("n1")
    scene.cloud.fail(fault, times=None, on="read")
    with RunningHub(scene.world):
        eventually(lambda: scene.entry().get("state") == "Unknown" and scene.entry()["node"] == "n1", 15)
        scene.untouched(3.0)
        scene.cloud.heal()
        scene.moved()


@pytest.mark.nightly
def test_a_refused_credential_freezes_the_account_until_it_changes(scene: Settled) -> None:
    """After a 401 the cloud is asked once more and then left alone, until the credential's file changes."""
    scene.cloud.credential = "the next one"
    scene.cordon("n1")
    with RunningHub(scene.world):
        eventually(lambda: scene.condition("Stalled").get("reason") == "CloudFailed", 15)
        asked = len(scene.cloud.log)
        scene.untouched(3.0)
        assert len(scene.cloud.log) == asked
        (scene.world.folder / "credential").write_text("the next one")
        scene.moved(40)


@pytest.mark.parametrize(
    "fault", ["lost-answer", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("throttled", "error"))]
)
def test_a_move_survives_failed_writes(scene: Settled, fault: Literal["throttled", "lost-answer", "error"]) -> None:
    """Writes that are refused for a moment, or whose answers are lost, have one effect each in the end."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        scene.cloud.fail(fault, times=2, on="write")
        scene.cordon("n1")
        scene.moved()


def test_an_address_that_no_node_takes_goes_back(scene: Settled) -> None:
    """The only target gets somebody else's address in mid-move: the address returns to the node that it came from."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        scene.cloud.operations(1.0)
        scene.cordon("n1")
        eventually(lambda: "operation" in scene.entry().get("move", {}), 20)
        scene.cloud.occupy("n3")
        eventually(lambda: scene.cloud.holder_of(ONE) == "n1" and scene.entry().get("state") == "Leaving", 30)
        eventually(lambda: scene.labelled() == ["n1", "n2"])
    assert [effect.action for effect in scene.cloud.effects] == ["detach", "attach"]


def test_a_restart_changes_no_status_before_the_first_answer(scene: Settled) -> None:
    """A hub that starts keeps node, count and times; it only signs the status."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("writer"), 15)
        assert [scene.entry(address)["since"] for address in (ONE, TWO)] == [LONG_AGO, LONG_AGO]
        assert scene.status()["attached"] == 2


# --- the record --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_without_the_right_to_write_records_nothing_moves(scene: Settled, hub_cluster: ApiServer) -> None:
    """A status PUT that is forbidden starts no act; when the right returns, the address moves."""
    roles = [role for role in hub_cluster.api.list(ROLES) if role["metadata"]["name"].startswith("hub-")]
    [role] = [role for role in roles if STATUS_RULE in role["rules"]]
    path = f"{ROLES}/{role['metadata']['name']}"
    hub_cluster.api.patch(path, {"rules": [RULES[0]]})
    eventually(lambda: not hub_cluster.allows("hub", STATUS_RULE))
    scene.cordon("n1")
    with RunningHub(scene.world):
        time.sleep(5.5)  # as long as a drained address waits
        scene.untouched(3.0)
        hub_cluster.api.patch(path, {"rules": [STATUS_RULE]})
        scene.moved()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(Kind.ANSWER, STATUS, body=INVALID), marks=pytest.mark.nightly, id="invalid"),
        pytest.param(Fault(Kind.ANSWER, STATUS, body=CONFLICT), marks=pytest.mark.nightly, id="conflict"),
        pytest.param(Fault(Kind.BLACKHOLE, STATUS), id="timeout"),
        pytest.param(Fault(Kind.LOSE_ANSWER, STATUS), id="lost-answer"),
    ],
)
def test_a_record_that_is_not_stored_starts_no_act(scene: Settled, proxy: Proxy, fault: Fault) -> None:
    """While status PUTs fail, nothing is changed at the cloud; afterwards the address moves once."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        with proxy.broken(fault):
            scene.cordon("n1")
            time.sleep(6.0)  # longer than a drained address waits
            if fault.kind is not Kind.LOSE_ANSWER:
                scene.untouched(2.0)
        scene.moved(40)


def test_a_status_that_is_emptied_by_hand_comes_back(scene: Settled) -> None:
    """What the cloud describes wins over a status that somebody removes, or forges; nothing is moved for it."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        object_ = scene.api.get(f"{KIND}/web")
        scene.api.put(f"{KIND}/web/status", {**object_, "status": {}})
        eventually(lambda: scene.entry().get("node") == "n1" and scene.status().get("attached") == 2, 10)
        object_ = scene.api.get(f"{KIND}/web")
        forged = copy.deepcopy(object_["status"])
        move = {"id": "x", "cause": "Free", "phase": "Dancing", "to": "n3"}
        forged["addresses"][0].update({"node": "n9", "move": move})
        scene.api.put(f"{KIND}/web/status", {**object_, "status": forged})
        eventually(lambda: scene.entry().get("node") == "n1" and "move" not in scene.entry(), 10)
        scene.untouched(2.0)


def test_a_forged_record_is_dropped_where_the_address_is_elsewhere(scene: Settled) -> None:
    """A record that says an address is being attached does not make the hub take it from the node that has it."""
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        object_ = scene.api.get(f"{KIND}/web")
        move = {"id": "abcd", "cause": "Free", "phase": "Attaching", "to": "n3", "started": "2026-01-01T00:00:00Z"}
        object_["status"]["addresses"][0]["move"] = move
        scene.api.put(f"{KIND}/web/status", object_)
        eventually(lambda: scene.entry().get("node") == "n1" and "move" not in scene.entry(), 15)
        scene.untouched(2.0)


@pytest.mark.nightly
def test_an_allocation_that_is_created_again_in_a_move_gets_its_address(scene: Settled) -> None:
    """The record is gone with the old object; the new one has the address 30 s later, attached once."""
    scene.status_before = {}
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        scene.cloud.operations(2.0)
        scene.cordon("n1")
        eventually(lambda: "operation" in scene.entry().get("move", {}), 20)
        scene.api.delete(f"{KIND}/web")
        scene.create()
        eventually(lambda: scene.cloud.holder_of(ONE) == "n3" and scene.labelled() == ["n2", "n3"], 60)
    assert scene.cloud.holder_of(TWO) == "n2"


def test_a_target_that_no_longer_fits_is_replaced(scene: Settled, hub_cluster: ApiServer) -> None:
    """The nodeSelector and the order of the list change during the detach: the address goes to n4 instead of n3."""
    made = scene.cloud.add_instance("n4", ephemeral=True)
    add_node(hub_cluster, "n4")
    scene.api.patch("/api/v1/nodes/n4", {"spec": {"providerID": made.provider_id}})
    for name in ("n1", "n2", "n4"):
        scene.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"role": "edge"}}})
    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 15)
        scene.cloud.operations(3.0)
        scene.cordon("n1")
        move = eventually(lambda: "operation" in (found := scene.entry().get("move", {})) and found, 30)
        assert (move["phase"], move["to"]) == ("Detaching", "n3")
        scene.api.patch(f"{KIND}/web", {"spec": {"reservedIPs": [TWO, ONE], "nodeSelector": {"role": "edge"}}})
        scene.cloud.operations(0.1)
        scene.moved(to="n4")


# --- the hub cluster ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_kind_without_status_is_named_and_starts_no_act(
    hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the old kind nothing is done until the new one is applied."""
    old = copy.deepcopy(DEFINITION)
    del old["spec"]["versions"][0]["subresources"]
    old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].pop("status")
    scene = Settled(hub_cluster, tmp_path, monkeypatch, definition=old)
    scene.cordon("n1")
    with RunningHub(scene.world) as running:
        eventually(lambda: "hub allocations crd" in getattr(running.hub.allocating, "trouble", ""), 15)
        time.sleep(5.5)
        scene.untouched(2.0)
        version = scene.api.get(CRD)["metadata"]["resourceVersion"]
        scene.api.put(CRD, {**DEFINITION, "metadata": {**DEFINITION["metadata"], "resourceVersion": version}})
        eventually(lambda: scene.entry().get("node") == "n3" and scene.labelled() == ["n2", "n3"], 60)


def test_another_controller_stops_all_acts_within_two_seconds(scene: Settled) -> None:
    """While somebody renews the interlock Lease, nothing is changed; the address moves when that Lease is free."""
    scene.registry(interlock="kube-system/ip-address-controller-leader")

    def renew() -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": "original", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}

    with RunningHub(scene.world):
        eventually(lambda: scene.status().get("attached") == 2, 20)
        scene.api.post(LEASES, {"metadata": {"name": "ip-address-controller-leader"}, "spec": renew()})
        eventually(lambda: scene.condition("Stalled").get("reason") == "OtherController", 2.5)
        scene.cordon("n1")
        end = time.monotonic() + 7.0
        while time.monotonic() < end:
            scene.api.patch(f"{LEASES}/ip-address-controller-leader", {"spec": renew()})
            scene.untouched(0.5)
        scene.moved()
