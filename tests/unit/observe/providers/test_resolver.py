"""Resolving nodes with a NodeProvider, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from hub.model import Absent, Found, Node, Resolution, Unknown
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.resolver import Resolver
from hub.plugin import (
    EndpointProviderType,
    NoConfig,
    NodeProviderType,
    ProviderType,
    TerminalProviderError,
    TransientProviderError,
)
from hub.registry.spec import ProviderRef
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, anything, within
from tests.unit.observe.providers.plugins import Scripted, catalog_of, found, node

VIRTUAL_TIME = True


class Bench:
    """A Resolver of one provider type, and its host."""

    def __init__(self, type_: ProviderType) -> None:
        self.changes = 0
        self.host = ProviderHost(catalog_of(type_), clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
        self.host.catalog.load(type_.name)  # imports run in a thread, which virtual time would overtake
        self.resolver = Resolver("c1", ProviderRef(type_.name), self.host, self._changed)

    def _changed(self) -> None:
        self.changes += 1


Make = Callable[..., Awaitable[Resolver]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Start a Resolver of a provider or type with ``make(provider)``."""
    tasks: list[asyncio.Task[None]] = []
    hosts: list[ProviderHost] = []

    async def start(provider: Scripted | ProviderType, **fields: Any) -> Resolver:
        bench = Bench(provider if isinstance(provider, ProviderType) else provider.type(**fields))
        bench.resolver.bench = bench  # type: ignore[attr-defined]
        hosts.append(bench.host)
        tasks.append(asyncio.create_task(bench.resolver.run()))
        return bench.resolver

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for host in hosts:
        await host.close()


def said(resolver: Resolver, name: str) -> Resolution:
    """The resolution of a node."""
    return resolver.resolutions[name]


async def hang(_: Sequence[Node]) -> dict[str, Found]:
    """Never answer."""
    await asyncio.sleep(1e6)
    return {}


async def test_resolver_answers_for_every_node(make: Make) -> None:
    """All new nodes are resolved with one call, sorted by name."""
    provider = Scripted()
    resolver = await make(provider)
    resolver.update([node("b", "10.0.0.2"), node("a", "10.0.0.1")])
    assert resolver.resolutions == {"a": Unknown("not resolved yet"), "b": Unknown("not resolved yet")}
    await within(1, resolver.settled())
    assert resolver.resolutions == {"a": Found(("10.0.0.1",)), "b": Found(("10.0.0.2",))}
    assert [names for _, names in provider.asked] == [("a", "b")]
    assert resolver.status.state == "ready"
    assert resolver.answers == 1


async def test_readiness_flip_costs_no_call_where_it_is_not_read(make: Make) -> None:
    """A change in a field that the type does not read causes no call."""
    provider = Scripted()
    resolver = await make(provider, reads=frozenset({"addresses"}))
    old = node("a", ready="True")
    resolver.update([old])
    await within(1, resolver.settled())
    new = node("a", ready="False")
    assert not resolver.must_resolve(old, new)
    resolver.update([new])
    await within(1, resolver.settled())
    await asyncio.sleep(3600)
    assert len(provider.asked) == 1
    assert resolver.must_resolve(old, node("a", "10.0.0.9"))


async def test_only_the_changed_node_is_asked_about(make: Make) -> None:
    """Only the changed node is resolved again; the others keep their resolution."""
    provider = Scripted()
    resolver = await make(provider)
    resolver.replace([node("a"), node("b")])
    await within(1, resolver.settled())
    resolver.update([node("b", "10.0.0.7")])
    await within(1, resolver.settled())
    assert [names for _, names in provider.asked] == [("a", "b"), ("b",)]
    assert said(resolver, "b") == Found(("10.0.0.7",))


async def test_replace_forgets_nodes_that_are_gone(make: Make) -> None:
    """A complete list without a node removes its resolution."""
    resolver = await make(Scripted())
    resolver.replace([node("a"), node("b")])
    await within(1, resolver.settled())
    resolver.replace([node("b")])
    assert set(resolver.resolutions) == {"b"}


