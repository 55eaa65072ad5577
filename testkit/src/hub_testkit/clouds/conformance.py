"""The rules of the capability ``cloud`` as tests that the author of a plugin inherits.

    import my_plugin
    from hub_testkit.clouds.conformance import CloudConformance
    from hub_testkit.clouds.fake import World

    class TestMyCloud(CloudConformance):
        plugin = my_plugin                       # the module that the entry point names
        name = "my-cloud"                        # the entry point's name
        settings = {"policy": "random"}          # valid values of annotations that change a balancer

        @asynccontextmanager
        async def world(self):
            async with MyFake() as fake:         # implements hub_testkit.clouds.fake.CloudFake
                yield World(fake, {"url": fake.url, "token": {"env": "TOKEN"}}, LocalHub(secrets={"TOKEN": "t0k3n-1"}))

Each test is one rule, in an event loop and with fakes of its own. The tests need pytest, but no pytest plugin. A
skipped test is a rule that the cloud cannot be tested for; the reason is the fake's.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import ModuleType
from typing import Any, ClassVar, Final, NamedTuple, get_args

import msgspec
import pytest

from hub.errors import ProviderError
from hub.plugin.clouds import (
    Absent,
    Balancer,
    BalancerPort,
    Cloud,
    CloudNode,
    CloudType,
    Instance,
    InstanceAnswer,
    Instances,
    Record,
    Setting,
    Step,
    Uncertain,
    Unknown,
)
from hub.plugin.config import validate
from hub.plugin.spec import ProviderType
from hub_testkit.addresses.scene import check_cannot, hostile_ids, logged, shows, texts_of, type_named
from hub_testkit.behaviour import cancel, longest_block, watch_io
from hub_testkit.clouds.fake import Ability, Fault, World
from hub_testkit.clouds.scene import DEADLINE, MARKER, NAME, OTHERS, ROUNDS, Made, Scene, renamed
from hub_testkit.contexts import LocalCloud

__all__ = ["LET_GO", "MAX_BLOCK", "CloudConformance"]

LET_GO: Final = 1.0
"""Seconds that a cancelled call may take to end."""

MAX_BLOCK: Final = 0.5
"""Seconds that the event loop may be blocked."""

FEW: Final = 2
MANY: Final = 8
"""Numbers of machines; a plugin may ask for a few machines singly, and list all for many."""

ORDERS: Final = 30
"""Number of random orders; of a list of two objects, all are the same order once in a billion runs."""

HOSTILE: Final = ("../evil", "..%2fevil", "evil?x=1", "evil#x", "evil/../../evil", "evil\r\nX-Evil: 1", "//evil")
"""Texts that a hostile user may write into a Service, its record or a Node."""

Check = Callable[[Scene], Coroutine[Any, Any, None]]


class Change(NamedTuple):
    """From what a Service wants to what it wants then; None = it has no load balancer."""

    what: str
    before: Callable[[Scene, Sequence[CloudNode]], Balancer | None]
    after: Callable[[Scene, Sequence[CloudNode]], Balancer | None]


def _nothing(_: Scene, __: Sequence[CloudNode]) -> None:
    return None


def _usual(scene: Scene, nodes: Sequence[CloudNode]) -> Balancer:
    return scene.want(nodes[:FEW])


def _other(scene: Scene, nodes: Sequence[CloudNode]) -> Balancer:
    ports = [msgspec.structs.replace(port, node_port=port.node_port + 1) for port in scene.ports]
    return scene.want(nodes[1 : FEW + 1], ports=ports)


CHANGES: Final = (
    Change("creation", _nothing, _usual),
    Change("change", _usual, _other),
    Change("deletion", _usual, _nothing),
)


class CloudConformance:
    """Tests of one provider type with ``cloud``: inherit, set the attributes, and let pytest collect the subclass.

    Attributes:
        plugin: the module (or object) that implements the hook.
        name: the entry point's name.
        settings: name of an annotation, without the prefix -> a valid value that is not the cloud's default.
        ports: the ports of the Service that the rules want a load balancer for; their nodePorts are free to choose.
    """

    plugin: ClassVar[ModuleType | object]
    name: ClassVar[str]
    settings: ClassVar[Mapping[str, Setting]] = {}
    ports: ClassVar[Sequence[BalancerPort]] = (BalancerPort(80, 30080, "http"), BalancerPort(8080, 30880, "other"))

    def world(self) -> AbstractAsyncContextManager[World]:
        """Starts a new fake on loopback and yields it; it is stopped at the end."""
        raise NotImplementedError("override world(): start your fake and yield a World")

    # --- reading -------------------------------------------------------------------------------

    def test_01_broken_is_not_absent(self) -> None:
        """After an error or a lost answer, instances() raises a provider error or answers Unknown."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(MANY)
            for fault in self._faults(scene, "error", "lost-answer"):
                for asked in (nodes[:1], nodes):
                    await self._fails(scene, fault, "instances()", self._instances(scene), asked)
                await self._fails(scene, fault, "observe()", self._observe, scene)

        self._run(check)

    def test_02_a_lost_page_raises(self) -> None:
        """If one page of a list is missing, instances() and observe() raise a provider error, or answer Unknown."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(MANY)
            for number in range(MANY):
                scene.fake.add_object(f"other-{number}.edge.kit")
            await self._fails(scene, "lost-page", "instances()", self._instances(scene), nodes)
            await self._fails(scene, "lost-page", "observe()", self._observe, scene)

        self._run(check, "lost-page")

    def test_03_garbage_raises(self) -> None:
        """A success whose body cannot be parsed, or lacks the result, is no empty answer."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(MANY)
            for fault in self._faults(scene, "garbage", "no-key"):
                for asked in (nodes[:1], nodes):
                    await self._fails(scene, fault, "instances()", self._instances(scene), asked)
                await self._fails(scene, fault, "observe()", self._observe, scene)

        self._run(check)

    def test_04_same_question_same_answer(self) -> None:
        """Answers state the truth, and do not depend on repetition, on order or on the other Nodes asked about."""

        async def check(scene: Scene) -> None:
            ask, nodes = self._instances(scene), scene.machines(MANY)
            gone = nodes.pop()
            scene.fake.remove_machine(gone)
            nodes.insert(1, gone)
            first = dict(await ask(nodes))
            for node in nodes:
                state = first.get(node.name, Unknown("left out"))
                if node is gone:
                    assert isinstance(state, Absent), f"the machine of {node.name} does not exist, answered: {state}"
                else:
                    assert isinstance(state, Instance), f"the machine of {node.name} exists, answered: {state}"
                    found = state.provider_id
                    assert found == node.provider_id, f"the answer for {node.provider_id} has provider ID {found}"
            scene.fake.shuffled = True
            for asked in (nodes, nodes[::-1], nodes[2:] + nodes[:2], *([node] for node in nodes)):
                again = dict(await ask(asked))
                wanted = {node.name: first[node.name] for node in asked}
                assert again == wanted, f"asked for {[node.name for node in asked]} the answers differ: {again}"

        self._run(check)

    # --- planning ------------------------------------------------------------------------------

    def test_05_a_plan_is_pure(self) -> None:
        """plan(), after(), found(), names() and ingress() do no I/O, and depend on nothing but their arguments."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(2 * MANY)
            parts = nodes[:MANY], nodes[MANY:]
            wants = [scene.want(part) for part in parts]
            seen = await scene.observe(wants[0])
            plans, again = (
                [
                    renamed(scene.planned(want, seen), part, [scene.id(node) for node in part])
                    for want, part in zip(wants, parts, strict=True)
                ]
                for _ in range(2)
            )
            assert plans == again, "the same plan differs the second time"
            assert plans[0] == plans[1], "the order of the plan depends on the machines' ids: is there a set?"
            made = await scene.settle(wants[0])
            seen, record, start = await scene.observe(wants[0]), scene.record, len(scene.fake.requests)
            with watch_io() as done:
                for want in (*wants, None):
                    scene.balancers.plan(want, seen, record)
                for each in made:
                    scene.balancers.after(each.seen, each.step, each.done)
                scene.balancers.found(seen, record)
                named = scene.balancers.names(seen)
                scene.balancers.ingress(wants[0], seen, record)
            assert not done, f"the pure functions did I/O: {done}"
            assert len(scene.fake.requests) == start, "the pure functions made requests"
            assert named.get(NAME), f"names() does not have the objects called {NAME}: {dict(named)}"

        self._run(check)

    def test_06_an_end_is_reached(self) -> None:
        """Within 40 rounds of observing, planning and making the first step, a creation, a change, a deletion end."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(FEW + 1)
            for want in (_usual(scene, nodes), _other(scene, nodes)):
                made = await scene.settle(want)
                assert made, "there was nothing to do"
                assert await scene.plan(want) == [], "a balancer that is as wanted has a plan"
                ingress = scene.balancers.ingress(want, await scene.observe(want), scene.record)
                assert ingress, "the balancer is as wanted, and ingress() does not say where it can be reached"
                assert scene.record.ids, "the balancer is as wanted, and found() finds nothing"
            scene.made.clear()  # a new process
            assert await scene.plan(_other(scene, nodes)) == [], "a new process wants to change what is as wanted"
            assert await scene.settle(None), "there was nothing to delete"
            assert not scene.fake.objects(), f"left after the deletion: {scene.fake.objects()}"

        self._run(check)

    def test_07_each_step_twice_is_once(self) -> None:
        """A step that was made is not planned again, even on an old observation; making it again changes nothing."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(FEW + 1)
            for change in CHANGES:
                want = change.after(scene, nodes)
                made = await scene.settle(want)
                for each in made:
                    self._check_twice(scene, want, each)
                if not made[-1].step.creates:  # the hub creates nothing again until it is clear what there is
                    truth, last = scene.fake.objects(), made[-1].step
                    with suppress(ProviderError):
                        await scene.perform(last)
                    assert scene.fake.objects() == truth, f"made again, it changed something: {last.summary}"

        self._run(check)

    def _check_twice(self, scene: Scene, want: Balancer | None, made: Made) -> None:
        once = scene.balancers.after(made.seen, made.step, made.done)
        plan = scene.planned(want, once)
        text = f"{made.step.summary}: it is made, and after() gives an observation for which it is planned again"
        assert plan[:1] != [made.step], text
        twice = scene.balancers.after(once, made.step, made.done)
        assert scene.planned(want, twice) == plan, f"{made.step.summary}: applied twice, after() gives another plan"

    def test_08_a_cut_leads_to_the_same_end(self) -> None:
        """Cut before or after any answer, and gone on with by a new process, the end is the same, and nothing leaks."""

        async def check() -> None:
            for change in CHANGES:
                calm, writes, faults = await self._end(change)
                for fault, number in itertools.product(faults, range(writes)):
                    end, _, _ = await self._end(change, fault, number)
                    text = f"{change.what}, {fault} at write {number + 1} of {writes}: it ends as\n{end}\ninstead of"
                    assert end == calm, f"{text}\n{calm}"

        asyncio.run(check())

    async def _end(
        self, change: Change, fault: Fault | None = None, number: int = 0
    ) -> tuple[list[str], int, list[Fault]]:
        """How a change ends with a fault at one of its writes, the number of its writes, and the possible faults."""
        async with self._scene() as scene:
            nodes = scene.machines(FEW + 1)
            if (before := change.before(scene, nodes)) is not None:
                await scene.settle(before)
                scene.made.clear()
            start = len(scene.fake.requests)
            if fault is not None:
                # twice: an HTTP library may itself repeat what is idempotent, such as a PUT, on a new connection
                scene.fake.fail(fault, times=2, on="write", skip=number)
            want = change.after(scene, nodes)
            await scene.settle(want, killed=True)
            writes = sum(request.kind == "write" for request in scene.fake.requests[start:])
            assert await scene.plan(want) == [], "there is something to do after the end"
            return scene.ours(), writes, self._faults(scene, "lost-request", "lost-answer")

    def test_09_order_does_not_count(self) -> None:
        """A balancer is as wanted in whatever order the cloud lists objects, and the parts of an object."""

        async def check(scene: Scene) -> None:
            want = scene.want(scene.machines(MANY), self.settings)
            await scene.settle(want)
            scene.made.clear()
            scene.fake.shuffled = True
            for _ in range(ORDERS):
                plan = await scene.plan(want)
                assert plan == [], f"in another order there is something to do: {plan}"

        self._run(check)

    def test_10_no_empty_set_of_nodes(self) -> None:
        """Without a known node a balancer keeps those it has; one that is made without nodes gets them later."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(FEW)
            await scene.settle(scene.want(()), waits=True)
            await scene.settle(scene.want(nodes))
            truth = scene.fake.objects()
            await scene.settle(scene.want(()))
            assert scene.fake.objects() == truth, "without a known node the balancer was changed"

        self._run(check)

    # --- writing -------------------------------------------------------------------------------

    def test_11_one_step_is_one_write(self) -> None:
        """perform() makes one writing request, and reading none; the request of a deletion names the object's id."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(FEW + 1)
            await self._ask(scene, nodes)
            for change in CHANGES:
                want = change.after(scene, nodes)
                for _ in range(ROUNDS):
                    start, steps = len(scene.fake.requests), len(scene.made)
                    ids = scene.fake.objects().keys()
                    if await scene.first(want) is None:
                        break
                    writes = [each.text for each in scene.fake.requests[start:] if each.kind == "write"]
                    made = scene.made[steps:]
                    wanted = "one write" if made else "no write: only observing and planning"
                    what = made[0].step.summary if made else "no step"
                    assert len(writes) == len(made), f"{what}: {writes} instead of {wanted}"
                    if made and made[0].step.destroys:
                        text = str(msgspec.to_builtins(made[0].step.request))
                        assert any(id_ in text for id_ in ids), f"{what}: Step.request names no id of an object"

        self._run(check)

    def test_12_a_deletion_takes_ours_and_nothing_else(self) -> None:
        """Everything of the balancer goes, with the record and without it; objects of similar names stay."""

        async def check(scene: Scene) -> None:
            for name in (f"{NAME}-2", f"{NAME}2", NAME[:-1], NAME.upper(), "other.edge.kit"):
                scene.fake.add_object(name)
            foreign = scene.fake.objects()
            for forgets in (False, True):
                await scene.settle(scene.want(scene.machines(FEW)))
                scene.kept(foreign)
                scene.made.clear()
                if forgets:
                    scene.record = Record(NAME, MARKER)
                await scene.settle(None)
                scene.kept(foreign)
                left = scene.ours(foreign)
                assert not left, f"left after the deletion {'without' if forgets else 'with'} the record: {left}"

        self._run(check)

    def test_13_an_object_of_another_cluster_stays(self) -> None:
        """An object of the balancer's name that carries another cluster's marker is neither changed nor deleted."""

        async def check(scene: Scene) -> None:
            scene.fake.add_object(NAME, str(OTHERS))
            foreign = scene.fake.objects()
            assert foreign, "add_object() with a marker made no object: which kind carries the marker?"
            for want in (scene.want(scene.machines(FEW)), None):
                await scene.settle(want, refused=True)
                scene.kept(foreign)
            left = scene.ours(foreign)
            assert not left, f"left beside the other cluster's objects: {left}"

        self._run(check, "marker")

    def test_14_an_annotation_that_goes_gives_the_default_back(self) -> None:
        """Once the annotations are gone, the balancer is as if it never had them."""

        async def check(scene: Scene) -> None:
            if not self.settings:
                assert not scene.type.annotations, "set settings: the cloud declares annotations"
                pytest.skip("the cloud declares no annotations")
            nodes = scene.machines(FEW)
            usual, special = scene.want(nodes), scene.want(nodes, self.settings)
            await scene.settle(usual)
            default = scene.ours()
            await scene.settle(special)
            assert scene.ours() != default, f"the settings {dict(self.settings)} changed nothing"
            scene.made.clear()
            await scene.settle(usual)
            assert scene.ours() == default, f"without the annotations it is\n{scene.ours()}\ninstead of\n{default}"

        self._run(check)

    # --- errors --------------------------------------------------------------------------------

    def test_15_hosts_in_answers_are_not_followed(self) -> None:
        """No address that an answer names, such as a redirect or a link to the next page, is connected to."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(MANY)
            for number in range(MANY):
                scene.fake.add_object(f"other-{number}.edge.kit")
            visits: list[object] = []

            def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                visits.append(writer)
                writer.close()

            step = await self._step(scene, scene.want(nodes))
            async with await asyncio.start_server(visited, "127.0.0.1", 0) as trap:
                scene.fake.elsewhere = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}"
                scene.fake.fail("elsewhere", times=None)
                for call in self._calls(scene, nodes, step):
                    with suppress(Exception):  # whatever it raises, it must not connect
                        await call()
                    assert not visits, "the plugin connected to an address that an answer names"

        self._run(check, "elsewhere")

    def test_16_hostile_ids_lead_nowhere(self) -> None:
        """Texts of Nodes, annotations and records that are no ids get into no request's path."""

        async def check(scene: Scene) -> None:
            node, start = scene.machines(1)[0], len(scene.fake.requests)
            for text in hostile_ids(node.provider_id):
                found = scene.type.provider_id.fullmatch(text)
                assert found is None, f"CloudType.provider_id matches {text[:200]!r}"
            if scene.cloud.instances is not None:
                with suppress(ProviderError):
                    await scene.cloud.instances.instances([CloudNode(text) for text in HOSTILE])
            want = scene.want([node])
            await scene.settle(want)
            kinds = tuple(scene.record.ids)
            lists = [each.name for each in scene.type.annotations if each.kind == "list"]
            for text in HOSTILE:
                for each in (want, None, *(scene.want([node], {name: (text,)}) for name in lists), None):
                    scene.made.clear()
                    scene.record = Record(NAME, MARKER, ids=dict.fromkeys(kinds, text), made=kinds)
                    with suppress(ProviderError, AssertionError):  # it may refuse, or wait
                        await scene.settle(each, refused=True)
            paths = [request.text for request in scene.fake.requests[start:] if "evil" in request.text.lower()]
            assert not paths, f"a hostile text got into a request: {paths[:3]}"

        self._run(check)

    def test_17_no_secret_is_shown(self) -> None:
        """Errors, steps and logs contain no credential, not even if an error of the cloud quotes it."""

        async def check(scene: Scene) -> None:
            assert scene.world.secrets, "set World.secrets, otherwise this rule proves nothing"
            nodes, shown = scene.machines(MANY), list[str]()
            with logged(shown):
                step = await self._step(scene, scene.want(nodes))
                for fault in self._faults(scene, "error", "garbage", "unauthorized", "lost-request"):
                    for call in self._calls(scene, nodes, step):
                        scene.fake.fail(fault, times=None)
                        with suppress(ProviderError):
                            try:
                                await call()
                            except ProviderError as error:
                                shown.extend(texts_of(error))
                                raise
                        scene.fake.heal()
                shown.extend(str(made.step) for made in await scene.settle(scene.want(nodes), killed=True))
            assert shown, "there were no errors to look at"
            for text in shown:
                assert not shows(text, scene.world.secrets), f"a secret is shown: {text}"

        self._run(check)

    def test_18_a_cancelled_call_lets_go(self) -> None:
        """A cancelled call ends within a second, and no call blocks the event loop."""

        async def check(scene: Scene) -> None:
            nodes = scene.machines(MANY)

            async def course() -> None:
                await self._ask(scene, nodes)
                for change in CHANGES:
                    await scene.settle(change.after(scene, nodes))

            longest = await longest_block(course)
            assert longest < MAX_BLOCK, f"the event loop was blocked for {longest:.1f} s"
            if "silent" in scene.fake.cannot:
                return
            step = await self._step(scene, scene.want(nodes))
            for call in self._calls(scene, nodes, step):
                start = len(scene.fake.requests)
                scene.fake.fail("silent", times=None)
                task = asyncio.ensure_future(call())
                async with asyncio.timeout(DEADLINE):
                    while not task.done() and not scene.fake.requests[start:]:  # noqa: ASYNC110 - maybe in a thread
                        await asyncio.sleep(0.01)
                assert not task.done(), f"{call.__name__} ended although the cloud does not answer"
                await cancel(task, call.__name__, LET_GO)
                scene.fake.heal()

        self._run(check)

    def test_19_a_write_without_an_answer_is_uncertain(self) -> None:
        """perform() raises Uncertain if the connection breaks after the request was sent; a creation is sent once."""

        async def check(scene: Scene, fault: Fault) -> None:
            nodes = scene.machines(FEW + 1)
            for change in CHANGES:
                step = await self._step(scene, change.after(scene, nodes))
                scene.fake.fail(fault, times=None, on="write")
                start = len(scene.fake.requests)
                try:
                    await scene.perform(step)
                except Uncertain:
                    pass
                except ProviderError as error:
                    pytest.fail(f"{step.summary}, {fault}: {type(error).__name__} instead of Uncertain: {error}")
                else:
                    pytest.fail(f"{step.summary}, {fault}: perform() returned although it got no answer")
                writes = [each.text for each in scene.fake.requests[start:] if each.kind == "write"]
                once = len(writes) == 1 or not step.creates
                assert once, f"{step.summary}, {fault}: the plugin itself sent it again: {writes}"
                scene.fake.heal()
                await scene.restart()
                await scene.settle(change.after(scene, nodes))

        faults: tuple[Fault, ...] = "lost-answer", "lost-request"
        for fault in faults:
            self._run(functools.partial(check, fault=fault), fault)

    # --- helpers -------------------------------------------------------------------------------

    def _instances(self, scene: Scene) -> Callable[[Sequence[CloudNode]], Awaitable[Mapping[str, InstanceAnswer]]]:
        instances: Instances | None = scene.cloud.instances
        if instances is None:
            assert "nodes" not in scene.type.parts, "the cloud has no instances, and CloudType.parts has nodes"
            pytest.skip("the cloud has no node part")

        async def ask(nodes: Sequence[CloudNode]) -> Mapping[str, InstanceAnswer]:
            async with asyncio.timeout(DEADLINE):
                return await instances.instances(nodes)

        return ask

    async def _ask(self, scene: Scene, nodes: Sequence[CloudNode]) -> object:
        return await scene.cloud.instances.instances(nodes) if scene.cloud.instances is not None else None

    async def _observe(self, scene: Scene) -> Any:
        return await scene.observe(None) if scene.cloud.balancers is not None else {}

    async def _fails(
        self, scene: Scene, fault: Fault, what: str, call: Callable[[Any], Awaitable[Any]], asked: Any
    ) -> None:
        """Fails unless the call raises a provider error, or answers Unknown for all Nodes."""
        scene.fake.fail(fault, times=None, on="read")
        try:
            answer = await call(asked)
        except ProviderError:
            return
        finally:
            scene.fake.heal()
        wrong = [state for state in answer.values() if not isinstance(state, Unknown)] if what == "instances()" else [0]
        assert not wrong, f"after the fault {fault!r} {what} answered {wrong if what == 'instances()' else answer!r}"

    async def _step(self, scene: Scene, want: Balancer | None) -> Step:
        plan = await scene.plan(want)
        step = next((item for item in plan if isinstance(item, Step)), None)
        assert step is not None, f"the plan has no step: {plan}"
        return step

    def _calls(
        self, scene: Scene, nodes: Sequence[CloudNode], step: Step
    ) -> list[Callable[[], Coroutine[Any, Any, object]]]:
        async def instances() -> object:
            return await self._ask(scene, nodes)

        async def observe() -> object:
            return await scene.observe(None)

        async def perform() -> object:
            return await scene.perform(step)

        return [observe, perform, *((instances,) if scene.cloud.instances is not None else ())]

    def _faults(self, scene: Scene, *faults: Fault) -> list[Fault]:
        return [fault for fault in faults if fault not in scene.fake.cannot]

    def _type(self) -> tuple[ProviderType, CloudType]:
        type_ = type_named(self.plugin, self.name)
        assert type_.cloud is not None, f"type {self.name!r} does not set cloud"
        return type_, type_.cloud()

    @asynccontextmanager
    async def _scene(self) -> AsyncGenerator[Scene, None]:
        type_, cloud_type = self._type()
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(self.world())
            stack.callback(world.fake.heal)
            check_cannot(world.fake.cannot, get_args(Ability))
            hub = await stack.enter_async_context(world.hub)
            shared = await stack.enter_async_context(type_.shared(hub)) if type_.shared is not None else None
            config = validate(cloud_type.config, world.config)
            context = LocalCloud(hub, dns=world.dns)

            async def reopen() -> Cloud:
                async with asyncio.timeout(DEADLINE):
                    return await stack.enter_async_context(cloud_type.open(context, config, shared))

            yield Scene(world, cloud_type, await reopen(), reopen, self.ports)

    def _run(self, check: Check, *needs: Ability) -> None:
        async def run() -> None:
            async with self._scene() as scene:
                for fault in needs:
                    if fault in scene.fake.cannot:
                        pytest.skip(f"{fault}: {scene.fake.cannot[fault]}")
                await check(scene)

        asyncio.run(run())
