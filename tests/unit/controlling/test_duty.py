"""The right to be a cluster's cloud controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hub.controlling.duty import AFTER_TAKEOVER, MANY, Duty
from hub.election.elector import LeaseRecord
from hub.errors import Conflict, Forbidden, NotFound, NotLeader
from hub.runtime.clock import SystemClock

NAME = "endpointslice-hub/default"


class Lease:
    """A Lease in memory, in the place of a KubeLease."""

    record: LeaseRecord | None = None
    forbidden = False

    def __init__(self, *_: Any) -> None:
        pass

    async def get(self) -> LeaseRecord:
        if Lease.forbidden:
            raise Forbidden(403, "Forbidden", "cannot get leases")
        if Lease.record is None:
            raise NotFound(404)
        return Lease.record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        return self._store(record)

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        if Lease.record is None or record.version != Lease.record.version:
            raise Conflict(409)
        return self._store(record)

    async def wait_until_free(self) -> None:
        await asyncio.Event().wait()

    @staticmethod
    def _store(record: LeaseRecord) -> LeaseRecord:
        before = int(Lease.record.version) if Lease.record is not None else 0
        fields = {name: getattr(record, name) for name in ("holder", "duration", "acquired", "renewed", "transitions")}
        Lease.record = LeaseRecord(**fields, version=str(before + 1))
        return Lease.record


@pytest.fixture(autouse=True)
def lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Lease exists."""
    monkeypatch.setattr("hub.controlling.duty.KubeLease", Lease)
    Lease.record, Lease.forbidden = None, False


def duty(changed: asyncio.Event) -> Duty:
    """The duty of cluster eu, whose client is never used; as in a hub, each change makes it take part again."""

    async def client() -> Any:
        return None

    def on_change() -> None:
        changed.set()
        made.act(wanted=True)

    made = Duty("eu", client, NAME, SystemClock(), on_change, grants=lambda: "an administrator grants it")
    return made


def held(holder: str) -> LeaseRecord:
    """A Lease that this holder has just renewed, for an hour."""
    return LeaseRecord(holder, 3600, "a", "b", 3, "7")


async def test_a_free_lease_is_taken_and_released() -> None:
    """The duty holds for almost the Lease's duration, and the Lease is free afterwards."""
    changed = asyncio.Event()
    made = duty(changed)
    with pytest.raises(NotLeader):
        made.check()
    made.act(wanted=True)
    await asyncio.wait_for(changed.wait(), 5)
    assert made.held
    assert MANY.duration - 5 < made.check() < MANY.duration
    assert made.creates_after == float("-inf")
    await made.close()
    await asyncio.sleep(0.05)
    assert Lease.record is not None
    assert Lease.record.holder == "", "the end of the election is a change, too, and does not begin another one"


async def test_another_holder_keeps_the_duty() -> None:
    """A Lease of another controller is not touched, and its holder is known."""
    Lease.record = held("brightbox-ccm")
    made = duty(asyncio.Event())
    made.act(wanted=True)
    async with asyncio.timeout(5):
        while not made.holder:  # noqa: ASYNC110 - the elector has no event for what it reads
            await asyncio.sleep(0.01)
    assert (made.held, made.holder) == (False, "brightbox-ccm")
    await made.close()
    assert Lease.record == held("brightbox-ccm")


async def test_another_replica_takes_over_at_once_and_creates_nothing_at_first() -> None:
    """A Lease of the same hub is taken without waiting; the last writer's creations may still become visible."""
    Lease.record = held(NAME)
    changed = asyncio.Event()
    made = duty(changed)
    made.act(wanted=True)
    await asyncio.wait_for(changed.wait(), 5)
    assert made.held
    assert 0 < made.creates_after - SystemClock().now() <= AFTER_TAKEOVER
    made.act(wanted=False)
    await asyncio.sleep(0.05)
    assert Lease.record.holder == NAME, "a replica that stands down keeps the Lease for the next one"


async def test_a_missing_right_is_named() -> None:
    """A 403 names the rule, the cluster and what grants it."""
    Lease.forbidden = True
    made = duty(asyncio.Event())
    made.act(wanted=True)
    async with asyncio.timeout(5):
        while not made.problem:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    assert "leases.coordination.k8s.io kube-system/cloud-controller-manager: get, create, update, watch" in made.problem
    assert "an administrator grants it" in made.problem
    await made.close()
