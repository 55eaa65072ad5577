"""Random histories of one target, each from a seed, with more changes than a real target sees.

The worlds of :mod:`tests.model.machine` have a whole hub, but not every feature. Here the inputs of a decision are made
directly, so that all features meet: health checks and panic, adoption, named ports, frozen, broken and paused entries,
approvals, refusals, renames. Usually the plan of a decision is what the next decision observes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from hub.decide.checks import Check, Verdicts
from hub.model import (
    ANNOTATION_LEASE,
    ANNOTATION_PAUSED,
    DRAINING,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SOURCE_CLUSTER,
    PUBLISHED,
    Conditions,
    Endpoint,
    ObjectReference,
    Port,
    Service,
    ServicePort,
    Slice,
    SourceView,
    TargetKey,
)
from hub.registry.spec import (
    FailoverPolicy,
    GuardPolicy,
    HealthPolicy,
    NodePortRef,
    PortSpec,
    ProviderRef,
    RegistryHeld,
    SourceSpec,
    TargetSpec,
    UnreachablePolicy,
)
from tests.model.golden.moments import ClusterMoment, HubMoment, Moment, Outcome, RegistryMoment, SourceMoment, Step
from tests.model.golden.replay import Replay

KEY: Final = TargetKey("edge", "payments")
CLUSTERS: Final = ("a", "b", "c")
OLD: Final = "old-controller"
COPIER: Final = "endpoint-copier"
REMOTE: Final = TargetKey("kube-system", "ingress")
STEPS: Final = 60


class Machine:
    """A node of a cluster, or a record of a cluster without Nodes."""

    def __init__(self, name: str, number: int, cluster: str) -> None:
        self.name = name
        self.address = f"10.{CLUSTERS.index(cluster)}.0.{number}" if number < 40 else f"10.9.0.{number}"
        self.state = "ready"
        """``ready``, ``grace`` (not Ready, but in the view), ``out``, or ``unknown`` (no address yet)."""
        self.conditions = PUBLISHED
        self.zone: str | None = None


class Cluster:
    """One source and its state."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.machines = {f"n{i}": Machine(f"n{i}", i, name) for i in range(rng.randint(1, 9))}
        self.unknown: str | None = None
        self.unreachable_since: float | None = None
        self.answers = 1
        self.state = "active"
        self.formerly: tuple[str, ...] = ()
        self.complete = True
        self.records = rng.random() < 0.2
        self.ports = rng.random() < 0.3
        self.number: int | None = 31000
        self.wrong = ""
        self.latest: Mapping[str, Mapping[str, Endpoint]] = {}
        self.latest_kept: frozenset[str] = frozenset()

    def source(self, now: float, families: tuple[str, ...]) -> SourceMoment:
        """The inputs of a decision about it."""
        endpoints: dict[str, dict[str, Endpoint]] = {"IPv4": {}, "IPv6": {}}
        kept = set()
        if self.unknown is None:
            for machine in sorted(self.machines.values(), key=lambda machine: (machine.address, machine.name)):
                if machine.state not in ("ready", "grace") or machine.address in endpoints["IPv4"]:
                    continue
                reference = ObjectReference(kind="Node", name=machine.name)
                for family in ("IPv4", "IPv6") if len(families) > 1 else ("IPv4",):
                    address = machine.address if family == "IPv4" else f"fd00::{machine.address.replace('.', ':')}"
                    endpoint = Endpoint((address,), machine.conditions, target_ref=reference, zone=machine.zone)
                    endpoints[family][address] = endpoint
                    if machine.state == "grace":
                        kept.add(address)
            self.latest, self.latest_kept = endpoints, frozenset(kept)
        names = frozenset(self.machines)
        pending = frozenset(name for name, machine in self.machines.items() if machine.state == "unknown")
        port = (Port("https", 30443, "TCP"),) if self.ports else None
        view = SourceView(
            self.name,
            self.unknown,
            self.latest,
            pending,
            names,
            addresses_complete=frozenset(m.address for m in self.machines.values()) if self.records else None,
            complete=self.complete,
            ports=port,
        )
        since = self.unreachable_since
        reading = (self.number, "") if self.number is not None else (None, "the Service has no such port")
        return SourceMoment(
            view,
            self.latest_kept,
            answers=self.answers,
            unreachable_for=None if since is None else now - since,
            wrong_cluster=self.wrong,
            node_ports={NodePortRef(REMOTE, "https"): reading, NodePortRef(REMOTE, 0): reading},
        )


