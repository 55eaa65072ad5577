"""The output of ``hub status``, and how withheld removals are shown."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
import pytest

from hub.app.hub import Options
from hub.cli.changes import print_plan, service_change
from hub.cli.exits import Exit
from hub.cli.observe import plan_from_clusters
from hub.cli.print_status import show, status_from_clusters, status_from_server, text
from hub.cli.print_why import why_from_clusters
from hub.cli.server import Server
from hub.cli.withheld import lines
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.guard import Withheld
from hub.decide.plan import Plan
from hub.model import Finding, TargetKey
from hub.registry.load import load
from hub.registry.spec import RegistryHeld
from hub.report.held import held, registry_withheld
from hub.report.values import Cluster, Noted, RegistryState, Replica, Service, Source, Status
from hub.runtime.clock import rfc3339
from tests.unit.report.conftest import watching

ADDRESSES = tuple(f"10.0.0.{number}" for number in range(7))
WITHHELD = Withheld("RemovalWithheld", "abcdef012345", ADDRESSES, 1_800_000_000.0, "7 of 10 endpoints would go")
RESULT = Decision(
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


def test_plan_shows_a_withheld_removal_once_with_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A withheld removal is shown once, with its command, and does not count as a change."""
    assert not print_plan([RESULT], flags=" --owner me")

    assert capsys.readouterr().out.splitlines() == [
        "edge/payments",
        *(f"  {line}" for line in LINES),
        "Plan: 0 services to change; 1 unchanged; endpoints: 0 added, 0 removed, 0 changed; withheld: 7 removals",
    ]


def test_withheld_removal_has_stable_keys() -> None:
    """A withheld removal has these keys, on which scripts rely."""
    [found] = service_change(RESULT).withheld
    assert msgspec.to_builtins(found) == {
        "cluster": "eu",
        "family": "IPv4",
        "reason": "RemovalWithheld",
        "hash": "abcdef012345",
        "addresses": ADDRESSES,
        "since": rfc3339(WITHHELD.since),
        "message": "7 of 10 endpoints would go",
        "approve": "hub approve edge/payments abcdef012345",
    }


def test_status_has_two_tables_and_withheld_removals() -> None:
    """The status is a table of clusters, one of Services, and each withheld removal with its command."""
    cluster = Cluster("eu", "active", "Ready", "2027-01-15T08:00:00Z", 3)
    sources = (Source("eu", 9, 10), Source("us", 0, 0, "timeout"))
    withheld = held(RESULT, " --owner me")
    service = Service("edge/payments", ready=9, total=10, sources=sources, withheld=withheld)
    assert click.unstyle(text(Status(clusters=(cluster,), services=(service,)))).splitlines() == [
        "CLUSTER   MODE     STATE   SINCE                  NODES   ERROR",
        "eu        active   Ready   2027-01-15T08:00:00Z   3       -",
        "",
        "SERVICE         STATUS                          READY   SOURCES",
        "edge/payments   followed, 7 removals withheld   9/10    eu 9/10, us 0/0 unknown",
        "",
        "edge/payments",
        *(f"  {line}" for line in LINES),
    ]


def test_status_shows_each_finding_once() -> None:
    """A finding is not repeated if the Service's row or a withheld removal shows it."""
    found = (
        Noted("OldWriterActive", "old still writes slices of this Service; they stay. Stop it"),
        Noted("ServiceMissing", "there is no such Service"),
        Noted("RegistryRemovalWithheld", HELD.message),
    )
    service = Service("edge/payments", "there is no such Service", findings=found)
    status = Status(services=(service,), registry=RegistryState(registry_withheld(HELD)))
    assert click.unstyle(text(status)).splitlines()[3:] == [
        "edge/payments",
        "  ! OldWriterActive: old still writes slices of this Service; they stay. Stop it",
        "",
        f"= withheld: RegistryRemovalWithheld: {HELD.message}",
        f"  approve with: {COMMAND}",
    ]


