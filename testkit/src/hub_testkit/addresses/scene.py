"""An open provider and its fake, and the checks that several rules of the conformance kit share."""

# ruff: noqa: S101 - these are parts of tests

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import pytest

from hub.errors import ProviderError
from hub.model import Node
from hub.plugin.addresses import (
    AddressConflict,
    AddressProvider,
    AddressState,
    Done,
    InstanceState,
    Order,
    Pending,
    Step,
    Unknown,
)
from hub.plugin.hooks import plugin_manager
from hub.plugin.spec import ProviderType
from hub_testkit.addresses.fake import AddressFake, Request, World

DEADLINE: Final = 20.0
"""Seconds that one call, or one step with its operations, may take in a test."""

LONGEST: Final = 1024
"""Characters of ``before`` and of the name of an operation."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An open provider and its fake, with helpers that call the provider as the hub does.

    Attributes:
        world: the running fake.
        provider: the provider under test.
        open: opens another provider for the same account.
    """

    world: World
    provider: AddressProvider
    open: Callable[[], Awaitable[AddressProvider]]
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def fake(self) -> AddressFake:
        """The fake."""
        return self.world.fake

    def add(self, name: str, **more: bool) -> Node:
        """Adds an instance of the account and checks that its Node leads to it."""
        node = self.fake.add_instance(name, **more)
        self.id(node)
        return node

    def id(self, node: Node) -> str:
        """The canonical id of a Node's instance."""
        found = self.provider.instance_of(node)
        assert found, f"instance_of() does not accept the providerID {node.provider_id!r} of the account's own instance"
        return found

    def held(self, node: Node) -> str:
        """Reserves an address that the instance has."""
        address = self.fake.reserve()
        self.fake.hold(address, node.name)
        return address

    async def state(self, address: str) -> AddressState:
        """Describes one address; left out = Unknown."""
        async with asyncio.timeout(DEADLINE):
            return (await self.provider.describe([address])).get(address, Unknown("left out"))

    async def instance(self, node: Node) -> InstanceState:
        """Inspects one instance; left out = Unknown."""
        async with asyncio.timeout(DEADLINE):
            return (await self.provider.inspect([self.id(node)])).get(self.id(node), Unknown("left out"))

    async def order(self, address: str, node: Node, before: str = "") -> Order:
        """An order with the present state as the expected one."""
        return Order(address, self.id(node), await self.state(address), before, str(uuid.uuid4()))

    async def once(self, call: Callable[[Order], Awaitable[Step]], order: Order) -> Step:
        """One call of attach, detach or restore."""
        async with asyncio.timeout(DEADLINE):
            step = await call(order)
        self.steps.append(step)
        return step

    async def finish(self, call: Callable[[Order], Awaitable[Step]], order: Order) -> Done:
        """Repeats a step with the same order until it is Done, and follows its operations meanwhile."""
        async with asyncio.timeout(DEADLINE):
            while True:
                step = await self.once(call, order)
                if isinstance(step, Done):
                    return step
                await self.wait(self.provider, step)

    async def wait(self, provider: AddressProvider, step: Step) -> None:
        """Follows an operation until it has ended."""
        async with asyncio.timeout(DEADLINE):
            while isinstance(step, Pending):
                step = await provider.follow(step.operation)
                self.steps.append(step)
                if isinstance(step, Pending):
                    await asyncio.sleep(min(step.after or 0.02, 0.2))

    async def attach(self, address: str, node: Node, before: str = "") -> Done:
        """Attaches a free address."""
        return await self.finish(self.provider.attach, await self.order(address, node, before))

    async def detach(self, address: str, node: Node) -> Done:
        """Detaches an address."""
        return await self.finish(self.provider.detach, await self.order(address, node))

    def made(self, start: int, *kinds: Literal["read", "write"]) -> list[Request]:
        """Requests of these kinds after the first ``start``."""
        return [request for request in self.fake.requests[start:] if request.kind in kinds]


class Call(NamedTuple):
    """A call of the provider, its name for a message, and the kind of its last request."""

    what: str
    make: Callable[[], Coroutine[Any, Any, object]]
    kind: Literal["read", "write"]


def calls(scene: Scene, order: Order) -> list[Call]:
    """Calls, each with the kind of request that it makes at last."""

    async def describe() -> object:
        return await scene.provider.describe([order.address])

    async def inspect() -> object:
        return await scene.provider.inspect([order.instance])

    async def attach() -> object:
        return await scene.provider.attach(order)

    return [
        Call("describe()", describe, "read"),
        Call("inspect()", inspect, "read"),
        Call("attach()", attach, "write"),
    ]


