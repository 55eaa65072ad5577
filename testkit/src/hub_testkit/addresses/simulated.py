"""The provider ``simulated-cloud``: reserved addresses of a :class:`SimulatedCloud` in the same process.

It follows every rule of the conformance kit. It is the smallest complete example of the capability, and imports of the
hub only what a provider may import.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict

from hub.plugin import Node, ProviderError, ProviderType, TerminalProviderError, TransientProviderError, hookimpl
from hub.plugin.addresses import (
    AccountContext,
    AddressConflict,
    AddressState,
    AddressType,
    Changing,
    Done,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Order,
    Pending,
    Present,
    QuotaExceeded,
    Step,
    UnsupportedInstance,
)
from hub.plugin.fields import SecretRef
from hub_testkit.addresses.cloud import Action, Answer, SimulatedCloud

__all__ = ["NAME", "SimulatedCloud", "SimulatedConfig", "SimulatedPlugin", "SimulatedProvider"]

T = TypeVar("T")

NAME: Final = "simulated-cloud"

_ID: Final = re.compile(r"simulated://([a-z0-9-]{1,63})/([a-z0-9-]{1,63}/[a-z0-9.-]{1,253})")
_BEFORE: Final = re.compile(r"[a-zA-Z0-9-]{1,63}/[A-Z]{1,20}")
_OPERATION: Final = re.compile(r"operation-[0-9]{1,10}")


class SimulatedConfig(BaseModel):
    """``allocations.clouds[].config`` of the provider ``simulated-cloud``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cloud: str
    credential: SecretRef


class Entry(msgspec.Struct, frozen=True):
    """An address as the cloud lists it."""

    address: str
    region: str
    instance: str
    elsewhere: str
    handle: str
    operation: str


class Instance(msgspec.Struct, frozen=True):
    """An instance as the cloud shows it: ``held`` are its static addresses."""

    running: bool
    region: str
    zone: str
    ephemeral: str
    held: list[str]


class _List(msgspec.Struct, frozen=True):
    addresses: list[Entry]
    next: int


class _Shown(msgspec.Struct, frozen=True):
    instance: Instance


class _Accepted(msgspec.Struct, frozen=True):
    operation: str


class _Progress(msgspec.Struct, frozen=True):
    running: bool
    error: str


class _Refused(msgspec.Struct, frozen=True):
    message: str