async def test_a_recreated_node_does_not_inherit_an_address(make: Make) -> None:
    """A new machine of the same name is unknown until it is resolved."""
    resolver = await make(Scripted())
    resolver.replace([node("a", created="2024-01-01T00:00:00Z")])
    await within(1, resolver.settled())
    resolver.replace([node("a", created="2025-01-01T00:00:00Z")])
    assert isinstance(said(resolver, "a"), Unknown)
    await within(1, resolver.settled())
    assert said(resolver, "a") == Found(("10.0.0.1",))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (TransientProviderError("the API is away"), "the API is away"),
        (TerminalProviderError("no such datacenter"), "no such datacenter"),
        (ValueError("oops"), "ValueError: oops"),
        (SystemExit(3), "raised SystemExit"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (asyncio.CancelledError(), "resolve cancelled itself"),
        (hang, "resolve did not end within 30 s"),
        ([1], "TypeError: resolve() returned list, not a mapping"),
        (lambda _: None, "TypeError: resolve() returned NoneType, not a mapping"),
        ({"a": "10.0.0.1"}, "TypeError: resolve() answered str for 'a', not Found, Absent or Unknown"),
        ({"a": None}, "TypeError: resolve() answered None for 'a'"),
        ({"a": Found(())}, "TypeError: resolve() answered Found for 'a' with 0 addresses (1 to 100)"),
        (
            {"a": Found(("10.0.0.1",) * 100_000)},
            "TypeError: resolve() answered Found for 'a' with 100000 addresses (1 to 100)",
        ),
        (
            {"a": Found(["10.0.0.1"])},  # type: ignore[arg-type]
            "TypeError: resolve() answered Found for 'a' whose addresses are not a tuple of strings",
        ),
    ],
)
async def test_a_failed_answer_keeps_every_address(make: Make, broken: object, says: str) -> None:
    """After any failure known nodes keep their address, and new ones are unknown with the error as reason."""
    provider = Scripted(found, broken)
    resolver = await make(provider)
    resolver.update([node("a")])
    await within(1, resolver.settled())
    resolver.update([node("a", "10.0.0.9"), node("new")])
    await within(40, resolver.settled())
    assert resolver.resolutions == {"a": Found(("10.0.0.1",)), "new": Unknown(says)}
    assert resolver.status.state == "degraded"
    assert resolver.status.error == says


async def test_a_failure_is_retried_with_backoff_until_it_works(make: Make) -> None:
    """The delay between retries doubles until a call succeeds."""
    provider = Scripted(*[TransientProviderError("away")] * 4)
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(60)
    times = [at for at, _ in provider.asked]
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(times)]
    assert len(times) == 5
    assert all(base <= gap <= base * 1.2 for base, gap in zip((1, 2, 4, 8), gaps, strict=True))
    assert resolver.status.state == "ready"
    assert resolver.failures == 4


async def test_retry_after_is_honoured_within_reason(make: Make) -> None:
    """A Retry-After longer than the backoff counts, up to an hour; invalid ones are ignored."""
    provider = Scripted(
        TransientProviderError("busy", retry_after=90),
        TransientProviderError("busy", retry_after=float("nan")),
        TransientProviderError("busy", retry_after=-5),
        TransientProviderError("busy", retry_after=1e12),
    )
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(2 * 3600)
    times = [at for at, _ in provider.asked]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 89.9 < gaps[0] < 91
    assert gaps[1] < 5
    assert gaps[2] < 10
    assert 3599 < gaps[3] < 3700


async def test_new_nodes_wait_for_the_backoff(make: Make) -> None:
    """New nodes are not resolved before the Retry-After ends."""
    provider = Scripted(TransientProviderError("busy", retry_after=60))
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(10)
    resolver.update([node("b")])
    await asyncio.sleep(45)
    assert len(provider.asked) == 1
    await asyncio.sleep(10)
    assert [names for _, names in provider.asked] == [("a",), ("a", "b")]


async def test_a_terminal_error_is_not_retried(make: Make) -> None:
    """After a terminal error the next call comes only after ``changed``."""
    provider = Scripted(TerminalProviderError("wrong datacenter"))
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(86_400)
    assert len(provider.asked) == 1
    assert resolver.status.terminal
    for _ in range(1000):
        resolver.changed()
    await asyncio.sleep(2)
    assert resolver.resolutions == {"a": Found(("10.0.0.1",))}
    assert len(provider.asked) == 2


