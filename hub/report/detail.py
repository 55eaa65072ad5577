"""The details of one Service or cluster, with the explanations of :mod:`hub.decide.explain` for each address.

An explanation reads all facts that it is given. Therefore facts are first split by address, so that a page with
hundreds of addresses takes little time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Final

import msgspec

from hub.decide.checks import Check, Watch
from hub.decide.explain import (
    Facts,
    SourceFacts,
    TargetFacts,
    condition,
    explain_address,
    explain_service,
    node_addresses,
)
from hub.decide.explain import Step as Decision
from hub.model import Absent, Found, Node, Resolution, Slice, TargetKey, Unknown
from hub.report.facts import Inspected, copied, gather, inspected, known_targets, probed
from hub.report.hub_state import HubState
from hub.report.state import Snapshots, cluster, last_decision
from hub.report.values import (
    NOT_PROBED,
    Address,
    ClusterDetail,
    NodeState,
    Refused,
    Resolved,
    Service,
    ServiceDetail,
    SourceDetail,
    Step,
)

ADDRESSES: Final = 100
"""Addresses that are explained in one answer by default; each takes about 0.1 ms."""
NOT_PUBLISHED: Final = "not published"
ORDER: Final = ("unhealthy", "not ready", "draining", NOT_PUBLISHED, "ready")
"""Order of addresses on the page by condition: conditions that need attention come first."""


def prepare_detail(
    hub: HubState, snapshots: Snapshots, key: TargetKey, offset: int = 0, limit: int = ADDRESSES
) -> Callable[[], ServiceDetail] | None:
    """Gather the facts, and return a function that computes a Service's details; None if the Service is unknown.

    Call this in the event loop, and the returned function in a thread.

    Args:
        hub: a running hub.
        snapshots: the snapshots of the hub.
        key: the key of the Service.
        offset: index of the first address that is explained.
        limit: most addresses that are explained.
    """
    if key not in known_targets(hub):
        return None
    facts = copied(gather(hub, [last_decision(hub, key)], [key]))
    return partial(service_detail, snapshots.service(key), key, facts, offset, limit)


def service_detail(service: Service, key: TargetKey, facts: Facts, offset: int, limit: int) -> ServiceDetail:
    """A Service with the explanations of a part of its addresses."""
    states = _states(facts)
    ordered = sorted(states, key=lambda address: (ORDER.index(states[address][0]), states[address][1], address))
    split = _Split(facts)
    addresses = tuple(
        Address(address, *states[address], steps_of(explain_address(address, split.of(address))))
        for address in ordered[offset : offset + limit]
    )
    return ServiceDetail(service, steps_of(explain_service(key, facts)), addresses, offset, len(ordered))


def steps_of(found: Iterable[Decision]) -> tuple[Step, ...]:
    """Explanation steps as API values."""
    return tuple(Step(step.stage, step.where, step.outcome, step.why) for step in found)


def _states(facts: Facts) -> dict[str, tuple[str, str]]:
    """Every published or available address -> its state and its cluster."""
    found: dict[str, tuple[str, str]] = {}
    for source in facts.sources:
        for family in source.result.view.endpoints.values():
            found.update((address, (NOT_PUBLISHED, source.cluster)) for address in family)
    for target in facts.targets:
        for slice_ in target.slices:
            for endpoint in slice_.endpoints:
                found[endpoint.address] = (condition(endpoint), slice_.cluster)
    return found


class _Split:
    """Splits facts by address."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._claims = [_by_address(source) for source in facts.sources]
        self._slices = [_by_published(target.slices) for target in facts.targets]

    def of(self, address: str) -> Facts:
        """The facts about one address."""
        sources = [
            _only(source, names.get(address, ()))
            for source, names in zip(self._facts.sources, self._claims, strict=True)
        ]
        targets = [
            _published(target, slices.get(address, ()))
            for target, slices in zip(self._facts.targets, self._slices, strict=True)
        ]
        return Facts(tuple(sources), tuple(targets), self._facts.policies)


def _by_address(source: SourceFacts) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in source.result.reports.keys() | source.nodes.keys():
        for address in node_addresses(source, name):
            found.setdefault(address, []).append(name)
    return found


def _by_published(slices: Iterable[Slice]) -> Mapping[str, list[Slice]]:
    found: dict[str, list[Slice]] = {}
    for slice_ in slices:
        for endpoint in slice_.endpoints:
            alone = msgspec.structs.replace(slice_, endpoints=(endpoint,))
            found.setdefault(endpoint.address, []).append(alone)
    return found


def _only(source: SourceFacts, names: Iterable[str]) -> SourceFacts:
    result = source.result
    nodes: dict[str, Node] = {name: source.nodes[name] for name in names if name in source.nodes}
    resolutions: dict[str, Resolution] = {
        name: source.resolutions[name] for name in names if name in source.resolutions
    }
    reports = {name: result.reports[name] for name in names if name in result.reports}
    small = type(result)(result.view, reports)
    return SourceFacts(source.cluster, source.services, source.unknown, small, resolutions, nodes)


def _published(target: TargetFacts, slices: Iterable[Slice]) -> TargetFacts:
    return TargetFacts(target.decision, target.sources, tuple(slices), target.probed)


# --- a cluster -----------------------------------------------------------------------------------


def cluster_detail(hub: HubState, name: str) -> ClusterDetail | None:
    """A cluster with its nodes; None if the registry does not have it."""
    if name not in hub.registry.clusters and name not in hub.registry.broken_clusters:
        return None
    return _cluster(hub, name, inspected(hub, name))


def cluster_details(hub: HubState) -> list[ClusterDetail]:
    """All clusters with a source or a broken entry, in the order of the file."""
    return [_cluster(hub, name, found) for name, found in groupby(inspected(hub), key=lambda source: source.cluster)]


def _cluster(hub: HubState, name: str, found: Iterable[Inspected]) -> ClusterDetail:
    return ClusterDetail(cluster(hub, name), tuple(_source(hub, source) for source in found))


def _source(hub: HubState, source: Inspected) -> SourceDetail:
    found = verdicts(hub, source)
    nodes = tuple(
        NodeState(
            report.node,
            report.eligible,
            report.reason,
            report.message,
            _resolved(source.resolutions.get(report.node)),
            report.addresses,
            tuple(Refused(address, reason) for address, reason in report.rejected),
            ", ".join(sorted({word for address in report.addresses for word in found.get(address, ())})) or NOT_PROBED,
        )
        for _, report in sorted(source.result.reports.items())
    )
    return SourceDetail(source.cluster, source.provider, source.services, source.unknown, nodes)


def verdicts(hub: HubState, source: Inspected) -> Mapping[str, set[str]]:
    """Address -> the verdicts of its Services' probes; empty if this process does not probe."""
    checks: dict[tuple[Check, str], Watch] = {}  # Services with the same check share its verdicts
    for name in source.services:
        desired = last_decision(hub, TargetKey(*name.split("/", 1))).desired
        for watch in desired.watches if desired is not None and hub.writing else ():
            if watch.cluster == source.cluster:
                checks.setdefault((watch.check, watch.family), watch)
    found: dict[str, set[str]] = {}
    for watch in checks.values():
        for address, (word, _) in probed(hub, watch).items():
            found.setdefault(address, set()).add(word)
    return found


def _resolved(answer: Resolution | None) -> Resolved | None:
    match answer:
        case Found(addresses=addresses):
            return Resolved("found", addresses)
        case Absent(reason=reason):
            return Resolved("absent", reason=reason)
        case Unknown(reason=reason):
            return Resolved("unknown", reason=reason)
        case None:
            return None
