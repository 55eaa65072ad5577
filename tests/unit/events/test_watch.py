"""Which parts of the hub's state become Events, and on which object."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hub.decide.decision import Decision
from hub.decide.plan import Plan
from hub.errors import Problem, RegistryError
from hub.events.catalog import REASONS, Reason
from hub.events.recorder import Recorder
from hub.events.series import EventFinding, Regarding
from hub.events.watch import EventWatch, Watched
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.secret import Secret
from hub.model import Finding, TargetKey
from hub.observe.remote.fleet import SourceKey
from hub.observe.remote.status import ClusterStatus, State
from hub.registry.spec import ProviderRef, RegistryHeld
from hub.runtime.clock import Clock
from tests.support import build

KEY = TargetKey("edge", "payments")
SERVICE = Regarding("v1", "Service", "edge", "payments", build.UID)
ITSELF = Regarding("v1", "Pod", "ops", "hub-0")
FINDINGS = [
    *("EmptyResultHeld", "FilteredEmpty", "RemovalWithheld", "ClusterDisrupted", "WrongCluster", "OwnerConflict"),
    *("NodeAmbiguous", "NodeUnresolved", "PanicMode", "ForeignSlice", "SelectorPresent", "PortMismatch"),
    *("PortNotAllowed", "FamilyNotInService", "LocalTrafficPolicy", "InvalidAddressSkipped", "CopyNotAllowed"),
    *("RegistryRemovalWithheld", "EmptyResultAccepted", "PlanReleased", "ApprovalUsed"),
]


class Heard:
    """A recorder that keeps everything reported to it."""

    enabled = True

    def __init__(self) -> None:
        self.now: dict[object, list[EventFinding]] = {}
        self.once: list[tuple[str, Regarding, str]] = []

    def record_occurrence(self, reason: Reason, regarding: Regarding, message: str) -> None:
        self.once.append((reason.name, regarding, message))

    def set_findings(self, subject: object, found: list[EventFinding]) -> None:
        self.now[subject] = list(found)

    def has_findings(self, subject: object) -> bool:
        return bool(self.now.get(subject))


class Desk:
    """The part of a hub that Events need, its watch, and the recorder."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.hub: Any = SimpleNamespace(
            fleet=SimpleNamespace(clusters={}, sources={}),
            local=SimpleNamespace(services={KEY: build.service()}),
            client=SimpleNamespace(access=None),
            renewal=SimpleNamespace(problems={}),
            rejected=None,
            withheld=lambda: None,
            approvals=SimpleNamespace(valid=lambda: {"approved"}),
            leading=SimpleNamespace(holds_shard_0=True, acts_for=lambda _: True),
        )
        self.watch = EventWatch(cast("Watched", self.hub), cast("Recorder", self.heard), ITSELF)

    def cluster(self, name: str, state: State, error: str = "") -> None:
        """Set the state of a remote cluster."""
        self.hub.fleet.clusters[name] = SimpleNamespace(status=ClusterStatus(state, 0.0, error), client=None)

    def source(self, cluster: str, problem: str) -> None:
        """Set the problem of a cluster's provider; "" = none."""
        key = SourceKey(cluster, ProviderRef("ionos"))
        self.hub.fleet.sources[key] = SimpleNamespace(problem=problem)

    def looks(self) -> list[tuple[str, str]]:
        """Check the hub, and return reason and message of its current findings."""
        self.watch.report_hub()
        return [(held.reason.name, held.note) for held in self.heard.now["hub"]]


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_becomes_an_event(name: str) -> None:
    """A finding makes an Event on the Service, or on the hub if a cluster or the registry is concerned."""
    desk, reason = Desk(), REASONS[name]
    desk.watch.decided(Decision(KEY, findings=(Finding(name, "eu: so it is"),)))
    regarding = ITSELF if reason.on == "hub" else SERVICE
    if reason.momentary:
        assert desk.heard.once == [(name, regarding, "eu: so it is")]
    else:
        scope = "eu" if reason.by_source else ""
        assert desk.heard.now[KEY] == [EventFinding(reason, regarding, scope, "eu: so it is")]
    desk.watch.decided(Decision(KEY))
    assert not desk.heard.now[KEY]


def test_findings_without_a_catalog_reason_report_nothing() -> None:
    """Passes without findings, and findings without a reason in the catalog, report nothing."""
    desk = Desk()
    desk.watch.decided(Decision(KEY))
    assert desk.heard.now == {}
    desk.watch.decided(Decision(KEY, findings=(Finding("EndpointsUnproven", "3 wait"),)))
    assert (desk.heard.now, desk.heard.once) == ({KEY: []}, [])


