"""Choose the active source of a failover target, from the sources' standings, a small memory and the time.

A switch has three steps, which each pass evaluates from scratch: publish the new source, observe it published for
:data:`SETTLE` seconds, remove the others. A hub that restarts during a switch adopts a published source and waits
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hub.model import Finding
from hub.registry.spec import FailoverPolicy

SETTLE: Final = 5.0
"""Seconds between publishing endpoints at the new source and removing them at the old one: kube-proxy syncs once a
second, and its watch adds a delay."""


FAILED_OVER: Final = "FailedOver"
"""Reason of the finding about a switch; only the pass that decides the switch reports it."""


class Standing(msgspec.Struct, frozen=True):
    """The state of one source, as far as it matters for failover.

    Attributes:
        cluster: name of the source cluster.
        known: whether the source made a complete statement.
        offers: whether it has any endpoints.
        ready: whether at least ``minReady`` of its wanted endpoints are ready; for an unknown source these are the
            published ones.
        published: whether any of its endpoints is published.
        serving: whether at least ``minReady`` of its published endpoints are ready.
    """

    cluster: str
    known: bool = True
    offers: bool = True
    ready: bool = True
    published: bool = False
    serving: bool = False


class FailoverMemory(msgspec.Struct, frozen=True):
    """The state of failover between two passes; empty after a restart.

    Attributes:
        active: the active source; "" if none is chosen yet.
        waiting_since: since when an unknown source earlier in the order delays the first choice.
        down_since: since when the active source is not ready.
        held: ready source earlier in the order than the active one -> since when it has been ready.
        settled_since: since when the active source has been observed published next to other sources.
    """

    active: str = ""
    waiting_since: float | None = None
    down_since: float | None = None
    held: Mapping[str, float] = msgspec.field(default_factory=dict)
    settled_since: float | None = None


class Choice(msgspec.Struct, frozen=True):
    """The decision of one pass.

    Attributes:
        active: the source to publish; None = nothing to publish yet.
        healthy: whether the active source is ready, so that the other sources are not needed.
        remove_others: whether the endpoints of the other sources may be removed now.
        memory: for the next pass.
        wake_at: latest time of the next pass, by the clock of ``now``; None if no timer is running.
        findings: a finding about the switch, if this pass decided one.
    """

    active: str | None
    healthy: bool
    remove_others: bool
    memory: FailoverMemory
    wake_at: float | None = None
    findings: tuple[Finding, ...] = ()


def choose(policy: FailoverPolicy, standings: Sequence[Standing], memory: FailoverMemory, now: float) -> Choice:
    """Choose the active source.

    Args:
        policy: the target's ``failover:``.
        standings: the sources in the registry's order, without those on standby.
        memory: from the last pass.
        now: seconds of a monotonic clock.
    """
    by_name = {standing.cluster: standing for standing in standings}
    active = memory.active if memory.active in by_name else _adopted(standings)
    if active is None:
        return _first_choice(policy, standings, memory, now)
    wakes: list[float] = []
    findings: tuple[Finding, ...] = ()
    down_since, held = _timers(standings, active, memory, now)
    switched_to = _successor(policy, standings, active, down_since, held, now, wakes)
    settled = memory.settled_since if active == memory.active else None
    if switched_to is not None:
        findings = (Finding(FAILED_OVER, f"failed over from {active} to {switched_to}", (active, switched_to)),)
        active, down_since, settled = switched_to, None, None
        held = _timers(standings, active, FailoverMemory(), now)[1]
    current = by_name[active]
    remove = False
    if (
        current.ready
        and current.serving
        and any(standing.published for standing in standings if standing is not current)
    ):
        settled = now if settled is None else settled
        remove = now >= settled + SETTLE
        if not remove:
            wakes.append(settled + SETTLE)
    else:
        settled = None
    new = FailoverMemory(active, None, down_since, held, settled)
    return Choice(active, current.ready, remove, memory if new == memory else new, min(wakes, default=None), findings)


def _adopted(standings: Sequence[Standing]) -> str | None:
    """The active source after a restart: a published source, preferably one that is ready; None if there is none."""
    published = [standing for standing in standings if standing.published]
    published.sort(key=lambda standing: (not standing.ready, not standing.serving))
    return published[0].cluster if published else None


def _first_choice(policy: FailoverPolicy, standings: Sequence[Standing], memory: FailoverMemory, now: float) -> Choice:
    """The choice while nothing is published: the first ready source, else the first known one that has endpoints.

    Unknown sources earlier in the order get ``failover.after`` seconds to become known.
    """
    chosen = next((standing for standing in standings if standing.ready), None)
    chosen = chosen or next((standing for standing in standings if standing.known and standing.offers), None)
    if chosen is None:
        return Choice(None, healthy=False, remove_others=False, memory=memory)
    earlier = standings[: standings.index(chosen)]
    since = memory.waiting_since if memory.waiting_since is not None else now
    if any(not standing.known for standing in earlier) and now < since + policy.after:
        waiting = FailoverMemory(waiting_since=since)
        return Choice(None, healthy=False, remove_others=False, memory=waiting, wake_at=since + policy.after)
    return choose(policy, standings, FailoverMemory(active=chosen.cluster), now)


def _timers(
    standings: Sequence[Standing], active: str, memory: FailoverMemory, now: float
) -> tuple[float | None, Mapping[str, float]]:
    """Since when the active source is not ready, and since when each source earlier in the order has been ready."""
    down_since: float | None = None
    held: dict[str, float] = {}
    for standing in standings:
        if standing.cluster == active:
            if not standing.ready:
                down_since = memory.down_since if memory.down_since is not None else now
            break
        if standing.ready:
            held[standing.cluster] = memory.held.get(standing.cluster, now)
    return down_since, held


def _successor(
    policy: FailoverPolicy,
    standings: Sequence[Standing],
    active: str,
    down_since: float | None,
    held: Mapping[str, float],
    now: float,
    wakes: list[float],
) -> str | None:
    """The source to switch to now, or None; adds to ``wakes`` the times at which a switch may become due."""
    if down_since is not None:
        ready = next(
            (standing.cluster for standing in standings if standing.ready and standing.cluster != active), None
        )
        if ready is not None and now >= down_since + policy.after:
            return ready
        if ready is not None:
            wakes.append(down_since + policy.after)
        return None
    if policy.failback == "manual":
        return None
    for cluster, since in held.items():
        if now >= since + policy.failback_after:
            return cluster
        wakes.append(since + policy.failback_after)
    return None
