"""The inputs of a decision from the sources of one target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from hub.decide.checks import Check
from hub.decide.inputs import SourceMemory, inputs_of, unreachable_seconds, view_of_unknown
from hub.decide.snapshot import HubIdentity, SourceReading, TargetSnapshot
from hub.decide.view import ViewResult
from hub.model import FAILED, PUBLISHED, Finding, Slice, SourceView
from hub.registry.spec import (
    ClusterSpec,
    HealthPolicy,
    Registry,
    RegistryHeld,
    UnreachablePolicy,
    cluster_entry,
)
from tests.support import build

SOURCE = build.source("eu", unreachable=UnreachablePolicy(600.0, "remove"))
UNKNOWN = SourceView("eu", "503", {})
KNOWN = SourceView("eu", None, {})


def test_a_policy_that_took_effect_outlives_the_kind_of_the_failure() -> None:
    """Endpoints that an ``unreachable`` policy removed do not come back when refusals turn into 503s."""
    given_up: set[str] = set()
    assert unreachable_seconds(SOURCE, UNKNOWN, 600.0, given_up) == 600.0
    assert unreachable_seconds(SOURCE, UNKNOWN, None, given_up) == 600.0


def test_a_policy_that_took_no_effect_yet_does_not_begin_with_a_503() -> None:
    """A cluster that answers 503 before ``after`` keeps its endpoints."""
    given_up: set[str] = set()
    assert unreachable_seconds(SOURCE, UNKNOWN, 599.0, given_up) == 599.0
    assert unreachable_seconds(SOURCE, UNKNOWN, None, given_up) is None


def test_a_statement_ends_it() -> None:
    """After a complete answer the time without a connection starts from zero."""
    given_up = {"eu"}
    assert unreachable_seconds(SOURCE, KNOWN, None, given_up) is None
    assert unreachable_seconds(SOURCE, UNKNOWN, None, given_up) is None


def test_recovery_applies_after_a_restart_with_an_unknown_source() -> None:
    """Conditions that failed before a restart follow new verdicts even while the source is unknown."""
    good, bad = build.address(1), build.address(2)
    pipeline = build.Pipeline(build.target(sources=(build.source("eu", health=HealthPolicy("tcp")),)))
    check = Check("tcp", 30443)
    for verdict in (True, False):
        pipeline.health = {check: {good: True, bad: verdict}}
        pipeline.run(build.view("eu", build.endpoints(2, 1)))
    assert pipeline.endpoint(bad).conditions == FAILED
    pipeline.restart()
    adopted: dict[str, tuple[Slice, ...]] = {}
    for verdict, conditions in ((False, FAILED), (True, PUBLISHED), (True, PUBLISHED)):
        pipeline.health = {check: {good: True, bad: verdict}}
        pipeline.run(view_of_unknown(UNKNOWN, pipeline.slices, adopted, left=False))
        assert pipeline.endpoint(bad).conditions == conditions


@pytest.mark.parametrize(
    ("clusters", "broken", "unknown"),
    [
        ({"eu": ClusterSpec("eu", None)}, {}, {}),
        ({"eu": ClusterSpec("eu", None, state="frozen")}, {}, {"eu": "frozen"}),
        ({}, {"eu": "no such provider"}, {"eu": "no such provider"}),
        ({}, {}, {"eu": "frozen"}),
    ],
    ids=["active", "frozen", "broken", "absent"],
)
def test_frozen_or_broken_cluster_is_unknown(
    clusters: dict[str, ClusterSpec], broken: dict[str, str], unknown: dict[str, str]
) -> None:
    """The answer of a cluster counts only if its entry is valid and not frozen."""
    target = build.target(sources=(SOURCE,))
    registry = Registry("default", clusters, {target.key: target}, broken_clusters=broken)
    readings = (SourceReading(SOURCE, ViewResult(KNOWN, {})),)
    snapshot = TargetSnapshot(HubIdentity("hub/one"), target.key, 0.0, 0.0, registry, sources=readings)
    assert inputs_of(snapshot, target, (), SourceMemory(), "").unknown == unknown


PUBLISHED_OF_EU = build.slice("s-0", [build.endpoint("10.0.0.1", hostname="a")])
PUBLISHED_OF_US = build.slice("s-1", [build.endpoint("10.0.0.2")], cluster="us")
ADOPTED = build.slice("s-2", [build.endpoint("10.0.0.3", hostname="c"), build.endpoint("10.0.0.4")])
LAST = build.view("eu", [build.endpoint("10.0.0.9")], unknown="503")
BARE = SourceView("eu", "503", {"IPv4": {}})


@pytest.mark.parametrize(
    ("view", "adopted", "left", "expected", "after"),
    [
        (LAST, {}, False, LAST, {}),
        (LAST, {}, True, replace(LAST, endpoints={}, adopted=True), {}),
        (UNKNOWN, {}, True, UNKNOWN, {}),
        (BARE, {}, False, BARE, {"eu": (PUBLISHED_OF_EU,)}),
        (
            BARE,
            {"eu": (ADOPTED,)},
            False,
            replace(
                BARE,
                endpoints={"IPv4": {"10.0.0.3": build.endpoint("10.0.0.3"), "10.0.0.4": build.endpoint("10.0.0.4")}},
                adopted=True,
            ),
            {"eu": (ADOPTED,)},
        ),
    ],
    ids=["last answer", "left", "left without endpoints", "published", "adopted"],
)
def test_view_of_an_unknown_source(
    view: SourceView,
    adopted: dict[str, tuple[Slice, ...]],
    left: bool,
    expected: SourceView,
    after: Mapping[str, tuple[Slice, ...]],
) -> None:
    """An unknown source has its last answer, or else what was published when it was first seen unknown, if not left."""
    adopted = dict(adopted)
    assert view_of_unknown(view, (PUBLISHED_OF_EU, PUBLISHED_OF_US), adopted, left=left) == expected
    assert adopted == after


def test_an_unknown_source_without_slices_adopts_nothing() -> None:
    """Nothing is remembered for a source of which nothing is published."""
    adopted: dict[str, tuple[Slice, ...]] = {}
    assert view_of_unknown(UNKNOWN, (PUBLISHED_OF_US,), adopted, left=False) is UNKNOWN
    assert adopted == {}


EU = ClusterSpec("eu", None)


def inputs(
    *ours: Slice, readings: tuple[SourceReading, ...] = (), memory: SourceMemory | None = None, **more: Any
) -> Any:
    """The inputs of a target whose only source is eu, at time 100."""
    target = build.target(sources=(SOURCE,))
    held = more.pop("held", {})
    registry = Registry("default", more.pop("clusters", {"eu": EU}), {target.key: target}, **more)
    snapshot = TargetSnapshot(HubIdentity("hub/one"), target.key, 100.0, 0.0, registry, sources=readings, held=held)
    return inputs_of(snapshot, target, ours, memory or SourceMemory(), "")


@pytest.mark.parametrize(
    ("view", "state", "kept"),
    [(KNOWN, "active", False), (UNKNOWN, "active", True), (UNKNOWN, "standby", False), (KNOWN, "frozen", False)],
)
def test_adopted_slices_are_forgotten_once_the_source_answers(view: SourceView, state: Any, kept: bool) -> None:
    """Adopted slices are forgotten when the source is known, on standby or no longer a source."""
    memory = SourceMemory({"eu": (ADOPTED,), "us": (ADOPTED,)}, given_up=frozenset({"eu", "us"}))
    readings = (SourceReading(SOURCE, ViewResult(view, {})),)
    found = inputs(readings=readings, memory=memory, clusters={"eu": ClusterSpec("eu", None, state=state)})
    assert found.memory.adopted == ({"eu": (ADOPTED,)} if kept else {})
    assert found.memory.given_up == (frozenset() if view is KNOWN else {"eu"})


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({}, ()),
        ({"wrong_cluster": "other UID"}, (Finding("WrongCluster", "eu: other UID", ("eu",)),)),
        (
            {"twins": ("eu", "us")},
            (Finding("SameCluster", "eu, us are one and the same cluster", ("eu", "us")),),
        ),
    ],
)
def test_findings_about_kubeconfigs(reading: dict[str, Any], expected: tuple[Finding, ...]) -> None:
    """A kubeconfig of a wrong cluster and one of a cluster that has another name too are reported."""
    assert inputs(readings=(SourceReading(SOURCE, ViewResult(KNOWN, {}), **reading),)).findings == expected


GONE = Finding("RemovalPending", "us: no longer a source; its endpoints are removed after the removal grace", ("us",))
MAYBE = Finding(
    "MaybeRenamed",
    "us: in no entry, but perhaps a former name in a broken one, so its endpoints stay: de",
    ("us",),
)
HELD = RegistryHeld("abc", (cluster_entry("us"),), 1, 2, "hub approve abc")


@pytest.mark.parametrize(
    ("registry", "since", "kept", "wakes", "findings"),
    [
        ({}, 90.0, True, (50.0,), (GONE,)),
        ({}, 40.1, True, (pytest.approx(0.1),), (GONE,)),
        ({}, 40.0, False, (), ()),
        ({"broken_clusters": {"de": "no provider"}}, 100.0, True, (), (MAYBE,)),
        ({"broken_clusters": {"de": "x"}, "clusters": {"eu": EU, "us": EU}}, 90.0, True, (50.0,), (GONE,)),
        ({"frozen_names": frozenset({"us"})}, 100.0, True, (), ()),
        ({"held": {cluster_entry("us"): HELD}}, 0.0, True, (), (HELD.finding,)),
        ({"held": {cluster_entry("us"): HELD}, "clusters": {"eu": EU, "us": EU}}, 40.0, False, (), ()),
    ],
    ids=["grace", "end of grace", "over", "renamed", "listed", "frozen", "withheld", "listed and withheld"],
)
def test_a_cluster_that_is_no_longer_a_source(
    registry: dict[str, Any], since: float, kept: bool, wakes: tuple[Any, ...], findings: tuple[Finding, ...]
) -> None:
    """Its slices stay for the removal grace, and as long as its entry is broken, missing by mistake or withheld."""
    begun = 1.0 if since == 100.0 else since
    found = inputs(PUBLISHED_OF_EU, PUBLISHED_OF_US, memory=SourceMemory(removed_since={"us": begun}), **registry)
    assert [(source.spec.cluster, source.state) for source in found.sources] == ([("us", "frozen")] if kept else [])
    assert (found.wakes, found.findings, found.memory.removed_since) == (wakes, findings, {"us": since})


def test_former_names_of_a_source_are_no_other_cluster() -> None:
    """Slices under a former name of a source belong to the source, and need no removal grace."""
    found = inputs(PUBLISHED_OF_US, clusters={"eu": ClusterSpec("eu", None, formerly=("us",))})
    assert (found.sources, found.findings, found.memory.removed_since) == ((), (), {})
