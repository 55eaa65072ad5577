"""What is withheld, since when, and the command that lets it happen: for ``plan``, ``status`` and ``why``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hub import approvals
from hub.app import Hub
from hub.cli.render import count
from hub.reconcile import Pass
from hub.removals import REASON, RegistryHeld

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


def registry_lines(each: RegistryHeld | None) -> Iterable[str]:
    """For a table: what a mass removal from the registry withholds; nothing where there is none."""
    if each is not None:
        yield f"= withheld: {REASON}: {each.message}"
        yield f"  approve with: {each.approve}"


def registry_data(each: RegistryHeld | None) -> dict[str, Any] | None:
    """For JSON."""
    if each is None:
        return None
    return {
        "reason": REASON,
        "hash": each.hash,
        "entries": list(each.entries),
        "endpoints": each.endpoints,
        "total": each.total,
        "message": each.message,
        "approve": each.approve,
    }


def approving_flags(hub: Hub) -> str:
    """The options by which ``hub approve`` finds the approvals of this hub, with a space before each."""
    return approvals.flags(hub.registry.owner, hub.options.namespace)


def timestamp(seconds: float) -> str:
    """RFC 3339, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
