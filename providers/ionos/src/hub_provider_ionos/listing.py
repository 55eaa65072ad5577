"""What a list is of, what it said, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from hub_provider_ionos.account import Account

T = TypeVar("T")


class Key(NamedTuple):
    """What a list is of. ``kind`` is ``datacenter`` or ``k8s``."""

    account: Account
    kind: str
    id: str


class Listing(NamedTuple, Generic[T]):
    """A complete list.

    Attributes:
        value: what was listed.
        number: counts the complete lists of this key.
        started: when it was asked for, on the hub's clock.
        expires: when it is no answer any more.
    """

    value: T
    number: int
    started: float
    expires: float


@dataclass(frozen=True, slots=True)
class FeedStats:
    """Counters of one list.

    Attributes:
        kind: ``datacenter`` or ``k8s``.
        clusters: that use it now.
        lists: complete answers.
        early: attempts because somebody missed a node.
        failures: attempts that failed.
        size: items of the last complete answer.
        interval: seconds to the next attempt, as planned after the last one.
        requests: sent for this account, all its lists together.
        limited: of these, answered 429.
        remaining: X-RateLimit-Remaining as last seen; None = never.
        error: of the last attempt; "" where it was complete.
    """

    api: str
    kind: str
    id: str
    clusters: int
    lists: int
    early: int
    failures: int
    size: int
    interval: float
    requests: int
    limited: int
    remaining: int | None
    error: str
