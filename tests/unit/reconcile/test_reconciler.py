"""A pass over one target: which slices are ours, what stays for a while, and when the next pass comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Verdicts, Watch
from hub.decide.snapshot import HubIdentity
from hub.decide.view import ViewResult
from hub.errors import ClusterUnreachable, Forbidden
from hub.model import (
    ANNOTATION_CLUSTER_UID,
    ANNOTATION_LEASE,
    ANNOTATION_PAUSED,
    LABEL_OWNER,
    Finding,
    GuardDefaults,
    ObjectKey,
    Port,
    ServicePort,
    Slice,
    SourceView,
    TargetKey,
)
from hub.observe.local.cluster import LocalCluster
from hub.observe.local.history import History
from hub.observe.local.stores import ServiceStore, SliceStore
from hub.observe.remote.fleet import Fleet, SourceKey
from hub.reconcile.adopting import Adopting
from hub.reconcile.gather import Gather
from hub.reconcile.history import Historian
from hub.reconcile.reconciler import RECHECK, Reconciler
from hub.reconcile.writer import NoElection, Writer
from hub.registry.load import loads
from hub.registry.spec import ClusterSpec, HealthPolicy, Registry, TargetSpec
from tests.support import build
from tests.support.clocks import ManualClock

KEY = TargetKey("edge", "payments")
LEASE = "hub/one"


class Unit:
    """A source, or a cluster, with a view that the test sets."""

    def __init__(self, view: SourceView) -> None:
        self.now = view
        self.guard = GuardDefaults()
        self.answers = 10
        self.findings: tuple[Finding, ...] = ()
        self.addresses = AddressPolicy()

    def view(self, _: object) -> ViewResult:
        return ViewResult(self.now, {}, findings=self.findings)


class Hub:
    """A reconciler over a state that the test sets; its writes change only the store."""

    def __init__(self, take_over: frozenset[TargetKey] = frozenset()) -> None:
        self.clock = ManualClock()
        self.approved: set[str] = set()
        self.uids: dict[str, str] = {}
        self.slices = SliceStore(lambda _: None)
        self.services = ServiceStore(lambda _: None)
        self.client: Any = None  # nothing is asked
        self.units: dict[str, Unit] = {}
        self.version = 100
        self.error: Exception | None = None
        self.sent: list[str] = []
        fleet = SimpleNamespace(sources={}, clusters={}, twins={}, suspended=False)
        self.fleet = fleet
        self.registry = self.registry_of(build.target("eu"))
        self.adopting = Adopting(cast("Any", None), self.clock, lambda _: None)
        gather = Gather(
            HubIdentity(LEASE, 60.0, " --owner x", take_over),
            lambda: self.registry,
            cast("Fleet", fleet),
            cast("LocalCluster", self),
            self.adopting,
            None,
            self.clock,
            approvals=lambda: self.approved,
            uid=lambda name: self.uids.get(name, ""),
        )
        self.history = History(self.client, self.clock, "default", "default", lambda: True)
        historian = Historian(self.history, lambda: dict.fromkeys(self.approved, "me"))
        self.reconciler = Reconciler(gather, Writer(self, NoElection()), self.clock, historian=historian)
        self.services.replace({KEY: build.service()}, "1")

    def registry_of(self, *targets: TargetSpec, **more: Any) -> Registry:
        """A registry with the clusters that these targets name."""
        names = {source.cluster for target in targets for source in target.sources}
        clusters = {name: ClusterSpec(name, None, allowed_ports=((1, 65535),)) for name in names}
        return Registry(
            "default", {**clusters, **more.pop("clusters", {})}, {each.key: each for each in targets}, **more
        )

    def offer(self, view: SourceView) -> None:
        """Set the view of a cluster's source."""
        self.units[view.cluster] = Unit(view)
        self.fleet.sources[SourceKey(view.cluster, build.source(view.cluster).provider)] = self.units[view.cluster]

    def observe(self, *slices: Slice) -> None:
        """Set the published slices."""
        self.slices.replace({ObjectKey(each.namespace, each.name): each for each in slices}, str(self.version))

    def published(self) -> dict[str, list[str]]:
        """The addresses of each published slice, by name."""
        return {name: [e.address for e in each.endpoints] for name, each in sorted(self.slices.of(KEY).items())}

    async def create(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self._write("create", value)

    async def update(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self._write("update", value)

    async def delete(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self.sent.append(f"delete {value.name}")
        self.slices.deleted(value)

    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None:  # noqa: ASYNC109
        return self.slices.get(key)

    def follows(self, _: str) -> bool:
        return True

    def _write(self, operation: str, value: Slice) -> None:
        if self.error is not None:
            raise self.error
        self.version += 1
        self.sent.append(f"{operation} {value.name}")
        self.slices.wrote(msgspec.structs.replace(value, uid=f"uid-{value.name}", resource_version=str(self.version)))


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Hub:
    """A hub whose cluster eu offers two endpoints for one Service; nothing is published."""
    made = Hub(getattr(request, "param", frozenset()))
    made.offer(build.view("eu", build.endpoints(2)))
    return made


def ours(name: str = "s-0", **more: Any) -> Slice:
    """A slice that has exactly eu's two endpoints."""
    return build.slice(name, more.pop("endpoints", build.endpoints(2)), lease=more.pop("lease", LEASE), **more)


async def test_a_first_pass_publishes_and_a_second_writes_nothing(hub: Hub) -> None:
    """A second pass with the same state writes nothing."""
    for _ in range(2):
        assert await hub.reconciler.reconcile(KEY) is None
    assert len(hub.sent) == 1


async def test_history_has_only_writes_that_succeeded(hub: Hub) -> None:
    """Only a write that succeeds makes an entry: not one that fails, and not a pass without a write."""
    hub.error = Forbidden(403)
    with pytest.raises(Forbidden):
        await hub.reconciler.reconcile(KEY)
    assert hub.history.of(KEY) == ()
    hub.error = None
    for _ in range(2):
        await hub.reconciler.reconcile(KEY)
    assert [(entry.kind, entry.count) for entry in hub.history.of(KEY)] == [("added", 2)]


async def test_history_names_who_approved_a_removal(hub: Hub) -> None:
    """A removal that is withheld, and then approved, has both in the history, with the operator."""
    hub.observe(ours(endpoints=build.endpoints(4)))
    hub.offer(build.view("eu", build.endpoints(1), nodes=["n0"]))
    await hub.reconciler.reconcile(KEY)
    (withheld,) = hub.history.of(KEY)
    hub.approved.add(withheld.hash)
    await hub.reconciler.reconcile(KEY)
    assert [(entry.kind, entry.count) for entry in hub.history.of(KEY)] == [
        ("withheld", 3),
        ("approved", 3),
        ("removed", 3),
    ]
    assert hub.history.of(KEY)[1].why == "by me"


async def test_slices_of_an_earlier_run_are_adopted_as_they_are(hub: Hub) -> None:
    """A slice of ours is kept under any name if its content is right."""
    hub.observe(ours("any-name"))
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == []


async def test_a_previous_owners_slice_is_relabelled_whatever_its_lease(hub: Hub) -> None:
    """A slice of an owner in previousOwners is relabelled, although it has another Lease."""
    hub.registry = hub.registry_of(build.target("eu"), previous_owners=("old",))
    hub.observe(ours(owner="old", lease="hub/old"))
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["update s-0"]
    assert hub.slices.of(KEY)["s-0"].labels[LABEL_OWNER] == "default"


async def test_slice_of_another_lease_is_not_touched(hub: Hub) -> None:
    """A slice of another Lease causes OwnerConflict and stays; our endpoints go into another slice."""
    theirs = ours(lease="hub/two")
    hub.observe(theirs)
    await hub.reconciler.reconcile(KEY)
    last = hub.reconciler.last(KEY)
    assert last is not None
    assert [each.reason for each in last.findings] == ["OwnerConflict"]
    assert "the hub with Lease hub/two" in last.findings[0].message
    assert last.findings[0].message.endswith("hub run --take-over edge/payments")
    assert (hub.slices.of(KEY)["s-0"], len(hub.sent)) == (theirs, 1)


@pytest.mark.parametrize("hub", [frozenset({KEY})], indirect=True)
async def test_slice_of_another_lease_is_taken_over_with_the_flag(hub: Hub) -> None:
    """With --take-over the slice is relabelled by one write, and its endpoints are published all the time."""
    hub.observe(ours(lease="hub/two"))
    for _ in range(2):
        await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["update s-0"]
    assert hub.slices.of(KEY)["s-0"] == msgspec.structs.replace(
        ours(lease=LEASE), uid="uid-s-0", resource_version=hub.slices.of(KEY)["s-0"].resource_version
    )


@pytest.mark.parametrize("hub", [frozenset({TargetKey("edge", "another")})], indirect=True)
async def test_take_over_applies_only_to_the_named_service(hub: Hub) -> None:
    """--take-over of another Service does not take over this one."""
    theirs = ours(lease="hub/two")
    hub.observe(theirs)
    await hub.reconciler.reconcile(KEY)
    assert hub.slices.of(KEY)["s-0"] == theirs


def others(count: int) -> list[Slice]:
    """Slices of other Services."""
    return [ours(f"o-{number}", service=f"other{number}") for number in range(count)]


async def test_a_mass_removal_waits_for_an_approval_and_not_for_the_grace(hub: Hub) -> None:
    """A withheld removal never happens without approval; once approved, it does not wait for the grace again."""
    hub.registry = hub.registry_of()
    hub.observe(ours(), *others(2))
    for _ in range(2):
        assert await hub.reconciler.reconcile(KEY) is None
        hub.clock.advance(1000.0)
    last, held = hub.reconciler.last(KEY), hub.reconciler.withheld()
    assert last is not None
    assert held is not None
    assert [each.reason for each in last.findings] == ["RegistryRemovalWithheld"]
    assert (last.status, hub.sent) == (held.message, [])
    assert held.entries == ("cluster eu", "service edge/other0", "service edge/other1", "service edge/payments")
    hub.approved = {held.hash}
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["delete s-0"]


async def test_commands_that_are_shown_find_the_approvals_of_this_hub(hub: Hub) -> None:
    """The commands in messages have the options that find the approvals of this hub."""
    hub.observe(ours(endpoints=build.endpoints(6)))
    await hub.reconciler.reconcile(KEY)
    last = hub.reconciler.last(KEY)
    assert last is not None
    [withheld] = last.withheld.values()
    assert withheld.message.endswith(f"hub approve edge/payments {withheld.hash} --owner x")
    hub.registry = hub.registry_of()
    held = hub.reconciler.withheld()
    assert held is not None
    assert held.approve == f"hub approve registry {held.hash} --owner x"


async def test_withheld_clusters_keep_their_slices(hub: Hub) -> None:
    """Slices of withheld clusters stay, while the endpoints that the registry adds are published."""
    gone = [
        ours(f"{cluster}-0", cluster=cluster, endpoints=build.endpoints(5, start))
        for cluster, start in (("us", 10), ("ap", 20))
    ]
    hub.observe(*gone)
    await hub.reconciler.reconcile(KEY)
    hub.clock.advance(1000.0)
    assert await hub.reconciler.reconcile(KEY) is None
    assert len(hub.sent) == 1
    assert set(hub.published()) > {"us-0", "ap-0"}
    last = hub.reconciler.last(KEY)
    assert last is not None
    assert [each.reason for each in last.findings] == ["RegistryRemovalWithheld"]


async def test_slices_of_another_lease_are_not_removed(hub: Hub) -> None:
    """Slices of another Lease are not removed and do not count for a mass removal."""
    hub.registry = hub.registry_of()
    hub.observe(ours(), *(msgspec.structs.replace(each, annotations={ANNOTATION_LEASE: "x"}) for each in others(3)))
    held = hub.reconciler.withheld()
    assert held is not None
    assert (held.entries, held.total) == (("cluster eu", "service edge/payments"), 2)


async def test_a_written_slice_carries_the_clusters_uid(hub: Hub) -> None:
    """A slice that is written gets the cluster's UID; no slice is written only for the UID."""
    hub.uids = {"eu": "uid-1"}
    hub.observe(ours())
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == []
    hub.offer(build.view("eu", build.endpoints(3)))
    await hub.reconciler.reconcile(KEY)
    assert hub.slices.of(KEY)["s-0"].annotations == {ANNOTATION_LEASE: LEASE, ANNOTATION_CLUSTER_UID: "uid-1"}


async def test_orphaned_slices_are_deleted_after_the_grace(hub: Hub) -> None:
    """Slices of a Service that is not in the registry are deleted after the grace, then it is forgotten."""
    hub.registry = hub.registry_of(clusters=hub.registry.clusters)
    hub.observe(ours())
    assert await hub.reconciler.reconcile(KEY) == 60.0
    hub.clock.advance(60.0)
    await hub.reconciler.reconcile(KEY)
    assert (hub.sent, hub.published(), hub.reconciler.last(KEY)) == (["delete s-0"], {}, None)


async def test_an_orphan_that_returns_in_time_stays(hub: Hub) -> None:
    """The grace starts from the beginning after the Service was in the registry again."""
    full = hub.registry
    hub.observe(ours())
    for registry, after in (
        (hub.registry_of(clusters=hub.registry.clusters), 59.0),
        (full, 59.0),
        (hub.registry_of(clusters=hub.registry.clusters), 59.0),
    ):
        hub.registry = registry
        await hub.reconciler.reconcile(KEY)
        hub.clock.advance(after)
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == []


@pytest.mark.parametrize("how", ["broken", "paused"])
async def test_grace_restarts_with_a_broken_or_paused_entry(hub: Hub, how: str) -> None:
    """The grace also starts from the beginning if the entry that came back is broken or paused."""
    full, gone = hub.registry, hub.registry_of(clusters=hub.registry.clusters)
    back = msgspec.structs.replace(gone, broken_targets={KEY: "no such key"}) if how == "broken" else full
    hub.observe(ours())
    for registry, paused in ((gone, False), (back, how == "paused"), (gone, False)):
        hub.registry = registry
        hub.services.replace({KEY: build.service(annotations={ANNOTATION_PAUSED: "true"} if paused else {})}, "2")
        await hub.reconciler.reconcile(KEY)
        hub.clock.advance(59.0)
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == []


async def test_dropped_source_is_deleted_after_the_grace(hub: Hub) -> None:
    """Slices of a dropped source are not written during the grace, and deleted after it."""
    hub.observe(ours(), ours("s-1", cluster="us", endpoints=build.endpoints(1, 7)))
    assert await hub.reconciler.reconcile(KEY) == pytest.approx(60.0, abs=0.1)
    assert hub.sent == []
    hub.clock.advance(60.1)
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["delete s-1"]


async def test_a_broken_clusters_slices_are_never_touched(hub: Hub) -> None:
    """Slices of a broken cluster stay, whether or not the Service is in the registry."""
    hub.observe(ours(), ours("s-1", cluster="us", endpoints=build.endpoints(1, 7)))
    for registry in (
        hub.registry_of(build.target("eu"), frozen_names=frozenset({"us"})),
        hub.registry_of(frozen_names=frozenset({"us", "eu"})),
    ):
        hub.registry = registry
        for _ in range(2):
            await hub.reconciler.reconcile(KEY)
            hub.clock.advance(1000.0)
    assert hub.sent == []


RENAMED = """\
version: 1
clusters:
  - name: europe
    {line}
    kubeconfig: {{path: k}}
    allowedCIDRs: [10.0.0.0/8]
    allowedPorts: [1-65535]
    provider: {{name: p}}
services:
  - {{name: {name}, namespace: {namespace}, sources: [{{cluster: europe}}]}}
"""


def renamed(line: str) -> Registry:
    """A registry in which cluster eu is called europe; ``line`` should say so."""
    text = RENAMED.format(line=line, name=KEY.name, namespace=KEY.namespace)
    return loads(text.encode(), "clusters.yaml").registry


@pytest.mark.parametrize(
    "line",
    [
        "formerly: eu",
        "formely: [eu]",
        "Formerly: [eu]",
        "formerly: {eu: europe}",
        "formerly: [Eu]",
        "previously: [eu]",
        "labels: {formerly: [eu]}",
        "nope: 1",
    ],
)
async def test_a_rename_with_a_slip_in_it_removes_nothing(hub: Hub, line: str) -> None:
    """Nothing is removed while the entry of a renamed cluster is broken; once fixed, slices are relabelled."""
    hub.observe(ours())
    hub.registry = renamed(line)
    assert list(hub.registry.broken_clusters) == ["europe"]
    for _ in range(3):
        await hub.reconciler.reconcile(KEY)
        hub.clock.advance(1000.0)
    assert hub.sent == []
    hub.registry = renamed("formerly: [eu]")
    hub.offer(build.view("europe", build.endpoints(2)))
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["update s-0"]


@pytest.mark.parametrize("line", ["formerly: eu", "formely: [eu]"])
async def test_grace_starts_when_the_renamed_entry_is_valid(hub: Hub, line: str) -> None:
    """The grace begins when the entry is valid again, not while it is broken."""
    hub.observe(ours())
    hub.registry = renamed(line)
    await hub.reconciler.reconcile(KEY)
    hub.clock.advance(1000.0)
    await hub.reconciler.reconcile(KEY)
    hub.registry = renamed("formerly: []")
    for seconds in (0.0, 59.0):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
    assert hub.sent == []
    hub.registry = renamed("formerly: [eu]")
    hub.offer(build.view("europe", build.endpoints(2)))
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["update s-0"]


async def test_finding_names_broken_entries_that_keep_slices(hub: Hub) -> None:
    """The finding names the broken entries that keep slices of an unknown cluster from being removed."""
    hub.observe(ours())
    hub.registry = renamed("formely: [eu]")
    await hub.reconciler.reconcile(KEY)
    last = hub.reconciler.last(KEY)
    assert last is not None
    assert [(each.reason, each.objects) for each in last.findings] == [("MaybeRenamed", ("eu",))]
    said = "eu: in no entry, but perhaps a former name in a broken one, so its endpoints stay: europe"
    assert last.findings[0].message == said


async def test_grace_of_an_unknown_cluster_waits_for_broken_entries(hub: Hub) -> None:
    """The grace of an unknown cluster begins when no entry is broken; that of a known one does not wait."""
    known, unknown = build.endpoints(1, 7), build.endpoints(1, 8)
    hub.observe(ours(), ours("s-1", cluster="us", endpoints=known), ours("s-2", cluster="asia", endpoints=unknown))
    us = ClusterSpec("us", None, allowed_ports=((1, 65535),))
    hub.registry = hub.registry_of(build.target("eu"), clusters={"us": us}, broken_clusters={"x": "bad"})
    for seconds in (0.0, 60.1, 1000.0):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["delete s-1"]
    hub.registry = hub.registry_of(build.target("eu"), clusters={"us": us})
    for seconds in (0.0, 59.0):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["delete s-1"]
    hub.clock.advance(1.1)
    await hub.reconciler.reconcile(KEY)
    assert hub.sent == ["delete s-1", "delete s-2"]


async def test_a_source_unknown_since_the_start_keeps_what_was_published(hub: Hub) -> None:
    """Endpoints of an unknown source are kept, even if the slice is deleted before the first answer."""
    hub.offer(SourceView("eu", "Unreachable", {}))
    hub.observe(ours())
    await hub.reconciler.reconcile(KEY)
    hub.observe()
    hub.version += 1
    await hub.reconciler.reconcile(KEY)
    assert len(hub.sent) == 1
    assert list(hub.published().values()) == [[build.address(0), build.address(1)]]


@pytest.mark.parametrize("how", ["removed", "standby"])
async def test_a_source_that_comes_back_begins_with_nothing(hub: Hub, how: str) -> None:
    """A source that was taken out and comes back publishes nothing before its first answer."""
    hub.registry = both = hub.registry_of(build.target("eu", "us"))
    hub.offer(SourceView("eu", "Unreachable", {}))
    hub.offer(build.view("us", build.endpoints(1, 7)))
    hub.observe(ours(), ours("s-1", cluster="us", endpoints=build.endpoints(1, 7)))
    await hub.reconciler.reconcile(KEY)
    standby = ClusterSpec("eu", None, state="standby", allowed_ports=((1, 65535),))
    without = hub.registry_of(build.target("us"))
    hub.registry = without if how == "removed" else hub.registry_of(build.target("eu", "us"), clusters={"eu": standby})
    for seconds in (0.0, 60.1):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
    assert hub.published() == {"s-1": [build.address(7)]}
    hub.registry = both
    await hub.reconciler.reconcile(KEY)
    assert hub.published() == {"s-1": [build.address(7)]}


@pytest.mark.parametrize("how", ["paused", "broken", "frozen"])
async def test_paused_time_does_not_count_for_a_withheld_removal(hub: Hub, how: str) -> None:
    """Time in which a target is paused, broken or frozen does not count for a withheld removal."""
    few = build.view("eu", build.endpoints(3), nodes=["n0", "n1", "n2"])
    hub.offer(build.view("eu", build.endpoints(10)))
    await hub.reconciler.reconcile(KEY)
    hub.offer(few)
    for seconds in (1.0, 100.0):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
    registry, service = hub.registry, build.service()
    if how == "paused":
        hub.services.replace({KEY: build.service(annotations={ANNOTATION_PAUSED: "true"})}, "2")
    elif how == "broken":
        hub.registry = msgspec.structs.replace(registry, targets={}, broken_targets={KEY: "no such key"})
    else:
        hub.registry = hub.registry_of(build.target("eu"), clusters={"eu": ClusterSpec("eu", None, state="frozen")})
    await hub.reconciler.reconcile(KEY)
    hub.clock.advance(3600.0)
    await hub.reconciler.reconcile(KEY)
    hub.services.replace({KEY: service}, "3")
    hub.registry = registry
    published = []
    for seconds in (0.0, 199.0, 1.0):
        hub.clock.advance(seconds)
        await hub.reconciler.reconcile(KEY)
        published.append(sum(map(len, hub.published().values())))
    assert published == [10, 10, 3]


async def test_a_failed_write_is_raised_and_remembered(hub: Hub) -> None:
    """A failed write is raised and remembered as a problem until a write succeeds."""
    hub.error = Forbidden(403, "Forbidden", "cannot create")
    with pytest.raises(Forbidden):
        await hub.reconciler.reconcile(KEY)
    assert hub.reconciler.problem(KEY) == "403: cannot create"
    hub.error = None
    await hub.reconciler.reconcile(KEY)
    assert hub.reconciler.problem(KEY) == ""


async def test_a_write_without_an_answer_is_a_problem_that_can_be_shown(hub: Hub) -> None:
    """A write without an answer is a problem until the next write succeeds."""
    hub.error = ClusterUnreachable("the hub cluster: connection lost", "reset")
    with pytest.raises(ClusterUnreachable):
        await hub.reconciler.reconcile(KEY)
    assert hub.reconciler.problem(KEY) == "the hub cluster: connection lost"
    hub.error = None
    await hub.reconciler.reconcile(KEY)
    assert hub.reconciler.problem(KEY) == ""


async def test_contended_slice_is_repaired_with_backoff(hub: Hub) -> None:
    """A slice that another client keeps editing is repaired at once, then after 1 s, then after 2 s."""
    await hub.reconciler.reconcile(KEY)
    (name,) = hub.published()
    waits = []
    for _ in range(3):
        hub.version += 1
        edited = msgspec.structs.replace(hub.slices.of(KEY)[name], endpoints=(), resource_version=str(hub.version))
        hub.slices.upsert(ObjectKey("edge", name), edited, str(hub.version))
        wait = await hub.reconciler.reconcile(KEY) or 0.0
        waits.append(round(wait))
        if wait:
            hub.clock.advance(wait)
            await hub.reconciler.reconcile(KEY)
    assert waits == [0, 1, 2]


async def test_a_slice_that_is_held_while_it_is_being_deleted_keeps_its_name(hub: Hub) -> None:
    """While a finalizer holds a slice that is being deleted, its endpoints go into a slice of another name."""
    await hub.reconciler.reconcile(KEY)
    [held] = hub.slices.of(KEY).values()
    hub.version += 1
    hub.observe(msgspec.structs.replace(held, deleting=True, resource_version=str(hub.version)))
    for _ in range(2):
        await hub.reconciler.reconcile(KEY)
    [other] = hub.slices.of(KEY).keys() - {held.name}
    assert hub.sent == [f"create {held.name}", f"create {other}"]
    assert hub.published()[other] == [build.address(0), build.address(1)]


async def test_endpoints_that_exchange_their_ports_are_in_both_slices_until_the_next_pass(hub: Hub) -> None:
    """An endpoint stays in its old slice until the next pass, which the first pass asks for."""
    hub.services.replace({KEY: build.service(ports=(ServicePort(80, "http", target_port="http"),))}, "2")
    published = []
    for one, other in ((8080, 9090), (9090, 8080)):
        sets = {build.address(1): (Port("http", other),)}
        hub.offer(build.view("eu", build.endpoints(2), ports=(Port("http", one),), port_sets=sets, copied=True))
        for _ in range(2):
            wait = await hub.reconciler.reconcile(KEY)
            published.append((wait, sorted(map(len, hub.published().values()))))
    assert published == [(RECHECK, [1, 1]), (None, [1, 1]), (RECHECK, [1, 2]), (RECHECK, [1, 1])]


def test_source_findings_are_findings_of_its_targets(hub: Hub) -> None:
    """Findings of a source, such as a node without an address, are findings of each target that uses it."""
    finding = Finding("NodeUnresolved", "eu: address not known of n2", ("n2",))
    hub.units["eu"].findings = (finding,)
    assert finding in hub.reconciler.decide(KEY).findings


def test_attaching_equal_findings_reports_no_change(hub: Hub) -> None:
    """Attaching findings reports a change only if they differ from the attached ones."""
    findings = (Finding("ForeignEndpoints", "x"),)
    assert [hub.reconciler.annotate(KEY, each) for each in (findings, findings, (), ())] == [True, False, True, False]


def test_attached_findings_are_forgotten_with_the_target(hub: Hub) -> None:
    """Attached findings are forgotten with their target, and can be attached again."""
    findings = (Finding("ForeignEndpoints", "x"),)
    hub.reconciler.annotate(KEY, findings)
    hub.reconciler.forget(KEY)
    assert hub.reconciler.decide(KEY).findings == ()
    assert hub.reconciler.annotate(KEY, findings)


async def test_every_change_is_written_by_the_pass_that_sees_it(hub: Hub) -> None:
    """Twenty changes a second make twenty writes a second: no pass leaves a change to a later one."""
    await hub.reconciler.reconcile(KEY)
    for number in range(1, 41):
        hub.clock.advance(0.05)
        hub.offer(build.view("eu", build.endpoints(2, start=number % 2)))
        assert await hub.reconciler.reconcile(KEY) is None
    assert [each.partition(" ")[0] for each in hub.sent] == ["create", *["update"] * 40]


class Followed:
    """A board that remembers which addresses are to be probed."""

    def __init__(self) -> None:
        self.cluster: list[str] = []

    def verdicts(self) -> Verdicts:
        return {}

    def follow(self, _: TargetKey, watches: Sequence[Watch], policies: Mapping[str, object]) -> None:
        self.cluster = [watch.cluster for watch in watches if watch.cluster in policies]

    def findings(self, watches: Sequence[Watch]) -> list[Finding]:
        return [Finding("ProberSuspected", f"{len(watches)} watches")]


async def test_probes_go_on_while_a_service_is_paused_and_end_with_it(hub: Hub) -> None:
    """Probes continue while a Service is paused, so that verdicts are current afterwards; they end with the Service."""
    board = hub.reconciler._gather.board = cast("Any", Followed())
    hub.registry = hub.registry_of(build.target(sources=(build.source("eu", health=HealthPolicy("tcp")),)))
    decision = hub.reconciler.decide(KEY)
    assert (board.cluster, decision.findings[-1].reason) == (["eu"], "ProberSuspected")
    hub.services.replace({KEY: build.service(annotations={ANNOTATION_PAUSED: "true"})}, "2")
    assert (hub.reconciler.decide(KEY).status, board.cluster) == ("paused", ["eu"])
    hub.services.replace({}, "3")
    hub.reconciler.decide(KEY)
    assert board.cluster == []
