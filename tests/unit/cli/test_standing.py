"""What ``hub status`` prints, and how what is withheld is shown."""

from __future__ import annotations

import click
import pytest

from hub.cli.changes import print_plan, service_change
from hub.cli.standing import ClusterStanding, ServiceStanding, SourceStanding, counted, data, text
from hub.cli.withheld import held, timestamp
from hub.model import DRAINING, Finding, GroupKey, TargetKey
from hub.plan.guard import Withheld
from hub.plan.plan import Plan
from hub.reconcile import Pass
from hub.removals import RegistryHeld
from tests.support import build

ADDRESSES = tuple(f"10.0.0.{number}" for number in range(7))
WITHHELD = Withheld("RemovalWithheld", "abcdef012345", ADDRESSES, 1_800_000_000.0, "7 of 10 endpoints would go")
RESULT = Pass(
    TargetKey("edge", "payments"),
    Plan(),
    findings=(Finding("RemovalWithheld", WITHHELD.message, ADDRESSES),),
    withheld={GroupKey("eu", "IPv4"): WITHHELD},
)
LINES = [
    "= withheld: RemovalWithheld: 7 of 10 endpoints would go",
    "  7 endpoints: 10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 more; since 2027-01-15T08:00:00Z",
    "  approve with: hub approve edge/payments abcdef012345 --owner me",
]


def test_plan_shows_what_is_withheld_once_with_the_command_that_releases_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The finding of the same text is not repeated; what is withheld is no change."""
    assert not print_plan([RESULT], flags=" --owner me")

    assert capsys.readouterr().out.splitlines() == [
        "edge/payments",
        *(f"  {line}" for line in LINES),
        "Plan: 0 services to change; 1 unchanged; endpoints: 0 added, 0 removed, 0 changed; withheld: 7 removals",
    ]


def test_what_is_withheld_has_a_stable_shape() -> None:
    """Scripts rely on these keys."""
    [found] = service_change(RESULT).withheld
    assert found.data() == {
        "cluster": "eu",
        "family": "IPv4",
        "reason": "RemovalWithheld",
        "hash": "abcdef012345",
        "addresses": list(ADDRESSES),
        "since": timestamp(WITHHELD.since),
        "message": "7 of 10 endpoints would go",
        "approve": "hub approve edge/payments abcdef012345",
    }


def test_status_counts_by_source_in_order() -> None:
    """Sources in the registry's order, then what is none any more."""
    slices = (
        build.slice("a", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2", None, DRAINING)]),
        build.slice("b", [build.endpoint("10.0.0.3")], cluster="old"),
    )
    assert list(counted(["us", "eu"], slices, {"us": "timeout"})) == [
        SourceStanding("us", 0, 0, "timeout"),
        SourceStanding("eu", 1, 2),
        SourceStanding("old", 1, 1),
    ]


def test_status_is_two_tables_and_what_needs_somebody() -> None:
    """Clusters, Services, and each thing withheld with its command."""
    cluster = ClusterStanding("eu", "active", "Ready", "2027-01-15T08:00:00Z", 3)
    sources = (SourceStanding("eu", 9, 10), SourceStanding("us", 0, 0, "timeout"))
    service = ServiceStanding("edge/payments", "", paused=False, sources=sources, withheld=held(RESULT, " --owner me"))
    assert click.unstyle(text([cluster], [service])).splitlines() == [
        "CLUSTER   MODE     STATE   SINCE                  NODES   ERROR",
        "eu        active   Ready   2027-01-15T08:00:00Z   3       -",
        "",
        "SERVICE         STATUS                          READY   SOURCES",
        "edge/payments   followed, 7 removals withheld   9/10    eu 9/10, us 0/0 unknown",
        "",
        "edge/payments",
        *(f"  {line}" for line in LINES),
    ]


def test_status_has_a_stable_shape() -> None:
    """Scripts rely on these keys."""
    service = ServiceStanding("edge/payments", "paused", paused=True, sources=(SourceStanding("eu", 9, 10, "timeout"),))
    assert data([ClusterStanding("eu", "frozen")], [service]) == {
        "registry": {"withheld": None},
        "clusters": [{"name": "eu", "mode": "frozen", "state": "", "since": None, "nodes": None, "error": ""}],
        "services": [
            {
                "name": "edge/payments",
                "status": "paused",
                "paused": True,
                "ready": 9,
                "total": 10,
                "sources": [{"cluster": "eu", "ready": 9, "total": 10, "unknown": "timeout"}],
                "withheld": [],
                "findings": [],
                "checks": [],
            }
        ],
    }


COMMAND = "hub approve registry abcdef012345 --owner me"
HELD = RegistryHeld("abcdef012345", ("cluster us", "service edge/b"), 7, 9, COMMAND)


def test_what_the_registry_would_remove_is_said_with_its_command() -> None:
    """In the table after everything else, and as data."""
    assert text([], [], HELD).splitlines() == [
        f"= withheld: RegistryRemovalWithheld: {HELD.message}",
        f"  approve with: {COMMAND}",
    ]
    assert data([], [], HELD)["registry"]["withheld"] == {
        "reason": "RegistryRemovalWithheld",
        "hash": "abcdef012345",
        "entries": ["cluster us", "service edge/b"],
        "endpoints": 7,
        "total": 9,
        "message": "the registry lacks 2 entries (cluster us, service edge/b) with 7 of 9 endpoints; "
        f"withheld until: {COMMAND}",
        "approve": COMMAND,
    }