class SimulatedProvider:
    """The addresses of one account.

    Args:
        account: the hub's services.
        config: the account's configuration.
        cloud: the cloud that ``config.cloud`` names.
    """

    def __init__(self, account: AccountContext, config: SimulatedConfig, cloud: SimulatedCloud) -> None:
        self._hub = account.hub
        self._name = account.name
        self._cloud = cloud
        self._secret = account.hub.secret(config.credential.ref())
        self._not_before = 0.0

    def instance_of(self, node: Node, /) -> str | None:
        """The id in ``simulated://ACCOUNT/ZONE/NAME``."""
        found = _ID.fullmatch(node.provider_id)
        return found[2] if found and found[1] == self._cloud.account and ".." not in found[2] else None

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """Lists all addresses of the account."""
        entries = await self._entries()
        return {address: self._state(entries.get(address)) for address in addresses}

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """Gets each instance."""
        return {instance: _present(await self._instance(instance)) for instance in instances}

    async def attach(self, order: Order, /) -> Step:
        """Attaches a free address to an instance of its region that has no other."""
        state = self._state((await self._entries()).get(order.address))
        if isinstance(state, Changing):
            return Pending(state.operation or "")
        if isinstance(state, Held) and state.instance == order.instance:
            return Done(order.before)
        if not isinstance(state, Free):
            raise self._conflict(order, state)
        found = await self._instance(order.instance)
        if found is None or found.held:
            raise AddressConflict(f"account {self._name}: instance {order.instance} is gone or has a static address")
        if found.region != state.region:
            places = f"{order.address} is of region {state.region}, instance {order.instance} of {found.region}"
            raise UnsupportedInstance(f"account {self._name}: {places}; choose an instance of the address' region")
        return await self._write("attach", order, before=found.ephemeral)

    async def detach(self, order: Order, /) -> Step:
        """Detaches an address from the instance that the order names."""
        state = self._state((await self._entries()).get(order.address))
        if isinstance(state, Changing):
            return Pending(state.operation or "")
        if isinstance(state, Free):
            return Done()
        if not isinstance(state, Held) or state != order.expected or state.instance != order.instance:
            raise self._conflict(order, state)
        return await self._write("detach", order)

    async def restore(self, order: Order, /) -> Step:
        """Gives an instance without any address its ephemeral address back."""
        found = await self._instance(order.instance)
        if not _BEFORE.fullmatch(order.before) or found is None or found.held or found.ephemeral:
            return Done()
        return await self._write("restore", order, value=order.before)

    async def follow(self, operation: str, /) -> Step:
        """Looks at an operation."""
        answer = await self._call("operation", instance=operation) if _OPERATION.fullmatch(operation) else None
        if answer is None or answer.status == 404:
            return Done()
        progress = _read(answer, _Progress)
        if progress.running:
            return Pending(operation)
        if progress.error:
            text = self._hub.redact(progress.error)
            raise ProviderError(f"account {self._name}: {operation} failed: {text}")
        return Done()

    # --- reading -------------------------------------------------------------------------------

    async def _entries(self) -> dict[str, Entry]:
        """All addresses of the account, from a complete list."""
        entries: dict[str, Entry] = {}
        page = 0
        while True:
            listed = _read(await self._call("list", page=page), _List)
            entries |= {entry.address: entry for entry in listed.addresses}
            page = listed.next
            if not page:
                return entries

    def _state(self, entry: Entry | None) -> AddressState:
        if entry is None:
            return NotReserved(f"account {self._name} has no such address")
        if entry.operation:
            return Changing(entry.operation)
        if entry.elsewhere:
            return Elsewhere(entry.elsewhere)
        if entry.instance:
            return Held(entry.instance, entry.handle, entry.region)
        return Free(entry.region)

    async def _instance(self, instance: str) -> Instance | None:
        """An instance as the cloud shows it; None if it does not exist."""
        answer = await self._call("get", instance=instance)
        return None if answer.status == 404 else _read(answer, _Shown).instance

    def _conflict(self, order: Order, state: AddressState) -> AddressConflict:
        return AddressConflict(f"account {self._name}: {order.address} is {state}, expected {order.expected}")

    # --- calling the cloud ---------------------------------------------------------------------

    async def _write(self, action: Action, order: Order, *, before: str = "", **more: Any) -> Step:
        answer = await self._call(action, address=order.address, instance=order.instance, token=order.token, **more)
        if answer.status == 404:
            raise AddressConflict(f"account {self._name}: {order.address} or {order.instance} is gone")
        operation = _read(answer, _Accepted).operation
        return Pending(operation) if operation else Done(before)

    async def _call(self, action: Action, **arguments: Any) -> Answer:
        """Calls the cloud; answers have status 200 or 404.

        Raises:
            ProviderError: any other answer, or none.
        """
        wait = self._not_before - self._hub.clock.now()
        if wait > 0:
            raise QuotaExceeded(f"account {self._name}: the cloud asked to wait", wait)
        answer = await self._send(action, arguments)
        if answer.status == 401:
            answer = await self._send(action, arguments, reload=True)
        match answer.status:
            case 200 | 404:
                return answer
            case 401:
                raise TerminalProviderError(f"account {self._name}: the cloud refuses the credential; replace it")
            case 409:
                raise AddressConflict(f"account {self._name}: {action}: {self._quote(answer)}")
            case 429:
                self._not_before = self._hub.clock.now() + (answer.retry_after or 0)
                raise QuotaExceeded(f"account {self._name}: {action}: too many requests", answer.retry_after)
            case _:
                raise TransientProviderError(f"account {self._name}: {action}: {answer.status} {self._quote(answer)}")

    async def _send(self, action: Action, arguments: Mapping[str, Any], *, reload: bool = False) -> Answer:
        credential = await self._secret.get(reload=reload)
        try:
            return await self._cloud.call(action, credential=credential, **arguments)
        except ConnectionError as error:
            raise TransientProviderError(f"account {self._name}: {action}: no answer: {error}") from error

    def _quote(self, answer: Answer) -> str:
        return self._hub.redact(_read(answer, _Refused).message)


class SimulatedPlugin:
    """A plugin with the provider ``simulated-cloud``, as an object with the hook.

    Args:
        clouds: the clouds that a configuration may name. The plugin reads it at each ``open``.
        cuts: the declaration of :attr:`AddressType.cuts`.
        provider: builds the provider; tests replace it with one that breaks a rule.
    """

    def __init__(
        self,
        clouds: Mapping[str, SimulatedCloud],
        cuts: Iterable[Literal["source", "target"]] = (),
        provider: Callable[[AccountContext, SimulatedConfig, SimulatedCloud], SimulatedProvider] = SimulatedProvider,
    ) -> None:
        self._clouds = clouds
        self._cuts = frozenset(cuts)
        self._provider = provider

    @hookimpl
    def hub_register_providers(self) -> Iterable[ProviderType]:
        """Declares the provider type."""
        addresses = AddressType(open=self.open, config=SimulatedConfig, cuts=self._cuts, poll_floor=1.0)
        yield ProviderType(NAME, addresses=addresses)

    @asynccontextmanager
    async def open(
        self, account: AccountContext, config: SimulatedConfig, _shared: None, /
    ) -> AsyncGenerator[SimulatedProvider, None]:
        """Opens the provider for one account."""
        cloud = self._clouds.get(config.cloud)
        if cloud is None:
            raise TerminalProviderError(f"account {account.name}: there is no simulated cloud {config.cloud}")
        yield self._provider(account, config, cloud)


def _present(found: Instance | None) -> InstanceState:
    if found is None:
        return Gone("the cloud has no such instance")
    held = ", ".join(found.held)
    return Present(
        running=found.running,
        region=found.region,
        zone=found.zone,
        room=not held,
        why=f"it has the address {held}" if held else "",
        before=found.ephemeral,
    )


def _read(answer: Answer, kind: type[T]) -> T:
    """The body of an answer; one that lacks something is an error, not an empty answer."""
    try:
        return msgspec.convert(answer.body, kind)
    except msgspec.ValidationError as error:
        raise TransientProviderError(f"the cloud's answer is not complete: {error}") from error
