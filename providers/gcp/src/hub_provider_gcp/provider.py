"""The provider: what the hub's questions and steps mean as requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from hub.plugin import Node, ProviderError, TerminalProviderError, TransientProviderError, Unknown
from hub.plugin.addresses import (
    AddressConflict,
    AddressState,
    Done,
    Free,
    Gone,
    Held,
    InstanceState,
    Order,
    Present,
    Step,
    UnsupportedInstance,
)
from hub_provider_gcp import shapes
from hub_provider_gcp.api import Api
from hub_provider_gcp.config import GcpConfig
from hub_provider_gcp.failures import Refused
from hub_provider_gcp.shapes import Access, Instance, Reserved

PARALLEL: Final = 8
"""Instances that are read at a time."""


class Gcp:
    """The addresses of one account.

    Args:
        api: sends the requests.
        config: the account's configuration.
    """

    def __init__(self, api: Api, config: GcpConfig) -> None:
        self._api = api
        self._project = config.project or ""
        self._regions = config.regions

    def instance_of(self, node: Node, /) -> str | None:
        """Returns the id in ``gce://PROJECT/ZONE/NAME``."""
        return shapes.instance_id(node.provider_id, self._project)

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """Lists the addresses of the configured regions, or of the project."""
        found: dict[str, Reserved] = {}
        try:
            for region in self._regions or ("",):
                found |= await self._api.addresses(region)
        except Refused as error:
            raise TerminalProviderError(f"{error}; correct project or regions") from error
        where = f"project {self._project}" + (f", {' or '.join(self._regions)}," if self._regions else "")
        return {address: shapes.state_of(found.get(address), self._project, where) for address in addresses}

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """Reads each instance, and lists the addresses of its region if it has an external address."""
        found: dict[str, Instance | Unknown | None] = {}
        failures: list[ProviderError] = []
        slots = asyncio.Semaphore(PARALLEL)

        async def read(id_: str) -> None:
            async with slots:
                try:
                    found[id_] = await self._api.instance(id_)
                except (Refused, UnsupportedInstance) as error:
                    found[id_] = Unknown(str(error))
                except ProviderError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for id_ in dict.fromkeys(instances):
                group.create_task(read(id_), name=f"gcp: inspect {id_}")
        if failures:
            raise failures[0]
        regions = {_region(id_) for id_, row in found.items() if isinstance(row, Instance) and row.access}
        static: dict[str, Reserved] = {}
        for region in sorted(regions):
            static |= await self._api.addresses(region)
        return {id_: _state(id_, found[id_], static) for id_ in instances}

    async def detach(self, order: Order, /) -> Step:
        """Removes the access config that has the address."""
        found = await self._api.instance(order.instance)
        if found and found.access and found.access.address == order.address:
            if not isinstance(order.expected, Held) or order.expected.instance != order.instance:
                raise AddressConflict(
                    f"{self._api.what}: {order.instance} has {order.address}, expected {order.expected}"
                )
            return await self._api.delete_access_config(order, found.access.name)
        region = _region(order.instance)
        address = (await self._api.addresses(region)).get(order.address)
        state = shapes.state_of(address, self._project, region)
        if isinstance(state, Free):
            return Done()
        raise self._conflict(order, state, found)

    async def attach(self, order: Order, /) -> Step:
        """Removes the ephemeral address first, and adds the reserved one at the next call."""
        found = await self._api.instance(order.instance)
        if found is None:
            raise AddressConflict(f"{self._api.what}: {order.instance} does not exist")
        if found.access and found.access.address == order.address:
            return Done(order.before)
        region = _region(order.instance)
        if isinstance(order.expected, Free) and order.expected.region not in ("", region):
            raise UnsupportedInstance(f"{self._api.what}: {order.address} is not an address of {region}")
        static = await self._api.addresses(region)
        address = static.get(order.address)
        state = shapes.state_of(address, self._project, region)
        if address is None or not isinstance(state, Free) or not isinstance(order.expected, Free):
            raise self._conflict(order, state, found)
        if found.access:
            return await self._remove_ephemeral(order, found.access, static)
        before = shapes.split_before(order.before)
        name = before[1] if before else shapes.DEFAULT_NAME
        config = {"name": name, "natIP": order.address, "networkTier": address.tier}
        return await self._api.add_access_config(order, config)

    async def restore(self, order: Order, /) -> Step:
        """Gives an instance without external address an ephemeral one of the same name and network tier."""
        before = shapes.split_before(order.before)
        found = await self._api.instance(order.instance) if before else None
        if before is None or found is None or found.access:
            return Done()
        return await self._api.add_access_config(order, {"name": before[1], "networkTier": before[0]})

    async def follow(self, operation: str, /) -> Step:
        """Looks at an operation of a zone."""
        return await self._api.operation(operation) if shapes.is_operation(operation) else Done()

    async def _remove_ephemeral(self, order: Order, access: Access, static: Mapping[str, Reserved]) -> Step:
        if why := _why_occupied(access, static):
            raise AddressConflict(f"{self._api.what}: {order.instance}: {why}")
        if access.before != order.before:
            raise AddressConflict(
                f"{self._api.what}: {order.instance} has {access.before!r} in the place of an address, expected "
                f"{order.before!r}"
            )
        return await self._api.delete_access_config(order, access.name)

    def _conflict(self, order: Order, state: AddressState, found: Instance | None) -> ProviderError:
        """Returns the error for a state from the list, after nic0 of the order's instance did not have the address."""
        what = f"{self._api.what}: {order.address}"
        if found and order.address in found.others:
            return AddressConflict(f"{what} is on another interface of {order.instance} than nic0; move it there")
        if isinstance(state, Held) and state.instance == order.instance:
            return TransientProviderError(f"{what} is gone from {order.instance}, but still listed there")
        return AddressConflict(f"{what} is {state}, expected {order.expected}")


def _region(instance: str) -> str:
    return shapes.region_of(shapes.zone_of(instance))


def _why_occupied(access: Access, static: Mapping[str, Reserved]) -> str:
    """Returns why an access config must stay; "" if it is an ephemeral address that can be given back."""
    if access.address in static:
        return f"nic0 has the reserved address {access.address}"
    if access.extras:
        return f"nic0 has an ephemeral address with {access.extras}, which would be lost"
    return "" if access.before else "nic0 has an access config whose name cannot be given back"


def _state(id_: str, found: Instance | Unknown | None, static: Mapping[str, Reserved]) -> InstanceState:
    if isinstance(found, Unknown):
        return found
    if found is None:
        return Gone("the project has no such instance")
    if found.running is None:
        return Unknown(f"the instance has the unknown status {found.status[:40]}")
    why = _why_occupied(found.access, static) if found.access else ""
    before = found.access.before if found.access and not why else ""
    zone = shapes.zone_of(id_)
    return Present(found.running, shapes.region_of(zone), zone, room=not why, why=why, before=before)