async def test_a_terminal_error_is_asked_again_when_a_credential_changed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a terminal error, a changed credential causes a new call."""
    monkeypatch.setenv("SOME_TOKEN", "old-token")
    provider = Scripted(TerminalProviderError("401"))

    @asynccontextmanager
    async def open_provider(cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        await cluster.hub.secret({"env": "SOME_TOKEN"}).get()
        yield provider

    resolver = await make(NodeProviderType("scripted", open_provider, NoConfig))
    resolver.update([node("a")])
    await asyncio.sleep(600)
    assert len(provider.asked) == 1
    monkeypatch.setenv("SOME_TOKEN", "new-token")
    await asyncio.sleep(20)
    assert len(provider.asked) == 2
    assert resolver.status.state == "ready"


class Refused:
    """A provider that fails unless its token is the new one; answers after ``seconds``."""

    def __init__(self, token: Any, seconds: float = 0.0) -> None:
        self._token = token
        self._seconds = seconds

    async def resolve(self, nodes: Sequence[Node], /) -> dict[str, Resolution]:
        """Read the token first and answer later, as a cloud API does."""
        token = await self._token.get()
        await asyncio.sleep(self._seconds)
        if token != "new-token":
            raise TerminalProviderError("401")
        return found(nodes)

    @classmethod
    def type(cls, *seconds: float) -> ProviderType:
        """A type whose providers answer after these seconds, one for each cluster."""
        left = list(seconds)

        @asynccontextmanager
        async def open_provider(cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
            yield cls(cluster.hub.secret({"env": "SOME_TOKEN"}), left.pop(0))

        return NodeProviderType("scripted", open_provider, NoConfig)


async def test_a_renewed_credential_counts_for_all_clusters_that_wait_for_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clusters notice a new credential, even if another one read it first or a call was under way."""
    monkeypatch.setenv("SOME_TOKEN", "old-token")
    host = (first := await make(Refused.type(0.0, 0.0, 20.0))).bench.host  # type: ignore[attr-defined]
    others = [Resolver(name, ProviderRef("scripted"), host, anything) for name in ("c2", "c3")]
    running = [asyncio.create_task(other.run()) for other in others]
    try:
        for resolver in (first, *others):
            resolver.update([node("a")])
            await asyncio.sleep(5)
        await asyncio.sleep(605)
        others[1].changed()
        await asyncio.sleep(5)
        monkeypatch.setenv("SOME_TOKEN", "new-token")
        await asyncio.sleep(60)
        assert [resolver.status.state for resolver in (first, *others)] == ["ready", "ready", "ready"]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_renewed_credential_is_noticed_while_nodes_change(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent changes of nodes do not prevent the check of the credentials."""
    monkeypatch.setenv("SOME_TOKEN", "old-token")
    resolver = await make(Refused.type(0.0))
    resolver.update([node("a")])
    await asyncio.sleep(1)
    monkeypatch.setenv("SOME_TOKEN", "new-token")
    for number in range(10):
        resolver.update([node("a", f"10.0.0.{number}")])
        await asyncio.sleep(3)
    assert resolver.status.state == "ready"


async def test_error_texts_never_show_a_credential(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that the provider has read are removed from error texts."""
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-token")
    provider = Scripted(ValueError("Authorization: Bearer s3cr3t-token is wrong"))

    @asynccontextmanager
    async def open_provider(cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        await cluster.hub.secret({"env": "SOME_TOKEN"}).get()
        yield provider

    resolver = await make(NodeProviderType("scripted", open_provider, NoConfig))
    resolver.update([node("a")])
    await within(1, resolver.settled())
    assert resolver.status.error == "ValueError: Authorization: Bearer *** is wrong"


async def test_polls_ask_about_everything_with_jitter(make: Make) -> None:
    """Each poll resolves all nodes, at intervals that vary by up to a tenth, and counts as an answer."""
    provider = Scripted()
    resolver = await make(provider, poll_interval=10.0)
    resolver.replace([node("a"), node("b")])
    await asyncio.sleep(100)
    times = [at for at, _ in provider.asked]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(9 <= gap <= 11 for gap in gaps)
    assert len(set(gaps)) > 1
    assert {names for _, names in provider.asked} == {("a", "b")}
    assert resolver.answers == len(times)


async def test_the_poll_interval_may_depend_on_the_configuration(make: Make) -> None:
    """The interval may be a function of the configuration, and is at least one second."""
    provider = Scripted()
    resolver = await make(provider, poll_interval=lambda _config: 0.001)
    resolver.update([node("a")])
    await asyncio.sleep(10)
    assert 9 <= len(provider.asked) <= 13


async def test_absent_counts_when_a_second_answer_agrees(make: Make) -> None:
    """The first "absent" keeps the address; the second one, 2 s later, removes it."""
    gone = {"a": Absent("deleted")}
    provider = Scripted(found, gone, gone)
    resolver = await make(provider)
    resolver.update([node("a")])
    await within(1, resolver.settled())
    resolver.update([node("a", "10.0.0.2")])
    await within(1, resolver.settled())
    assert said(resolver, "a") == Found(("10.0.0.1",))
    await asyncio.sleep(1.9)
    assert said(resolver, "a") == Found(("10.0.0.1",))
    await asyncio.sleep(0.2)
    assert said(resolver, "a") == Absent("deleted")
    assert len(provider.asked) == 3


async def test_absent_of_a_polled_type_waits_a_whole_interval_and_costs_one_poll(make: Make) -> None:
    """For a polled type, the confirmation resolves all nodes a full interval later, and replaces a poll."""
    gone = {"a": Absent("deleted"), "b": Found(("10.0.0.1",))}
    provider = Scripted(found, gone, gone)
    resolver = await make(provider, poll_interval=30.0)
    resolver.replace([node("a"), node("b")])
    await asyncio.sleep(75)
    _, (second, _), (third, names), *_ = provider.asked
    assert third - second == pytest.approx(30.0, abs=3.1)
    assert isinstance(said(resolver, "a"), Found) or third - second >= 30.0
    await asyncio.sleep(30)
    assert names == ("a", "b")
    assert len(provider.asked) <= 5


async def test_found_again_cancels_a_first_absent(make: Make) -> None:
    """If the node is found again, the first "absent" no longer counts."""
    gone = {"a": Absent("deleted")}
    provider = Scripted(found, gone, found, gone)
    resolver = await make(provider)
    resolver.update([node("a")])
    await within(1, resolver.settled())
    resolver.changed()
    await asyncio.sleep(5)
    assert said(resolver, "a") == Found(("10.0.0.1",))
    assert len(provider.asked) == 3
    resolver.changed()
    await asyncio.sleep(1)
    assert said(resolver, "a") == Found(("10.0.0.1",))


async def test_absent_of_a_node_never_known_is_unknown_until_confirmed(make: Make) -> None:
    """After a restart, a single "absent" makes the node unknown, so that its endpoint stays."""
    gone = {"a": Absent("deleted")}
    resolver = await make(Scripted(gone, gone))
    resolver.update([node("a")])
    await within(1, resolver.settled())
    assert said(resolver, "a") == Unknown("to be confirmed: deleted")
    await asyncio.sleep(3)
    assert said(resolver, "a") == Absent("deleted")


async def test_unknown_and_omitted_keep_a_known_address(make: Make) -> None:
    """An answer without the node, or with "unknown", keeps a known address."""
    resolver = await make(Scripted(found, {"a": Unknown("ambiguous")}))
    resolver.replace([node("a"), node("b")])
    await within(1, resolver.settled())
    resolver.replace([node("a", "10.0.0.8"), node("b", "10.0.0.9"), node("c")])
    await within(1, resolver.settled())
    assert resolver.resolutions == {
        "a": Found(("10.0.0.1",)),
        "b": Found(("10.0.0.1",)),
        "c": Unknown("the provider's answer does not mention this node"),
    }


async def test_answers_for_other_nodes_are_counted_and_ignored(make: Make) -> None:
    """Names that were not asked for are counted and ignored."""
    extra = {f"x{number}": Found(("10.0.0.1",)) for number in range(100_000)}
    resolver = await make(Scripted({**extra, "a": Found(("10.0.0.5",))}))
    resolver.update([node("a")])
    await within(1, resolver.settled())
    assert resolver.resolutions == {"a": Found(("10.0.0.5",))}
    assert resolver.ignored == 100_000


async def test_an_answer_about_an_older_record_is_dropped(make: Make) -> None:
    """If a node changes during a call, the answer is ignored and the node is resolved again."""

    async def slow(nodes: Sequence[Node]) -> Any:
        await asyncio.sleep(5)
        return found(nodes)

    provider = Scripted(slow, slow)
    resolver = await make(provider)
    resolver.update([node("a", "10.0.0.1")])
    await asyncio.sleep(1)
    resolver.update([node("a", "10.0.0.2")])
    await asyncio.sleep(5)
    assert isinstance(said(resolver, "a"), Unknown)
    await within(10, resolver.settled())
    assert said(resolver, "a") == Found(("10.0.0.2",))


async def test_a_node_removed_while_asked_about_stays_gone(make: Make) -> None:
    """An answer does not bring back a node that was removed during the call."""

    async def slow(nodes: Sequence[Node]) -> Any:
        await asyncio.sleep(5)
        return found(nodes)

    resolver = await make(Scripted(slow))
    resolver.update([node("a")])
    await asyncio.sleep(1)
    resolver.update(removed=["a"])
    await asyncio.sleep(10)
    assert resolver.resolutions == {}


async def test_a_call_that_ignores_cancellation_is_left_behind_and_not_repeated(make: Make) -> None:
    """The provider is not called while an abandoned call still runs."""

    async def stubborn(nodes: Sequence[Node]) -> Any:
        end = asyncio.get_running_loop().time() + 300
        while asyncio.get_running_loop().time() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
        return found(nodes)

    provider = Scripted(stubborn)
    resolver = await make(provider)
    resolver.update([node("a")])
    await within(40, resolver.settled())
    assert resolver.status.error == "resolve did not end within 30 s and ignores cancellation"
    await asyncio.sleep(200)
    assert len(provider.asked) == 1
    await asyncio.sleep(200)
    assert len(provider.asked) == 2
    assert resolver.status.state == "ready"


async def test_cancelling_the_resolver_ends_a_call_and_closes_the_provider(make: Make) -> None:
    """Stopping cancels the call within the grace period and closes the provider."""
    provider = Scripted(hang)
    bench = Bench(provider.type())
    task = asyncio.create_task(bench.resolver.run())
    bench.resolver.update([node("a")])
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() - before < 2
    assert (provider.opened, provider.closed) == (1, 1)


def dying(seconds: float, opened: list[float]) -> ProviderType:
    """A type whose background task fails this long after each opening; notes the times of opening."""

    @asynccontextmanager
    async def open_provider(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        opened.append(asyncio.get_running_loop().time())

        async def die() -> None:
            await asyncio.sleep(seconds)
            raise RuntimeError("lost the stream")

        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            yield Scripted()

    return NodeProviderType("scripted", open_provider, NoConfig)


async def test_a_provider_whose_background_task_dies_is_opened_again(make: Make) -> None:
    """If a background task fails, the provider is degraded and opened again; resolutions stay."""
    opened: list[float] = []
    resolver = await make(dying(100, opened))
    resolver.update([node("a")])
    await asyncio.sleep(99)
    assert resolver.status.state == "ready"
    await asyncio.sleep(1.5)
    assert resolver.status.error == "RuntimeError: lost the stream"
    assert resolver.resolutions == {"a": Found(("10.0.0.1",))}
    await asyncio.sleep(5)
    assert len(opened) == 2
    assert resolver.status.state == "ready"


async def test_a_provider_that_dies_after_each_answer_is_opened_ever_less_often(make: Make) -> None:
    """An answer soon after opening does not reset the backoff."""
    opened: list[float] = []
    resolver = await make(dying(0.5, opened))
    resolver.update([node("a")])
    await asyncio.sleep(300)
    gaps = [later - earlier - 0.5 for earlier, later in pairwise(opened)]
    assert 8 <= len(gaps) <= 9
    assert all(base <= gap <= base * 1.25 for base, gap in zip((1, 2, 4, 8, 16, 32, 60, 60), gaps, strict=False)), gaps
    assert resolver.resolutions == {"a": Found(("10.0.0.1",))}


async def test_an_answer_of_a_provider_that_lasts_ends_the_backoff(make: Make) -> None:
    """An answer of a provider that has been open for a while resets the backoff."""
    failure = TransientProviderError("hiccup")
    provider = Scripted(found, *[failure, found] * 5)
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(70)
    for number in range(5):
        resolver.update([node("a", f"10.0.1.{number}")])
        await asyncio.sleep(10)
    assert resolver.failures == 5
    gaps = [later - earlier for (earlier, _), (later, _) in list(pairwise(provider.asked))[1::2]]
    assert all(1 <= gap <= 1.2 for gap in gaps), gaps


@pytest.mark.parametrize("broken", [RuntimeError("no"), TransientProviderError("no"), SystemExit(1), "hang"])
async def test_a_provider_that_does_not_open_is_tried_again(make: Make, broken: Any) -> None:
    """A failure to open is retried like a failed call."""
    tries = 0

    @asynccontextmanager
    async def open_provider(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        nonlocal tries
        tries += 1
        if tries == 1:
            if broken == "hang":
                await asyncio.sleep(1e6)
            raise broken
        yield Scripted()

    resolver = await make(NodeProviderType("scripted", open_provider, NoConfig))
    resolver.update([node("a")])
    await within(40, resolver.settled())
    assert resolver.status.state == "degraded"
    await asyncio.sleep(5)
    assert resolver.resolutions == {"a": Found(("10.0.0.1",))}


async def test_shared_is_opened_once_for_all_clusters_and_closed_with_the_host() -> None:
    """``shared`` is opened once for all clusters, and closed with the host."""
    events: list[str] = []

    @asynccontextmanager
    async def shared(_hub: Any) -> AsyncIterator[str]:
        events.append("shared opened")
        yield "the cache"
        events.append("shared closed")

    @asynccontextmanager
    async def open_provider(cluster: Any, _config: Any, value: Any) -> AsyncIterator[Any]:
        events.append(f"{cluster.name} got {value}")
        yield Scripted()

    type_ = NodeProviderType("scripted", open_provider, NoConfig, shared=shared)
    bench = Bench(type_)
    other = Resolver("c2", ProviderRef("scripted"), bench.host, lambda: None)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(item.run()) for item in (bench.resolver, other)]
        for item in (bench.resolver, other):
            item.update([node("a")])
            await within(1, item.settled())
        for task in tasks:
            task.cancel()
    await bench.host.close()
    assert events == ["shared opened", "c1 got the cache", "c2 got the cache", "shared closed"]


async def test_an_idle_resolver_opens_nothing(make: Make) -> None:
    """Without nodes the provider is not opened."""
    provider = Scripted()
    await make(provider, poll_interval=1.0)
    await asyncio.sleep(100)
    assert provider.opened == 0


async def test_changed_during_a_call_causes_another_call(make: Make) -> None:
    """``changed`` during a call causes another call, since the answer may be older than the change."""
    address = "10.0.0.1"

    async def slow(nodes: Sequence[Node]) -> Any:
        answer = {node.name: Found((address,)) for node in nodes}
        await asyncio.sleep(5)
        return answer

    provider = Scripted(slow, slow)
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(1)
    address = "10.0.0.2"
    resolver.changed()
    await asyncio.sleep(60)
    assert said(resolver, "a") == Found(("10.0.0.2",))
    assert len(provider.asked) == 2


async def test_changed_is_rate_limited(make: Make) -> None:
    """A provider that calls ``changed`` in every ``resolve`` is called about once a second."""
    resolver: Resolver | None = None

    def again(nodes: Sequence[Node]) -> Any:
        assert resolver is not None
        resolver.changed()
        return found(nodes)

    provider = Scripted(*[again] * 1000)
    resolver = await make(provider)
    resolver.update([node("a")])
    await asyncio.sleep(10)
    assert len(provider.asked) <= 12


async def test_on_change_is_called_only_for_changes(make: Make) -> None:
    """Polls with equal answers do not call ``on_change``."""
    resolver = await make(Scripted(), poll_interval=1.0)
    resolver.update([node("a")])
    await asyncio.sleep(100)
    assert resolver.bench.changes == 1  # type: ignore[attr-defined]
    version = resolver.version
    resolver.update([node("a", "10.0.0.9")])
    await within(1, resolver.settled())
    assert resolver.bench.changes == 2  # type: ignore[attr-defined]
    assert resolver.version > version


async def test_a_type_that_brings_endpoints_cannot_resolve(make: Make) -> None:
    """A type that brings endpoints is a terminal error that says so."""
    resolver = await make(Scripted(), kind=EndpointProviderType)
    resolver.update([node("a")])
    await within(1, resolver.settled())
    assert resolver.status.error == "provider 'scripted' brings endpoints and resolves no nodes"
    assert resolver.status.terminal
