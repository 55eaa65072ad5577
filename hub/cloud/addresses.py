"""Reserved addresses and instances as a cloud's API states them: plain frozen values, for the planner and for plugins.

An *address* is one reserved public IPv4 address. An *instance* is a virtual machine, identified by the text that
``AddressProvider.instance_of`` returns for its Node. A *handle* is the provider's own name for the connection between
an address and an instance, such as an association's id.
"""

from __future__ import annotations

import msgspec

from hub.model import Unknown

__all__ = [
    "AddressState",
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
    "Step",
    "Unknown",
    "Unsupported",
]


class Free(msgspec.Struct, frozen=True, tag=True):
    """The address is reserved in the account, and nothing has it.

    Attributes:
        region: the region whose instances can have it; "" if every instance of the account can.
    """

    region: str = ""


class Held(msgspec.Struct, frozen=True, tag=True):
    """An instance has the address.

    Attributes:
        instance: canonical id, equal to ``instance_of`` of the instance's Node.
        handle: the provider's own name for the connection; part of the state that a write expects.
    """

    instance: str
    handle: str = ""
    region: str = ""


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """Something other than a primary network interface of an instance has the address, such as a load balancer.

    Attributes:
        what: kind and name of the holder, for an operator.
    """

    what: str


class Changing(msgspec.Struct, frozen=True, tag=True):
    """The cloud is changing the holder now.

    Attributes:
        operation: the operation, for ``AddressProvider.follow``; None if the cloud names none.
    """

    operation: str | None = None


class NotReserved(msgspec.Struct, frozen=True, tag=True):
    """A complete answer shows that the account has no reserved address of this value."""

    reason: str


AddressState = Free | Held | Elsewhere | Changing | NotReserved | Unknown


class Present(msgspec.Struct, frozen=True, tag=True):
    """The instance exists.

    Attributes:
        running: False if it is stopped, terminated or being deleted.
        region: as in :class:`Free`.
        zone: the cloud's name of its zone, or "".
        room: whether its primary interface can take a reserved address now.
        why: if there is no room, why.
        before: what the interface has in the place of a reserved address, such as an ephemeral address, in a form that
            ``AddressProvider.restore`` understands; "" if nothing. At most 1,024 printable characters.
    """

    running: bool
    region: str = ""
    zone: str = ""
    room: bool = True
    why: str = ""
    before: str = ""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """A complete answer shows that the instance does not exist."""

    reason: str


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """The instance can never hold a reserved address."""

    reason: str


InstanceState = Present | Gone | Unsupported | Unknown


class Order(msgspec.Struct, frozen=True):
    """One change that a provider is asked to make.

    Attributes:
        address: the address; no other address may be changed.
        instance: the instance that loses the address (detach), gets it (attach), or gets back what it had (restore).
        expected: the state in which the write may be made; in any other state the provider raises AddressConflict.
        before: for attach and restore, what ``instance`` has or had in the place of the address, from
            :attr:`Present.before` or :attr:`Done.before`.
        token: equal for repetitions of the same step, and different for any other step; a UUID.
        timeout: seconds after which the hub cancels the call.
    """

    address: str
    instance: str
    expected: AddressState
    before: str = ""
    token: str = ""
    timeout: float = 15.0


class Done(msgspec.Struct, frozen=True, tag=True):
    """The step is complete; the next ``describe`` will show it.

    Attributes:
        before: after an attach, what the instance had in the place of the address; "" otherwise.
    """

    before: str = ""


class Pending(msgspec.Struct, frozen=True, tag=True):
    """The cloud accepted the step and works on it.

    Attributes:
        operation: for ``AddressProvider.follow``; at most 1,024 printable characters, no credential, no absolute URL.
        after: seconds to wait before following it; 0 = the hub's choice.
    """

    operation: str
    after: float = 0.0


Step = Done | Pending
