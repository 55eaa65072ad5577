"""The page's signs for states, with symbols and words so that nothing depends on colour, and "Needs attention"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from hub.observe.remote.status import READY_WITH_ERROR
from hub.report.values import Allocations, Cluster, ClusterCloud, Noted, Service, Status


class Sign(NamedTuple):
    """A sign for a state. ``kind`` selects the colour: good, warn, bad or idle; the words say the same."""

    kind: str
    symbol: str
    words: str


class Needed(NamedTuple):
    """An entry under "Needs attention"."""

    kind: str
    title: str
    text: str
    command: str = ""
    service: str = ""
    cluster: str = ""


STATES: Final = {
    "Ready": Sign("good", "✓", "Ready"),
    READY_WITH_ERROR: Sign("warn", "!", READY_WITH_ERROR),
    "Syncing": Sign("idle", "…", "Syncing"),
    "Pending": Sign("idle", "…", "Pending"),
    "Degraded": Sign("warn", "!", "Degraded"),
    "Unreachable": Sign("bad", "✗", "Unreachable"),
    "WrongCluster": Sign("bad", "✗", "WrongCluster"),
}
CONDITIONS: Final = {
    "ready": Sign("good", "✓", "ready"),
    "not ready": Sign("warn", "!", "not ready"),
    "unhealthy": Sign("bad", "✗", "unhealthy"),
    "draining": Sign("idle", "↓", "draining"),
    "not published": Sign("idle", "○", "not published"),
}


TOLD: Final = ("Withheld", "Conflict", "Invalid")
"""Reasons of an allocation that entries about its addresses explain."""


def cluster_sign(cluster: Cluster) -> Sign:
    """The state of a cluster."""
    if cluster.mode == "broken":
        return Sign("bad", "✗", "broken entry")
    if cluster.mode == "frozen":
        return Sign("idle", "‖", "frozen")
    found = STATES.get(cluster.state, Sign("idle", "○", cluster.state or "not followed"))
    if found.kind == "good" and cluster.error:
        found = STATES[READY_WITH_ERROR]
    return found._replace(words=f"{found.words}, standby") if cluster.mode == "standby" else found


def service_sign(service: Service) -> Sign:
    """The state of a Service; if several apply, the worst."""
    if service.problem:
        return Sign("bad", "✗", "not written")
    if service.paused:
        return Sign("idle", "‖", "paused")
    if service.total and not service.ready:
        return Sign("bad", "✗", "nothing ready")
    if service.status:
        return Sign("warn" if not service.total else "idle", "!" if not service.total else "○", service.status)
    if any(source.unknown for source in service.sources):
        return Sign("warn", "?", "a source is unknown")
    if service.withheld:
        return Sign("warn", "!", "followed, removals withheld")
    if not service.total:
        return Sign("warn", "!", "empty")
    if service.ready < service.total:
        return Sign("warn", "!", "followed, not all ready")
    return Sign("warn", "!", "followed, with findings") if findings(service) else Sign("good", "✓", "followed")


def findings(service: Service) -> tuple[Noted, ...]:
    """The findings, except those of withheld removals, which are shown on their own."""
    shown = {held.message for held in service.withheld}
    return tuple(found for found in service.findings if found.message not in shown)


def guard_sign(service: Service) -> Sign:
    """How many removals the guard withholds."""
    held = sum(len(one.addresses) for one in service.withheld)
    return Sign("warn", "!", f"withholds {held}") if held else Sign("good", "✓", "withholds nothing")


def health_sign(service: Service) -> Sign:
    """How many endpoints are ready."""
    words = f"{service.ready} of {service.total} ready"
    more = [
        f"{number} {word}"
        for number, word in ((service.unhealthy, "unhealthy"), (service.draining, "draining"))
        if number
    ]
    text = ", ".join([words, *more])
    if not service.total:
        return Sign("idle", "○", "no endpoints")
    if not service.ready:
        return Sign("bad", "✗", text)
    return Sign("good", "✓", text) if service.ready == service.total else Sign("warn", "!", text)


def condition_sign(state: str) -> Sign:
    """The condition of an address."""
    return CONDITIONS.get(state, Sign("idle", "○", state))


def role_sign(role: str) -> Sign:
    """The role of this replica."""
    return Sign("good", "●", "leads") if role == "leader" else Sign("idle", "○", role)


def attention(status: Status) -> tuple[Needed, ...]:
    """Everything that needs attention, the worst first."""
    found: list[Needed] = []
    if status.hub.error:
        found.append(Needed("bad", "Hub cluster", status.hub.error))
    registry = status.registry
    if registry.rejected:
        text = f"the last good file stays in force; the new one is rejected: {registry.rejected}"
        found.append(Needed("bad", "Registry rejected", text))
    if registry.withheld is not None:
        found.append(Needed("warn", "Registry removal withheld", registry.withheld.message, registry.withheld.approve))
    found.extend(Needed("bad", "Registry entry frozen", problem) for problem in registry.problems)
    found.extend(_cluster_needs(cluster) for cluster in status.clusters if _needs_operator(cluster))
    for service in status.services:
        found.extend(
            Needed("warn", f"{held.reason} in {held.cluster}", held.message, held.approve, service.name)
            for held in service.withheld
        )
        if service.problem:
            found.append(Needed("bad", "Not written", service.problem, service=service.name))
    found.extend(_allocation_needs(status.allocations) if status.allocations is not None else ())
    for cloud in status.clouds or ():
        found.extend(_cloud_needs(cloud))
    return tuple(sorted(found, key=lambda needed: needed.kind != "bad"))  # the page shows only the first 50


def _needs_operator(cluster: Cluster) -> bool:
    """Whether a cluster needs an operator; an unreachable one may come back by itself."""
    return cluster.state in ("WrongCluster", "Degraded") or (cluster.state == "Ready" and cluster.error != "")


def _cluster_needs(cluster: Cluster) -> Needed:
    sign = cluster_sign(cluster)
    # The hub appends the command. Split at the last match, since the text before it may come from the cluster.
    text, approve, rest = cluster.error.rpartition(", or: hub approve ")
    if cluster.state != "WrongCluster" or not approve:
        return Needed(sign.kind, sign.words, cluster.error, cluster=cluster.name)
    return Needed(sign.kind, sign.words, text, f"hub approve {rest}", cluster=cluster.name)


def _allocation_needs(found: Allocations) -> Iterator[Needed]:
    """What keeps reserved addresses from their nodes, and moves that wait for an approval."""
    if found.trouble:
        yield Needed("bad", "Allocations", found.trouble)
    for account in found.accounts:
        if account.error:
            yield Needed("bad" if account.frozen else "warn", f"Cloud account {account.name}", account.error)
    for allocation in found.allocations:
        title = f"Allocation {allocation.name}"
        withheld = {address.approve: address.message for address in reversed(allocation.addresses) if address.approve}
        for approve, message in withheld.items():
            yield Needed("warn", f"{title}: moves withheld", message, approve)
        for address in allocation.addresses:
            if address.state in ("Elsewhere", "Conflict", "Invalid"):
                yield Needed("warn", f"{title}: {address.state}", f"{address.address}: {address.message}")
        if allocation.ready in ("False", "Unknown") and allocation.reason not in (*TOLD, "Moving"):
            yield Needed("warn", f"{title}: {allocation.reason}", allocation.message)


def _cloud_needs(found: ClusterCloud) -> Iterator[Needed]:
    """What keeps a cloud controller from its work, and what waits for an approval."""
    title, cluster = f"Cloud {found.provider}", found.cluster
    if found.error:
        yield Needed("bad", title, found.error, cluster=cluster)
    if found.duty == "elsewhere":
        yield Needed("warn", f"{title}: {found.reason}", found.message, cluster=cluster)
    if found.approve:
        text = next((node.message for node in found.nodes if node.state == "withheld"), "deletions of Nodes")
        yield Needed("warn", f"{title}: deletions withheld", text, found.approve, cluster=cluster)
    for one in found.balancers:
        if one.state in ("failing", "withheld"):
            kind = "bad" if one.state == "failing" else "warn"
            yield Needed(kind, f"Load balancer of {one.service}: {one.state}", one.message, cluster=cluster)
    if found.leftovers:
        text = f"{len(found.leftovers)} in the cloud, such as {found.leftovers[0]}; hub purge --cloud {cluster}"
        yield Needed("warn", f"{title}: objects without a Service", text, cluster=cluster)


FILTERS: Final[dict[str, Any]] = {
    "cluster_sign": cluster_sign,
    "service_sign": service_sign,
    "guard_sign": guard_sign,
    "health_sign": health_sign,
    "condition_sign": condition_sign,
    "role_sign": role_sign,
    "findings": findings,
}
