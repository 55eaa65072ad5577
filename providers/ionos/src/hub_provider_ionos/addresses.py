"""The capability ``addresses``: reserved addresses on the NICs of servers.

A NIC has a list of addresses. Attaching appends one and detaching leaves one out, so a server keeps its own address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from hub.plugin import HubContext, Node, TransientProviderError, together
from hub.plugin.addresses import (
    AccountContext,
    AddressConflict,
    AddressState,
    Changing,
    Done,
    Free,
    Held,
    InstanceState,
    Order,
    Pending,
    Step,
    Unknown,
    UnsupportedInstance,
)
from hub_provider_ionos import match, reserved
from hub_provider_ionos.account import Account
from hub_provider_ionos.calls import Calls, Card
from hub_provider_ionos.cloud import Cloud
from hub_provider_ionos.config import AccountConfig, as_uuid
from hub_provider_ionos.failures import Missing
from hub_provider_ionos.feed import Feed
from hub_provider_ionos.inventory import Fleet, Nic
from hub_provider_ionos.listing import Key
from hub_provider_ionos.permit import NotSent, Permit
from hub_provider_ionos.provider import account_of
from hub_provider_ionos.reserved import Fleets

REFRESH: Final = 30.0
"""Seconds between two lists of servers when nothing moves: the interval of the node part."""

POLL: Final = 1.0
"""Seconds between two looks at a change; one takes several seconds."""


class IonosAddresses:
    """The addresses of one account.

    Args:
        calls: Sends the requests about addresses.
        feeds: The list of servers of each data center, shared with the clusters of the hub.
        hub: The hub's services.
        cloud: Gives each change of a NIC its turn.
        login: The account's credential and API.
    """

    def __init__(
        self,
        calls: Calls,
        feeds: Mapping[str, Callable[[], Feed[Fleet]]],
        hub: HubContext,
        cloud: Cloud,
        login: Account,
    ) -> None:
        self._calls = calls
        self._feeds = feeds
        self._hub = hub
        self._cloud = cloud
        self._login = login
        self._known: Fleets = {}
        """The servers as they were last listed."""
        self._regions: dict[str, str] = {}

    # --- reading ---------------------------------------------------------------------------------------

    def instance_of(self, node: Node, /) -> str | None:
        """Returns the server's UUID in ``ionos://UUID``; without a providerID that of the machine or the unique name.

        The machine's UUID and the name count only if the last list of servers has them.
        """
        if node.provider_id:
            return match.provider_uuid(node) or None
        found = match.servers_of(node, tuple(self._known.values()))
        return found[0].id if len(found) == 1 else None

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """Lists the reserved blocks. The servers are listed again only if their last list says something else."""
        blocks = await self._calls.reserved()
        fleets = await self._servers(float("-inf"))
        if not all(reserved.agree(address, blocks.get(address), fleets) for address in addresses):
            fleets = await self._servers(self._hub.clock.now())
        return {address: reserved.address_state(address, blocks.get(address), fleets) for address in addresses}

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """Lists the servers."""
        fleets = await self._servers(self._hub.clock.now())
        for datacenter in fleets:
            if datacenter not in self._regions:
                self._regions[datacenter] = reserved.region_of(await self._calls.location(datacenter))
        return {id_: reserved.instance_state(id_, fleets, self._regions) for id_ in instances}

    # --- steps -----------------------------------------------------------------------------------------

    async def detach(self, order: Order, /) -> Step:
        """Leaves the address out of the NIC's list. The last address of a NIC is never removed."""
        permit = self._permit(order)
        state, fleets = await self._state(order.address)
        if isinstance(state, Free):
            return Done()
        expected = order.expected
        if not isinstance(expected, Held) or expected.instance != order.instance or state not in (expected, Changing()):
            raise self._conflict(order, state)
        card = self._card(order.instance, expected.handle, fleets)

        def without(nic: Nic) -> list[str]:
            if not isinstance(state, Held) or order.address not in nic.ips:
                raise self._unsettled(order, state)
            left = [ip for ip in reserved.ipv4(nic) if ip != order.address]
            if not left:
                raise AddressConflict(
                    f"{self._calls.what}: {order.address} is the only address of NIC {card.nic} of server "
                    f"{card.server}, and the API does not remove the last one; add another address to the NIC first"
                )
            return left

        return await self._change(order, permit, card, without)

    async def attach(self, order: Order, /) -> Step:
        """Appends the address to the list of the server's first NIC on a public LAN."""
        permit = self._permit(order)
        state, fleets = await self._state(order.address)
        if isinstance(state, Held) and state.instance == order.instance:
            return Done(order.before)
        if not isinstance(state, Free | Changing) or not isinstance(order.expected, Free):
            raise self._conflict(order, state)
        card = self._card(order.instance, "", fleets)

        def beside(nic: Nic) -> list[str]:
            if not isinstance(state, Free) or order.address in nic.ips:
                raise self._unsettled(order, state)
            if why := reserved.why_no_room(nic):
                raise AddressConflict(f"{self._calls.what}: server {card.server}: {why}")
            return [*reserved.ipv4(nic), order.address]

        return await self._change(order, permit, card, beside)

    async def restore(self, _: Order, /) -> Step:
        """Does nothing: a server loses no address when it gets another one."""
        return Done()

    async def follow(self, operation: str, /) -> Step:
        """Looks at the request of a change."""
        if not as_uuid(operation):
            return Done()
        try:
            found = await self._calls.progress(as_uuid(operation))
        except Missing:
            return Done()
        if found.status == "FAILED":
            raise AddressConflict(f"{self._calls.what}: request {as_uuid(operation)} failed: {found.message}")
        return Done() if found.status == "DONE" else Pending(operation, POLL)

    # --- helpers ---------------------------------------------------------------------------------------

    async def _change(self, order: Order, permit: Permit, card: Card, wanted: Callable[[Nic], list[str]]) -> Step:
        """Replaces the addresses of a NIC by what ``wanted`` makes of them; one change of a NIC at a time.

        If the caller is cancelled, the change is not sent any more. If it was sent already, or a thread is about to,
        the next change of the NIC waits until that thread has ended, so that it cannot overwrite a newer one.
        """

        async def turn() -> Step:
            async with self._cloud.turn(self._login, card.nic):
                try:
                    permit.check()  # the turn may come late
                except NotSent as error:
                    what = f"{self._calls.what}: the change of NIC {card.nic} for {order.address}"
                    raise TransientProviderError(f"{what} was not begun: {error}") from error
                nic = await self._read(order, card)
                if nic.busy:
                    return Pending(await self._calls.change_in_progress(card), POLL)
                return Pending(await self._calls.set_ips(card, wanted(nic), permit), POLL)

        change = asyncio.create_task(turn(), name=f"change of NIC {card.nic}")
        self._cloud.keep(change)
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            permit.withdraw()
            raise

    def _permit(self, order: Order) -> Permit:
        """Returns the permit of a change, for as long as the hub waits: the hub's Lease may have ended then."""
        return Permit(self._hub.clock.now, order.timeout)

    async def _servers(self, moment: float) -> Fleets:
        """Returns the lists of servers that were requested at ``moment`` or later."""
        lists = await together(*(feed().since(moment) for feed in self._feeds.values()))
        self._known = dict(zip(self._feeds, (listing.value for listing in lists), strict=True))
        return self._known

    async def _state(self, address: str) -> tuple[AddressState, Fleets]:
        """Returns an address's state for a write, from new lists only."""
        asked = self._hub.clock.now()
        blocks = await self._calls.reserved()
        fleets = await self._servers(asked)
        state = reserved.address_state(address, blocks.get(address), fleets)
        if isinstance(state, Unknown):
            raise TransientProviderError(f"{self._calls.what}: {address}: {state.reason}")
        return state, fleets

    async def _read(self, order: Order, card: Card) -> Nic:
        try:
            return await self._calls.nic(card)
        except Missing as error:
            raise AddressConflict(f"{self._calls.what}: {order.address}: NIC {card.nic} is gone") from error

    def _card(self, instance: str, nic: str, fleets: Fleets) -> Card:
        """Returns the path of a server's NIC; ``nic`` "" = the one that addresses are added to."""
        found = reserved.find(instance, fleets)
        if found is None:
            raise AddressConflict(f"{self._calls.what}: no data center of the account has server {instance[:40]}")
        datacenter, server = found
        if not nic:
            first = reserved.primary(server, fleets[datacenter])
            if first is None or not first.id:
                raise UnsupportedInstance(f"{self._calls.what}: server {server.id} has no NIC on a public LAN")
            nic = first.id
        return Card(datacenter, server.id, nic)

    def _conflict(self, order: Order, state: AddressState) -> AddressConflict:
        return AddressConflict(f"{self._calls.what}: {order.address} is {state}, expected {order.expected}")

    def _unsettled(self, order: Order, state: AddressState) -> TransientProviderError:
        return TransientProviderError(
            f"{self._calls.what}: {order.address} is {state}, and its NIC says something else"
        )


class _User:
    """Uses the lists: one for each time that an account is opened."""

    def __init__(self, account: AccountContext) -> None:
        self.changed = account.changed


@asynccontextmanager
async def open_account(
    account: AccountContext, config: AccountConfig, cloud: Cloud, /
) -> AsyncGenerator[IonosAddresses, None]:
    """Opens an account. Sends no request yet.

    Raises:
        TerminalProviderError: As :func:`hub_provider_ionos.open_provider`.
    """
    login, user = await account_of(account, config), _User(account)
    async with AsyncExitStack() as stack:
        feeds: dict[str, Callable[[], Feed[Fleet]]] = {}
        for datacenter in config.datacenters:
            key = Key(login, "datacenter", datacenter)
            feeds[datacenter] = await stack.enter_async_context(cloud.feed(user, key, REFRESH))
        yield IonosAddresses(Calls(account.hub, cloud.api(login)), feeds, account.hub, cloud, login)
