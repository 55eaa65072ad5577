"""Draining: an endpoint that leaves is published as terminating for a while, and only then removed.

Comes after the guard, which decides about the removal as if there were no draining: what it withholds does not drain.
An endpoint is removed at once if its health check fails, if it was published as failed already, or if another source
publishes its address.

The state is in the slices, as ``terminating``; only the timer is in memory. After a restart, the timer starts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.decide.checks import Check, Verdicts, Watch
from hub.decide.endpoints import EndpointGroup, GroupKey, by_address
from hub.decide.health import check_for
from hub.decide.sources import EPSILON, SourceInput
from hub.model import DRAINING, Endpoint, Service

Place = tuple[GroupKey, str]
"""Source and family, address."""

Draining = Mapping[Place, float]
"""Place -> when it began to drain, by a monotonic clock."""

NONE: Final[Draining] = {}


class Drained(msgspec.Struct, frozen=True):
    """What draining changes in a decision.

    Attributes:
        groups: the groups, with the draining endpoints.
        since: for the next decision.
        watches: the addresses to probe, with the draining ones.
    """

    groups: tuple[EndpointGroup, ...]
    since: Draining
    watches: tuple[Watch, ...]


def decided(groups: Iterable[EndpointGroup], since: Draining) -> tuple[EndpointGroup, ...]:
    """The groups, with the draining addresses exempt from the guard, which has let them go already."""
    if not since:
        return tuple(groups)
    return tuple(
        replace(group, exempt=group.exempt.union(address for address in group.removed if (group.key, address) in since))
        for group in groups
    )


def drain(
    groups: Sequence[EndpointGroup],
    seconds: float,
    service: Service,
    sources: Iterable[SourceInput],
    watches: tuple[Watch, ...],
    verdicts: Verdicts,
    since: Draining,
    now: float,
) -> Drained:
    """Keep leaving endpoints as terminating.

    Args:
        groups: what the guard allows.
        seconds: how long an endpoint drains; 0 = not at all.
        service: the hub Service.
        sources: the target's sources.
        watches: the addresses to probe, without the draining ones.
        verdicts: of health checks.
        since: from the last decision.
        now: by the clock of ``since``.
    """
    if seconds <= 0 or not any(group.removed for group in groups):
        return Drained(tuple(groups), NONE, watches)
    conditions = replace(DRAINING, ready=service.publish_not_ready)
    inputs = {source.spec.cluster: source for source in sources}
    drained: list[EndpointGroup] = []
    started: dict[Place, float] = {}
    probed = list(watches)
    for group in groups:
        if not group.removed:
            drained.append(group)
            continue
        moved = _moved(group, groups)
        check = _check(group, inputs.get(group.key.cluster))
        known = verdicts.get(check, {}) if check is not None else {}
        staying: dict[str, Endpoint] = {}
        for address, endpoint in group.removed.items():
            begun = since.get((group.key, address), now) if endpoint.conditions.terminating else now
            healthy = endpoint.conditions.serving is not False and known.get(address, True) is not False
            if address not in moved and healthy and now < begun + seconds - EPSILON:
                staying[address] = endpoint
                started[group.key, address] = begun
        if staying and check is not None:
            _probe(probed, group, check, staying)
        drained.append(_with(group, {at: replace(was, conditions=conditions) for at, was in staying.items()}))
    return Drained(tuple(drained), started, tuple(probed))


def _moved(group: EndpointGroup, groups: Iterable[EndpointGroup]) -> set[str]:
    """The leaving addresses of a group that another source publishes."""
    return {
        address
        for other in groups
        if other.key != group.key and other.key.family == group.key.family
        for address in group.removed.keys() & other.endpoints.keys()
    }


def _check(group: EndpointGroup, source: SourceInput | None) -> Check | None:
    """How the group's addresses are probed; None if they are not."""
    if source is None:
        return None
    unreachable = not group.known and source.unreachable_for is not None
    check = check_for(source.spec, group.ports, source.node_ports, unreachable=unreachable)
    return check if isinstance(check, Check) else None


def _probe(watches: list[Watch], group: EndpointGroup, check: Check, addresses: Mapping[str, Endpoint]) -> None:
    """Add addresses to the watch of their group."""
    published = by_address(group.slices)
    for i, watch in enumerate(watches):
        if (watch.cluster, watch.family, watch.check) == (*group.key, check):
            watches[i] = replace(watch, addresses={**watch.addresses, **addresses}, published=published)
            return
    watches.append(Watch(*group.key, check, addresses, published))


def _with(group: EndpointGroup, staying: Mapping[str, Endpoint]) -> EndpointGroup:
    """The group with endpoints that are published as given instead of being removed."""
    if not staying:
        return group
    changes = {at: (group.removed[at], new) for at, new in staying.items() if new != group.removed[at]}
    return replace(
        group,
        endpoints={**group.endpoints, **staying},
        removed={at: endpoint for at, endpoint in group.removed.items() if at not in staying},
        changed={**group.changed, **changes},
    )
