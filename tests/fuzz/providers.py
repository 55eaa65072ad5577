"""Targets: answers of providers, which may be any Python values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from hypothesis import strategies as st

from hub.decide.snapshot_view import view_of_snapshot
from hub.decide.view import ViewBuilder
from hub.model import Absent, Found, Hints, ObjectReference, Port, Unknown
from hub.observe.providers.endpoints import EndpointWatch
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.resolver import Resolver
from hub.plugin import Snapshot, SnapshotEndpoint
from hub.registry.spec import NodePolicy, ProviderRef
from tests.fuzz.checks import ACCEPTED, ALLOWED, CANARY, NOW, REFUSED, check_message, check_publishable
from tests.fuzz.mutate import NASTY
from tests.fuzz.servers import LOOP
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, within
from tests.unit.observe.providers.plugins import Scripted, Streamed, catalog_of, found, node


class Text(str):
    """A string of a subclass that a plugin defines."""

    __slots__ = ()


class Liar(Mapping[str, Any]):
    """A mapping whose methods raise errors."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(CANARY)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        return -1


TEXTS: Final = ("10.0.0.1", "fd00::1", "127.0.0.1", "a", "", "\ud800", "a\nb", "x" * 70_000, Text("10.0.0.1"), "\x00")
ODD: Final = st.sampled_from(
    [*TEXTS, *TEXTS, *NASTY, b"10.0.0.1", object(), 3 + 4j, float, Liar(), RuntimeError("no"), (), ("a", 1), ("",)]
)


@st.composite
def mostly_valid(draw: st.DrawFn, type_: type[Any], /, **good: Any) -> Any:
    """A value of a type in which up to two fields may have values that its annotations forbid."""
    odd = draw(st.lists(st.sampled_from(sorted(good)), max_size=2))
    return type_(**{name: draw(ODD) if name in odd else value for name, value in good.items()})


@st.composite
def snapshot_of(draw: st.DrawFn) -> Any:
    """A Snapshot of up to three endpoints."""
    reference, zones = (
        draw(mostly_valid(ObjectReference, kind="Node", name="n1")),
        draw(mostly_valid(Hints, for_zones=())),
    )
    ports = (draw(mostly_valid(Port, name="https", port=443, protocol="TCP", app_protocol=None)),)
    endpoints = [
        draw(
            mostly_valid(
                SnapshotEndpoint, name=f"e{n}", addresses=(f"10.0.0.{n}",), ready=True, serving=True, terminating=False,
                zone="a", hostname="h", node_name="n1", target_ref=draw(st.sampled_from((None, reference))),
                hints=draw(st.sampled_from((None, zones))), ports=draw(st.sampled_from((None, ports))),
            )
        )
        for n in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    return draw(
        mostly_valid(
            Snapshot,
            endpoints=tuple(endpoints),
            complete=True,
            ports=None,
            problems=("one is left out",),
            copied=draw(st.booleans()),
        )
    )


RESOLUTIONS: Final = st.one_of(
    mostly_valid(Found, addresses=("10.0.0.7", "fd00::7"), zone="a"),
    mostly_valid(Absent, reason="none"),
    mostly_valid(Unknown, reason="no"),
    ODD,
)
ANSWERS: Final = st.dictionaries(st.sampled_from(("a", "b", "zz", "\ud800", 0, None)), RESOLUTIONS, max_size=3) | ODD
SNAPSHOTS: Final = snapshot_of() | ODD


async def _resolved(offered: Any) -> str:
    """A provider answers well, and then with this value: an address stays known unless a valid answer changes it."""
    provider = Scripted(found, lambda _: offered)
    host = ProviderHost(catalog_of(provider.type()), clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
    host.catalog.load("scripted")
    resolver = Resolver("c1", ProviderRef("scripted"), host, lambda: None)
    async with running(resolver.run(), host):
        resolver.update([node("a"), node("b", "10.0.0.2")])
        await within(5, resolver.settled())
        assert resolver.status.state == "ready"
        resolver.update([node("a", "10.0.0.9"), node("b", "10.0.0.8")])
        await within(5, resolver.settled())
        known = dict(resolver.resolutions)
        assert all(isinstance(said, Found) for said in known.values())
        status = resolver.status
        if status.state == "degraded":
            assert known == {"a": Found(("10.0.0.1",)), "b": Found(("10.0.0.2",))}
            check_message(status.error)
        check_publishable(
            ViewBuilder("c1", NodePolicy(), ALLOWED, 5_000).build({"a": node("a"), "b": node("b")}, known, NOW)
        )
        await asyncio.sleep(100)
        assert resolver.status.state == "ready"
    return REFUSED if status.state == "degraded" else ACCEPTED


async def _followed(offered: Any) -> str:
    """The same for a provider that brings endpoints."""
    good = Snapshot((SnapshotEndpoint("a", ("10.0.0.1",)),))
    provider = Streamed([good, 1.0, offered, 1e9], [good, 1e9])
    host = ProviderHost(catalog_of(provider.type()), clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
    host.catalog.load("streamed")
    watch = EndpointWatch("legacy", ProviderRef("streamed"), host, lambda: None)
    async with running(watch.run(), host):
        await asyncio.sleep(1.5)
        status, followed = watch.status, watch.snapshot
        assert followed is not None
        if status.state == "degraded":
            assert followed == good
            check_message(status.error)
        check_publishable(view_of_snapshot("legacy", followed, None, ALLOWED, 5_000))
        await asyncio.sleep(100)
        assert watch.status.state == "ready"
    return REFUSED if status.state == "degraded" else ACCEPTED


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None], host: ProviderHost) -> AsyncIterator[None]:
    """Run a task of the hub, which must not end by itself."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await host.close()


def resolutions(offered: Any) -> str:
    """See :func:`_resolved`."""
    return LOOP.run_until_complete(_resolved(offered))


def snapshots(offered: Any) -> str:
    """See :func:`_followed`."""
    if isinstance(offered, float | RuntimeError):  # floats and errors are commands to the script: wait and raise
        offered = [offered]
    return LOOP.run_until_complete(_followed(offered))