def test_finding_is_attributed_to_its_source() -> None:
    """The source is the cluster at the beginning of the message, or else the finding's first object."""
    desk = Desk()
    port = Finding("PortMismatch", "eu: which?", ("eu",))
    family = Finding("FamilyNotInService", "us has IPv6 addresses only, the Service has IPv4", ("us",))
    desk.watch.decided(Decision(KEY, findings=(port, family)))
    assert [held.scope for held in desk.heard.now[KEY]] == ["eu", "us"]


def test_a_service_that_does_not_exist_has_no_uid() -> None:
    """An Event about a missing Service has its namespace and name, without a uid."""
    desk = Desk()
    desk.watch.decided(Decision(TargetKey("edge", "none"), findings=(Finding("PortMismatch", "eu: which?"),)))
    [held] = desk.heard.now["edge", "none"]
    assert held.regarding == Regarding("v1", "Service", "edge", "none")


def test_pass_without_a_plan_is_no_publication() -> None:
    """A pass without a plan, and a recorder that is off, report no publication."""
    desk = Desk()
    written = [("create", build.slice("s-0", build.endpoints(1)))]
    desk.watch.published(Decision(KEY), written)
    desk.heard.enabled = False
    desk.watch.published(Decision(KEY, plan=Plan()), written)
    assert desk.heard.once == []
    desk.heard.enabled = True
    desk.watch.published(Decision(KEY, plan=Plan()), [("delete", written[0][1])])
    assert desk.heard.once == [("EndpointsPublished", SERVICE, "endpoints: none; slices: 1 deleted")]


def test_publication_counts_endpoints_after_the_write() -> None:
    """The message has the endpoints by cluster after the write, and the numbers of written slices."""
    desk = Desk()
    old = build.slice("s-0", build.endpoints(3), cluster="eu")
    gone = build.slice("s-1", build.endpoints(2), cluster="us")
    new = build.slice("s-2", build.endpoints(4), cluster="eu")
    done = [("create", new), ("delete", gone)]
    desk.watch.published(Decision(KEY, Plan(creates=(new,), deletes=(gone,)), observed=(old, gone)), done)
    assert desk.heard.once == [("EndpointsPublished", SERVICE, "endpoints: 7 of eu; slices: 1 created, 1 deleted")]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.UNREACHABLE, "ClusterUnreachable"),
        (State.DEGRADED, "ClusterDegraded"),
        (State.WRONG_CLUSTER, "WrongCluster"),
    ],
)
def test_a_cluster_in_trouble_recovers(state: State, reason: str) -> None:
    """Only a cluster with a reported problem recovers, and only when it is Ready again."""
    desk = Desk()
    desk.cluster("eu", State.SYNCING)
    desk.cluster("us", State.READY)
    assert desk.looks() == []
    desk.cluster("eu", state, "so it is")
    assert desk.looks() == [(reason, "eu: so it is")]
    desk.cluster("eu", State.SYNCING)
    assert desk.looks() == []
    assert desk.heard.once == []
    desk.cluster("eu", State.READY)
    for _ in range(2):
        assert desk.looks() == []
    assert desk.heard.once == [("ClusterRecovered", ITSELF, "eu: its nodes are followed again")]


def test_provider_failure_is_not_reported_for_a_failed_cluster() -> None:
    """A provider's failure is not reported if its cluster itself has a problem."""
    desk = Desk()
    desk.cluster("eu", State.READY)
    desk.source("eu", "401: the token is not accepted")
    desk.source("list", "no such file")
    desk.cluster("us", State.UNREACHABLE, "connection refused")
    desk.source("us", "Unreachable: connection refused")
    assert desk.looks() == [
        ("ClusterUnreachable", "us: connection refused"),
        ("ProviderFailed", "eu: provider ionos: 401: the token is not accepted"),
        ("ProviderFailed", "list: provider ionos: no such file"),
    ]


def test_rejected_registry_and_withheld_removal_have_events() -> None:
    """The Events have the first problem and the number of others, and the command that approves."""
    desk = Desk()
    problems = tuple(Problem("clusters.yaml", line, 1, "version", "must be 1") for line in (1, 2, 3))
    desk.hub.rejected = RegistryError(problems)
    desk.hub.withheld = lambda: RegistryHeld(
        "abc", ("service edge/a", "service edge/b"), 5, 9, "hub approve registry abc"
    )
    rejected, removal = desk.looks()
    assert rejected == ("RegistryRejected", "clusters.yaml:1:1: version: must be 1 (and 2 more)")
    assert removal[0] == "RegistryRemovalWithheld"
    assert removal[1].endswith("withheld until: hub approve registry abc")
    desk.hub.rejected = RegistryError(problems[:2])
    assert desk.looks()[0] == ("RegistryRejected", "clusters.yaml:1:1: version: must be 1 (and 1 more)")
    desk.hub.rejected = RegistryError(problems[:1])
    assert desk.looks()[0] == ("RegistryRejected", "clusters.yaml:1:1: version: must be 1")


