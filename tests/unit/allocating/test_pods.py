"""Which Pods on a node belong to a workload, and which may still run, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Any

import pytest

from hub.allocating.pods import OTHERS, WORKLOAD_AGAIN, PodWatch
from hub.allocations.spec import WorkloadRef, stamp
from hub.allocations.view import NodeKey, Pods
from hub.errors import Forbidden, HubError
from hub.kube.client import Client
from hub.model import LOCAL
from tests.support.virtual import LoopClock, anything
from tests.support.waiting import until
from tests.unit.allocating.scene import FakeApi

VIRTUAL_TIME = True

NODE = NodeKey(LOCAL, "n1")
WEB = WorkloadRef("web", "Deployment", "edge")
APPS = "/apis/apps/v1/namespaces/edge"
PODS = "/api/v1/namespaces/edge/pods"


class Place:
    """The Deployments ``web`` and ``web-2``, and a watch of the Pods on n1."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = LoopClock()
        self.watch = PodWatch(self.client, self.clock, anything)
        for name in ("web", "web-2"):
            self.add("deployments", name)
            self.add("replicasets", f"{name}-7f", owner=("Deployment", name))

    async def client(self, _: str) -> Client:
        """The client of the cluster."""
        return self.api.client

    def add(self, collection: str, name: str, owner: tuple[str, str] | None = None, **meta: Any) -> None:
        """Create an object of apps/v1; its UID is made of its name."""
        self.api.put(f"{APPS}/{collection}/{name}", {"metadata": {"ownerReferences": _owners(owner), **meta}})

    def pod(self, name: str, owner: tuple[str, str] | None = None, phase: str = "Running", **meta: Any) -> None:
        """Create a Pod on n1 with the labels of ``web``."""
        meta = {"labels": {"app": "web"}, "ownerReferences": _owners(owner), **meta}
        self.api.put(f"{PODS}/{name}", {"metadata": meta, "spec": {"nodeName": "n1"}, "status": {"phase": phase}})

    async def names(self, workload: WorkloadRef = WEB) -> list[str]:
        """The Pods of a workload on n1."""
        return [pod.name for pod in (await self.found(workload)).workload]

    async def found(self, workload: WorkloadRef = WEB) -> Pods:
        """What is found about a workload on n1."""
        key = NODE, workload
        self.watch.ask(frozenset({key}))
        await until(lambda: key in self.watch.known)
        return self.watch.found[key]


def _owners(owner: tuple[str, str] | None) -> list[dict[str, Any]]:
    if owner is None:
        return []
    kind, name = owner
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """The place, whose watch ends with the test."""
    made = Place()
    yield made
    await made.watch.close()


async def test_pods_of_two_deployments_are_told_apart_by_uid(place: Place) -> None:
    """Of ``web`` and ``web-2``, each has its own Pods, although the labels of all Pods are the same."""
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"))
    place.pod("web-2-7f-b", ("ReplicaSet", "web-2-7f"))
    assert await place.names() == ["web-7f-a"]
    assert await place.names(WorkloadRef("web-2", "Deployment", "edge")) == ["web-2-7f-b"]


@pytest.mark.parametrize("owner", [None, ("Job", "web-job"), ("ReplicaSet", "gone"), ("ReplicaSet", "bare")], ids=str)
async def test_pods_of_other_owners_do_not_count(place: Place, owner: tuple[str, str] | None) -> None:
    """A bare Pod, a Pod of a Job, and Pods of ReplicaSets without the Deployment are not Pods of the workload."""
    place.add("replicasets", "bare")
    place.pod("web-7f-a", owner)
    place.pod("web-7f-b", ("ReplicaSet", "web-7f"))
    assert await place.names() == ["web-7f-b"]


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
async def test_other_workloads_own_their_pods_themselves(place: Place, kind: str) -> None:
    """The controller of such a Pod is the workload; a workload of the same name and another UID is not."""
    place.add(f"{kind.lower()}s", "db")
    place.add(f"{kind.lower()}s", "new", uid="uid-new-2")
    place.pod("db-0", (kind, "db"))
    place.pod("new-0", (kind, "new"))
    assert await place.names(WorkloadRef("db", kind, "edge")) == ["db-0"]
    assert await place.names(WorkloadRef("new", kind, "edge")) == []


async def test_a_workload_that_does_not_exist_has_no_pods(place: Place) -> None:
    """A 404 is an answer: the workload is absent, also if Pods of an earlier one are left."""
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"))
    place.api.remove(f"{APPS}/deployments/web")
    assert await place.found() == Pods(others=OTHERS)


async def test_a_workload_of_the_same_name_is_noticed(place: Place) -> None:
    """The Deployment is created again: Pods of the first one no longer count."""
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"))
    assert await place.names() == ["web-7f-a"]
    place.add("deployments", "web", uid="uid-again")
    await asyncio.sleep(2 * WORKLOAD_AGAIN)
    assert await place.names() == []


@pytest.mark.parametrize(
    ("phase", "counts"),
    [("Pending", True), ("Running", True), ("Unknown", True), ("Succeeded", False), ("Failed", False)],
)
async def test_a_pod_that_has_ended_does_not_count(place: Place, phase: str, *, counts: bool) -> None:
    """Pods count as running unless they have ended."""
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"), phase)
    assert await place.names() == (["web-7f-a"] if counts else [])


async def test_a_deleted_pod_counts_until_its_grace_period_is_over(place: Place) -> None:
    """``deletionTimestamp`` is when the Pod must have ended; nothing else changes on the API server then."""
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"), deletionTimestamp=stamp(place.clock.wall() + 25))
    assert await place.names() == ["web-7f-a"]
    await asyncio.sleep(20)
    assert await place.names() == ["web-7f-a"]
    await asyncio.sleep(15)
    assert await place.names() == []


REFUSED: Iterable[tuple[str, str]] = (("GET", "/deployments/web"), ("GET", "/replicasets/web-7f"), ("GET", "/pods"))


@pytest.mark.parametrize("request_", REFUSED, ids=str)
async def test_pods_that_cannot_be_read_are_unknown(place: Place, request_: tuple[str, str]) -> None:
    """Without a right nothing is found, which the plan counts as running; with it the Pods are found again."""
    key = NODE, WEB
    place.pod("web-7f-a", ("ReplicaSet", "web-7f"))
    refusal = Forbidden(HTTPStatus.FORBIDDEN, "Forbidden", 'User "hub" cannot read it')
    place.api.refusals[request_] = refusal
    place.watch.ask(frozenset({key}))
    await until(lambda: key in place.watch.known)
    assert key not in place.watch.found
    problem: HubError = place.watch.problems[key]
    assert "the account lacks the rule" in str(problem)
    place.api.refusals.clear()
    await until(lambda: key in place.watch.found, 60)
    assert await place.names() == ["web-7f-a"]
    assert place.watch.problems == {}


async def test_pods_that_were_known_are_unknown_after_an_error(place: Place) -> None:
    """The last known Pods are forgotten when the workload cannot be read any more."""
    key = NODE, WEB
    assert await place.found() == Pods(others=OTHERS)
    place.api.refusals["GET", "/deployments/web"] = Forbidden(HTTPStatus.FORBIDDEN, "Forbidden")
    await until(lambda: key in place.watch.problems, 60)
    assert key not in place.watch.found
