"""What an operator is told by Events on an allocation, each by a scene that causes it, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import pytest
from msgspec.structs import replace

from hub.allocations.spec import stamp
from hub.errors import Forbidden, NotFound
from hub.events.catalog import REASONS
from hub.model import ObjectKey
from tests.support.allocations import KIND
from tests.support.waiting import until
from tests.unit.allocating.scene import ONE, TWO, Scene

VIRTUAL_TIME = True

FREE = "198.18.0.3"
APPS = "/apis/apps/v1/namespaces/edge"
REFERENCE = {"kind": "StatefulSet", "name": "web", "namespace": "edge"}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/original"


def attached(scene: Scene) -> None:
    """A free address, and a node for it."""
    scene.allocate("more", [scene.cloud.reserve(FREE)])


def moved(scene: Scene) -> None:
    """A drained node."""
    scene.cordon("n1")


def waiting(scene: Scene) -> None:
    """A free address, and no node for it."""
    scene.cordon("n3")
    attached(scene)


def conflict(scene: Scene) -> None:
    """An address of two allocations."""
    scene.allocate("more", [ONE])


def elsewhere(scene: Scene) -> None:
    """An address that somebody gave to a load balancer."""
    scene.cloud.hold_elsewhere(ONE)


def junk(scene: Scene) -> None:
    """An entry that is no address."""
    scene.allocate("more", ["junk"])


def foreign(scene: Scene) -> None:
    """An address that the account does not have."""
    scene.allocate("more", [FREE])


def flapping(scene: Scene) -> None:
    """A node that is not Ready, whose address has moved three times within the hour."""
    entries = scene.status()["addresses"]
    moves = [stamp(scene.clock.wall() - 60 * minutes) for minutes in (40, 30, 20)]
    scene.api.edit(f"{KIND}/web", status={"addresses": [{**entries[0], "moves": moves}, *entries[1:]]})
    scene.ready("n1", on=False)


def withheld(scene: Scene) -> None:
    """Two drained nodes, and one move in ten minutes."""
    scene.spec = replace(scene.spec, limits=replace(scene.spec.limits, moves=0.01))
    scene.add_node("n4")
    scene.cordon("n1")
    scene.cordon("n2")


def failing(scene: Scene) -> None:
    """A drained node, and a cloud that refuses all writes."""
    scene.cloud.fail("error", times=None, on="write")
    scene.cordon("n1")


def unlabelled(scene: Scene) -> None:
    """A node whose label cannot be put back."""
    scene.api.edit("/api/v1/nodes/n1", metadata={"labels": {}})
    scene.api.refusals["PATCH", "/n1"] = Forbidden(HTTPStatus.FORBIDDEN, "Forbidden", "a webhook refuses it")


def forbidden(scene: Scene) -> None:
    """A node whose label cannot be put back, for lack of a right."""
    unlabelled(scene)
    scene.api.refusals["PATCH", "/n1"] = Forbidden(HTTPStatus.FORBIDDEN, "Forbidden", 'User "hub" cannot patch nodes')


def blocked(scene: Scene) -> None:
    """A cordoned node whose Pod does not leave."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "uid-web", "controller": True}
    scene.api.put(f"{APPS}/statefulsets/web", {"metadata": {}})
    pod = {"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    scene.api.put("/api/v1/namespaces/edge/pods/web-0", pod)
    scene.api.edit(f"{KIND}/web", spec={"workloadRef": REFERENCE})
    scene.cordon("n1")


def refused(scene: Scene) -> None:
    """A credential that the cloud refuses."""
    scene.cloud.credential = "another one"


def throttled(scene: Scene) -> None:
    """A cloud whose quota is used up."""
    scene.cloud.fail("throttled", on="write")
    scene.cordon("n1")


def controlled(scene: Scene) -> None:
    """Another controller that renews the interlock's Lease."""
    spec = {"holderIdentity": "original-0", "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00.0Z"}
    scene.api.put(LEASE, {"kind": "Lease", "metadata": {}, "spec": spec})
    scene.spec = replace(scene.spec, interlock=ObjectKey("kube-system", "original"))


def outdated(scene: Scene) -> None:
    """A kind without a status."""
    scene.api.refusals["PUT", "/status"] = NotFound(HTTPStatus.NOT_FOUND, "NotFound")


CASES: Final[dict[str, tuple[Callable[[Scene], None], str, str]]] = {
    "AddressAttached": (attached, "more", f"{FREE} is attached to node n3"),
    "AddressMoved": (moved, "web", f"{ONE} moved from node n1 to n3 (Drained)"),
    "AddressWaiting": (waiting, "more", f"{FREE} waits: no node can take it"),
    "AddressConflict": (conflict, "more", f"allocation web has the older claim to {ONE}"),
    "AddressElsewhere": (elsewhere, "web", f"{ONE}: load balancer lb-1 has it"),
    "AddressInvalid": (junk, "more", "'junk' is not an IPv4 address"),
    "AddressInvalid (not reserved)": (foreign, "more", f"{FREE}: account main has no such address"),
    "AddressFlapping": (flapping, "web", f"{ONE}: the node is not Ready for 30 s, but the address moved 3 times"),
    "MoveWithheld": (withheld, "web", "hub approve allocation/web"),
    "MoveFailed": (failing, "web", f"detach of {ONE}: account main: detach: 500"),
    "MoveFailed (label)": (unlabelled, "web", "labels of node n1: 403"),
    "Forbidden": (forbidden, "web", "the account lacks the rule «nodes: patch»"),
    "DrainBlocked": (blocked, "web", f"{ONE} stays on n1: the node is cordoned; StatefulSet edge/web still runs there"),
    "CloudFailed": (refused, "web", "account main: account main: the cloud refuses the credential"),
    "CloudQuota": (throttled, "web", "account main: its quota is used up"),
    "OtherController": (controlled, "web", "original-0 renews the Lease kube-system/original"),
    "SchemaOutdated": (outdated, "web", "the NetIPAllocation CRD has no status"),
}
"""Reason, with what it is about -> the cause, the allocation, and a part of the Event's note."""
ELSEWHERE: Final = frozenset({"AddressRestored", "OwnNodeWaits", "EvictionBlocked"})
"""Reasons whose Events have tests of their own."""


def test_cases_are_all_reasons_of_an_allocation() -> None:
    """Each reason that the documentation has for allocations is tested."""
    known = {name for name, reason in REASONS.items() if reason.on == "NetIPAllocation"}
    assert known == {name.partition(" ")[0] for name in CASES} | ELSEWHERE


@pytest.mark.parametrize("name", CASES)
async def test_a_cause_makes_an_event(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An Event on the allocation names what happened or is wrong, within 11 minutes."""
    cause, allocation, note = CASES[name]
    reason = name.partition(" ")[0]
    scene = Scene(monkeypatch)
    cause(scene)
    async with scene:
        async with asyncio.timeout(660):
            while reason not in scene.events(allocation):  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(1.0)
    assert note in scene.events(allocation)[reason]


async def test_settled_addresses_make_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said while nothing happens, also not after a start."""
    scene = Scene(monkeypatch)
    async with scene:
        await until(lambda: scene.status().get("attached") == 2)
        await asyncio.sleep(700)
    assert scene.events() == {}


async def test_an_address_that_goes_back_makes_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only target gets somebody else's address in mid-move: AddressRestored, and no AddressMoved."""
    scene = Scene(monkeypatch)
    scene.cloud.operations(1.0)
    async with scene:
        scene.cordon("n1")
        await until(lambda: "operation" in scene.entry().get("move", {}), 60)
        scene.cloud.occupy("n3")
        await until(lambda: "AddressRestored" in scene.events(), 300)
    assert scene.events()["AddressRestored"] == f"{ONE} is back on node n1"
    assert "AddressMoved" not in scene.events()
    assert scene.cloud.holder_of(TWO) == "n2"


async def test_an_own_node_that_waits_makes_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own node is drained and would be cut off."""
    scene = Scene(monkeypatch, own="n1", cuts=["source"])
    async with scene:
        scene.cordon("n1")
        await until(lambda: "OwnNodeWaits" in scene.events(), 60)
    assert scene.events()["OwnNodeWaits"].startswith(f"{ONE}: the hub runs on the node")