class Walk:
    """One history.

    Args:
        seed: the seed of all random choices.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 1000.0
        self.wall = 1_800_000_000.0
        self.hub = HubMoment(flags=" --owner x", probes=rng.random() < 0.9)
        self.clusters = {name: Cluster(name, rng) for name in CLUSTERS}
        self.names = list(CLUSTERS[: rng.randint(1, 3)])
        self.target: TargetSpec | None = self._target()
        self.service: Service | None = self._service()
        self.observed: dict[str, Slice] = {}
        self.theirs: dict[str, Slice] = {}
        self.theirs_known = True
        self.deleted: list[str] = []
        self.refused: frozenset[str] = frozenset()
        self.foreign: frozenset[str] = frozenset()
        self.failing: set[str] = set()
        self.unproven: set[str] = set()
        self.approvals: frozenset[str] = frozenset()
        self.broken: str | None = None
        self.broken_clusters: dict[str, str] = {}
        self.held: dict[str, RegistryHeld] = {}
        self.uids: dict[str, str] = {}
        self.version = 1
        self.outcome: Outcome | None = None
        self.former: dict[str, tuple[str, ...]] = {}
        if self.target is not None and self.target.adopt:
            self._add_theirs()

    # the beginning

    def _target(self) -> TargetSpec:
        rng = self.rng
        strategy: Any = rng.choice(["merge", "merge", "failover"])
        ports: Any = rng.choice(
            [
                None,
                None,
                (PortSpec(30443),),
                (PortSpec(0, node_port=NodePortRef(REMOTE, "https")),),
            ]
        )
        return TargetSpec(
            KEY,
            tuple(self._source(name) for name in self.names),
            strategy,
            FailoverPolicy(rng.choice([1, 2]), rng.choice([0.0, 10.0, 30.0]), rng.choice(["auto", "manual"]), 40.0),
            ports,
            rng.choice(["sync", "sync", "sync", "upsert-only"]),
            rng.choice([3, 5, 100]),
            adopt=rng.choice(["", "", "", OLD, COPIER]),
        )

    def _source(self, name: str) -> SourceSpec:
        rng = self.rng
        health = rng.choice(
            [
                HealthPolicy(),
                HealthPolicy(),
                HealthPolicy("tcp", on_fail=rng.choice(["not-ready", "remove"])),
                HealthPolicy("http", port=8080, path="/healthz"),
                HealthPolicy("http", service=REMOTE),
            ]
        )
        guard = GuardPolicy(rng.choice([0, 1, 3]), rng.choice([None, 0.3, 0.5]), 600.0, rng.choice([None, 60.0, 300.0]))
        unreachable = UnreachablePolicy(60.0, rng.choice(["keep", "not-ready", "remove"]), rng.choice(["off", "tcp"]))
        written = rng.choice([frozenset(), frozenset({"empty_results", "max_removal"})])
        return SourceSpec(
            name, ProviderRef("model"), guard=guard, unreachable=unreachable, guard_set=written, health=health
        )

    def _service(self) -> Service:
        rng = self.rng
        return Service(
            *KEY,
            f"service-{rng.randint(0, 9)}",
            headless=rng.random() < 0.15,
            publish_not_ready=rng.random() < 0.1,
            families=rng.choice([("IPv4",), ("IPv4",), ("IPv4", "IPv6")]),
            ports=(ServicePort(443, "https", target_port=rng.choice([30443, 30443, "https"])),),
            local_policies=rng.choice([(), (), ("externalTrafficPolicy",)]),
            labels={"app": "payments"},
        )

    def _add_theirs(self) -> None:
        adopt = self.target.adopt if self.target is not None else OLD
        self.version += 1
        mark = {LABEL_MANAGED_BY: OLD} if adopt != COPIER else {"endpoint-copier/source": "x"}
        content = [
            Endpoint((machine.address,), self.rng.choice([PUBLISHED, Conditions(ready=True), Conditions(ready=False)]))
            for name in self.names
            for machine in list(self.clusters[name].machines.values())[: self.rng.randint(1, 4)]
        ]
        name = f"old-{self.version}"
        self.theirs[name] = Slice(
            *(KEY.namespace, name, "IPv4", tuple(content), (Port("https", 30443, "TCP"),)),
            labels={LABEL_SERVICE_NAME: KEY.name, **mark},
            uid=f"uid-{name}",
            resource_version=str(self.version),
        )

    # --- steps ------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """The whole history."""
        replay = Replay()
        for number in range(STEPS):
            if number:
                if self.rng.random() < 0.3:
                    self._repair()
                for _ in range(self.rng.choice([0, 1, 1, 1, 2, 3])):
                    self._happen()
                self._pass_time()
            moment = self.moment()
            self.deleted = []
            outcome = replay.decide(moment)
            yield Step(moment, outcome)
            self.outcome = outcome
            if outcome.status == "gone":
                return
            self._write(outcome)

    def moment(self) -> Moment:
        """The inputs of the next decision."""
        families = self.service.families if self.service is not None else ("IPv4",)
        registry = RegistryMoment(
            clusters={
                name: ClusterMoment(cluster.state, ((1, 65535),), self.former.get(name, ()))
                for name, cluster in self.clusters.items()
                if name not in self.broken_clusters
            },
            broken_clusters=dict(self.broken_clusters),
            frozen_names=frozenset(self.broken_clusters),
            broken=self.broken,
        )
        return Moment(
            self.hub,
            KEY,
            self.now,
            self.wall,
            registry,
            self.target,
            self.service,
            observed=tuple(self.observed[name] for name in sorted(self.observed)),
            sources={name: self.clusters[name].source(self.now, families) for name in self.names},
            suspended=self.rng.random() < 0.03,
            refused=self.refused,
            foreign=self.foreign,
            retry_in=100.0 if self.refused else None,
            verdicts=self._verdicts(),
            approvals=self.approvals,
            held=dict(self.held),
            uids=dict(self.uids),
            theirs=tuple(self.theirs[name] for name in sorted(self.theirs)) if self.theirs_known else None,
            deleted=tuple(self.deleted),
        )

    def _verdicts(self) -> Verdicts:
        found: dict[Check, dict[str, bool | None]] = {}
        for probed in self.outcome.probed if self.outcome is not None else ():
            content = found.setdefault(probed.check, {})
            for address in probed.addresses:
                if address not in self.unproven:
                    content[address] = address not in self.failing
                elif self.rng.random() < 0.5:
                    content[address] = None
        return found

    def _write(self, outcome: Outcome) -> None:
        """Apply a plan, or part of it."""
        if outcome.planned is None:
            return
        creates, updates, deletes = outcome.planned
        for slice_ in (*creates, *updates):
            if self.rng.random() < 0.08:
                continue
            self.version += 1
            self.observed[slice_.name] = replace(
                slice_, uid=slice_.uid or f"uid-{self.version}", resource_version=str(self.version)
            )
        for slice_ in deletes:
            if self.rng.random() < 0.08:
                continue
            if self.theirs.pop(slice_.name, None) is not None:
                self.deleted.append(slice_.uid)
            self.observed.pop(slice_.name, None)

    def _pass_time(self) -> None:
        again = self.outcome.again_after if self.outcome is not None else None
        seconds = self.rng.choice([0.05, 0.5, 3.0, 6.0, 12.0, 30.0, 70.0, 310.0, again or 1.0, again or 1.0])
        self.now += seconds
        self.wall += seconds

    def _repair(self) -> None:
        """End conditions that prevent decisions, so that most steps have a decision."""
        self.broken = None
        self.service = self.service or self._service()
        self.service = replace(self.service, annotations={}, selector=False, deleting=False)
        self.target = self.target or self._target()

    # events

    def _happen(self) -> None:
        happening = self.rng.choices(
            [
                self._node_changes,
                self._many_nodes_change,
                self._cluster_changes,
                self._registry_changes,
                self._service_changes,
                self._somebody_tampers,
                self._verdicts_change,
                self._operator_approves,
                self._others,
                self._hub_restarts_clock,
            ],
            [12, 3, 4, 2, 1, 1, 3, 2, 2, 1],
        )[0]
        happening()

    def _cluster(self) -> Cluster:
        return self.clusters[self.rng.choice(self.names or list(CLUSTERS))]

    def _node_changes(self) -> None:
        cluster = self._cluster()
        cluster.answers += 1
        name = f"n{self.rng.randint(0, 9)}"
        machine = cluster.machines.get(name)
        what = self.rng.choice(["comes", "goes", "flips", "flips", "cordoned", "moves", "zone"])
        if machine is None or what == "comes":
            number = self.rng.choice([int(name[1:]), self.rng.randint(0, 11), self.rng.randint(40, 44)])
            machine = cluster.machines[name] = Machine(name, number, cluster.name)
            machine.state = self.rng.choice(["ready", "ready", "grace", "unknown"])
            cluster.machines = dict(sorted(cluster.machines.items()))
        elif what == "goes":
            del cluster.machines[name]
        elif what == "flips":
            machine.state = self.rng.choice(["ready", "grace", "out", "unknown"])
        elif what == "cordoned":
            machine.conditions = self.rng.choice([PUBLISHED, DRAINING])
        elif what == "moves":
            machine.address = f"10.9.0.{self.rng.randint(40, 44)}"
        else:
            machine.zone = self.rng.choice([None, "z1", "z2"])

    def _many_nodes_change(self) -> None:
        cluster = self._cluster()
        cluster.answers += 1
        state = self.rng.choice(["ready", "ready", "out", "gone", "grace"])
        if state == "gone":
            kept = list(cluster.machines.items())[: self.rng.choice([0, 0, 1, 3])]
            cluster.machines = dict(kept)
            return
        for machine in cluster.machines.values():
            if self.rng.random() < 0.8:
                machine.state = state

    def _cluster_changes(self) -> None:
        cluster = self._cluster()
        what = self.rng.choice(["unknown", "unreachable", "unreachable", "back", "back", "state", "parts", "number"])
        if what == "unknown":
            cluster.unknown = "403: forbidden"
        elif what == "unreachable":
            cluster.unknown = "connection refused"
            cluster.unreachable_since = self.now - self.rng.choice([0.0, 50.0, 70.0])
        elif what == "back":
            cluster.unknown = cluster.unreachable_since = None
            cluster.wrong = ""
        elif what == "state":
            cluster.state = self.rng.choice(["active", "active", "standby", "frozen"])
        elif what == "parts":
            cluster.complete = not cluster.complete
        else:
            cluster.number = self.rng.choice([None, 31000, 31000, 32000])

    def _registry_changes(self) -> None:
        rng = self.rng
        what = rng.choice(["sources", "sources", "policy", "broken", "cluster", "rename", "drop", "held", "adopt"])
        if what == "sources":
            self.names = rng.sample(CLUSTERS, rng.randint(1, 3))
            self.target = self._target() if self.target is None else self._with_sources(self.target)
        elif what == "policy" and self.target is not None:
            self.target = replace(
                self.target, strategy=rng.choice(["merge", "failover"]), policy=rng.choice(["sync", "upsert-only"])
            )
        elif what == "broken":
            self.broken = None if self.broken is not None else "ports: not a number"
        elif what == "cluster":
            name = rng.choice(CLUSTERS)
            if self.broken_clusters.pop(name, None) is None:
                self.broken_clusters[name] = "kubeconfig: no such file"
        elif what == "rename":
            self.former = {} if self.former else {self.names[0]: (rng.choice(CLUSTERS),)} if self.names else {}
        elif what == "drop":
            self.target = None if self.target is not None else self._target()
        elif what == "held":
            entries = ("cluster a", "cluster b", f"service {KEY}")
            known = RegistryHeld("abcdefabcdef", entries, 5, 9, "hub approve registry abcdefabcdef")
            self.held = {} if self.held else dict.fromkeys(entries, known)
        elif self.target is not None:
            self.target = replace(self.target, adopt=rng.choice(["", OLD, COPIER]))
            self._add_theirs()

    def _with_sources(self, target: TargetSpec) -> TargetSpec:
        known = {source.cluster: source for source in target.sources}
        return replace(target, sources=tuple(known.get(name) or self._source(name) for name in self.names))

    def _service_changes(self) -> None:
        what = self.rng.choice(["paused", "paused", "gone", "new", "new", "deleting", "selector"])
        if what == "gone":
            self.service = None
        elif self.service is None or what == "new":
            self.service = self._service()
        elif what == "paused":
            paused = not self.service.annotations
            self.service = replace(self.service, annotations={ANNOTATION_PAUSED: "true"} if paused else {})
        else:
            self.service = replace(
                self.service,
                **{what: not getattr(self.service, what)},  # type: ignore[arg-type]
            )

    def _somebody_tampers(self) -> None:
        if not self.observed:
            return
        name = self.rng.choice(sorted(self.observed))
        slice_ = self.observed[name]
        what = self.rng.choice(["delete", "empty", "less", "more", "ready", "port", "label", "deleting", "lease"])
        self.version += 1
        strange = Endpoint((f"10.8.0.{self.version % 9}",), PUBLISHED)
        changes: dict[str, Any] = {
            "empty": {"endpoints": ()},
            "less": {"endpoints": slice_.endpoints[1:]},
            "more": {"endpoints": (*slice_.endpoints, strange)},
            "ready": {"endpoints": tuple(replace(endpoint, conditions=PUBLISHED) for endpoint in slice_.endpoints)},
            "port": {"ports": (Port("https", 1, "TCP"),)},
            "label": {"labels": {**slice_.labels, LABEL_SOURCE_CLUSTER: self.rng.choice([*CLUSTERS, "elsewhere"])}},
            "deleting": {"deleting": True},
            "lease": {"annotations": {**slice_.annotations, ANNOTATION_LEASE: "hub/other"}},
        }.get(what, {})
        if what == "delete":
            del self.observed[name]
        else:
            self.observed[name] = replace(slice_, **changes, resource_version=str(self.version))

    def _verdicts_change(self) -> None:
        probed = self.outcome.probed if self.outcome is not None else ()
        every = sorted({address for group in probed for address in group.addresses})
        share = self.rng.choice([0.0, 0.0, 0.2, 0.5, 1.0])
        self.failing = {address for address in every if self.rng.random() < share}
        self.unproven = {address for address in every if self.rng.random() < 0.1}

    def _operator_approves(self) -> None:
        held = self.outcome.withheld if self.outcome is not None else ()
        self.approvals = frozenset(withheld.hash for withheld in held)

    def _others(self) -> None:
        rng = self.rng
        what = rng.choice(["theirs", "touched", "known", "refused", "foreign", "uid", "deleted"])
        if what == "theirs":
            self._add_theirs()
        elif what == "touched" and self.theirs:
            name = rng.choice(sorted(self.theirs))
            self.version += 1
            self.theirs[name] = replace(self.theirs[name], resource_version=str(self.version))
        elif what == "known":
            self.theirs_known = not self.theirs_known
        elif what == "refused":
            cluster = self._cluster()
            some = [machine.address for machine in cluster.machines.values()][:2]
            self.refused = frozenset() if self.refused else frozenset(some)
        elif what == "foreign":
            self.foreign = frozenset() if self.foreign else frozenset({next(iter(self.observed), "payments-x-0")})
        elif what == "uid":
            self.uids = {} if self.uids else dict.fromkeys(CLUSTERS, "uid-of-cluster")
        else:
            self.theirs.clear()

    def _hub_restarts_clock(self) -> None:
        self.wall += self.rng.choice([-3600.0, 3600.0])