async def check_unknown(what: str, call: Awaitable[Mapping[str, AddressState | InstanceState]]) -> None:
    """Fails unless the call raises a provider error or all its answers are Unknown."""
    try:
        async with asyncio.timeout(DEADLINE):
            answer = await call
    except ProviderError:
        return
    wrong = [state for state in answer.values() if not isinstance(state, Unknown)]
    assert not wrong, f"{what} answered {wrong}"


async def check_refused(
    scene: Scene, call: Callable[[Order], Awaitable[Step]], order: Order, holder: str, *also: type[ProviderError]
) -> None:
    """Fails unless the call raises AddressConflict (or ``also``) and changes nothing."""
    extras = scene.fake.extras_of("n1")
    changes = scene.fake.changes
    with pytest.raises((AddressConflict, *also)):
        await scene.finish(call, order)
    found = scene.fake.holder_of(order.address)
    assert found == holder, f"the address was held by {holder!r} and is held by {found!r} after the refused call"
    assert scene.fake.changes == changes, "the refused call changed something"
    assert scene.fake.extras_of("n1") == extras, "the refused call changed the instance's interface"


def hostile_ids(good: str) -> list[str]:
    """ProviderIDs that a hostile cluster may report, made from a valid one."""
    scheme, _, rest = good.partition("://")
    head, _, last = rest.rpartition("/")
    return [
        "",
        " ",
        "\0",
        "../../etc/passwd",
        good + "/../other",
        good + "/..",
        f"{scheme}://{head}/../{last}",
        f"{scheme}://../{rest}",
        f"{scheme}://{head}/..%2f{last}",
        f"{scheme}://{head}/{last}?x=1",
        f"{scheme}://{head}/{last}#x",
        f"{scheme}://{head}/{last}\n",
        f" {good}",
        f"{good} ",
        good + "x" * 10_000,
        f"{scheme}://",
        f"other{scheme}://{rest}",
        rest,
    ]


def check_text(text: str, what: str) -> None:
    """Fails unless a text may be stored: short, printable, and without an absolute URL."""
    assert len(text) <= LONGEST, f"{what} has {len(text)} characters, at most {LONGEST} are allowed"
    assert text.isprintable(), f"{what} is not printable: {text!r}"
    assert "://" not in text, f"{what} has an absolute URL: {text!r}"


ALWAYS: Final = frozenset({"error", "garbage", "lost-answer", "silent"})
"""What every cloud that is reached over a network can do."""

SHOWN: Final = 8
"""Characters of a credential's beginning that are too many to be shown."""


def type_named(plugin: object, name: str) -> ProviderType:
    """The provider type of this name that a plugin registers."""
    manager = plugin_manager()
    manager.register(plugin, name=name)
    manager.check_pending()
    types = [type_ for answer in manager.hook.hub_register_providers() for type_ in answer]
    type_: ProviderType | None = next((type_ for type_ in types if type_.name == name), None)
    assert type_ is not None, f"hub_register_providers returns no type {name!r}"
    return type_


def check_cannot(cannot: Mapping[Any, str], known: Collection[str]) -> None:
    """Fails if a fake declares that it cannot do something unknown, or what every cloud can: that skips rules."""
    strange = sorted(cannot.keys() - set(known))
    assert not strange, f"cannot has {strange}; known are {sorted(known)}"
    wrong = sorted(cannot.keys() & ALWAYS)
    assert not wrong, f"cannot has {wrong}, which can happen to every cloud"
    silent = sorted(key for key, why in cannot.items() if not why.strip())
    assert not silent, f"cannot does not say why: {silent}"


def shows(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text shows a credential, also encoded, in another case, or only its beginning."""
    lower = text.lower()
    for secret in secrets:
        encoded = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
        forms = secret[:SHOWN] if len(secret) >= 2 * SHOWN else secret, quote(secret, safe=""), encoded, secret[::-1]
        if any(form.lower() in lower for form in forms):
            return True
    return False


def texts_of(error: BaseException | None) -> Generator[str, None, None]:
    """The text of an error and of its causes, which a traceback shows."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@contextmanager
def logged(lines: list[str]) -> Generator[None, None, None]:
    """Appends what is logged to a list: everything of the hub's loggers, and INFO and above of the others."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(logging.Formatter().format(record))

    root, hub, handler = logging.getLogger(), logging.getLogger("hub"), Handler()
    levels = root.level, hub.level
    root.setLevel(logging.INFO)
    hub.setLevel(logging.DEBUG)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        hub.setLevel(levels[1])
