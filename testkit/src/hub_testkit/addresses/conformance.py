"""The rules of the capability ``addresses`` as tests that the author of a provider inherits.

    import my_provider
    from hub_testkit.addresses.conformance import AddressProviderConformance
    from hub_testkit.addresses.fake import World

    class TestMyAddresses(AddressProviderConformance):
        plugin = my_provider                     # the module that the entry point names
        name = "my-provider"                     # the entry point's name
        foreign_ids = ("mycloud://other-project/z1/n1",)

        @asynccontextmanager
        async def world(self):
            async with MyFake() as fake:         # implements hub_testkit.addresses.fake.AddressFake
                yield World(fake, {"url": fake.url, "token": {"env": "TOKEN"}}, LocalHub(secrets={"TOKEN": "t0k3n-1"}))

Each test is one rule, in an event loop and with a fake of its own. The tests need pytest, but no pytest plugin. A
skipped test is a rule that the cloud cannot be tested for; the reason is the fake's.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any, ClassVar, Final, get_args

import msgspec
import pytest

from hub.errors import ProviderError
from hub.model import Node
from hub.plugin.addresses import (
    AccountContext,
    AddressProvider,
    AddressType,
    Changing,
    Elsewhere,
    Free,
    Held,
    NotReserved,
    Pending,
    Present,
    QuotaExceeded,
    Unknown,
    UnsupportedInstance,
)
from hub.plugin.config import validate
from hub.plugin.spec import ProviderType, TerminalProviderError, TransientProviderError
from hub_testkit.addresses.fake import Ability, World
from hub_testkit.addresses.scene import (
    DEADLINE,
    Scene,
    calls,
    check_cannot,
    check_refused,
    check_text,
    check_unknown,
    hostile_ids,
    logged,
    shows,
    texts_of,
    type_named,
)
from hub_testkit.behaviour import cancel, longest_block
from hub_testkit.contexts import LocalAccount

__all__ = ["DEADLINE", "LET_GO", "MAX_BLOCK", "OPERATION", "AddressProviderConformance"]

LET_GO: Final = 1.0
"""Seconds that a cancelled call may take to end."""

MAX_BLOCK: Final = 0.5
"""Seconds that the event loop may be blocked."""

OPERATION: Final = 0.5
"""Seconds that the operations of a fake take in the rules about them."""

BEFORE: Final = "before-of-an-earlier-call"
"""What an order may bring back; a provider that finds the address attached returns it unread."""

UNRESERVED: Final = "192.0.2.77"
"""An address for documentation, which no account can have reserved."""


class AddressProviderConformance:
    """Tests of one provider type with ``addresses``: inherit, set the attributes, and let pytest collect the subclass.

    Attributes:
        plugin: the module (or object) that implements the hook.
        name: the entry point's name.
        foreign_ids: providerIDs of instances that are not the account's, such as those of another project, region or
            subscription, and of another cloud.
    """

    plugin: ClassVar[ModuleType | object]
    name: ClassVar[str]
    foreign_ids: ClassVar[Sequence[str]] = ()

    def world(self) -> AbstractAsyncContextManager[World]:
        """Starts a new fake on loopback and yields it; it is stopped at the end."""
        raise NotImplementedError("override world(): start your fake and yield a World")

    # --- reading -------------------------------------------------------------------------------

    def test_01_a_broken_answer_frees_nothing(self) -> None:
        """After an error, garbage or a missing key, describe and inspect raise a provider error or answer Unknown."""

        async def check(scene: Scene) -> None:
            node = scene.add("n1")
            address = scene.held(node)
            for fault in ("error", "garbage", "no-key"):
                if fault in scene.fake.cannot:
                    continue
                scene.fake.fail(fault, times=None)
                for what, ask, key in (
                    ("describe()", scene.provider.describe, address),
                    ("inspect()", scene.provider.inspect, scene.id(node)),
                ):
                    await check_unknown(f"after the fault {fault!r} {what}", ask([key]))
                scene.fake.heal()
            state = await scene.state(address)
            assert isinstance(state, Held), f"after the faults the address is {state}"

        self._run(check)

    def test_02_a_lost_page_frees_nothing(self) -> None:
        """If one page of a list is missing, describe raises a provider error or answers Unknown for all addresses."""

        async def check(scene: Scene) -> None:
            addresses = [scene.held(scene.add(f"n{number}")) for number in range(1, 6)]
            scene.fake.fail("lost-page", times=None, on="read")
            await check_unknown("after a lost page describe()", scene.provider.describe(addresses))

        self._run(check, "lost-page")

    def test_03_an_address_that_the_answer_leaves_out_is_not_free(self) -> None:
        """An address that the account does not have is NotReserved, Unknown or left out; answers have no others."""

        async def check(scene: Scene) -> None:
            address, other = scene.fake.reserve(), scene.fake.reserve()
            async with asyncio.timeout(DEADLINE):
                answer = await scene.provider.describe([address, UNRESERVED])
            state = answer.get(UNRESERVED, Unknown("left out"))
            assert isinstance(state, NotReserved | Unknown), f"an address that the account does not have is {state}"
            assert other not in answer, f"describe() answers for {other}, which it was not asked about"

        self._run(check)

    def test_04_same_question_same_answer(self) -> None:
        """Answers state the truth, and do not depend on repetition, on order or on the other addresses asked about."""

        async def check(scene: Scene) -> None:
            node = scene.add("n1")
            addresses = [scene.fake.reserve(), scene.held(node)]
            kinds: list[type[Any]] = [Free, Held]
            if "elsewhere" not in scene.fake.cannot:
                addresses.append(scene.fake.reserve())
                kinds.append(Elsewhere)
                scene.fake.hold_elsewhere(addresses[-1])
            first = await scene.provider.describe(addresses)
            states = [first.get(address) for address in addresses]
            for state, kind in zip(states, kinds, strict=True):
                assert isinstance(state, kind), f"expected {kind.__name__}, described as {state}"
            assert isinstance(states[1], Held)
            assert states[1].instance == scene.id(node), "Held names another instance than instance_of() of its Node"
            again = await scene.provider.describe(addresses[::-1])
            alone = {address: await scene.state(address) for address in addresses}
            assert dict(again) == dict(first), "the second answer, with another order of addresses, differs"
            assert alone == dict(first), "the answer about one address alone differs"
            await self._check_instances(scene, node)

        self._run(check)

    async def _check_instances(self, scene: Scene, holder: Node) -> None:
        nodes = [holder, scene.add("running"), *([scene.add("stopped", running=False)])]
        ids = [scene.id(node) for node in nodes]
        first = await scene.provider.inspect(ids)
        running = [isinstance(state, Present) and state.running for state in (first.get(id_) for id_ in ids)]
        assert running == [True, True, False], f"expected two running instances and a stopped one, inspected: {first}"
        free = first[ids[1]]
        assert isinstance(free, Present)
        assert free.room, f"a running instance without address has no room: {free.why}"
        assert dict(await scene.provider.inspect(ids[::-1])) == dict(first), "a second inspect() differs"

    def test_20_describe_and_inspect_write_nothing(self) -> None:
        """Describing and inspecting make no request that may change something."""

        async def check(scene: Scene) -> None:
            node = scene.add("n1")
            addresses = [scene.held(node), scene.fake.reserve()]
            start, changes = len(scene.fake.requests), scene.fake.changes
            for address in addresses:
                await scene.state(address)
            await scene.instance(node)
            made = scene.made(start, "read", "write")
            assert made, "describe() and inspect() made no request: does the fake log them?"
            writes = [request.text for request in made if request.kind == "write"]
            assert not writes, f"describe() or inspect() made writing requests: {writes}"
            assert scene.fake.changes == changes, "describe() or inspect() changed something"

        self._run(check)

    # --- attaching and detaching ---------------------------------------------------------------

    def test_05_attaching_twice_attaches_once(self) -> None:
        """Attaching an address that the instance has already is Done(before=order.before), and changes nothing."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)
            await scene.finish(scene.provider.attach, order)
            assert scene.fake.holder_of(address) == "n1", "attach() is Done, but the instance has not got the address"
            assert scene.fake.changes == 1, f"attaching took {scene.fake.changes} changes instead of one"
            for repeated in (order, msgspec.structs.replace(order, token=str(uuid.uuid4()))):
                await scene.finish(scene.provider.attach, repeated)
            known = msgspec.structs.replace(order, before=BEFORE)
            before = (await scene.finish(scene.provider.attach, known)).before
            assert before == BEFORE, f"attach() is Done with before {before!r}, the order has {BEFORE!r}"
            assert scene.fake.changes == 1, "attaching an address again changed something again"

        self._run(check)

    def test_06_detaching_twice_detaches_once(self) -> None:
        """Detaching an address that is free already is Done, and changes nothing."""

        async def check(scene: Scene) -> None:
            node = scene.add("n1")
            address = scene.held(node)
            order = await scene.order(address, node)
            await scene.finish(scene.provider.detach, order)
            assert not scene.fake.holder_of(address), "detach() is Done, but the instance still has the address"
            assert scene.fake.changes == 1, f"detaching took {scene.fake.changes} changes instead of one"
            for repeated in (order, msgspec.structs.replace(order, token=str(uuid.uuid4()))):
                await scene.finish(scene.provider.detach, repeated)
            assert scene.fake.changes == 1, "detaching an address again changed something again"

        self._run(check)

    def test_07_nothing_is_detached_from_another_holder(self) -> None:
        """Detaching an address that is not as expected any more raises AddressConflict, and changes nothing."""

        async def check(scene: Scene) -> None:
            node, other = scene.add("n1"), scene.add("n2")
            address = scene.held(node)
            order = await scene.order(address, node)
            scene.fake.hold(address, other.name)
            await check_refused(scene, scene.provider.detach, order, "n2")
            scene.fake.hold(address, node.name)  # by hand, so the cloud may name the connection differently
            if await scene.state(address) != order.expected:
                await check_refused(scene, scene.provider.detach, order, "n1")
            if "elsewhere" not in scene.fake.cannot:
                scene.fake.hold_elsewhere(address)
                await check_refused(scene, scene.provider.detach, order, "elsewhere")

        self._run(check)

    def test_08_a_held_address_is_not_attached(self) -> None:
        """Attaching an address that something else has raises AddressConflict, and takes it from nothing."""

        async def check(scene: Scene) -> None:
            node, other = scene.add("n1"), scene.add("n2")
            address = scene.fake.reserve()
            order = await scene.order(address, node)
            scene.fake.hold(address, other.name)
            await check_refused(scene, scene.provider.attach, order, "n2")
            if "elsewhere" not in scene.fake.cannot:
                scene.fake.hold_elsewhere(address)
                await check_refused(scene, scene.provider.attach, order, "elsewhere")

        self._run(check)

    def test_09_a_foreign_static_address_stays(self) -> None:
        """Attaching to an instance with somebody else's static address is refused, and inspect says: no room."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)
            foreign = scene.fake.occupy(node.name)
            state = await scene.instance(node)
            assert isinstance(state, Present), f"the instance is inspected as {state}"
            assert not state.room, "inspect() finds room on an instance that has somebody else's static address"
            assert state.why, "inspect() does not say why there is no room"
            await check_refused(scene, scene.provider.attach, order, "", UnsupportedInstance)
            assert scene.fake.holder_of(foreign) == "n1", "attach() removed somebody else's static address"

        self._run(check, "occupy")

    def test_10_everything_else_on_the_interface_stays(self) -> None:
        """All other properties of the instance's interfaces are the same after an attach and after a detach."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            before = scene.fake.extras_of(node.name)
            await scene.attach(address, node)
            attached = scene.fake.extras_of(node.name)
            assert attached == before, f"attach() changed the interface from {before} to {attached}"
            await scene.detach(address, node)
            detached = scene.fake.extras_of(node.name)
            assert detached == before, f"detach() changed the interface from {before} to {detached}"

        self._run(check)

    def test_14_restore_gives_back_what_there_was(self) -> None:
        """After attach, detach and restore the instance has exactly what inspect and attach reported as ``before``."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1", ephemeral=True), scene.fake.reserve()
            state = await scene.instance(node)
            assert isinstance(state, Present), f"the instance is inspected as {state}"
            before = state.before
            assert before, "inspect() reports no before although the instance has something there"
            check_text(before, "before")
            done = await scene.attach(address, node, before)
            assert done.before == before, f"attach() is Done with before {done.before!r}, inspected was {before!r}"
            assert scene.fake.holder_of(address) == "n1", "attach() is Done, but the instance has not got the address"
            await scene.detach(address, node)
            order = await scene.order(address, node, before)
            for _ in range(2):  # the second restore has nothing to give
                await scene.finish(scene.provider.restore, order)
                state = await scene.instance(node)
                assert isinstance(state, Present), f"the instance is inspected as {state}"
                assert state.before == before, f"restored is {state.before!r} instead of {before!r}"

        self._run(check, "ephemeral", "restore")

    # --- operations and lost answers -----------------------------------------------------------

    def test_11_another_process_follows_an_operation_to_its_end(self) -> None:
        """A new provider object follows an operation until it has ended; one that the cloud does not know is Done."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)
            scene.fake.operations(OPERATION)
            step = await scene.once(scene.provider.attach, order)
            assert isinstance(step, Pending), f"attach() returned {step} although the operation is running"
            check_text(step.operation, "an operation")
            state = await scene.state(address)
            if "changing" not in scene.fake.cannot and scene.fake.running:
                assert isinstance(state, Changing), f"while the operation runs, the address is described as {state}"
            another = await scene.open()
            await scene.wait(another, step)
            assert not scene.fake.running, "follow() is Done although the operation is running"
            await scene.finish(another.attach, order)
            assert scene.fake.holder_of(address) == "n1", "the steps are Done, but the instance has no address"
            assert scene.fake.changes == 1, f"attaching took {scene.fake.changes} changes instead of one"

        self._run(check, "operations")

    def test_12_an_operation_that_fails_raises(self) -> None:
        """Following an operation that ended with an error raises a provider error other than TransientProviderError.

        After a TransientProviderError the hub looks at the operation again, up to ten minutes.
        """

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)
            scene.fake.operations(OPERATION, ill=True)
            with pytest.raises(ProviderError) as caught:
                await scene.wait(scene.provider, await scene.once(scene.provider.attach, order))
            again = isinstance(caught.value, TransientProviderError)
            assert not again, f"the hub would look at the failed operation again after {caught.value!r}"
            assert not scene.fake.holder_of(address), "the fake's failed operation had an effect"

        self._run(check, "operations")

    def test_13_a_lost_answer_is_no_second_effect(self) -> None:
        """If the answer to a write is lost after its effect, the same order again is Done without another effect."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            for changes, (what, call) in enumerate(
                (("attach()", scene.provider.attach), ("detach()", scene.provider.detach)), start=1
            ):
                order = await scene.order(address, node)
                scene.fake.fail("lost-answer", on="write")
                with pytest.raises(ProviderError):
                    await scene.finish(call, order)
                await scene.finish(call, order)
                assert scene.fake.changes == changes, f"the repeated {what} changed something again"
                expected = "n1" if changes == 1 else ""
                assert scene.fake.holder_of(address) == expected, f"{what} is Done without its effect"

        self._run(check, "lost-answer")

    # --- errors --------------------------------------------------------------------------------

    def test_15_hostile_provider_ids_lead_nowhere(self) -> None:
        """A providerID that is malformed or not of the account has no instance, and causes no request."""

        async def check(scene: Scene) -> None:
            good = scene.add("n1").provider_id
            start = len(scene.fake.requests)
            for provider_id in (*hostile_ids(good), *self.foreign_ids):
                found = scene.provider.instance_of(Node("hostile", provider_id=provider_id))
                assert found is None, f"the providerID {provider_id[:200]!r} leads to the instance {found[:200]!r}"
            assert len(scene.fake.requests) == start, "instance_of() made requests"

        self._run(check)

    def test_16_a_refused_credential_is_reloaded_once(self) -> None:
        """After a 401 the provider reloads its credential and repeats the request once; then it gives up."""

        async def check(scene: Scene) -> None:
            address = scene.fake.reserve()
            await scene.state(address)
            scene.fake.fail("unauthorized", times=1)
            state = await scene.state(address)
            assert isinstance(state, Free), f"after one 401 the address is {state}"
            start = len(scene.fake.requests)
            scene.fake.fail("unauthorized", times=None)
            with pytest.raises(TerminalProviderError):
                await scene.state(address)
            made = [request.text for request in scene.made(start, "read", "write")]
            most = max(made.count(text) for text in set(made))
            assert most == 2, f"a request that is always refused with 401 was made {most} times: {made}"

        self._run(check, "unauthorized")

    def test_17_a_throttled_account_makes_no_request(self) -> None:
        """A 429 raises QuotaExceeded, and until the time that the cloud named has passed there is no other request."""

        async def check(scene: Scene) -> None:
            address = scene.fake.reserve()
            scene.fake.fail("throttled")  # one request: one that is repeated succeeds, and nothing is raised
            with pytest.raises(QuotaExceeded) as caught:
                await scene.state(address)
            if "retry-after" in scene.fake.cannot:
                return
            wait = caught.value.retry_after
            assert wait, "QuotaExceeded has no retry_after although the cloud named a time"
            start = len(scene.fake.requests)
            with pytest.raises(QuotaExceeded):
                await scene.state(address)
            assert not scene.fake.requests[start:], "the provider made a request before the time had passed"
            await asyncio.sleep(wait + 0.05)
            state = await scene.state(address)
            assert isinstance(state, Free), f"after the time the address is {state}"

        self._run(check, "throttled")

    def test_18_a_cancelled_call_lets_go(self) -> None:
        """A cancelled call ends within a second, and no call blocks the event loop."""

        async def check(scene: Scene) -> None:
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)

            async def move() -> None:
                await scene.finish(scene.provider.attach, order)
                await scene.detach(address, node)

            longest = await longest_block(move)
            assert longest < MAX_BLOCK, f"the event loop was blocked for {longest:.1f} s"
            for what, call, kind in calls(scene, order):
                start = len(scene.fake.requests)
                scene.fake.fail("silent", times=None, on=kind)
                task = asyncio.ensure_future(call())
                async with asyncio.timeout(DEADLINE):
                    while not task.done() and not scene.made(start, kind):  # noqa: ASYNC110 - the fake may run in a thread
                        await asyncio.sleep(0.01)
                assert not task.done(), f"{what} ended although the cloud does not answer"
                await cancel(task, what, LET_GO)
                scene.fake.heal()
            state = await scene.state(address)
            assert isinstance(state, Free | Held | Changing), f"after cancelled calls the address is {state}"

        self._run(check, "silent")

    def test_19_no_secret_is_shown(self) -> None:
        """Errors, steps and logs contain no credential, not even if an error of the cloud quotes it."""

        async def check(scene: Scene) -> None:
            assert scene.world.secrets, "set World.secrets, otherwise this rule proves nothing"
            node, address = scene.add("n1"), scene.fake.reserve()
            order = await scene.order(address, node)
            shown: list[str] = []
            with logged(shown):
                for fault in ("error", "garbage", "unauthorized", "lost-answer", "throttled"):
                    if fault in scene.fake.cannot:
                        continue
                    for _, call, _kind in calls(scene, order):
                        scene.fake.fail(fault, times=None)
                        try:
                            shown.append(str(await call()))
                        except ProviderError as error:
                            shown.extend(texts_of(error))
                        scene.fake.heal()
                shown.extend(map(str, scene.steps))
            assert shown, "there were no errors to look at"
            for text in shown:
                assert not shows(text, scene.world.secrets), f"a secret is shown: {text}"

        self._run(check)

    # --- helpers -------------------------------------------------------------------------------

    def _type(self) -> tuple[ProviderType, AddressType]:
        type_ = type_named(self.plugin, self.name)
        assert type_.addresses is not None, f"type {self.name!r} does not set addresses"
        return type_, type_.addresses

    @asynccontextmanager
    async def _scene(self) -> AsyncGenerator[Scene, None]:
        type_, addresses = self._type()
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(self.world())
            stack.callback(world.fake.heal)
            check_cannot(world.fake.cannot, get_args(Ability))
            hub = await stack.enter_async_context(world.hub)
            shared = await stack.enter_async_context(type_.shared(hub)) if type_.shared is not None else None
            config = validate(addresses.config, world.config)
            account: AccountContext = LocalAccount(hub)

            async def open_another() -> AddressProvider:
                async with asyncio.timeout(DEADLINE):
                    return await stack.enter_async_context(addresses.open(account, config, shared))

            yield Scene(world, await open_another(), open_another)

    def _run(self, check: Callable[[Scene], Coroutine[Any, Any, None]], *needs: Ability) -> None:
        async def run() -> None:
            async with self._scene() as scene:
                for ability in needs:
                    if ability in scene.fake.cannot:
                        pytest.skip(f"{ability}: {scene.fake.cannot[ability]}")
                await check(scene)

        asyncio.run(run())
