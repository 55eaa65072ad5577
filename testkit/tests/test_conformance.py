"""Tests of the conformance suite: each rule has a provider that breaks this rule and no other."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hub_testkit import conformance, harness
from hub_testkit.conformance import ProviderConformance
from hub_testkit.nodes import OTHER_VALUES
from pydantic import BaseModel, ConfigDict

from hub.plugin import (
    ALL_FIELDS,
    Absent,
    EndpointProviderType,
    Found,
    NoConfig,
    Node,
    NodeAddress,
    NodeProviderType,
    ProviderType,
    Resolution,
    Snapshot,
    SnapshotEndpoint,
    TransientProviderError,
    Unknown,
    hookimpl,
)


class Config(BaseModel):
    """The configuration of the example providers; ``broken`` makes the system they contact fail."""

    model_config = ConfigDict(extra="forbid")
    broken: bool = False


class Good:
    """A NodeProvider that follows every rule; each broken provider differs from it in one place."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        if self.config.broken:
            raise TransientProviderError("the inventory does not answer")
        await asyncio.sleep(0)
        return {node.name: self.one(node) for node in nodes}

    def one(self, node: Node) -> Resolution:
        addresses = tuple(entry.address for entry in node.addresses[:100])
        return Found(addresses) if addresses else Absent("no address")


class GoodEndpoints:
    """An EndpointProvider that follows every rule."""

    endpoints = (SnapshotEndpoint("n1", ("10.0.0.1",)), SnapshotEndpoint("n2", ("10.0.0.2", "10.0.1.2")))

    def __init__(self, config: Config) -> None:
        self.config = config

    async def watch(self, /) -> AsyncIterator[Any]:
        if self.config.broken:
            raise TransientProviderError("the inventory does not answer")
        yield Snapshot(self.endpoints)
        await asyncio.sleep(1e6)


def plugin(
    provider: Callable[[Config], object] = Good, kind: Callable[..., ProviderType] = NodeProviderType, **fields: Any
) -> Any:
    """Builds a plugin module with one provider type."""

    @asynccontextmanager
    async def open_provider(_cluster: object, config: Config, _shared: object) -> AsyncIterator[Any]:
        yield provider(config)

    defaults: dict[str, Any] = {
        "name": "mine",
        "open": open_provider,
        "config": Config,
        "reads": frozenset({"addresses"}),
    }
    type_ = kind(**(defaults | fields))
    return module(lambda: [type_])


def module(register: Callable[[], Any]) -> Any:
    """Builds a plugin module with this hook."""

    @hookimpl
    def hub_register_providers() -> Iterable[ProviderType]:
        result: Iterable[ProviderType] = register()
        return result

    return SimpleNamespace(hub_register_providers=hub_register_providers)


def endpoints(provider: Callable[[Config], object] = GoodEndpoints, **fields: Any) -> Any:
    """Builds a plugin module with one type that brings endpoints."""
    return plugin(provider, EndpointProviderType, **fields)


def suite(under_test: Any, *, breakable: bool = True) -> ProviderConformance:
    """Builds the conformance suite of a plugin."""

    class Suite(ProviderConformance):
        plugin = under_test
        name = "mine"
        nodes = (
            Node("n1", addresses=(NodeAddress("InternalIP", "10.0.0.1"),)),
            Node("n2", addresses=(NodeAddress("InternalIP", "10.0.0.2"), NodeAddress("InternalIP", "10.0.1.2"))),
            Node("n3"),
        )
        addresses = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2", "10.0.1.2")}

        @asynccontextmanager
        async def breakage(self) -> AsyncIterator[Mapping[str, Any]]:
            yield {"broken": True}

    if not breakable:
        del Suite.breakage
    return Suite()


def rules() -> list[str]:
    """Returns the names of all rules."""
    return sorted(name for name, _ in inspect.getmembers(ProviderConformance) if name.startswith("test_"))


