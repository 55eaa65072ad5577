"""An in-memory cloud with reserved addresses: instances, holders, operations, faults and a log of all calls.

It needs no network and starts no task: operations end when the clock has passed their end, and it numbers everything in
order of creation. With the same clock, the same calls give the same answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hub.model import Node
from hub.runtime.clock import Clock, SystemClock
from hub_testkit.addresses.fake import Ability, Fault, Request

__all__ = ["Answer", "Call", "Effect", "SimulatedCloud", "SimulatedInstance"]

CREDENTIAL: Final = "simulated-credential"
EPHEMERAL: Final = "external-nat/PREMIUM"
PAGE: Final = 500

Action = Literal["list", "get", "operation", "attach", "detach", "restore"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the cloud answers, like an HTTP response with a JSON body.

    Attributes:
        status: the HTTP status.
        body: an object; a text if the answer is not JSON.
        retry_after: seconds to wait, with status 429.
    """

    status: int
    body: Any
    retry_after: float | None = None


@dataclass(slots=True)
class Call:
    """One call of the cloud's API, for the log.

    Attributes:
        time: when it arrived.
        kind: whether it may change something.
        action: what it asked for.
        address: the address that a write names, or "".
        instance: the instance's id or the operation that it names, or "".
        status: status of the answer; 0 without an answer.
    """

    time: float
    kind: Literal["read", "write"]
    action: Action
    address: str = ""
    instance: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """One change that the cloud carried out on request.

    Attributes:
        time: when it took effect; the end of its operation.
        action: attach, detach or restore.
        address: the address.
        instance: the id of the instance that got it, lost it, or got something back.
    """

    time: float
    action: Action
    address: str
    instance: str


@dataclass(slots=True)
class SimulatedInstance:
    """A virtual machine. A test may set every attribute.

    Attributes:
        name: also the name of its Node.
        zone: its zone; part of its id.
        region: only addresses of this region can be attached.
        running: whether it is not stopped.
        ephemeral: what it has in the place of a reserved address, or "".
        extras: everything else on its interface.
    """

    name: str
    zone: str = "z1"
    region: str = "r1"
    running: bool = True
    ephemeral: str = ""
    extras: dict[str, Any] = field(default_factory=lambda: {"private": ["10.0.0.1"], "groups": ["default"]})

    @property
    def id(self) -> str:
        """Its id in the account."""
        return f"{self.zone}/{self.name}"


@dataclass(slots=True)
class _Address:
    region: str
    ours: bool = True  # False: a static address of somebody else
    instance: str = ""
    elsewhere: str = ""
    handle: str = ""
    operation: str = ""


@dataclass(slots=True)
class _Operation:
    id: str
    action: Action
    address: str
    instance: str
    value: str
    force: bool
    end: float
    ill: bool
    running: bool = True
    error: str = ""


@dataclass(slots=True)
class _Broken:
    fault: Fault
    times: int | None
    on: Literal["any", "read", "write"]


