"""Computes the figures of a row from its requests, and judges them. Pure: no clock, no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Arm = Literal["static", "reference", "hub", "health", "drain"]
ARMS: tuple[Arm, ...] = ("static", "reference", "hub", "health", "drain")
HUB_ARMS = ARMS[2:]
ConsumerName = Literal["kube-proxy", "envoy"]
RATE = 200.0
"""Requests per second of each arm."""


class Request(NamedTuple):
    """A request of a client.

    Attributes:
        at: its start; seconds since the row began, except in what a client reports.
        took: seconds until its answer or its failure.
        node: the name of the node that answered; "" if it was lost.
        error: why it was lost; "" if it was answered.
        address: where it was sent to; "" if it never left.
    """

    at: float
    took: float
    node: str
    error: str
    address: str


@dataclass(frozen=True, slots=True)
class Story:
    """What one client saw in one row. All times are seconds since the row began.

    Attributes:
        requests: in the order of their starts.
        fault: when the fault happened.
        removed: when the Node of an address was deleted.
        booted: when the Node of a new machine was created, by name.
        jump: by how many seconds the wall clock was changed during the row.
    """

    requests: Sequence[Request]
    fault: float
    removed: Mapping[str, float]
    booted: Mapping[str, float]
    jump: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one arm in one row. None = it does not apply.

    Attributes:
        last_lost: seconds from the fault to the start of the last lost request.
        after_removal: requests sent to an address after its Node was deleted.
        first_request: seconds from the creation of a Node until its first request; the slowest of all.
        late: the most by which the client itself was late, in seconds.
        jump: by how many seconds the wall clock was changed during the row.
        errors: how often each error occurred.
        lost_by_second: requests lost, by the second of the row in which they began.
    """

    requests: int
    lost: int
    last_lost: float | None
    after_removal: int | None
    first_request: float | None
    late: float
    jump: float
    errors: Mapping[str, int]
    lost_by_second: Sequence[int]


def figures(story: Story, rate: float = RATE) -> Figures:
    """Compute the figures."""
    lost = [request for request in story.requests if request.error]
    errors = dict(Counter(request.error for request in lost))
    by_second = Counter(int(request.at) for request in lost)
    first: dict[str, float] = {}
    for request in story.requests:
        if request.node in story.booted:
            first.setdefault(request.node, request.at - story.booted[request.node])
    waits = [first.get(name, float("inf")) for name in story.booted]
    return Figures(
        requests=len(story.requests),
        lost=len(lost),
        last_lost=round(max(request.at for request in lost) - story.fault, 1) if lost else None,
        after_removal=sum(request.at > story.removed.get(request.address, float("inf")) for request in story.requests)
        if story.removed
        else None,
        first_request=round(max(waits), 1) if waits else None,
        late=round(max((request.at - number / rate for number, request in enumerate(story.requests)), default=0.0), 2),
        jump=round(story.jump, 1),
        errors=errors,
        lost_by_second=[by_second.get(second, 0) for second in range(int(len(story.requests) / rate))],
    )
