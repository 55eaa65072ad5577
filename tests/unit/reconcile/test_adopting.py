"""Slices of other controllers: from the registry that adopts them to their deletion."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hub.decide.adopt import SETTLE
from hub.kube.client import Client
from hub.model import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, Finding, ObjectKey, Slice, SourceView, TargetKey
from hub.reconcile.adopting import Adopting
from hub.registry.spec import ENDPOINT_COPIER, LABEL_COPIER_SOURCE, HealthPolicy, PortSpec, Registry, TargetSpec
from hub.runtime.clock import SystemClock
from tests.support import build
from tests.unit.reconcile.test_reconciler import Hub

KEY = TargetKey("edge", "payments")


def adopting(*targets: TargetSpec) -> Adopting:
    """The adoptions of a registry with these targets; nothing has been listed, and no API is called."""
    made = Adopting(cast("Client", None), SystemClock(), lambda _: None)
    made.follow(Registry("default", {}, {target.key: target for target in targets}))
    return made


def test_unlisted_slices_are_unknown() -> None:
    """Slices that have not been listed are unknown, not absent."""
    spec = build.target(adopt="old-controller")
    made = adopting(spec)

    assert not made.synced
    assert made.theirs(KEY) is None


def test_a_registry_that_adopts_nothing_waits_for_nothing() -> None:
    """A registry without ``adopt`` is synced at once."""
    assert adopting(build.target()).synced


def test_obstacle_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An obstacle is logged when it appears, not while it lasts; findings of other kinds are not logged here."""
    spec = build.target(adopt="old-controller")
    made = adopting(spec)
    for store in made._stores.values():
        store.replace({}, "1")
    way = Finding("AdoptionWaiting", "one of two")

    for findings in ((way,), (way, Finding("AddressConflict", "x")), (), (way,)):
        made.log_obstacles(KEY, findings)

    assert [record.getMessage() for record in caplog.records] == ["edge/payments: AdoptionWaiting: one of two"] * 2


def test_only_their_deleted_slices_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Deletes of their slices are logged in one line with the names; without such a delete nothing is logged."""
    caplog.set_level("INFO")
    spec = build.target(adopt="old-controller")
    labels = {LABEL_SERVICE_NAME: KEY.name, LABEL_MANAGED_BY: "old-controller"}
    theirs = [Slice("edge", name, "IPv4", labels=labels, uid=f"uid of {name}") for name in ("b", "a")]
    ours = build.slice("ours")
    made = adopting(spec)

    assert made.log_deleted(spec, [("delete", ours), ("update", theirs[0])]) == ()
    assert caplog.messages == []
    assert made.log_deleted(spec, [("delete", ours), *(("delete", slice_) for slice_ in theirs)]) == (
        "uid of b",
        "uid of a",
    )
    assert caplog.messages == ["edge/payments: slices of old-controller are covered by ours and deleted: a, b"]


# --- taking over from endpoint-copier, through all stages ---------------------------------------------------

NOT_THERE = PortSpec(1, "not-there")
CHECKED = HealthPolicy("tcp", on_fail="remove")


def hub_beside(*addresses: str, **target: Any) -> Hub:
    """A hub whose target adopts one slice of endpoint-copier with these addresses."""
    labels = {LABEL_SERVICE_NAME: KEY.name, LABEL_COPIER_SOURCE: "web-1"}
    endpoints = tuple(map(build.endpoint, addresses))
    theirs = Slice("edge", "theirs", "IPv4", endpoints, (build.PORT,), labels, uid="u", resource_version="1")
    hub = Hub()
    hub.registry = hub.registry_of(build.target(adopt=ENDPOINT_COPIER, **target))
    hub.adopting.follow(hub.registry)
    for store in hub.adopting._stores.values():
        store.replace({ObjectKey("edge", "theirs"): theirs}, "1")
    return hub


async def outcome(hub: Hub) -> tuple[bool, set[str]]:
    """Make a few passes; return whether their slice was deleted, and the reasons of the last findings."""
    for _ in range(4):
        await hub.reconciler.reconcile(KEY)
        hub.clock.time += SETTLE
    last = hub.reconciler.last(KEY)
    assert last is not None
    return "delete theirs" in hub.sent, {each.reason for each in last.findings}


async def test_address_dropped_by_the_source_does_not_keep_their_slice() -> None:
    """An address that the source no longer has does not keep their slice; ours has all other addresses."""
    hub = hub_beside("10.0.0.0", "10.0.0.1", "10.0.0.99")
    hub.offer(build.view("eu", build.endpoints(2)))
    assert await outcome(hub) == (True, set())
    assert list(hub.published().values()) == [["10.0.0.0", "10.0.0.1"]]


@pytest.mark.parametrize(
    ("target", "view", "reason"),
    [
        ({"ports": (NOT_THERE,)}, build.view("eu", build.endpoints(2)), "PortMismatch"),
        ({"sources": (build.source(health=CHECKED),)}, build.view("eu", build.endpoints(2)), "EndpointsUnproven"),
        ({}, build.view("eu"), "AdoptionWaiting"),
        ({}, build.view("eu", build.endpoints(1), unknown_nodes=["n1"]), "AdoptionWaiting"),
        ({}, build.view("eu", build.endpoints(1), complete=False), "AdoptionWaiting"),
    ],
    ids=["no such port", "no verdict yet", "another name", "unresolved nodes", "parts are missing"],
)
async def test_theirs_stay_where_ours_lack_something(target: dict[str, Any], view: SourceView, reason: str) -> None:
    """Their slice stays while ours lacks an address that may still exist."""
    hub = hub_beside("10.0.0.0", "10.0.0.1", **target)
    hub.offer(view)
    gone, reasons = await outcome(hub)
    assert (gone, reasons) == (False, {"AdoptionWaiting", reason})
