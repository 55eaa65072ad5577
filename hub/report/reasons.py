"""Explains the state of an address, a node or a Service (``hub why``), with :mod:`hub.decide.explain`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal

from hub.decide.addresses import Rejected, parse
from hub.decide.decision import Decision
from hub.decide.explain import Facts, Step, explain_address, explain_node, explain_service, normal_form
from hub.decide.history import Entries
from hub.errors import closest
from hub.model import TargetKey
from hub.report.allocations import reserved_steps, reserved_unknown
from hub.report.cloud_reasons import cluster_of, why_in_cluster
from hub.report.detail import steps_of
from hub.report.facts import copied, gather, known_targets, unknown_sources
from hub.report.hub_state import HubState
from hub.report.past import remembered_address, remembered_node, remembered_service
from hub.report.state import last_decision
from hub.report.values import Step as Shown
from hub.report.values import Why

Kind = Literal["address", "node", "Service"]

SUBJECT: Final = re.compile(r"[A-Za-z0-9][-.:A-Za-z0-9]{0,252}(?:/[a-z0-9][-.a-z0-9]{0,252})?|::[:.0-9A-Fa-f]{0,40}")
"""Matches an address, the name of a node, and ``namespace/name`` of a Service."""


def prepare_why(
    hub: HubState, subject: str, results: Sequence[Decision] | None = None, cluster: str = ""
) -> Callable[[], Why]:
    """Gather the facts, and return a function that computes the explanation of ``subject``.

    Call this in the event loop, and the returned function in a thread.

    Args:
        hub: a hub that has observed its clusters.
        subject: an address, a node's name, or ``namespace/name`` of a Service.
        results: decisions about all targets; None = the last decisions of a running hub.
        cluster: whose cloud controller explains the subject, a Node or a Service there; "" = the hub does.
    """
    if cluster:
        explained = why_in_cluster(hub, subject, cluster)
        return lambda: explained
    keys: list[TargetKey] | None = None
    wanted = known = sorted(known_targets(hub))
    if "/" in subject:
        keys = wanted = [key for key in known if str(key) == subject]
    passes = [last_decision(hub, key) for key in wanted] if results is None else results
    mine = [decision for decision in passes if keys is None or decision.target in keys]
    facts = copied(gather(hub, mine, keys))
    unknown = tuple(unknown_sources(hub, mine, keys))
    reserved = reserved_steps(hub, subject)
    doubts = () if keys is not None else reserved_unknown(hub, subject)
    cloud = cluster_of(hub, subject)
    return partial(_why, subject, facts, unknown, known, hub.history.entries(), reserved, doubts, cloud)


def _why(
    subject: str,
    facts: Facts,
    unknown: tuple[str, ...],
    targets: Iterable[TargetKey],
    history: Entries,
    reserved: tuple[Shown, ...] = (),
    doubts: tuple[str, ...] = (),
    cloud: str = "",
) -> Why:
    kind, found = explain(subject, facts)
    steps = steps_of(found)
    if reserved and not any(step.stage != "policy" for step in steps):
        return Why(subject, kind, known=True, steps=reserved, unknown=doubts)
    steps = (*reserved, *steps)
    known = any(step.stage != "policy" for step in steps)
    if reserved or not known:
        unknown = (*unknown, *doubts)
    # Findings of a Service, such as ApprovalUsed, name addresses that no slice has any more.
    present = any(step.stage not in (("policy",) if kind == "Service" else ("policy", "service")) for step in steps)
    if not present and (past := _remembered(subject, kind, history)):
        now = Shown("history", "now", "gone", f"no cluster and no slice has the {kind} {subject} now")
        return Why(subject, kind, known=True, steps=(*past, now, *steps), unknown=unknown)
    hint = "" if known else f"{subject} --cluster {cloud}" if cloud else _hint(subject, kind, facts, targets)
    return Why(subject, kind, known, steps, unknown, hint)


def _remembered(subject: str, kind: Kind, history: Entries) -> tuple[Shown, ...]:
    """What the history says about a subject that neither a cluster nor a slice has."""
    if kind == "Service":
        return remembered_service(history, TargetKey(*subject.split("/", 1)))
    return remembered_address(history, normal_form(subject)) or remembered_node(history, subject)


def explain(subject: str, facts: Facts) -> tuple[Kind, tuple[Step, ...]]:
    """The kind of the subject, and its explanation. An address is explained as a node's name, too."""
    if "/" in subject:
        namespace, _, name = subject.partition("/")
        return "Service", explain_service(TargetKey(namespace, name), facts)
    address = parse(subject)
    if isinstance(address, Rejected):
        return "node", explain_node(subject, facts)
    steps = (*explain_node(subject, facts), *explain_address(str(address), facts))
    return "address", tuple(dict.fromkeys(steps))


def _hint(subject: str, kind: Kind, facts: Facts, targets: Iterable[TargetKey]) -> str:
    """The known name closest to the subject; "" if there is none, or if the subject is an address."""
    if kind == "address":
        return ""
    names = map(str, targets) if kind == "Service" else {name for source in facts.sources for name in source.nodes}
    return closest(subject, names)
