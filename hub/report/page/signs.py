"""What a state looks like: a symbol and words, so that colour adds nothing; and what needs somebody."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hub.report.values import Cluster, Noted, Service, Status


class Sign(NamedTuple):
    """How a state is shown. ``kind``: good, warn, bad or idle; the words say the same."""

    kind: str
    symbol: str
    words: str


class Needed(NamedTuple):
    """Something that waits for somebody."""

    kind: str
    title: str
    text: str
    command: str = ""
    service: str = ""
    cluster: str = ""


STATES: Final = {
    "Ready": Sign("good", "✓", "Ready"),
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


def cluster_sign(each: Cluster) -> Sign:
    """The state of a cluster."""
    if each.mode == "broken":
        return Sign("bad", "✗", "broken entry")
    if each.mode == "frozen":
        return Sign("idle", "‖", "frozen")
    found = STATES.get(each.state, Sign("idle", "○", each.state or "not followed"))
    if found.kind == "good" and each.error:
        found = Sign("warn", "!", f"{found.words}, with an error")
    return found._replace(words=f"{found.words}, standby") if each.mode == "standby" else found


def service_sign(each: Service) -> Sign:
    """How a Service is doing, the worst first."""
    if each.problem:
        return Sign("bad", "✗", "not written")
    if each.paused:
        return Sign("idle", "‖", "paused")
    if each.total and not each.ready:
        return Sign("bad", "✗", "nothing ready")
    if each.status:
        return Sign("warn" if not each.total else "idle", "!" if not each.total else "○", each.status)
    if any(source.unknown for source in each.sources):
        return Sign("warn", "?", "a source is unknown")
    if each.withheld:
        return Sign("warn", "!", "followed, removals withheld")
    if not each.total:
        return Sign("warn", "!", "empty")
    if each.ready < each.total:
        return Sign("warn", "!", "followed, not all ready")
    return Sign("warn", "!", "followed, with findings") if findings(each) else Sign("good", "✓", "followed")


def findings(each: Service) -> tuple[Noted, ...]:
    """What was found beside what is withheld, which says so itself."""
    shown = {held.message for held in each.withheld}
    return tuple(found for found in each.findings if found.message not in shown)


def guard_sign(each: Service) -> Sign:
    """What the guard does."""
    held = sum(len(one.addresses) for one in each.withheld)
    return Sign("warn", "!", f"holds {held}") if held else Sign("good", "✓", "holds nothing")


def health_sign(each: Service) -> Sign:
    """What is ready, and what is not."""
    words = f"{each.ready} of {each.total} ready"
    more = [
        f"{number} {word}" for number, word in ((each.unhealthy, "unhealthy"), (each.draining, "draining")) if number
    ]
    text = ", ".join([words, *more])
    if not each.total:
        return Sign("idle", "○", "no endpoints")
    if not each.ready:
        return Sign("bad", "✗", text)
    return Sign("good", "✓", text) if each.ready == each.total else Sign("warn", "!", text)


def condition_sign(state: str) -> Sign:
    """The condition of an address."""
    return CONDITIONS.get(state, Sign("idle", "○", state))


def role_sign(role: str) -> Sign:
    """Who writes."""
    return Sign("good", "●", "leads") if role == "leader" else Sign("idle", "○", role)


def attention(status: Status) -> tuple[Needed, ...]:
    """Everything that waits for somebody, the worst first."""
    found: list[Needed] = []
    if status.hub.error:
        found.append(Needed("bad", "Hub cluster", status.hub.error))
    registry = status.registry
    if registry.rejected:
        text = f"the file is not in force, the last good one is: {registry.rejected}"
        found.append(Needed("bad", "Registry rejected", text))
    if registry.withheld is not None:
        found.append(Needed("warn", "Registry removal withheld", registry.withheld.message, registry.withheld.approve))
    found.extend(Needed("bad", "Registry entry frozen", each) for each in registry.problems)
    found.extend(_cluster_needs(each) for each in status.clusters if _waits(each))
    for each in status.services:
        found.extend(
            Needed("warn", f"{held.reason} in {held.cluster}", held.message, held.approve, each.name)
            for held in each.withheld
        )
        if each.problem:
            found.append(Needed("bad", "Not written", each.problem, service=each.name))
    return tuple(sorted(found, key=lambda each: each.kind != "bad"))  # the page shows the first of them


def _waits(each: Cluster) -> bool:
    """Whether a cluster is as it is until somebody acts; one that cannot be reached may come back by itself."""
    return each.state in ("WrongCluster", "Degraded") or (each.state == "Ready" and each.error != "")


def _cluster_needs(each: Cluster) -> Needed:
    sign = cluster_sign(each)
    text, approve, rest = each.error.rpartition(", or: hub approve ")  # what comes last is ours, whatever is before
    if each.state != "WrongCluster" or not approve:
        return Needed(sign.kind, sign.words, each.error, cluster=each.name)
    return Needed(sign.kind, sign.words, text, f"hub approve {rest}", cluster=each.name)


FILTERS: Final[dict[str, Any]] = {
    "cluster_sign": cluster_sign,
    "service_sign": service_sign,
    "guard_sign": guard_sign,
    "health_sign": health_sign,
    "condition_sign": condition_sign,
    "role_sign": role_sign,
    "findings": findings,
}