@pytest.mark.parametrize("name", ["approved", "other"])
def test_used_approval_has_an_event(name: str) -> None:
    """A withheld removal that ends without an approval, such as by a corrected file, makes no ApprovalUsed."""
    desk = Desk()
    desk.hub.withheld = lambda: RegistryHeld(
        name, ("service edge/a", "service edge/b"), 5, 9, "hub approve registry abc"
    )
    for _ in range(2):
        assert [reason for reason, _ in desk.looks()] == ["RegistryRemovalWithheld"]
    desk.hub.withheld = lambda: None
    for _ in range(2):
        assert desk.looks() == []
    said = [("ApprovalUsed", ITSELF, "registry: the removal of 2 entries with 5 endpoints is approved")]
    assert desk.heard.once == (said if name == "approved" else [])


async def test_approval_used_by_another_replica_is_not_reported() -> None:
    """An approval that was used while another replica led is not reported again."""
    desk = Desk()
    held = RegistryHeld("approved", ("service edge/a",), 5, 9, "hub approve registry approved")
    desk.hub.clock = SimpleNamespace(sleep=lambda _: asyncio.sleep(0))
    desk.hub.writing, desk.hub.withheld = True, lambda: held
    task = asyncio.create_task(desk.watch.run())
    await asyncio.sleep(0)
    desk.hub.writing, desk.hub.withheld = False, lambda: None
    await asyncio.sleep(0)
    desk.hub.writing = True
    await asyncio.sleep(0)
    assert [held.reason.name for held in desk.heard.now["hub"]] == []
    assert desk.heard.once == []
    task.cancel()


def test_only_the_first_shard_reports_approvals() -> None:
    """Only the writer of the first shard reports approvals, and not those used while another one had that shard."""
    desk = Desk()
    desk.hub.withheld = lambda: RegistryHeld("approved", ("service edge/a",), 5, 9, "hub approve registry approved")
    assert [reason for reason, _ in desk.looks()] == ["RegistryRemovalWithheld"]
    desk.hub.leading.holds_shard_0 = False
    assert desk.looks() == []
    desk.hub.withheld = lambda: None
    desk.hub.leading.holds_shard_0 = True
    assert desk.looks() == []
    assert desk.heard.once == []


async def ending() -> Credentials:
    """A credential that has half of its life left."""
    part = base64.urlsafe_b64encode(b'{"iat": 1000000, "exp": 2000000}').rstrip(b"=").decode()
    access = ClusterAccess("https://192.0.2.1", Token(Secret(f"e30.{part}.c2ln")), "Secret eu")
    credentials = Credentials(access, cast("Clock", SimpleNamespace(now=lambda: 0.0, wall=lambda: 1_500_000.0)))
    await credentials.headers()
    return credentials


async def test_failed_renewal_is_reported_with_its_reason() -> None:
    """A failed renewal is reported with its reason when half of the credential's life is left."""
    desk, credentials = Desk(), await ending()
    desk.cluster("eu", State.READY)
    desk.hub.fleet.clusters["eu"].client = SimpleNamespace(access=credentials)
    assert desk.looks() == []
    desk.hub.renewal.problems["eu"] = "403"
    text = "eu: the credential of Secret eu ends at 1970-01-24T03:33:20Z and is not renewed: 403"
    assert desk.looks() == [("CredentialExpiring", text)]


async def test_credentials_are_reported_by_the_replica_that_acts_for_the_cluster() -> None:
    """The writer of the first shard reports the hub cluster's credential, others those of their clusters."""
    desk = Desk()
    desk.hub.client.access = await ending()
    desk.cluster("eu", State.READY)
    desk.hub.fleet.clusters["eu"].client = SimpleNamespace(access=desk.hub.client.access)
    desk.hub.renewal.problems.update(eu="403", local="404")

    def reported() -> list[str]:
        return [text.partition(":")[0] for _, text in desk.looks()]

    assert reported() == ["eu", "local"]
    desk.hub.leading.acts_for = lambda _: False
    assert reported() == ["local"]
    desk.hub.leading.acts_for, desk.hub.leading.holds_shard_0 = (lambda _: True), False
    assert reported() == ["eu"]


def test_cluster_of_another_replica_is_not_reported() -> None:
    """A replica reports the clusters and sources that it acts for."""
    desk = Desk()
    desk.hub.leading.acts_for = lambda name: name == "eu"
    for name in ("eu", "us"):
        desk.cluster(name, State.UNREACHABLE, "timeout")
        desk.source(f"{name}-list", "no such file")
    desk.hub.leading.acts_for = lambda name: name.startswith("eu")
    assert desk.looks() == [
        ("ClusterUnreachable", "eu: timeout"),
        ("ProviderFailed", "eu-list: provider ionos: no such file"),
    ]
