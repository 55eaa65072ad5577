"""Values about a list: its key, its content and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from hub_provider_ionos.account import Account

T = TypeVar("T")


class Key(NamedTuple):
    """Identifies a list.

    Attributes:
        account: The account that requests it.
        kind: ``datacenter`` (servers) or ``k8s`` (nodes of a managed Kubernetes cluster).
        id: UUID of the data center or the managed Kubernetes cluster.
    """

    account: Account
    kind: str
    id: str


class Listing(NamedTuple, Generic[T]):
    """A complete list.

    Attributes:
        value: The content.
        number: The number of this list among the complete lists of its key, from 1.
        started: When it was requested, on the hub's clock.
        expires: When it is too old to be used, on the hub's clock.
    """

    value: T
    number: int
    started: float
    expires: float


@dataclass(frozen=True, slots=True)
class FeedStats:
    """Counters of one list.

    Attributes:
        api: The API's address.
        kind: ``datacenter`` or ``k8s``.
        id: UUID of the data center or the managed Kubernetes cluster.
        clusters: The number of clusters that use the list now.
        lists: The number of complete answers.
        early: The number of attempts made early because a cluster missed a node.
        failures: The number of failed attempts.
        size: The number of items in the last complete answer.
        interval: Seconds to the next attempt, as planned after the last one.
        requests: The number of requests sent for the account, for all its lists together.
        limited: How many of them were answered with 429.
        remaining: X-RateLimit-Remaining of the last answer; None if it had none.
        error: The error of the last attempt; "" if it succeeded.
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
