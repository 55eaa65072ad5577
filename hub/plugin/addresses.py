"""The optional capability of a provider type: reserved addresses on the instances behind Nodes.

A type offers it with ``ProviderType.addresses``. The hub opens one provider for each account of ``allocations.clouds``
in clusters.yaml, in the type's own event loop, and calls it with the values of :mod:`hub.cloud.addresses`. The hub
decides which address moves, and when; a provider only reads and makes single steps.

Rules for all methods:

- a provider retries nothing, and reads the state again right before each write;
- it follows no URL to another host, and removes no address but the order's;
- broken or incomplete answers are errors or Unknown, never Free and never Gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hub.cloud.addresses import (
    AddressState,
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
    Step,
    Unknown,
    Unsupported,
)
from hub.model import Node
from hub.plugin.spec import AddressConflict, HubContext, QuotaExceeded, UnsupportedInstance

if TYPE_CHECKING:
    import msgspec
    from pydantic import BaseModel

__all__ = [
    "AccountContext",
    "AddressConflict",
    "AddressProvider",
    "AddressState",
    "AddressType",
    "Changing",
    "Done",
    "Elsewhere",
    "Free",
    "Gone",
    "Held",
    "InstanceState",
    "NotReserved",
    "Order",
    "Pending",
    "Present",
    "QuotaExceeded",
    "Step",
    "Unknown",
    "Unsupported",
    "UnsupportedInstance",
]


class AccountContext(Protocol):
    """The hub's services for one account of ``allocations.clouds``."""

    @property
    def hub(self) -> HubContext:
        """The context of the provider type: clock, HTTP session, credentials, threads, metrics."""
        ...

    @property
    def name(self) -> str:
        """The account's name in the registry."""
        ...

    @property
    def folder(self) -> str:
        """The absolute path of the registry's folder, to which relative paths in a configuration refer."""
        ...

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """As :meth:`hub.plugin.ClusterContext.read_file`."""
        ...

    def changed(self) -> None:
        """Make the hub describe all addresses of the account again soon."""
        ...


class AddressProvider(Protocol):
    """Reads reserved addresses of one account, and makes single steps with them.

    All async methods may raise TransientProviderError (the hub calls again with backoff), QuotaExceeded (all acts of
    the account wait) or TerminalProviderError (the account is frozen until its configuration or credential changes).
    """

    def instance_of(self, node: Node, /) -> str | None:
        """The canonical id of a Node's instance; None if its providerID is not valid or not of this account.

        Pure: no I/O. Node fields are unchecked texts of a remote cluster, so everything is validated here.
        """
        ...

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """The state of each address, from one complete answer. An address that is left out counts as Unknown."""
        ...

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """The state of instances; called only with those that a move or a doubt is about."""
        ...

    async def detach(self, order: Order, /) -> Step:
        """Take the address from ``order.instance``; Done without a write if the address is free already.

        Called again with the same order until it returns Done. Other errors:

        Raises:
            AddressConflict: another instance, or something else, has the address.
        """
        ...

    async def attach(self, order: Order, /) -> Step:
        """Give the free address to ``order.instance``; Done without a write if it has the address already.

        Raises:
            AddressConflict: something else has the address, or the instance has somebody else's static address.
            UnsupportedInstance: this instance can never take it.
        """
        ...

    async def restore(self, order: Order, /) -> Step:
        """Give ``order.instance`` back what ``order.before`` says; Done where there is nothing to give."""
        ...

    async def follow(self, operation: str, /) -> Step:
        """Look once at an operation of this or an earlier process; Done if it has ended or the cloud does not know it.

        Raises:
            TransientProviderError: looking failed; the hub looks again.
            ProviderError: the operation ended with an error.
        """
        ...


@dataclass(frozen=True, slots=True)
class AddressType:
    """The capability's declaration, for ``ProviderType.addresses``.

    Attributes:
        open: called once for each account with the context, the validated configuration and the value that the type's
            ``shared`` yielded (None without it); returns an async context manager that yields the AddressProvider.
        config: the model of ``allocations.clouds[].config``.
        cuts: where a move interrupts traffic besides the address itself: at the node that loses the address
            ("source") or at the one that gets it ("target"), because the provider removes or replaces another address
            there.
        poll_floor: the shortest interval, in seconds, at which the account may be described.
    """

    open: Callable[[AccountContext, Any, Any], AbstractAsyncContextManager[AddressProvider]]
    config: type[BaseModel | msgspec.Struct]
    cuts: frozenset[Literal["source", "target"]] = frozenset()
    poll_floor: float = 10.0
