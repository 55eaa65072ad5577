"""Build the claims of one source from its ports, its endpoints, and the verdicts of health checks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hub.decide import zones
from hub.decide.checks import Verdict, Verdicts, Watch
from hub.decide.claims import Claim, node_of
from hub.decide.endpoints import EMPTY, NOTHING_PUBLISHED, EndpointSet, GroupKey, Published
from hub.decide.health import NoPort, check_for, judge, passing, without_verdicts
from hub.decide.ports import NO_READINGS, PortProblem, PortReading, Ports, ports
from hub.model import DRAINING, LOCAL, Endpoint, Finding, Port, Service, SourceView
from hub.registry.spec import ClusterState, NodePortRef, SourceSpec, TargetSpec

NO_PORTS: tuple[Port, ...] = ()
EPSILON = 1e-6
"""Seconds by which sums of floats may be off: without it, a timer could fire just before its deadline."""


class SourceInput(msgspec.Struct, frozen=True):
    """One source of a target at this moment.

    Attributes:
        spec: the registry entry of the source.
        view: the endpoints that the source offers.
        state: the state of the cluster.
        unreachable_for: seconds without a connection, since the last complete answer; None while the cluster is
            connected, or while the ``unreachable`` policy is suspended.
        allowed_ports: the cluster's allowedPorts; None = any (the hub cluster itself).
        formerly: the cluster's old names, whose slices it adopts.
        node_ports: nodePorts that the target reads in this cluster.
    """

    spec: SourceSpec
    view: SourceView
    state: ClusterState = "active"
    unreachable_for: float | None = None
    allowed_ports: tuple[tuple[int, int], ...] | None = None
    formerly: tuple[str, ...] = ()
    node_ports: Mapping[NodePortRef, PortReading] = msgspec.field(default_factory=lambda: NO_READINGS)


class SharedInput(msgspec.Struct, frozen=True):
    """The inputs that all sources of a target share.

    Attributes:
        target: the registry entry.
        service: the hub Service.
        published: the published endpoints of the target.
        refused: addresses that the API server refuses: they are neither added nor changed.
        hub_zones: the zones of the hub cluster's Nodes; None = not known.
    """

    target: TargetSpec
    service: Service
    published: Mapping[GroupKey, Published]
    refused: frozenset[str] = frozenset()
    hub_zones: frozenset[str] | None = None


class SourceClaims(msgspec.Struct, frozen=True):
    """The claims of one source.

    Attributes:
        claims: one for each family of the Service, and one for each other family that is published.
        watches: the addresses to probe.
        findings: in a fixed order.
        unreachable_in: seconds until the ``unreachable`` policy takes effect.
    """

    claims: tuple[Claim, ...]
    watches: tuple[Watch, ...] = ()
    findings: tuple[Finding, ...] = ()
    unreachable_in: float | None = None


class CachedClaims(msgspec.Struct, frozen=True):
    """The claims of a source with all their inputs: as long as the inputs are equal, the claims are reused."""

    source: SourceInput
    target: TargetSpec
    service: Service
    published: tuple[tuple[GroupKey, Published], ...]
    refused: frozenset[str]
    verdicts: tuple[Mapping[str, Verdict] | None, ...]
    outcome: SourceClaims
    hub_zones: frozenset[str] | None = None


def claims_of(source: SourceInput, shared: SharedInput, verdicts: Verdicts, last: CachedClaims | None) -> CachedClaims:
    """The claims of a source.

    Args:
        source: the source.
        shared: the inputs that all sources share.
        verdicts: of health checks.
        last: the result of the last decision; returned unchanged if no input changed.
    """
    cluster = source.spec.cluster
    published = tuple((key, group) for key, group in sorted(shared.published.items()) if key.cluster == cluster)
    if (
        last is not None
        and last.published == published
        and last.source == source
        and last.target == shared.target
        and last.service == shared.service
        and last.refused == shared.refused
        and last.hub_zones == shared.hub_zones
        and last.verdicts == verdicts_used(last.outcome.watches, verdicts)
    ):
        return last
    made = _Source(source, shared, verdicts, dict(published)).outcome()
    seen = verdicts_used(made.watches, verdicts)
    return CachedClaims(source, shared.target, shared.service, published, shared.refused, seen, made, shared.hub_zones)


def verdicts_used(watches: tuple[Watch, ...], verdicts: Verdicts) -> tuple[Mapping[str, Verdict] | None, ...]:
    """The verdicts that a decision with these watches uses; None for a check without verdicts."""
    return tuple([verdicts.get(watch.check) for watch in watches])


def dropped_claim(target: TargetSpec, key: GroupKey, published: Published) -> Claim:
    """A claim that removes the endpoints of a cluster or family that the target no longer uses."""
    if target.policy == "upsert-only":
        return untouched_claim(key, published)
    numbers = published.slices[0].slice.ports if published.slices else ()
    return Claim(key, published, EMPTY, Ports(numbers), role="dropped", exempt=None)


def untouched_claim(key: GroupKey, published: Published) -> Claim:
    """A claim for published slices that must not be written."""
    return Claim(key, published, published.endpoints, known=False, role="untouched")


class _Source:
    """One source of one target."""

    def __init__(
        self, source: SourceInput, shared: SharedInput, verdicts: Verdicts, published: Mapping[GroupKey, Published]
    ) -> None:
        self._source = source
        self._view = source.view
        self._target = shared.target
        self._service = shared.service
        self._refused = shared.refused
        self._hub_zones = shared.hub_zones
        self._zones = dict(source.spec.nodes.zones)
        self._published = published
        self._verdicts = verdicts
        self._watches: list[Watch] = []
        self._findings: list[Finding] = []
        self._unreachable_in: float | None = None

    def outcome(self) -> SourceClaims:
        """The claims, watches and findings of the source."""
        return SourceClaims(tuple(self._claims()), tuple(self._watches), tuple(self._findings), self._unreachable_in)

    def _claims(self) -> list[Claim]:
        source, published = self._source, self._published
        if source.state == "standby":
            return [dropped_claim(self._target, key, group) for key, group in published.items()]
        if source.state == "frozen":
            return [untouched_claim(key, group) for key, group in published.items()]
        found = self._ports()
        cluster = source.spec.cluster
        if isinstance(found, PortProblem):
            self._findings.append(Finding(found.reason, f"{cluster}: {found.message}", (cluster,)))
            return [untouched_claim(key, group) for key, group in published.items()]
        self._findings += [Finding("NodePortUnknown", f"{cluster}: {text}", (cluster,)) for text in found.unread]
        families = self._service.families
        claims = [self._claim(GroupKey(cluster, family), found) for family in families]
        rest = [(key, group) for key, group in published.items() if key.family not in families]
        return claims + [dropped_claim(self._target, key, group) for key, group in rest]

    def _ports(self) -> Ports | PortProblem:
        source, view = self._source, self._view
        last = NO_PORTS
        if view.unknown is not None or any(port.node_port is not None for port in self._target.ports or ()):
            numbers = (group.slices[0].slice.ports for group in self._published.values() if group.slices)
            last = next(numbers, NO_PORTS)
        sets = view.port_sets or None
        return ports(self._target, self._service, source.allowed_ports, view.ports, sets, source.node_ports, last)

    def _claim(self, key: GroupKey, found: Ports) -> Claim:
        published = self._published.get(key, NOTHING_PUBLISHED)
        view = self._view
        if view.unknown is not None:
            return self._unknown(Claim(key, published, self._last_known(published, key), found, view, known=False))
        base = self._without_new_unready(published, EndpointSet.of(view.endpoints.get(key.family, EMPTY)))
        claim = Claim(key, published, self._hinted(base, self._with_kept(published, base)), found, view)
        watch = self._watch(claim)
        return claim if watch is None else self._judge(claim, watch)

    # --- offered endpoints --------------------------------------------------------------------------

    def _without_new_unready(self, published: Published, offered: EndpointSet) -> EndpointSet:
        """The offered endpoints, except unpublished addresses of nodes that are not Ready."""
        kept_only = self._view.kept_only
        if not kept_only or kept_only.isdisjoint(offered):
            return offered
        return offered.without(kept_only - published.endpoints.keys())

    def _last_known(self, published: Published, key: GroupKey) -> EndpointSet:
        """The published endpoints, plus last known good endpoints that are not published.

        A new target, or one whose slices or Service were deleted, thus gets endpoints even while the source is unknown.
        """
        good = self._view.endpoints.get(key.family, EMPTY)
        there = published.endpoints
        missing = good.keys() - there.keys() - self._refused - self._view.kept_only
        return there.overlay({address: good[address] for address in missing})

    def _with_kept(self, published: Published, base: EndpointSet) -> EndpointSet:
        """The offered endpoints, plus published endpoints that must not be removed on incomplete information."""
        view = self._view
        everything = self._target.policy == "upsert-only" or not view.complete
        if not (everything or view.unknown_nodes or self._refused):
            return base
        removed = published.difference(base).removed
        changes: dict[str, Endpoint | None] = {
            address: endpoint
            for address, endpoint in removed.items()
            if everything or node_of(endpoint) in view.unknown_nodes
        }
        # Addresses that the API server refuses are neither added nor changed.
        for address in self._refused:
            if address in base:
                changes[address] = published.endpoints.get(address)
        return base.overlay(changes)

    def _hinted(self, base: EndpointSet, wanted: EndpointSet) -> EndpointSet:
        """The wanted endpoints, of which all or none have zone hints.

        Args:
            base: the endpoints that the source offers.
            wanted: these and published ones that are kept, which may have hints from an earlier ``zoneMap``.
        """
        if self._zones:
            found = list(zones.problems(self._source.spec.cluster, wanted.values(), self._zones, self._hub_zones))
            self._findings += [each for each in found if each.reason not in {known.reason for known in self._findings}]
            return zones.without_hints(wanted) if found else wanted
        return wanted if wanted is base or self._source.spec.cluster == LOCAL else zones.without_hints(wanted)

    # --- unknown sources ------------------------------------------------------------------------------

    def _unknown(self, claim: Claim) -> Claim:
        """Keep the published endpoints, subject to verdicts and the ``unreachable`` policy."""
        source = self._source
        checked = source.spec.health.mode != "off"
        stated = EMPTY if self._view.adopted else self._view.endpoints.get(claim.key.family, EMPTY)
        claim = without_verdicts(claim, stated, checked=checked)
        watch = self._watch(claim)
        if watch is not None and checked:
            claim = self._judge(claim, watch)
        policy = source.spec.unreachable
        if source.unreachable_for is None or policy.policy == "keep":
            return claim
        if source.unreachable_for < policy.after - EPSILON:
            self._unreachable_in = policy.after - source.unreachable_for
            return claim
        answering = passing(watch, self._verdicts) if watch is not None else frozenset()
        # With failover, the endpoints stay until another source is active, so only merging removes them here.
        remove = policy.policy == "remove" and self._target.policy == "sync" and self._target.strategy == "merge"
        judged = claim.judged
        if judged is not None:
            judged = replace(judged, unchecked=_remove_or_drain(judged.unchecked, answering, remove=remove))
        return replace(
            claim, wanted=_remove_or_drain(claim.wanted, answering, remove=remove), judged=judged, exempt=None
        )

    # --- verdicts -------------------------------------------------------------------------------------

    def _watch(self, claim: Claim) -> Watch | None:
        """Register the addresses of a claim for probing; None if they are not checked."""
        source = self._source
        unreachable = not claim.known and source.unreachable_for is not None
        check = check_for(source.spec, claim.ports.ports, source.node_ports, unreachable=unreachable)
        if check is None:
            return None
        if isinstance(check, NoPort):
            self._findings.append(Finding("CheckWithoutPort", check.message, (claim.key.cluster,)))
            return None
        watch = Watch(*claim.key, check, claim.wanted, claim.current)
        self._watches.append(watch)
        return watch

    def _judge(self, claim: Claim, watch: Watch) -> Claim:
        remove = self._source.spec.health.on_fail == "remove" and self._target.policy == "sync"
        return judge(claim, watch, self._verdicts, remove=remove)


def _remove_or_drain(wanted: EndpointSet, answering: frozenset[str], *, remove: bool) -> EndpointSet:
    """Remove or drain the endpoints of an unreachable source, except those that answer probes."""
    out = {address: endpoint for address, endpoint in wanted.items() if address not in answering}
    if remove:
        return wanted.without(out)
    return wanted.overlay({address: _draining(endpoint) for address, endpoint in out.items()})


def _draining(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, conditions=DRAINING) if endpoint.conditions.ready else endpoint
