"""A Service of real decisions, pass by pass, without any input or output."""

from __future__ import annotations

from collections.abc import Iterable

from hub.decide import history
from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Check
from hub.decide.decision import Decision, TargetState, decide
from hub.decide.history import Entry, of_decision, of_writes
from hub.decide.plan import apply_plan
from hub.decide.snapshot import HubIdentity, SourceReading, TargetSnapshot
from hub.decide.view import ViewBuilder, ViewResult
from hub.model import Found, Node, Slice, SourceView, TargetKey
from hub.registry.spec import ClusterSpec, GuardPolicy, NodePolicy, Registry, RegistryHeld, TargetSpec
from tests.support import build

KEY = TargetKey("edge", "payments")
LAX = GuardPolicy(max_removal=None, empty_results=1)


class Play:
    """A Service of real decisions, pass by pass: what is planned is what is observed next.

    Attributes:
        entries: the history so far.
    """

    def __init__(self, target: TargetSpec | None = None) -> None:
        self.target = target or build.target("eu", sources=(build.source("eu", guard=LAX),))
        self.service = build.service()
        self.state = TargetState()
        self.slices: tuple[Slice, ...] = ()
        self.theirs: tuple[Slice, ...] = ()
        self.now, self.wall = 1000.0, 1.8e9
        self.answers = 0
        self.registry = self._registry(self.target)
        self.views: dict[str, ViewResult] = {}
        self.unreachable: float | None = None
        self.approvers: dict[str, str] = {}
        self.held: dict[str, RegistryHeld] = {}
        self.verdicts: dict[Check, dict[str, bool]] = {}
        self.entries: list[Entry] = []
        self.builders: dict[str, ViewBuilder] = {}

    def _registry(self, *targets: TargetSpec) -> Registry:
        names = {source.cluster for source in self.target.sources}
        clusters = {name: ClusterSpec(name, None, allowed_ports=((1, 65535),)) for name in names}
        return Registry("default", clusters, {target.key: target for target in targets})

    def nodes(self, *nodes: Node, cluster: str = "eu", policy: NodePolicy | None = None) -> None:
        """A complete answer of a cluster: these nodes, which the provider resolves to their addresses."""
        if cluster not in self.builders or policy is not None:
            allowed = AddressPolicy(build.networks("10.0.0.0/8"))
            self.builders[cluster] = ViewBuilder(cluster, policy or NodePolicy(), allowed, 5000)
        found = {node.name: Found(tuple(entry.address for entry in node.addresses)) for node in nodes}
        self.views[cluster] = self.builders[cluster].build({node.name: node for node in nodes}, found, self.wall)

    def unknown(self, why: str, cluster: str = "eu") -> None:
        """The cluster gives no answer."""
        view = self.views[cluster].view
        self.views[cluster] = ViewResult(SourceView(cluster, why, view.endpoints), {})

    def drop(self) -> None:
        """The registry no longer has the Service."""
        self.registry = self._registry()

    def run(self, after: float = 1.0) -> list[Entry]:
        """One pass; returns its entries."""
        self.now += after
        self.wall += after
        self.answers += 1
        target = self.registry.targets.get(KEY)
        snapshot = TargetSnapshot(
            HubIdentity("hub/one"),
            KEY,
            self.now,
            self.wall,
            self.registry,
            self.service,
            observed=self.slices,
            sources=tuple(
                SourceReading(source, self.views[source.cluster], self.answers, unreachable_for=self.unreachable)
                for source in (target.sources if target is not None else ())
            ),
            verdicts=self.verdicts,
            approvals=self.approvers.keys(),
            held=self.held,
            theirs=self.theirs,
        )
        decision, self.state = decide(snapshot, self.state)
        self.decision: Decision = decision
        made = [*of_decision(decision, snapshot, history.lasting_states(self.entries), self.approvers)]
        if (plan := decision.plan) is not None:
            done = [("create", slice_) for slice_ in plan.creates] + [("update", slice_) for slice_ in plan.updates]
            done += [("delete", slice_) for slice_ in plan.deletes]
            made += of_writes(decision, snapshot, done)
            slices = apply_plan((*self.slices, *self.theirs), plan)
            self.theirs = tuple(slice_ for slice_ in slices if slice_ in self.theirs)
            self.slices = tuple(slice_ for slice_ in slices if slice_ not in self.theirs)
        self.entries += made
        return made


def nodes(*numbers: int) -> list[Node]:
    """Nodes n1, n2, … with the addresses 10.0.0.1, 10.0.0.2 and so on."""
    return [build.node(f"n{number}", f"10.0.0.{number}") for number in numbers]


def said(entries: Iterable[Entry]) -> list[tuple[str, str, list[str], str]]:
    """Kind, cluster, addresses with nodes, and reason of entries."""
    return [
        (entry.kind, entry.cluster, [f"{named.address} {named.node}".strip() for named in entry.endpoints], entry.why)
        for entry in entries
    ]