def test_status_has_a_stable_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON status has these keys; an unknown source makes the exit code 4, a frozen cluster does not."""
    sources = (Source("eu", 9, 10, "timeout"),)
    service = Service("edge/payments", "paused", paused=True, ready=9, total=10, sources=sources)
    replica = Replica("1.0", "me", "a", "standby", "b")

    assert show(Status(replica, clusters=(Cluster("us", "frozen"),), services=(service,)), "json") == Exit.UNKNOWN
    assert json.loads(capsys.readouterr().out) == {
        "apiVersion": "endpointslice-hub/v1",
        "kind": "Status",
        "hub": {
            "version": "1.0",
            "owner": "me",
            "identity": "a",
            "role": "standby",
            "leader": "b",
            "dryRun": False,
            "synced": True,
            "error": "",
            "shards": [],
            "shardCount": 1,
        },
        "registry": {"withheld": None, "rejected": "", "problems": []},
        "clusters": [{"name": "us", "mode": "frozen", "state": "", "since": None, "nodes": None, "error": ""}],
        "services": [
            {
                "name": "edge/payments",
                "status": "paused",
                "paused": True,
                "ready": 9,
                "total": 10,
                "unhealthy": 0,
                "draining": 0,
                "changed": None,
                "problem": "",
                "sources": [{"cluster": "eu", "ready": 9, "total": 10, "unknown": "timeout"}],
                "withheld": [],
                "findings": [],
                "checks": [],
            }
        ],
        "allocations": None,
        "clouds": None,
    }


def test_status_shows_the_role_and_the_leader() -> None:
    """The hub's role, a standby's leader and problems of the registry are above the tables."""
    registry = RegistryState(rejected="clusters.yaml:3:1: no", problems=("clusters.yaml:9:1: bad",))
    assert text(Status(Replica(identity="a", role="standby", leader="b"), registry)).splitlines() == [
        "a: standby; b leads",
        "the registry was rejected, the last accepted one stays in force: clusters.yaml:3:1: no",
        "registry: clusters.yaml:9:1: bad",
    ]
    assert text(Status(Replica(identity="a", role="starting"))) == "a: starting; no leader known"
    sharing = Replica(identity="a", role="leader", leader="b", shards=(1, 3), shard_count=6)
    assert text(Status(sharing)).splitlines()[0] == "a: leader; writes shards 1, 3 of 6"
    assert text(Status(Replica(identity="a", role="leader", leader="a", error="timeout"))).splitlines() == [
        "a: leader",
        "hub cluster: timeout",
    ]


COMMAND = "hub approve registry abcdef012345 --owner me"
HELD = RegistryHeld("abcdef012345", ("cluster us", "service edge/b"), 7, 9, COMMAND)


def test_withheld_mass_removal_is_shown_with_its_command() -> None:
    """A mass removal that is withheld is at the end, with its command, and in the data."""
    found = registry_withheld(HELD)
    assert text(Status(registry=RegistryState(found))).splitlines() == [
        f"= withheld: RegistryRemovalWithheld: {HELD.message}",
        f"  approve with: {COMMAND}",
    ]
    assert msgspec.to_builtins(found) == {
        "reason": "RegistryRemovalWithheld",
        "hash": "abcdef012345",
        "entries": ("cluster us", "service edge/b"),
        "endpoints": 7,
        "total": 9,
        "message": "the registry lacks 2 entries (cluster us, service edge/b) with 7 of 9 endpoints; "
        f"withheld until: {COMMAND}",
        "approve": COMMAND,
    }


def test_withheld_removal_names_five_addresses() -> None:
    """The first five addresses of a withheld removal are named, the others are counted."""
    [found] = held(RESULT, " --owner me")
    assert list(lines(found)) == LINES


async def test_unknown_clusters_of_other_services_are_ignored(tmp_path: Path) -> None:
    """A question about one Service ignores unknown clusters and broken entries of others."""
    async with watching(tmp_path):
        data = json.loads((tmp_path / "clusters.yaml").read_text())
        data["clusters"] += [{**data["clusters"][0], "name": "us", "kubeconfig": {"path": "away"}}]
        data["services"] += [
            {"name": "other", "namespace": "edge", "sources": [{"cluster": "us"}]},
            {"name": "broken", "namespace": "edge", "sources": [{"cluster": "nosuch"}]},
        ]
        (tmp_path / "more.yaml").write_text(json.dumps(data))
        options = Options(str(tmp_path / "more.yaml"), str(tmp_path / "hub"), dry_run=True, leader_elect=False)

        assert await plan_from_clusters(options, ["edge/payments"], "table") == 0
        assert await why_from_clusters(options, "edge/payments", "table") == 0
        assert [await plan_from_clusters(options, [name], "table") for name in ("edge/other", "edge/broken")] == [4, 4]
        for name in ("edge/other", "edge/broken", "n1"):
            assert await why_from_clusters(options, name, "table") == Exit.UNKNOWN


async def test_status_is_incomplete_with_a_broken_entry(tmp_path: Path) -> None:
    """With a broken entry, the exit code is 4 with --registry and with --server."""
    async with watching(tmp_path) as watched:
        data = json.loads((tmp_path / "clusters.yaml").read_text())
        data["services"] += [{"name": "broken", "namespace": "edge", "sources": [{"cluster": "nosuch"}]}]
        (tmp_path / "more.yaml").write_text(json.dumps(data))
        options = Options(str(tmp_path / "more.yaml"), str(tmp_path / "hub"), dry_run=True, leader_elect=False)

        assert await status_from_clusters(options, "table") == Exit.UNKNOWN
        watched.hub.problems = load(tmp_path / "more.yaml").problems
        assert await status_from_server(Server(watched.url), "table") == Exit.UNKNOWN
