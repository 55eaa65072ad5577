"""What is observed of other controllers' slices, between the registry and the decision."""

from __future__ import annotations

from typing import cast

import pytest

from hub.aio.clock import SystemClock
from hub.kube.client import Client
from hub.model import EndpointGroup, Finding, GroupKey, TargetKey
from hub.passes.adopting import Adopting
from hub.registry.spec import Registry, TargetSpec
from tests.support import build

KEY = TargetKey("edge", "payments")
GROUPS = (EndpointGroup(GroupKey("eu", "IPv4"), build.endpoints(2)),)


def adopting(*targets: TargetSpec) -> Adopting:
    """Of a registry with these targets; nothing was listed yet, and nobody is asked here."""
    made = Adopting(cast("Client", None), SystemClock(), lambda _: None)
    made.follow(Registry("default", {}, {target.key: target for target in targets}))
    return made


def test_nothing_follows_before_theirs_are_known() -> None:
    """An unknown slice is not a slice that is not there."""
    spec = build.target(adopt="old-controller")
    made = adopting(spec)

    found = made.check(spec, (build.slice(endpoints=build.endpoints(2)),), GROUPS)

    assert not made.synced
    assert (found.groups, found.deletes, found.memory.seen) == (GROUPS, (), None)
    assert not made.pending(KEY)


def test_a_registry_that_adopts_nothing_waits_for_nothing() -> None:
    """There is nothing to be known."""
    spec = build.target()
    made = adopting(spec)

    assert made.synced
    assert made.check(spec, (), GROUPS).groups is GROUPS


def test_what_stands_in_the_way_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until it is over and comes again; other findings are not told here."""
    spec = build.target(adopt="old-controller")
    made = adopting(spec)
    for store in made._stores.values():
        store.replace({}, "1")
    made.check(spec, (), GROUPS)
    way = Finding("AdoptionWaiting", "one of two")

    for findings in ((way,), (way, Finding("AddressConflict", "x")), (), (way,)):
        made.tell(KEY, findings)

    assert [record.getMessage() for record in caplog.records] == ["edge/payments: AdoptionWaiting: one of two"] * 2