class SimulatedCloud:
    """One account of the simulated cloud; it is an :class:`hub_testkit.addresses.fake.AddressFake`.

    Args:
        clock: for operations, latency and the log; None = the system's.
        account: the account's name, part of every providerID.

    Attributes:
        credential: the text that a call must carry.
        latency: seconds that every answer takes.
        retry_after: seconds that a throttled caller is told to wait.
        cannot: what it cannot do, for the conformance rules: nothing.
        instances: instances by id.
        log: all calls, oldest first.
        effects: all changes that were carried out on request, in order.
    """

    def __init__(self, clock: Clock | None = None, account: str = "main") -> None:
        self.account = account
        self.credential = CREDENTIAL
        self.latency = 0.0
        self.retry_after = 1.0
        self.cannot: Mapping[Ability, str] = {}
        self.instances: dict[str, SimulatedInstance] = {}
        self.log: list[Call] = []
        self.effects: list[Effect] = []
        self._clock = clock or SystemClock()
        self._addresses: dict[str, _Address] = {}
        self._operations: dict[str, _Operation] = {}
        self._tokens: dict[str, Answer] = {}
        self._length, self._ill = 0.0, False
        self._faults: list[_Broken] = []
        self._held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._handles = 0

    # --- the scene and the truth ---------------------------------------------------------------

    @property
    def requests(self) -> Sequence[Request]:
        """The log, as the conformance rules read it."""
        return [Request(call.kind, f"{call.action} {call.address} {call.instance}", call.status) for call in self.log]

    @property
    def changes(self) -> int:
        """How many changes were carried out or accepted."""
        return len(self.effects) + self.running

    @property
    def running(self) -> int:
        """How many operations have not ended."""
        self._settle()
        return sum(operation.running for operation in self._operations.values())

    def reserve(self, address: str = "", *, region: str = "r1", ours: bool = True) -> str:
        """Reserves an address; "" = the next one of 198.18.0.0/15. ``ours=False``: somebody else's static address."""
        number = len(self._addresses) + 1
        address = address or f"198.18.{number >> 8}.{number & 255}"
        self._addresses[address] = _Address(region, ours)
        return address

    def unreserve(self, address: str) -> None:
        """Removes an address from the account."""
        del self._addresses[address]

    def add_instance(
        self, name: str, *, ephemeral: bool = False, running: bool = True, zone: str = "z1", region: str = "r1"
    ) -> Node:
        """Creates an instance and returns a ready Node for it; one of the same name and zone is replaced."""
        instance = SimulatedInstance(name, zone, region, running, EPHEMERAL if ephemeral else "")
        self.remove_instance(name)
        self.instances[instance.id] = instance
        return Node(name, ready="True", provider_id=f"simulated://{self.account}/{instance.id}")

    def remove_instance(self, name: str) -> None:
        """Deletes an instance if it exists; what it held is free."""
        for instance in [instance for instance in self.instances.values() if instance.name == name]:
            del self.instances[instance.id]
            for address in self._addresses.values():
                if address.instance == instance.id:
                    address.instance = ""

    def instance(self, name: str) -> SimulatedInstance:
        """The instance of this name."""
        return next(instance for instance in self.instances.values() if instance.name == name)

    def hold(self, address: str, name: str) -> None:
        """Attaches an address by hand, whatever holds it; "" as the name makes it free."""
        self._handles += 1
        found = self._addresses[address]
        found.instance, found.elsewhere = self.instance(name).id if name else "", ""
        found.handle = f"handle-{self._handles}"

    def hold_elsewhere(self, address: str, what: str = "load balancer lb-1") -> None:
        """Gives an address to something other than an instance."""
        found = self._addresses[address]
        found.instance, found.elsewhere = "", what

    def occupy(self, name: str) -> str:
        """Attaches somebody else's static address and returns it."""
        address = self.reserve(ours=False)
        self.hold(address, name)
        return address

    def holder_of(self, address: str) -> str:
        """The holder's Node name, "" or "elsewhere"."""
        self._settle()
        found = self._addresses[address]
        if found.elsewhere:
            return "elsewhere"
        return self.instances[found.instance].name if found.instance else ""

    def addresses_of(self, name: str) -> list[str]:
        """The addresses that an instance has."""
        id_ = self.instance(name).id
        return [address for address, found in self._addresses.items() if found.instance == id_]

    def extras_of(self, name: str) -> object:
        """Everything else on the instance's interface, as a text."""
        return repr(self.instance(name).extras)

    # --- faults --------------------------------------------------------------------------------

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        """Sets how long the next writes take, and whether they end with an error; ``inf`` = they never end."""
        self._length, self._ill = seconds, ill

    def fail(self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any") -> None:
        """Makes the next calls fail."""
        self._faults.append(_Broken(fault, times, on))

    def heal(self) -> None:
        """Ends all faults."""
        self._faults.clear()
        for loop, event in self._held:
            loop.call_soon_threadsafe(event.set)
        self._held.clear()

    # --- the API -------------------------------------------------------------------------------

    async def call(
        self,
        action: Action,
        *,
        credential: str,
        address: str = "",
        instance: str = "",
        token: str = "",
        value: str = "",
        page: int = 0,
        force: bool = False,
    ) -> Answer:
        """One call of the API.

        Args:
            action: list (addresses), get (an instance), operation (look at one), attach, detach or restore.
            credential: the caller's.
            address: the address to attach or detach.
            instance: id of the instance, or of the operation. A detach without instance detaches from any.
            token: a write with the token of an earlier accepted write has no effect and gets the earlier answer.
            value: for restore, what to give back.
            page: number of the page of a list.
            force: attach although the address or the instance is taken.

        Raises:
            ConnectionResetError: the answer is lost.
        """
        write = action in ("attach", "detach", "restore")
        call = Call(self._clock.now(), "write" if write else "read", action, address, instance)
        self.log.append(call)
        if self.latency:
            await self._clock.sleep(self.latency)
        fault = self._fault(call, page)
        if fault == "silent":
            event = asyncio.Event()
            self._held.append((asyncio.get_running_loop(), event))
            await event.wait()
        elif broken := self._broken(fault, credential):
            call.status = broken.status
            return broken
        if credential != self.credential:
            call.status = 401
            return Answer(401, {"message": "the credential is not valid"})
        self._settle()
        if action == "list":
            answer = self._list(page)
        elif action == "get":
            answer = self._get(instance)
        elif action == "operation":
            answer = self._operation(instance)
        else:
            answer = self._write(action, address, instance, token, value, force=force)
        if fault == "lost-answer":
            raise ConnectionResetError("connection reset by the cloud")
        call.status = answer.status
        return answer

    def _fault(self, call: Call, page: int) -> Fault | None:
        for broken in self._faults:
            if broken.on not in ("any", call.kind) or (broken.fault == "lost-page" and not page):
                continue
            if broken.times is not None:
                broken.times -= 1
                if not broken.times:
                    self._faults.remove(broken)
            return broken.fault
        return None

    def _broken(self, fault: Fault | None, credential: str) -> Answer | None:
        match fault:
            case "error":
                return Answer(500, {"message": f"internal error, request had credential {credential}"})
            case "garbage":
                return Answer(200, "<html>welcome")
            case "no-key" | "lost-page":
                return Answer(200, {})
            case "unauthorized":
                return Answer(401, {"message": "the credential is not valid"})
            case "throttled":
                return Answer(429, {"message": "too many requests"}, self.retry_after)
            case _:
                return None

    def _list(self, page: int) -> Answer:
        size = 2 if any(broken.fault == "lost-page" for broken in self._faults) else PAGE
        entries = [
            {
                "address": address,
                "region": found.region,
                "instance": found.instance,
                "elsewhere": found.elsewhere,
                "handle": found.handle,
                "operation": found.operation,
            }
            for address, found in sorted(self._addresses.items())
            if found.ours
        ]
        more = len(entries) > (page + 1) * size
        return Answer(200, {"addresses": entries[page * size : (page + 1) * size], "next": page + 1 if more else 0})

    def _get(self, id_: str) -> Answer:
        instance = self.instances.get(id_)
        if instance is None:
            return Answer(404, {"message": "no such instance"})
        held = [address for address, found in self._addresses.items() if found.instance == id_]
        body = {"running": instance.running, "region": instance.region, "zone": instance.zone}
        return Answer(200, {"instance": body | {"ephemeral": instance.ephemeral, "held": held}})

    def _operation(self, id_: str) -> Answer:
        operation = self._operations.get(id_)
        if operation is None:
            return Answer(404, {"message": "no such operation"})
        return Answer(200, {"running": operation.running, "error": operation.error})

    def _write(self, action: Action, address: str, id_: str, token: str, value: str, *, force: bool) -> Answer:
        if token and token in self._tokens:
            return self._tokens[token]
        operation = _Operation(
            f"operation-{len(self._operations) + 1}",
            action,
            address,
            id_,
            value,
            force,
            self._clock.now() + self._length,
            self._ill,
        )
        if refused := self._refusal(operation):
            return refused
        self._operations[operation.id] = operation
        if action != "restore":
            self._addresses[address].operation = operation.id
        answer = Answer(200, {"operation": operation.id if self._length or self._ill else ""})
        if token:
            self._tokens[token] = answer
        self._settle()
        return answer

    def _refusal(self, wanted: _Operation) -> Answer | None:
        """Why an operation cannot begin or take effect, or None."""
        others = [other for other in self._operations.values() if other.running and other is not wanted]
        if any(other.address == wanted.address or other.instance == wanted.instance for other in others):
            return Answer(423, {"message": "another operation is running"})
        if wanted.action != "detach" and wanted.instance not in self.instances:
            return Answer(404, {"message": "no such instance"})
        if wanted.action == "restore":
            return None
        found = self._addresses.get(wanted.address)
        if found is None or not found.ours:
            return Answer(404, {"message": "no such address"})
        held = found.instance or found.elsewhere
        if wanted.action == "detach":
            wrong = found.elsewhere or (wanted.instance and wanted.instance != held and held)
            return Answer(409, {"message": f"held by {held}"}) if wrong else None
        taken = held or [other for other in self._addresses.values() if other.instance == wanted.instance]
        return Answer(409, {"message": "the address or the instance is taken"}) if taken and not wanted.force else None

    def _settle(self) -> None:
        """Ends the operations whose time has come, in order of their ends."""
        due = [found for found in self._operations.values() if found.running and found.end <= self._clock.now()]
        for operation in sorted(due, key=lambda operation: operation.end):
            operation.running = False
            if address := self._addresses.get(operation.address):
                address.operation = ""
            refused = self._refusal(operation)
            if operation.ill or refused is not None:
                operation.error = refused.body["message"] if refused else "the operation failed"
                continue
            self._carry_out(operation)

    def _carry_out(self, operation: _Operation) -> None:
        if operation.action == "restore":
            self.instances[operation.instance].ephemeral = operation.value
        elif operation.action == "detach":
            self._addresses[operation.address].instance = ""
        else:
            for other in self._addresses.values():
                if other.instance == operation.instance:
                    other.instance = ""
            found, instance = self._addresses[operation.address], self.instances[operation.instance]
            self._handles += 1
            found.instance, found.elsewhere, found.handle = instance.id, "", f"handle-{self._handles}"
            instance.ephemeral = ""
        effect = Effect(operation.end, operation.action, operation.address, operation.instance)
        self.effects.append(effect)
