"""Steps of an account, on a clock that moves by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hub.allocating.accounts import Account
from hub.cloud.addresses import Done, Free, Order
from hub.observe.providers.faults import ProviderStalled
from hub.observe.providers.host import ProviderHost
from hub.plugin import NoConfig, ProviderType
from hub.plugin.addresses import AddressType
from hub.registry.spec import AccountSpec, ProviderRef
from hub.runtime.clock import SystemClock
from tests.support.loops import SameLoop
from tests.unit.observe.providers.plugins import catalog_of

ORDER = Order("203.0.113.1", "i-1", Free("r1"))


class Ahead(SystemClock):
    """A clock that a test puts forward; it stands still otherwise."""

    at = 1000.0

    def now(self) -> float:
        """The time that the test has set."""
        return self.at


class Slow:
    """An account whose provider takes some seconds to open, and keeps the orders that it gets."""

    def __init__(self, seconds: float) -> None:
        self.clock = Ahead()
        self.orders: list[Order] = []

        @asynccontextmanager
        async def enter(*_: Any) -> AsyncIterator[Slow]:
            self.clock.at += seconds
            yield self

        type_ = ProviderType("slow", addresses=AddressType(open=enter, config=NoConfig))  # type: ignore[arg-type]
        self.host = ProviderHost(catalog_of(type_), clock=self.clock, folder="/nowhere", start_loop=SameLoop)
        self.account = Account(AccountSpec("main", ProviderRef("slow"), ()), self.host, self.clock.now, lambda: None)

    async def attach(self, order: Order, /) -> Done:
        """Keeps the order."""
        self.orders.append(order)
        return Done()


async def test_a_step_has_only_the_time_that_opening_the_provider_has_left() -> None:
    """The provider is told how long it may still write: the Lease runs out while the provider is opened."""
    slow = Slow(6.0)
    assert await slow.account.step("attach", ORDER, 15.0) == Done()
    assert await slow.account.step("attach", ORDER, 15.0) == Done()
    assert [order.timeout for order in slow.orders] == [9.0, 15.0]
    await slow.host.close()


async def test_a_step_is_not_called_after_its_time() -> None:
    """A provider that takes longer to open than the Lease lasts gets no order."""
    slow = Slow(15.0)
    with pytest.raises(ProviderStalled, match="attach was not called: its 15 s were over"):
        await slow.account.step("attach", ORDER, 15.0)
    assert slow.orders == []
    await slow.host.close()