def failing(under_test: Any, *, breakable: bool = True) -> dict[str, str]:
    """Returns the rules that a plugin breaks, with the suite's messages."""
    failed = {}
    for rule in rules():
        try:
            getattr(suite(under_test, breakable=breakable), rule)()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any error is a broken rule
            failed[rule] = f"{type(error).__name__}: {error}"
        except pytest.skip.Exception:
            pass
    return failed


# --- the broken ones ---------------------------------------------------------------------------


class Mistyped(Good):
    def one(self, node: Node) -> Any:
        return Found(["10.0.0.1"]) if node.name == "n1" else super().one(node)  # type: ignore[arg-type]


class Talkative(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        return {**await super().resolve(nodes), "somebody-else": Found(("10.0.0.9",))}


class Blind(Good):
    def one(self, node: Node) -> Resolution:
        return Unknown("cannot see")


class Moody(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        answer = dict(await super().resolve(nodes))
        if "n1" in answer and nodes[0].name != "n1":  # seen from the other end
            answer["n1"] = Found(("10.0.1.1",))
        return answer


class Crowd(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        answer = dict(await super().resolve(nodes))
        if len(nodes) == 1:
            answer["n1"] = Unknown("too few to tell")
        return {name: value for name, value in answer.items() if name in {node.name for node in nodes}}


class FirstOnly(Good):
    def one(self, node: Node) -> Resolution:
        return Found((node.addresses[0].address,)) if node.addresses else Absent("no address")


class Reversed(Good):
    def one(self, node: Node) -> Resolution:
        addresses = tuple(entry.address for entry in reversed(node.addresses[:100]))
        return Found(addresses) if addresses else Absent("no address")


class FirstOnlyEndpoints(GoodEndpoints):
    endpoints = (SnapshotEndpoint("n1", ("10.0.0.1",)), SnapshotEndpoint("n2", ("10.0.0.2",)))


class Labelled(Good):
    def one(self, node: Node) -> Resolution:
        return Found(("10.7.0.1",)) if node.labels.get("changed") else super().one(node)


class Scribbler(Good):
    def one(self, node: Node) -> Resolution:
        node.labels["seen"] = "yes"
        return super().one(node)


class Trusting(Good):
    def one(self, node: Node) -> Resolution:
        if "\0" in node.provider_id:
            raise ValueError("embedded null byte")
        return super().one(node)


class Clinging(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        try:
            await asyncio.sleep(0.1 if nodes[0].name == "n1" else 0)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.6)
        return await super().resolve(nodes)


class Blocking(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        time.sleep(0.15 if nodes[0].name == "n1" else 0)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().resolve(nodes)


class Despairing(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        if self.config.broken:
            return {node.name: Absent("not found") for node in nodes}
        return await super().resolve(nodes)


class Raw(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        if self.config.broken:
            raise ConnectionResetError("peer")
        return await super().resolve(nodes)


class Wordless(Good):
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
        if self.config.broken:
            raise TransientProviderError("")
        return await super().resolve(nodes)


class Shrinking(GoodEndpoints):
    async def watch(self, /) -> AsyncIterator[Any]:
        yield Snapshot(() if self.config.broken else self.endpoints)
        await asyncio.sleep(1e6)


class RawEndpoints(GoodEndpoints):
    async def watch(self, /) -> AsyncIterator[Any]:
        if self.config.broken:
            raise OSError("no such file")
        yield Snapshot(self.endpoints)
        await asyncio.sleep(1e6)


class Twins(GoodEndpoints):
    endpoints = (*GoodEndpoints.endpoints, GoodEndpoints.endpoints[-1])


class Forgetful(GoodEndpoints):
    watches = 0

    async def watch(self, /) -> AsyncIterator[Any]:
        if self.config.broken:
            raise TransientProviderError("the inventory does not answer")
        self.watches += 1
        yield Snapshot(self.endpoints[self.watches - 1 :])
        await asyncio.sleep(1e6)


class Ending(GoodEndpoints):
    async def watch(self, /) -> AsyncIterator[Any]:
        if self.config.broken:
            raise TransientProviderError("the inventory does not answer")
        yield Snapshot(self.endpoints)


class Mute(GoodEndpoints):
    async def watch(self, /) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield Snapshot(self.endpoints)


class ClingingEndpoints(GoodEndpoints):
    async def watch(self, /) -> AsyncIterator[Any]:
        if self.config.broken:
            raise TransientProviderError("the inventory does not answer")
        yield Snapshot(self.endpoints)
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)


def misspelt() -> Any:
    """Builds a plugin with a misspelt hook besides the right one."""
    good = plugin()

    @hookimpl
    def hub_register_provider() -> None:
        """Misspelt."""

    good.hub_register_provider = hub_register_provider
    return good


def dialling() -> Any:
    """Builds a plugin whose hook resolves a host name."""
    types = list(plugin().hub_register_providers())

    def register() -> Any:
        socket.getaddrinfo("127.0.0.1", 80)
        return types

    return module(register)


def slow() -> Any:
    """Builds a plugin whose hook computes for 0.1 s."""
    types = list(plugin().hub_register_providers())

    def register() -> Any:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        return types

    return module(register)


def littering() -> Any:
    """Builds a provider that leaves a task behind."""

    @asynccontextmanager
    async def open_provider(_cluster: object, config: Config, _shared: object) -> AsyncIterator[Any]:
        provider = Good(config)
        provider.task = asyncio.create_task(asyncio.sleep(1e6), name="forgotten")  # type: ignore[attr-defined]
        yield provider

    return plugin(open=open_provider)


def lingering() -> Any:
    """Builds a provider that leaves a thread behind."""
    release = threading.Event()

    @asynccontextmanager
    async def open_provider(_cluster: object, config: Config, _shared: object) -> AsyncIterator[Any]:
        threading.Thread(target=release.wait, args=(30,), name="lingering").start()
        yield Good(config)

    made = plugin(open=open_provider)
    made.release = release
    return made


def greedy() -> Any:
    """Builds a provider whose clusters share a resource that is closed with the first of them."""
    state = {"open": 0}

    class Shared(Good):
        async def resolve(self, nodes: Sequence[Node], /) -> Mapping[Any, Any]:
            if not state["open"]:
                raise TransientProviderError("closed")
            return await super().resolve(nodes)

    @asynccontextmanager
    async def open_provider(_cluster: object, config: Config, _shared: object) -> AsyncIterator[Any]:
        state["open"] = 1
        try:
            yield Shared(config)
        finally:
            state["open"] = 0

    return plugin(open=open_provider)


class LaxConfig(BaseModel):
    broken: bool = False


class OpaqueConfig(Config):
    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> Any:
        raise TypeError("no schema")


BROKEN: list[tuple[str, Callable[[], Any]]] = [
    ("test_registers_through_the_hook", lambda: module(lambda: [*plugin().hub_register_providers(), "another"])),
    ("test_name_is_the_entry_points", lambda: plugin(name="yours")),
    ("test_registering_is_quick_and_does_no_io", dialling),
    ("test_registering_is_quick_and_does_no_io", slow),
    ("test_declares_what_the_hub_understands", lambda: plugin(api_version=99)),
    ("test_declares_what_the_hub_understands", lambda: plugin(poll_interval=-1)),
    ("test_declares_what_the_hub_understands", lambda: plugin(reads=frozenset({"addresses", "uid"}))),
    ("test_configuration_refuses_unknown_keys", lambda: plugin(config=LaxConfig)),
    ("test_configuration_has_a_schema", lambda: plugin(config=OpaqueConfig)),
    ("test_closes_cleanly", littering),
    ("test_closes_cleanly", lingering),
    ("test_opens_for_several_clusters", greedy),
    ("test_answers_with_resolutions", lambda: plugin(Mistyped)),
    ("test_answers_only_for_nodes_asked", lambda: plugin(Talkative)),
    ("test_finds_something", lambda: plugin(Blind)),
    ("test_answers_with_every_address", lambda: plugin(FirstOnly)),
    ("test_answers_with_every_address", lambda: plugin(Reversed)),
    ("test_answers_with_every_address", lambda: endpoints(FirstOnlyEndpoints)),
    ("test_same_question_same_answer", lambda: plugin(Moody)),
    ("test_an_answer_does_not_depend_on_the_batch", lambda: plugin(Crowd)),
    ("test_reads_names_every_field_an_answer_depends_on", lambda: plugin(Labelled)),
    ("test_leaves_nodes_as_they_are", lambda: plugin(Scribbler)),
    ("test_survives_hostile_nodes", lambda: plugin(Trusting)),
    ("test_lets_go_when_cancelled", lambda: plugin(Clinging)),
    ("test_does_not_block_the_event_loop", lambda: plugin(Blocking)),
    ("test_broken_is_not_absent", lambda: plugin(Despairing)),
    ("test_broken_is_not_a_smaller_fleet", lambda: endpoints(Shrinking)),
    ("test_errors_are_provider_errors", lambda: plugin(Raw)),
    ("test_errors_are_provider_errors", lambda: plugin(Wordless)),
    ("test_errors_are_provider_errors", lambda: endpoints(RawEndpoints)),
    ("test_gives_a_first_snapshot", lambda: endpoints(Twins)),
    ("test_watching_again_gives_the_same", lambda: endpoints(Forgetful)),
    ("test_a_watch_never_ends", lambda: endpoints(Ending)),
    ("test_watch_lets_go_when_cancelled", lambda: endpoints(ClingingEndpoints)),
]


@pytest.mark.parametrize("good", [plugin, endpoints])
def test_a_good_provider_breaks_no_rule(good: Callable[[], Any]) -> None:
    """The good example providers pass all rules."""
    assert failing(good()) == {}


def test_a_provider_without_configuration_breaks_no_rule() -> None:
    """A provider without configuration that contacts no other system passes all rules."""

    @asynccontextmanager
    async def open_provider(_cluster: object, config: NoConfig, _shared: object) -> AsyncIterator[Any]:
        assert config == NoConfig()
        yield Good(Config())

    assert failing(plugin(config=NoConfig, open=open_provider), breakable=False) == {}


def test_provider_without_a_snapshot_fails_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that yields no snapshot fails at the deadline instead of hanging the test run."""
    monkeypatch.setattr(harness, "DEADLINE", 0.1)
    with pytest.raises(TimeoutError):
        suite(endpoints(Mute)).test_gives_a_first_snapshot()


@pytest.mark.parametrize(("rule", "broken"), BROKEN, ids=[f"{rule}-{index}" for index, (rule, _) in enumerate(BROKEN)])
def test_a_broken_provider_breaks_its_rule_and_no_other(
    rule: str, broken: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken provider fails the rule that it breaks and no other."""
    if broken is slow:
        monkeypatch.setattr(conformance, "QUICK", 0.05)
    if rule == "test_does_not_block_the_event_loop":
        monkeypatch.setattr(conformance, "MAX_BLOCK", 0.1)
    if "lets_go" in rule:
        monkeypatch.setattr(conformance, "LET_GO", 0.3)
    under_test = broken()
    try:
        assert list(failing(under_test)) == [rule]
    finally:
        if release := getattr(under_test, "release", None):
            release.set()


def test_every_rule_has_a_broken_provider() -> None:
    """Every rule has a provider that breaks it."""
    assert sorted({rule for rule, _ in BROKEN}) == rules()


def test_a_misspelt_hook_is_found() -> None:
    """A misspelt hook, which the hub would never call, is reported as unknown."""
    assert "unknown hook" in failing(misspelt())["test_registers_through_the_hook"]


def test_rules_that_do_not_apply_are_skipped() -> None:
    """Rules about failures and endpoints are skipped for a node provider without ``breakage()``."""

    class Suite(ProviderConformance):
        plugin = plugin()
        name = "mine"

    for rule in ("test_broken_is_not_absent", "test_errors_are_provider_errors", "test_gives_a_first_snapshot"):
        with pytest.raises(pytest.skip.Exception):
            getattr(Suite(), rule)()


def test_every_field_a_type_may_read_is_varied() -> None:
    """The rule about ``reads`` varies every Node field that a type may read."""
    assert set(OTHER_VALUES) == ALL_FIELDS
