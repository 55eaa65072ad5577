"""The options of the election, named and defaulted as kube-controller-manager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from hub.cli.options import boolean, duration, is_default, resource_name
from hub.election import MOST_SHARDS

if TYPE_CHECKING:
    from hub.election.elector import Timing

F = TypeVar("F", bound=Callable[..., Any])

LONGEST: Final = 3600.0
"""Seconds; the elector ignores a longer duration in a Lease (hub.election.elector)."""
JITTER: Final = 1.2
"""Longest retry, in retry periods, as in client-go: the renew deadline must leave time for one retry."""
QUIET: Final = 2.0
"""Seconds before the end of the Lease in which no write starts (hub.election); the leader steps down earlier."""


def leader_election(function: F) -> F:
    """Add the ``--leader-elect…`` options; the Lease's namespace is the hub's."""
    options = (
        click.option(
            "--leader-elect",
            is_flag=False,
            flag_value=True,
            default=True,
            type=boolean,
            metavar="[=true|false]",
            help="Write only while holding the Lease endpointslice-hub-OWNER. [default: true]",
        ),
        click.option(
            "--leader-elect-lease-duration",
            metavar="DURATION",
            type=duration,
            default="15s",
            show_default=True,
            help="How long standbys wait before taking over; whole seconds.",
        ),
        click.option(
            "--leader-elect-renew-deadline",
            metavar="DURATION",
            type=duration,
            default="10s",
            show_default=True,
            help="How long the leader tries to renew its Lease before it stops writing; at least 2s less than the "
            "duration.",
        ),
        click.option(
            "--leader-elect-retry-period",
            metavar="DURATION",
            type=duration,
            default="2s",
            show_default=True,
            help="Time between renewals, and between a standby's checks of the Lease.",
        ),
        click.option(
            "--leader-elect-resource-name",
            metavar="NAME",
            type=resource_name,
            help="Name of the Lease. Hubs of one owner with different Leases count as different hubs: see --take-over. "
            "[default: endpointslice-hub-OWNER]",
        ),
        click.option(
            "--shards",
            metavar="N",
            type=click.IntRange(1, MOST_SHARDS),
            default=1,
            show_default=True,
            help="Divide the Services over N Leases that the replicas share: each replica follows only the clusters "
            "that its Services need. Use the same N for all replicas; a replica with another N stands by.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


class Election(msgspec.Struct, frozen=True):
    """The values of the options of :func:`leader_election`."""

    leader_elect: bool
    leader_elect_lease_duration: float
    leader_elect_renew_deadline: float
    leader_elect_retry_period: float
    leader_elect_resource_name: str | None
    shards: int

    @classmethod
    def of(cls, given: dict[str, Any]) -> Election:
        """Take the values out of a command's arguments."""
        return cls(**{name: given.pop(name) for name in cls.__struct_fields__})

    @property
    def wanted(self) -> bool:
        """Whether to take part in the election."""
        return self.leader_elect

    def check(self, *, once: bool) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: two options contradict each other; the message says what to change.
        """
        if self.shards > 1 and not self.wanted:
            raise click.UsageError("--shards divides the Services over Leases and needs leader election")
        if self.shards > 1 and once:
            raise click.UsageError("--once writes every Service and cannot be combined with --shards")

    def timing(self) -> Timing:
        """The times of the election.

        Raises:
            UsageError: they do not fit together.
        """
        return timing_of(
            self.leader_elect_lease_duration, self.leader_elect_renew_deadline, self.leader_elect_retry_period
        )


def timing_of(lease: float, deadline: float, retry: float) -> Timing:
    """The times of an election, from the values of ``--leader-elect-…`` of the present command.

    Raises:
        UsageError: they do not fit together.
    """
    from hub.election.elector import Timing

    if not lease.is_integer() or not math.floor(QUIET) < lease <= LONGEST:
        raise click.UsageError(
            f"--leader-elect-lease-duration must be whole seconds, more than {QUIET:g}s and at most 1h"
        )
    if deadline > lease - QUIET:
        raise click.UsageError(
            f"{_named('--leader-elect-renew-deadline', deadline)} must be at least {QUIET:g}s less than "
            f"{_named('--leader-elect-lease-duration', lease)}: give a renew deadline of at most "
            f"{lease - QUIET:g}s, or a lease duration of at least {math.ceil(deadline + QUIET)}s"
        )
    if not 0 < JITTER * retry < deadline:
        raise click.UsageError(
            f"{_named('--leader-elect-retry-period', retry)} must be more than 0 and, times {JITTER:g}, less than "
            f"{_named('--leader-elect-renew-deadline', deadline)}: change one of them"
        )
    default = Timing()
    return Timing(int(lease), deadline, retry, call=min(default.call, deadline / 2))


def _named(option: str, seconds: float) -> str:
    """An option and its value, for a message."""
    default = ", the default" if is_default(option.removeprefix("--").replace("-", "_")) else ""
    return f"{option} ({seconds:g}s{default})"
