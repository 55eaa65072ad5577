"""The rules of the plugin API as tests that the author of a provider inherits.

    import my_provider
    from hub_testkit.conformance import ProviderConformance

    class TestMyProvider(ProviderConformance):
        plugin = my_provider                     # the module that the entry point names
        name = "my-provider"                     # the entry point's name
        config = {"datacenter": "eu"}
        nodes = (Node("n1", ...), Node("n2", ...))
        addresses = {"n2": ("10.0.0.2", "10.0.1.2")}   # every address that n2 has

A provider that contacts another system overrides :meth:`surroundings` (start a fake of that system, yield a
configuration that points to it) and :meth:`breakage` (the same with a fake that fails). Each test is one rule. The
tests need pytest, but no pytest plugin. A skipped test is a rule that does not apply.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, ClassVar, Final, TypeVar, cast

import msgspec
import pytest

from hub.errors import CredentialError, ProviderError
from hub.model import Absent, Found, GuardDefaults, Node, Resolution, Snapshot
from hub.plugin.answers import read_answer, read_snapshot
from hub.plugin.config import schema, validate
from hub.plugin.hooks import plugin_manager
from hub.plugin.spec import (
    ALL_FIELDS,
    API_VERSION,
    EndpointProviderType,
    NodeProviderType,
    ProviderType,
    ReadOnlyCluster,
)
from hub_testkit.behaviour import cancel, longest_block, watch_io
from hub_testkit.contexts import LocalHub
from hub_testkit.harness import DEADLINE, Opened, open_provider
from hub_testkit.nodes import HOSTILE_NODES, OTHER_VALUES

__all__ = ["DEADLINE", "HOSTILE_NODES", "LET_GO", "MAX_BLOCK", "QUICK", "Opened", "ProviderConformance"]

T = TypeVar("T")

QUICK: Final = 0.5
"""Seconds that the hook may take: it only creates values."""

LET_GO: Final = 1.0
"""Seconds that a cancelled call and a close may take; the hub does not wait for a slower one."""

MAX_BLOCK: Final = 0.5
"""Seconds that the event loop may be blocked: long enough for a busy test machine, short enough for a health check."""


class ProviderConformance:
    """Tests of one provider type: inherit from this class, set the attributes and let pytest collect the subclass.

    Attributes:
        plugin: The module (or object) that implements the hook.
        name: The entry point's name.
        config: ``provider.config`` as in clusters.yaml.
        nodes: At least two nodes to resolve; not needed for a type that brings endpoints.
        addresses: Name of an example node or endpoint -> all of its addresses, preferred first. If the source can have
            several addresses, include a node or endpoint that has several. Empty = the rule is skipped.
    """

    plugin: ClassVar[ModuleType | object]
    name: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    nodes: ClassVar[Sequence[Node]] = ()
    addresses: ClassVar[Mapping[str, Sequence[str]]] = {}

    # --- what an author may override -----------------------------------------------------------

    def hub(self) -> LocalHub:
        """Returns the hub context: secrets, allowed programs and hosts."""
        return LocalHub()

    def api(self) -> ReadOnlyCluster | None:
        """Returns the cluster's API as the provider reads it, such as ClusterObjects; None = no API."""
        return None

    @asynccontextmanager
    async def surroundings(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Starts a fake of the system that the provider contacts, on loopback, and yields a configuration for it."""
        yield self.config

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Like :meth:`surroundings`, but the fake fails. If not overridden, the rules about failures are skipped."""
        _skip("nothing to break: override breakage() if the provider contacts another system")
        yield {}

    @property
    def provider_type(self) -> ProviderType:
        """The provider type that the hook declares."""
        return next(type_ for type_ in self._register() if type_.name == self.name)

    # --- declaring -----------------------------------------------------------------------------

    def test_registers_through_the_hook(self) -> None:
        """The module implements hub_register_providers and no unknown hook, and the hook returns provider types."""
        types: list[object] = list(self._register())
        assert types, "hub_register_providers returned nothing"
        wrong = [type(item).__name__ for item in types if not isinstance(item, NodeProviderType | EndpointProviderType)]
        assert not wrong, f"hub_register_providers returned {wrong}"

    def test_name_is_the_entry_points(self) -> None:
        """Exactly one of the types has the entry point's name."""
        names = [type_.name for type_ in self._types()]
        assert names.count(self.name) == 1, f"the entry point is called {self.name!r}, the types {names}"

    def test_registering_is_quick_and_does_no_io(self) -> None:
        """The hook only creates values: no connection, no program, no waiting."""
        before = time.monotonic()
        with watch_io() as seen:
            self._register()
        assert not seen, f"hub_register_providers did I/O: {seen}"
        took = time.monotonic() - before
        assert took < QUICK, f"hub_register_providers took {took:.1f} s"

    def test_declares_what_the_hub_understands(self) -> None:
        """API version, fields, poll interval and guard have values the hub can use."""
        type_ = self._type()
        poll: Any = type_.poll_interval
        assert type_.api_version == API_VERSION, f"api_version {type_.api_version}, this hub supports {API_VERSION}"
        assert set(type_.reads) <= ALL_FIELDS, f"reads names unknown fields {set(type_.reads) - ALL_FIELDS}"
        assert poll is None or callable(poll) or poll > 0, f"poll_interval {poll!r} is not positive"
        assert callable(type_.open), "open is not callable"
        assert isinstance(type_.guard, GuardDefaults), "guard is not a GuardDefaults"

    def test_configuration_refuses_unknown_keys(self) -> None:
        """A misspelt key is an error (``extra="forbid"``) instead of being ignored."""
        model = self._type().config
        validate(model, self.config)  # may raise: then the example configuration is wrong
        with pytest.raises((ValueError, msgspec.ValidationError)):
            validate(model, {**self.config, "noSuchKey": 1})

    def test_configuration_has_a_schema(self) -> None:
        """The configuration has a JSON schema, which ``hub schema`` and ``hub providers`` show."""
        model = self._type().config
        assert isinstance(schema(model), dict)

    # --- opening and closing -------------------------------------------------------------------

    def test_closes_cleanly(self) -> None:
        """Closing ends within a second and leaves no task and no thread that keeps running."""

        async def check() -> None:
            async with self.surroundings() as config:
                around = asyncio.all_tasks()
                opened, close = await self._open(config)
                await opened.use(self.nodes)
                started = time.monotonic()
                await close()
                took = time.monotonic() - started
                assert took < LET_GO, f"closing took {took:.1f} s"
                left = asyncio.all_tasks() - around
                if left:  # a fake server in this loop notices the end of a connection a moment later
                    _, left = await asyncio.wait(left, timeout=LET_GO)
                assert not left, f"closing left tasks behind: {sorted(task.get_name() for task in left)}"

        threads = {thread for thread in threading.enumerate() if not thread.daemon}
        _run(check())
        lasting = [thread.name for thread in threading.enumerate() if not thread.daemon and thread not in threads]
        assert not lasting, f"closing left threads behind: {lasting}"

    def test_opens_for_several_clusters(self) -> None:
        """Closing the provider of one cluster does not affect another cluster with the same configuration."""

        async def check() -> None:
            async with self.surroundings() as config:
                _, close_first = await self._open(config, "first")
                second, close_second = await self._open(config, "second")
                await close_first()
                await second.use(self.nodes)
                await close_second()

        _run(check())

    # --- resolving nodes -----------------------------------------------------------------------

    def test_answers_with_resolutions(self) -> None:
        """The answer maps names to Found, Absent or Unknown, with fields of the right types, within the deadline."""

        async def check(opened: Opened) -> None:
            answer = await opened.ask(self.nodes)
            read_answer([node.name for node in self.nodes], answer)

        self._with_nodes(check)

    def test_answers_only_for_nodes_asked(self) -> None:
        """The answer for one node has no other node in it."""

        async def check(opened: Opened) -> None:
            for node in self.nodes:
                extra = set(await opened.ask((node,))) - {node.name}
                assert not extra, f"asked about {node.name!r} alone, it also answered for {sorted(extra, key=str)[:5]}"

        self._with_nodes(check)

    def test_finds_something(self) -> None:
        """At least one of the example nodes is found; otherwise the other rules would prove nothing."""

        async def check(opened: Opened) -> None:
            answer = await opened.resolve(self.nodes)
            assert any(isinstance(value, Found) for value in answer.values()), f"nothing found: {answer}"

        self._with_nodes(check)

    def test_same_question_same_answer(self) -> None:
        """A second call, also with the nodes in another order, gives the same answer."""

        async def check(opened: Opened) -> None:
            first = await opened.resolve(self.nodes)
            assert await opened.resolve(self.nodes) == first, "the second answer differs from the first"
            assert await opened.resolve(tuple(reversed(self.nodes))) == first, "the order of nodes matters"

        self._with_nodes(check)

    def test_an_answer_does_not_depend_on_the_batch(self) -> None:
        """A node's answer is the same alone and with others, because the hub asks only about changed nodes."""

        async def check(opened: Opened) -> None:
            together = await opened.resolve(self.nodes)
            for node in self.nodes:
                alone = await opened.resolve((node,))
                assert alone.get(node.name) == together.get(node.name), f"{node.name!r} alone has another answer"

        self._with_nodes(check)

    def test_reads_names_every_field_an_answer_depends_on(self) -> None:
        """A field that ``reads`` omits does not change an answer: the hub does not ask again when it changes."""

        async def check(opened: Opened) -> None:
            unread = ALL_FIELDS - self._type().reads
            before = await opened.resolve(self.nodes)
            for name in sorted(unread):
                changed = tuple(msgspec.structs.replace(node, **{name: OTHER_VALUES[name]}) for node in self.nodes)
                assert await opened.resolve(changed) == before, f"the answer depends on {name!r}"

        self._with_nodes(check)

    def test_leaves_nodes_as_they_are(self) -> None:
        """The provider does not modify nodes, which the whole hub shares."""

        async def check(opened: Opened) -> None:
            nodes = tuple(copy.deepcopy(node) for node in self.nodes)
            before = msgspec.json.encode(nodes)
            await opened.resolve(nodes)
            assert msgspec.json.encode(nodes) == before, "resolve() changed the nodes it was given"

        self._with_nodes(check)

    def test_survives_hostile_nodes(self) -> None:
        """Whatever a remote kubelet reports, there is a well-formed answer or a provider error."""

        async def check(opened: Opened) -> None:
            for node in HOSTILE_NODES:
                try:
                    answer = await opened.ask((node,))
                except (ProviderError, CredentialError):
                    continue
                read_answer([node.name], answer)

        self._with_nodes(check)

    def test_lets_go_when_cancelled(self) -> None:
        """A cancelled call ends within a second, at whatever point it is cancelled, and the next call works."""

        async def check(opened: Opened) -> None:
            for delay in (0.0, 0.05):
                task = asyncio.ensure_future(opened.provider.resolve(tuple(self.nodes)))
                await asyncio.sleep(delay)
                await cancel(task, "resolve()", LET_GO)
            await opened.resolve(self.nodes)

        self._with_nodes(check)

    def test_answers_with_every_address(self) -> None:
        """An answer has all addresses, so that the hub can publish the first one of each family in ``allowedCIDRs``."""
        if not self.addresses:
            pytest.skip("set addresses to what the example nodes or endpoints have")

        async def check(opened: Opened) -> None:
            given = await self._addresses(opened)
            for name, expected in self.addresses.items() if given else ():  # another rule reports that nothing is found
                for family, ipv6 in (("IPv4", False), ("IPv6", True)):
                    wanted = [address for address in expected if (":" in address) == ipv6]
                    got = [address for address in given.get(name, ()) if (":" in address) == ipv6]
                    assert got == wanted, f"{name!r} has the {family} addresses {wanted}, the answer gives {got}"

        self._with_provider(check)

    def test_does_not_block_the_event_loop(self) -> None:
        """The provider calls blocking code through ``HubContext.run_sync``; otherwise it would block all clusters."""

        async def check(opened: Opened) -> None:
            longest = await longest_block(lambda: opened.use(self.nodes))
            assert longest < MAX_BLOCK, f"the event loop stood still for {longest:.1f} s"

        self._with_provider(check)

    # --- failures of the other system ----------------------------------------------------------

    def test_broken_is_not_absent(self) -> None:
        """On an error of the other system no node is Absent: the provider raises or answers Unknown."""

        async def check() -> None:
            async with self.breakage() as config:
                answer: Mapping[str, Resolution] = {}
                with suppress(Exception):  # another rule checks the type of the error
                    answer = await self._once(config, lambda opened: opened.resolve(self.nodes))
                absent = sorted(name for name, value in answer.items() if isinstance(value, Absent))
                assert not absent, f"the system it contacts fails, and it answered Absent for {absent}"

        if isinstance(self._type(), EndpointProviderType):
            pytest.skip("brings endpoints")
        _run(check())

    def test_broken_is_not_a_smaller_fleet(self) -> None:
        """On an error of the other system no snapshot is complete."""

        async def check() -> None:
            async with self.breakage() as config:
                snapshot: Snapshot | None = None
                with suppress(Exception):  # another rule checks the type of the error
                    snapshot = await self._once(config, Opened.first)
                assert snapshot is None or not snapshot.complete, "a complete snapshot while the other system fails"

        if not isinstance(self._type(), EndpointProviderType):
            pytest.skip("resolves nodes")
        _run(check())

    def test_errors_are_provider_errors(self) -> None:
        """Every error is a ProviderError (transient or terminal) or a CredentialError, with a message for operators."""

        async def check() -> None:
            async with self.breakage() as config:
                try:
                    await self._once(config, lambda opened: opened.use(self.nodes))
                except (ProviderError, CredentialError) as error:
                    if not str(error).strip():
                        pytest.fail(f"{type(error).__name__} without a message")
                except Exception as error:  # noqa: BLE001 - the rule is about any other error
                    pytest.fail(f"raised {type(error).__name__} instead of a ProviderError: {error}")

        _run(check())

    # --- bringing endpoints --------------------------------------------------------------------

    def test_gives_a_first_snapshot(self) -> None:
        """The first snapshot arrives within the deadline, has fields of the right types and unique names."""

        async def check(opened: Opened) -> None:
            read_snapshot(await opened.first())

        self._with_endpoints(check)

    def test_watching_again_gives_the_same(self) -> None:
        """A second watch starts with a whole snapshot too, because the hub calls ``watch`` again after an error."""

        async def check(opened: Opened) -> None:
            first, again = await opened.first(), await opened.first()
            assert _sorted(again) == _sorted(first), "the second watch starts with something else"

        self._with_endpoints(check)

    def test_a_watch_never_ends(self) -> None:
        """A watch waits for changes and does not end, which the hub would take for an error."""

        async def check(opened: Opened) -> None:
            task = asyncio.ensure_future(opened.consume())
            await asyncio.wait({task}, timeout=0.3)
            ended = task.done()
            task.cancel()
            await asyncio.wait({task}, timeout=LET_GO)
            assert not ended, "watch() ended"

        self._with_endpoints(check)

    def test_watch_lets_go_when_cancelled(self) -> None:
        """A cancelled watch ends within a second."""

        async def check(opened: Opened) -> None:
            task = asyncio.ensure_future(opened.consume())
            await asyncio.sleep(0.2)
            await cancel(task, "watch()", LET_GO)

        self._with_endpoints(check)

    # --- helpers -------------------------------------------------------------------------------

    def _register(self) -> list[ProviderType]:
        manager = plugin_manager()
        manager.register(self.plugin, name=self.name)
        manager.check_pending()
        assert manager.hook.hub_register_providers.get_hookimpls(), "no hub_register_providers (is @hookimpl missing?)"
        return [type_ for answer in manager.hook.hub_register_providers() for type_ in answer]

    def _types(self) -> list[ProviderType]:
        return [type_ for type_ in self._register() if isinstance(cast("object", type_), ProviderType)]

    def _type(self) -> ProviderType:
        """Returns the type under test, even if its name is wrong, which another rule reports."""
        types = self._types()
        return next((type_ for type_ in types if type_.name == self.name), types[0])

    async def _open(
        self, config: Mapping[str, Any], name: str = "test"
    ) -> tuple[Opened, Callable[[], Awaitable[None]]]:
        return await open_provider(self._type(), self.hub(), config, name, self.api())

    async def _once(self, config: Mapping[str, Any], use: Callable[[Opened], Awaitable[T]]) -> T:
        """Opens the provider, uses it and closes it."""
        opened, close = await self._open(config)
        try:
            return await use(opened)
        finally:
            await close()

    async def _addresses(self, opened: Opened) -> Mapping[str, Sequence[str]]:
        """Returns the provider's addresses by the name of the node or endpoint."""
        if isinstance(self._type(), EndpointProviderType):
            return {endpoint.name: endpoint.addresses for endpoint in (await opened.first()).endpoints}
        answer = await opened.resolve(self.nodes)
        return {name: value.addresses for name, value in answer.items() if isinstance(value, Found)}

    def _with_provider(self, check: Callable[[Opened], Awaitable[None]]) -> None:
        async def run() -> None:
            async with self.surroundings() as config:
                await self._once(config, check)

        _run(run())

    def _with_nodes(self, check: Callable[[Opened], Awaitable[None]]) -> None:
        if isinstance(self._type(), EndpointProviderType):
            pytest.skip("brings endpoints")
        assert len(self.nodes) > 1, "set nodes to two example nodes or more"
        self._with_provider(check)

    def _with_endpoints(self, check: Callable[[Opened], Awaitable[None]]) -> None:
        if not isinstance(self._type(), EndpointProviderType):
            pytest.skip("resolves nodes")
        self._with_provider(check)


def _skip(reason: str) -> None:
    pytest.skip(reason)


def _run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


def _sorted(snapshot: Snapshot) -> Any:
    return sorted(snapshot.endpoints, key=lambda endpoint: endpoint.name), snapshot.ports, snapshot.complete
