"""The inputs of a decision from the sources of one target."""

from __future__ import annotations

import pytest

from hub.decide.checks import Check
from hub.decide.inputs import SourceMemory, inputs_of, unreachable_seconds, view_of_unknown
from hub.decide.snapshot import HubIdentity, SourceReading, TargetSnapshot
from hub.decide.view import ViewResult
from hub.model import FAILED, PUBLISHED, Slice, SourceView
from hub.registry.spec import ClusterSpec, HealthPolicy, Registry, UnreachablePolicy
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
