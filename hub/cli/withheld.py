"""What is withheld, since when, and the command that lets it happen: for ``plan``, ``status`` and ``why``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hub.app import Hub
from hub.cli.options import DEFAULT_NAMESPACE, DEFAULT_OWNER
from hub.cli.render import count
from hub.reconcile import Pass

NAMED: Final = 5
"""Addresses that a table names."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the guard holds back of one source and family.

    Attributes:
        reason: the kind; also the Event's reason.
        since: Unix time.
        approve: the command that lets it go.
    """

    cluster: str
    family: str
    reason: str
    hash: str
    addresses: tuple[str, ...]
    since: float
    message: str
    approve: str

    def lines(self) -> Iterable[str]:
        """For a table."""
        more = f" and {len(self.addresses) - NAMED} more" if len(self.addresses) > NAMED else ""
        yield f"= withheld: {self.reason}: {self.message}"
        named = ", ".join(self.addresses[:NAMED]) + more
        yield f"  {count(len(self.addresses), 'endpoint')}: {named}; since {timestamp(self.since)}"
        yield f"  approve with: {self.approve}"

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cluster": self.cluster,
            "family": self.family,
            "reason": self.reason,
            "hash": self.hash,
            "addresses": list(self.addresses),
            "since": timestamp(self.since),
            "message": self.message,
            "approve": self.approve,
        }


def held(result: Pass, flags: str = "") -> tuple[Held, ...]:
    """What a pass withholds, sorted; ``flags`` are what an approving command needs."""
    return tuple(
        Held(
            key.cluster,
            key.family,
            each.kind,
            each.hash,
            each.addresses,
            each.since,
            each.message,
            f"hub approve {result.target} {each.hash}{flags}",
        )
        for key, each in sorted(result.withheld.items())
    )


def approving_flags(hub: Hub) -> str:
    """The options by which ``hub approve`` finds the approvals of this hub, with a space before each."""
    owner, namespace = hub.registry.owner, hub.options.namespace
    flags = f" --owner {owner}" if owner != DEFAULT_OWNER else ""
    return flags + (f" --lease-namespace {namespace}" if namespace != DEFAULT_NAMESPACE else "")


def timestamp(seconds: float) -> str:
    """RFC 3339, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
