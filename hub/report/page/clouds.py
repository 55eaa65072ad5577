"""The tables of clusters whose cloud controller the hub is: nodes by state, and load balancers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hub.report.page.flows import KINDS
from hub.report.page.pools import MOST
from hub.report.page.signs import Sign
from hub.report.values import ClusterCloud

SIGNS: Final = {
    "ready": Sign("good", "✓", "ready"),
    "working": Sign("idle", "…", "working"),
    "waiting": Sign("idle", "…", "waiting"),
    "failing": Sign("bad", "✗", "failing"),
    "withheld": Sign("warn", "!", "withheld"),
    "foreign": Sign("idle", "○", "foreign"),
}
DUTIES: Final = {
    "held": Sign("good", "✓", "duty held"),
    "elsewhere": Sign("warn", "!", "duty elsewhere"),
    "waiting": Sign("idle", "…", "duty waiting"),
}


class Row(NamedTuple):
    """One line: the nodes in one state, a single node, or a Service with its balancer.

    Attributes:
        what: what it is about.
        sign: its state.
        since: since when, RFC 3339.
        where: addresses, or the provider ID.
        why: what is wrong, or what comes next.
        key: what a search finds.
    """

    what: str
    sign: Sign
    since: str
    where: str
    why: str
    key: str


class Part(NamedTuple):
    """A cluster, ``more`` of whose rows are not shown."""

    found: ClusterCloud
    duty: Sign
    sign: Sign
    words: str
    rows: tuple[Row, ...]
    more: int = 0


def parts(found: tuple[ClusterCloud, ...] | None) -> tuple[Part, ...]:
    """All clusters with a cloud controller, in the registry's order; in each, the worst rows first."""
    return tuple(map(_part, found or ()))


def _part(found: ClusterCloud) -> Part:
    rows = [*_nodes(found), *_balancers(found)]
    rows.sort(key=lambda row: KINDS.index(row.sign.kind))
    duty = DUTIES.get(found.duty, Sign("idle", "○", found.duty))
    if found.error or found.problem:
        duty = Sign("bad", "✗", f"{duty.words}, not known now")
    worst = min((duty, *(row.sign for row in rows)), key=lambda sign: KINDS.index(sign.kind))
    nodes, balancers = sum(found.node_states.values()), found.balancers
    ready = sum(one.state == "ready" for one in balancers)
    words = (
        f"{duty.words}, {found.node_states.get('ready', 0)} of {nodes} nodes and {ready} of {len(balancers)} balancers "
        "ready"
    )
    return Part(found, duty, worst, words, tuple(rows[:MOST]), max(0, len(rows) - MOST))


def _nodes(found: ClusterCloud) -> Iterator[Row]:
    for state, number in sorted(found.node_states.items()):
        named = [node for node in found.nodes if node.state == state]
        for node in named:
            yield _row(f"node {node.name}", state, node.since, node.provider_id, node.message)
        if rest := number - len(named):
            what = f"{rest} more nodes" if named else f"{rest} node{'s' if rest != 1 else ''}"
            yield _row(what, state, found.node_since.get(state, ""), "", "")


def _balancers(found: ClusterCloud) -> Iterator[Row]:
    for one in found.balancers:
        findings = (f"{finding.reason}: {finding.message}" for finding in one.findings)
        why = "; ".join(dict.fromkeys(filter(None, (one.message, *findings, *one.steps))))
        yield _row(f"Service {one.service}", one.state, one.since, " ".join(one.ingress), why)


def _row(what: str, state: str, since: str, where: str, why: str) -> Row:
    sign = SIGNS.get(state, Sign("idle", "○", state))
    return Row(what, sign, since, where, why, f"{what} {where}".lower())
