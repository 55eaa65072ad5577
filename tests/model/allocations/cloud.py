"""The cloud of the model: addresses, machines, operations and faults, in virtual time and without any I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
)


class Refused(Exception):
    """The cloud refuses a step; ``kind`` as in :class:`hub.allocations.view.Outcome`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(slots=True)
class Machine:
    """A virtual machine."""

    running: bool = True
    ephemeral: bool = True
    zone: str = "z1"
    takes: bool = True


@dataclass(slots=True)
class Operation:
    """A change that the cloud works on."""

    ends: float
    ill: bool
    effect: Callable[[], None]
    address: str
    over: bool = False


@dataclass(slots=True)
class Cloud:
    """One account.

    Attributes:
        holders: address -> instance, "" or "!" followed by a stranger's name; a missing key = not reserved.
        length: seconds that an operation takes; 0 = steps are done at once.
        down: whether nothing is answered.
        hidden: addresses that an answer leaves out.
        writes: every accepted change: (time, kind, address, instance).
    """

    holders: dict[str, str]
    machines: dict[str, Machine]
    length: float = 0.0
    ill: bool = False
    down: bool = False
    read_only: bool = False
    replays: bool = False
    """Whether an order with a token that was used gets the operation of the first one, even after its end."""
    denied: bool = False
    quota: bool = False
    hidden: set[str] = field(default_factory=set)
    operations: dict[str, Operation] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    writes: list[tuple[float, str, str, str]] = field(default_factory=list)

    @property
    def answers(self) -> bool:
        """Whether questions are answered."""
        return not (self.down or self.denied)

    def settle(self, now: float) -> None:
        """Let the operations end that are due."""
        for operation in self.operations.values():
            if not operation.over and now >= operation.ends:
                operation.over = True
                if not operation.ill:
                    operation.effect()

    def changing(self, address: str) -> str:
        """The operation that changes an address; "" if none does."""
        return next(
            (name for name, found in self.operations.items() if found.address == address and not found.over), ""
        )

    def describe(self, address: str) -> AddressState:
        """The answer about an address."""
        return Unknown("left out") if address in self.hidden else self.state(address)

    def state(self, address: str) -> AddressState:
        """The truth about an address."""
        if name := self.changing(address):
            return Changing(name)
        if address not in self.holders:
            return NotReserved("no such address")
        holder = self.holders[address]
        if holder.startswith("!"):
            return Elsewhere(holder[1:])
        return Held(holder) if holder else Free()

    def inspect(self, instance: str) -> InstanceState:
        """The answer about an instance."""
        machine = self.machines.get(instance)
        if machine is None:
            return Gone("no such instance")
        room = instance not in self.holders.values() and machine.takes
        return Present(machine.running, zone=machine.zone, room=room, before="nat" if machine.ephemeral else "")

    def step(self, kind: str, order: Order, now: float) -> Step:  # noqa: C901 - one branch for each kind of step
        """Carry out a step with compare-and-set.

        Raises:
            Refused: it is refused.
        """
        if self.down:
            raise Refused("transient")
        if self.read_only or self.denied:
            raise Refused("terminal")
        if self.quota:
            raise Refused("quota")
        self.settle(now)
        address, instance = order.address, order.instance
        if order.token in self.tokens:
            return Pending(self.tokens[order.token])
        if name := self.changing(address):
            return Pending(name)
        state = self.state(address)
        if kind == "restore":
            machine = self.machines.get(instance)
            if machine is None or machine.ephemeral or instance in self.holders.values():
                return Done()

            def give() -> None:
                machine.ephemeral = True

            return self._begin(kind, order, now, give)
        if kind == "detach":
            if isinstance(state, Free):
                return Done()
            if not isinstance(state, Held) or state.instance != instance or state != order.expected:
                raise Refused("conflict")
            return self._begin(kind, order, now, lambda: self.holders.__setitem__(address, ""))
        if isinstance(state, Held) and state.instance == instance:
            return Done(order.before)
        machine = self.machines.get(instance)
        if not isinstance(state, Free) or machine is None or instance in self.holders.values():
            raise Refused("conflict")
        if not machine.takes:
            raise Refused("unsupported")

        def take() -> None:
            if instance in self.machines and instance not in self.holders.values():
                machine.ephemeral = False
                self.holders[address] = instance

        return self._begin(kind, order, now, take)

    def _begin(self, kind: str, order: Order, now: float, effect: Callable[[], None]) -> Step:
        self.writes.append((now, kind, order.address, order.instance))
        if not self.length:
            effect()
            return Done("nat" if kind == "attach" else "")
        name = f"op-{len(self.operations)}"
        self.operations[name] = Operation(now + self.length, self.ill, effect, order.address)
        if self.replays:
            self.tokens[order.token] = name
        return Pending(name)

    def follow(self, name: str, now: float) -> Step:
        """Look at an operation.

        Raises:
            Refused: it ended ill, or nothing is answered.
        """
        if not self.answers:
            raise Refused("transient")
        self.settle(now)
        operation = self.operations.get(name)
        if operation is None or (operation.over and not operation.ill):
            return Done()
        if operation.over:
            raise Refused("terminal")
        return Pending(name)
