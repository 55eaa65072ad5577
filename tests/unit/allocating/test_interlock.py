"""When another controller's Lease counts as free, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest

from hub.allocating.interlock import DURATION, LOOK, MARGIN, Interlock
from hub.errors import Forbidden, ServerFault
from hub.model import ObjectKey
from tests.support.virtual import LoopClock, anything
from tests.unit.allocating.scene import FakeApi

VIRTUAL_TIME = True

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/original"
UNKNOWN = "an unknown holder"


class Original:
    """The Lease of the original controller, and an interlock that looks at it."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.interlock = Interlock(self.api.client, ObjectKey("kube-system", "original"), LoopClock(), anything)
        self._renewals = 0

    def renew(self, duration: int | None = 10, holder: str = "original-0") -> None:
        """Renew the Lease."""
        self._renewals += 1
        spec: dict[str, Any] = {"holderIdentity": holder, "renewTime": f"2026-01-01T00:00:{self._renewals:02}.0Z"}
        if duration is not None:
            spec["leaseDurationSeconds"] = duration
        self.api.put(PATH, {"kind": "Lease", "metadata": {}, "spec": spec})


@pytest.fixture
async def original() -> AsyncIterator[Original]:
    """The Lease, which does not exist yet, and the interlock at work."""
    made = Original()
    task = asyncio.create_task(made.interlock.run())
    yield made
    task.cancel()


async def test_a_lease_counts_until_it_was_looked_at(original: Original) -> None:
    """Nothing is changed before the first answer; a Lease that does not exist is free."""
    assert original.interlock.holder == UNKNOWN
    await asyncio.sleep(LOOK)
    assert original.interlock.holder == ""


@pytest.mark.parametrize(("duration", "lasts"), [(10, 10.0), (None, DURATION)], ids=["10 s", "no duration"])
async def test_a_lease_is_free_5_s_after_its_duration(original: Original, duration: int | None, lasts: float) -> None:
    """A Lease that nobody renews has a holder for its duration and 5 s more; each renewal begins again."""
    original.renew(duration)
    await asyncio.sleep(2 * LOOK)
    assert original.interlock.holder == "original-0"
    await asyncio.sleep(lasts - 2 * LOOK)
    original.renew(duration)
    await asyncio.sleep(lasts + MARGIN - 2 * LOOK)
    assert original.interlock.holder == "original-0"
    await asyncio.sleep(4 * LOOK)
    assert original.interlock.holder == ""


async def test_a_renewal_is_seen_within_2_s(original: Original) -> None:
    """The original is started again: its first renewal counts at once."""
    await asyncio.sleep(100)
    assert original.interlock.holder == ""
    original.renew()
    await asyncio.sleep(2.0)
    assert original.interlock.holder == "original-0"


async def test_a_released_lease_is_free_at_once(original: Original) -> None:
    """A Lease without a holder holds up nothing."""
    original.renew()
    await asyncio.sleep(2 * LOOK)
    original.renew(holder="")
    await asyncio.sleep(2 * LOOK)
    assert original.interlock.holder == ""


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(HTTPStatus.FORBIDDEN, "Forbidden", 'User "hub" cannot get resource "leases"'),
        ServerFault(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError"),
    ],
    ids=["403", "500"],
)
async def test_a_lease_that_cannot_be_read_has_a_holder(original: Original, error: Exception) -> None:
    """It counts as held until it can be read again."""
    await asyncio.sleep(2 * LOOK)
    original.api.refusals["GET", "/original"] = error
    await asyncio.sleep(2 * LOOK)
    assert original.interlock.holder == UNKNOWN
    assert original.interlock.problem is not None
    original.api.refusals.clear()
    await asyncio.sleep(2 * LOOK)
    assert (original.interlock.holder, original.interlock.problem) == ("", None)
