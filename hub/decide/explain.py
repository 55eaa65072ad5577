"""Explain step by step why an address, a node or a Service is published the way it is.

Pure functions over the results of the stages; nothing is decided or queried here. A step is one decision: the stage
that took it, its subject, its outcome, and the reason. Rejected candidates are steps, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hub.decide.addresses import Accepted, AddressPolicy, Rejected, parse
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.view import NodeReport, ViewResult
from hub.model import Absent, Endpoint, Found, Node, Resolution, Slice, TargetKey, Unknown, join_first

NAMED: Final = 3
"""Maximum number of names in a list of examples."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision.

    Attributes:
        stage: source, node, eligibility, resolution, address, service, published, health, guard or policy.
        where: the subject: a cluster, ``cluster/node`` or ``namespace/service``.
        outcome: one or two words.
        why: the explanation; may be "".
    """

    stage: str
    where: str
    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source: a cluster with one provider and one node policy.

    Attributes:
        cluster: the source cluster's name.
        services: targets that use this source, as ``namespace/name``.
        unknown: why the source is unknown; None if it is not.
        result: the view of the source.
        resolutions: the provider's answers, by node name.
        nodes: all nodes as last known, by name.
    """

    cluster: str
    services: tuple[str, ...]
    unknown: str | None
    result: ViewResult
    resolutions: Mapping[str, Resolution] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """One target after a decision.

    Attributes:
        decision: the last decision.
        sources: names of its source clusters, in order.
        slices: its slices as observed.
        probed: (cluster, family) -> address -> (verdict, reason); empty if this process does not probe.
    """

    decision: Decision
    sources: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    probed: Mapping[GroupKey, Mapping[str, tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that explanations are built from.

    Attributes:
        policies: remote cluster -> the addresses that it may publish.
    """

    sources: tuple[SourceFacts, ...]
    targets: tuple[TargetFacts, ...]
    policies: Mapping[str, AddressPolicy] = field(default_factory=dict)


def condition(endpoint: Endpoint) -> str:
    """An endpoint's conditions in words: ``draining``, ``unhealthy``, ``not ready`` or ``ready``."""
    if endpoint.conditions.terminating:
        return "draining"
    if endpoint.conditions.ready is False and endpoint.conditions.serving is False:
        return "unhealthy"
    return "not ready" if endpoint.conditions.ready is False else "ready"


# --- an address ----------------------------------------------------------------------------------


def explain_address(address: str, facts: Facts) -> tuple[Step, ...]:
    """Explain an address: the sources that offer it, the targets that publish it and why they keep it.

    Always lists the clusters whose allowedCIDRs contain the address; if no source or target has the address and it is
    in no cluster's allowedCIDRs, a step says so.

    Args:
        address: in normal form.
        facts: the facts of this moment.
    """
    steps: list[Step] = []
    for source in facts.sources:
        steps.extend(_offers(address, source))
    for target in facts.targets:
        steps.extend(_target_steps(target, facts, lambda endpoint: address in endpoint.addresses, address))
    seen = bool(steps)
    steps.extend(_policies(address, facts.policies, seen=seen))
    return tuple(dict.fromkeys(steps))


def _offers(address: str, source: SourceFacts) -> Iterable[Step]:
    claimed = [name for name in _names(source) if address in node_addresses(source, name)]
    for name in claimed:
        yield from _node_steps(source, name)
    if source.unknown is not None and any(address in family for family in source.result.view.endpoints.values()):
        yield Step("source", source.cluster, "unknown", f"{source.unknown}; its last good answer had {address}")


def _names(source: SourceFacts) -> list[str]:
    return sorted(source.result.reports.keys() | source.nodes.keys())


def node_addresses(source: SourceFacts, name: str) -> set[str]:
    """All addresses of a node, from its report, its resolution and its Node object, in normal form."""
    texts: list[str] = []
    if (report := source.result.reports.get(name)) is not None:
        texts += [*report.addresses, *(text for text, _ in report.rejected)]
    if isinstance(answer := source.resolutions.get(name), Found):
        texts += answer.addresses
    if (node := source.nodes.get(name)) is not None:
        texts += [entry.address for entry in node.addresses]
    return {normal_form(text) for text in texts}


def normal_form(text: str) -> str:
    """The normal form of an address; text that is not an address is returned unchanged."""
    found = parse(text)
    return text if isinstance(found, Rejected) else str(found)


def _policies(address: str, policies: Mapping[str, AddressPolicy], *, seen: bool) -> Iterable[Step]:
    """The clusters whose allowedCIDRs contain an address, or that deny it for another reason."""
    outside = 0
    for cluster, policy in sorted(policies.items()):
        inside = [
            str(network) for network in policy.allowed if _within(address, AddressPolicy((network,), local=False))
        ]
        verdict = policy.check(address)
        if isinstance(verdict, Accepted):
            yield Step("policy", cluster, "allowed", f"inside its allowedCIDRs ({', '.join(inside)})")
        elif inside or verdict.reason != OUTSIDE:
            yield Step("policy", cluster, "denied", f"it is {verdict.reason}")
        else:
            outside += 1
    if not seen and policies and outside == len(policies):
        yield Step("policy", "every cluster", "denied", "inside no cluster's allowedCIDRs")


OUTSIDE: Final = "outside allowedCIDRs"


def _within(address: str, policy: AddressPolicy) -> bool:
    return isinstance(policy.check(address), Accepted)


# --- a node --------------------------------------------------------------------------------------


def explain_node(name: str, facts: Facts) -> tuple[Step, ...]:
    """Explain a node, in every cluster that has one of this name."""
    steps: list[Step] = []
    for source in facts.sources:
        if name in source.nodes or name in source.result.reports:
            steps.extend(_node_steps(source, name))
    for target in facts.targets:
        steps.extend(_target_steps(target, facts, lambda endpoint: _node_of(endpoint) == name))
    return tuple(dict.fromkeys(steps))


def _node_of(endpoint: Endpoint) -> str:
    return endpoint.target_ref.name if endpoint.target_ref is not None else ""


def _node_steps(source: SourceFacts, name: str) -> Iterable[Step]:
    where = f"{source.cluster}/{name}"
    if (node := source.nodes.get(name)) is not None:
        yield Step("node", where, _readiness(node), _node_details(node))
    if source.unknown is not None:
        yield Step("source", source.cluster, "unknown", f"{source.unknown}; nothing is removed")
    report = source.result.reports.get(name)
    if report is not None:
        yield Step("eligibility", where, "yes" if report.eligible else "no", "" if report.eligible else report.message)
    if (answer := source.resolutions.get(name)) is not None:
        yield Step("resolution", where, *_resolution(answer))
    if report is not None:
        yield from _address_steps(where, report)


def _address_steps(where: str, report: NodeReport) -> Iterable[Step]:
    for text, reason in report.rejected:
        yield Step("address", where, "rejected", f"{text}: {reason}")
    for address in report.addresses:
        yield Step("address", where, "offered", address)
    if report.eligible and (report.reason or report.message):
        yield Step("address", where, report.reason or "kept", report.message)


def _readiness(node: Node) -> str:
    return {"True": "Ready", "False": "not Ready"}.get(node.ready, "Ready unknown")


def _node_details(node: Node) -> str:
    parts = [
        f"since {node.ready_since}" if node.ready_since else "",
        "cordoned" if node.unschedulable else "",
        "being deleted" if node.deleting else "",
        ", ".join(f"{entry.type} {entry.address}" for entry in node.addresses),
    ]
    return "; ".join(part for part in parts if part)


def _resolution(answer: Resolution) -> tuple[str, str]:
    match answer:
        case Found(addresses=addresses):
            return "found", ", ".join(addresses) or "without an address"
        case Absent(reason=reason):
            return "absent", reason
        case Unknown(reason=reason):
            return "unknown", reason


# --- targets ---------------------------------------------------------------------------------------


def _target_steps(
    target: TargetFacts, facts: Facts, selected: Callable[[Endpoint], bool], address: str = ""
) -> Iterable[Step]:
    """Where a target publishes the matching endpoints, and why it keeps or does not publish them.

    Args:
        target: the target.
        facts: the facts of this moment.
        selected: selects the endpoints.
        address: the address, if the question is about one; else "".
    """
    decision, where = target.decision, str(target.decision.target)
    published: set[tuple[GroupKey, str]] = set()
    checks = {GroupKey(watch.cluster, watch.family): str(watch.check) for watch in decision.watches}
    for slice_ in sorted(target.slices, key=lambda slice_: slice_.name):
        key = GroupKey(slice_.cluster, slice_.address_type)
        for endpoint in filter(selected, slice_.endpoints):
            behind = f", node {_node_of(endpoint)}" if _node_of(endpoint) else ""
            why = f"{endpoint.address} in slice {slice_.name} of {slice_.cluster}{behind}"
            yield Step("published", where, condition(endpoint), why)
            published.add((key, endpoint.address))
    for key, found in sorted(published):
        if key in checks:
            yield _health(target, key, found, checks[key])
        for stage, outcome, why in decision.why_still_published(key, found):
            yield Step(stage, where, outcome, why)
    offered = {
        (GroupKey(source.cluster, family), endpoint.address, endpoint.address in source.result.view.kept_only)
        for source in facts.sources
        if where in source.services and source.unknown is None
        for family, endpoints in source.result.view.endpoints.items()
        for endpoint in ([endpoints[address]] if address in endpoints else [] if address else endpoints.values())
        if selected(endpoint)
    }
    for key, found, kept_only in sorted(offered):
        if (key, found) not in published:
            stage, outcome, why = decision.why_not_published(key, found, kept_only=kept_only)
            yield Step(stage, where, outcome, why)
    shown = {withheld.message for withheld in decision.withheld.values()}
    for finding in decision.findings:
        if address and address in finding.objects and finding.message not in shown:
            yield Step("service", where, finding.reason, finding.message)


def _health(target: TargetFacts, key: GroupKey, address: str, check: str) -> Step:
    """The result of the health check of a published address; ``not probed`` if this process does not probe it."""
    what, where = f"{check} of {address}", str(target.decision.target)
    verdict = target.probed.get(key, {}).get(address)
    if verdict is None:
        return Step("health", where, "not probed", f"{what}: the conditions on its slice are used")
    outcome, why = verdict
    return Step("health", where, outcome, f"{what}: {why}" if why else what)


# --- a Service -----------------------------------------------------------------------------------


def explain_service(key: TargetKey, facts: Facts) -> tuple[Step, ...]:
    """Explain a Service: its sources in order, their offers and rejected candidates, and what the guard withholds."""
    target = next((target for target in facts.targets if target.decision.target == key), None)
    if target is None:
        return ()
    steps = [_published(target)]
    named = dict.fromkeys((*target.sources, *sorted({slice_.cluster for slice_ in target.slices})))
    for cluster in named:
        steps.extend(_source_steps(target, cluster, facts))
    decision = target.decision
    shown = {withheld.message for withheld in decision.withheld.values()}
    steps.extend(
        Step("service", str(key), found.reason, found.message)
        for found in decision.findings
        if found.message not in shown
    )
    return tuple(dict.fromkeys(steps))


def _published(target: TargetFacts) -> Step:
    endpoints = [endpoint for slice_ in target.slices for endpoint in slice_.endpoints]
    ready = sum(condition(endpoint) == "ready" for endpoint in endpoints)
    numbers = f"{len(endpoints)} published, {ready} ready, in {len(target.slices)} slices"
    return Step("service", str(target.decision.target), target.decision.status or "followed", numbers)


def _source_steps(target: TargetFacts, cluster: str, facts: Facts) -> Iterable[Step]:
    decision, where = target.decision, str(target.decision.target)
    source = next(
        (candidate for candidate in facts.sources if candidate.cluster == cluster and where in candidate.services), None
    )
    published = [endpoint for slice_ in target.slices if slice_.cluster == cluster for endpoint in slice_.endpoints]
    ready = sum(condition(endpoint) == "ready" for endpoint in published)
    numbers = f"{len(published)} published, {ready} ready"
    unknown = decision.unknown.get(cluster) or (source.unknown if source is not None else None)
    if cluster not in target.sources:
        yield Step("source", cluster, "not a source", f"{numbers}; no longer a source of the Service")
    elif unknown:
        yield Step("source", cluster, "unknown", f"{unknown}; {numbers}, nothing is removed")
    elif source is not None:
        offered = sum(map(len, source.result.view.endpoints.values()))
        yield Step("source", cluster, f"offers {offered}", f"of {len(source.result.reports)} candidates; {numbers}")
    if source is not None:
        yield from _rejections(source)
    for key, withheld in sorted(decision.withheld.items()):
        if key.cluster == cluster:
            yield Step("guard", where, "withheld", f"{withheld.kind}: {withheld.message}")
            yield Step("guard", where, "approve with", withheld.approve)


def _rejections(source: SourceFacts) -> Iterable[Step]:
    """Candidates that are not offered, counted by reason, with a few names as examples."""
    out: dict[tuple[str, str], list[str]] = {}
    for name, report in sorted(source.result.reports.items()):
        if not report.addresses:
            stage = "address" if report.eligible else "eligibility"
            out.setdefault((stage, report.reason), []).append(name)
    for (stage, reason), names in sorted(out.items()):
        yield Step(stage, source.cluster, f"{len(names)} {reason}", join_first(names, NAMED))
    refused = Counter(reason for _, _, reason in source.result.rejected)
    for reason, number in sorted(refused.items()):
        texts = [f"{text} of {name}" for name, text, why in source.result.rejected if why == reason]
        yield Step("address", source.cluster, f"{number} rejected", f"{reason}: {join_first(texts, NAMED)}")
