"""The cache of snapshots and answers: how long each is used, and what makes a new one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hub.events.timeline import Span
from hub.model import TargetKey
from hub.report.site import ANSWER_SECONDS, ANSWERS, SNAPSHOT_SECONDS, Site
from tests.support import build
from tests.unit.report.still import KEY, StillHub, registry


def standing(**more: Any) -> tuple[StillHub, Site]:
    """A hub that does not run, and its site."""
    timelines = SimpleNamespace(since=5, clusters={"eu": (Span(5, "Ready"),)})
    hub = StillHub(timelines=timelines, **more)
    return hub, Site(cast("Any", hub))


def test_snapshot_is_used_for_half_a_second() -> None:
    """A later snapshot has the present time, and a new version only if the status differs."""
    hub, site = standing()
    first = site.snapshot()
    assert (first.at, first.since, first.states) == (1.8e9, 5, {"eu": (Span(5, "Ready"),)})
    assert first.version.endswith("-1")
    hub.trouble = "403"
    hub.clock.advance(SNAPSHOT_SECONDS / 2)
    assert site.snapshot() is first
    hub.trouble = ""
    hub.clock.advance(SNAPSHOT_SECONDS / 2)
    second = site.snapshot()
    assert (second.version, second.at) == (first.version, 1.8e9 + SNAPSHOT_SECONDS)
    assert second.status is first.status
    hub.trouble = "403"
    hub.clock.advance(SNAPSHOT_SECONDS)
    third = site.snapshot()
    assert (third.version, third.status.hub.error) == (first.version[:-1] + "2", "403")


async def test_answer_is_used_for_a_second_and_for_one_object() -> None:
    """An answer is computed again after a second, or when it is about another object."""
    hub, site = standing()
    made: list[int] = []

    async def make() -> int:
        made.append(len(made))
        return made[-1]

    one, other = object(), object()
    assert [await site.cached("a", make, of=one) for _ in range(2)] == [0, 0]
    assert await site.cached("a", make, of=other) == 1
    assert await site.cached("b", make) == 2
    hub.clock.advance(ANSWER_SECONDS - 0.25)
    assert await site.cached("a", make, of=other) == 1
    hub.clock.advance(0.25)
    assert await site.cached("a", make, of=other) == 3
    await site.close()


async def test_full_cache_drops_the_oldest_answer() -> None:
    """The number of answers is bounded; the newest are kept."""
    _, site = standing()
    made: list[int] = []

    async def ask(key: int) -> None:
        async def make() -> None:
            made.append(key)

        await site.cached(key, make)

    for key in (*range(ANSWERS), 0, ANSWERS, 1, 0):
        await ask(key)
    assert made == [*range(ANSWERS), ANSWERS, 0]


def test_changes_are_those_since_the_last_call() -> None:
    """A new decision changes its target, a new view or new Nodes their cluster; a removed cluster is no change."""
    hub, site = standing(registry=registry("eu", "us"))
    views = {name: object() for name in ("eu", "us")}
    hub.reconciler.view = lambda source: views[source.cluster]
    hub.fleet.clusters = {name: SimpleNamespace(version=1) for name in ("eu", "idle")}
    assert (site.changed_targets(), site.changed_clusters()) == (set(), {"eu", "us", "idle"})
    assert site.changed_clusters() == set()
    views["us"] = object()
    hub.fleet.clusters["idle"].version = 2
    assert site.changed_clusters() == {"us", "idle"}
    del hub.fleet.clusters["idle"]
    assert site.changed_clusters() == set()
    hub.decided(build.decision())
    assert (site.changed_targets(), site.changed_targets()) == ({KEY}, set())
    hub.registry = registry("eu", targets={TargetKey("edge", "orders"): build.target(name="orders")})
    assert site.changed_targets() == set()
