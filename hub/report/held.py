"""Withheld removals as API values, with the commands that approve them."""

from __future__ import annotations

from hub.decide.decision import Decision
from hub.observe.local import approvals
from hub.registry.spec import REGISTRY_HELD, RegistryHeld
from hub.report.hub_state import HubState
from hub.report.values import Held, RegistryWithheld
from hub.runtime.clock import rfc3339


def held(result: Decision, flags: str = "") -> tuple[Held, ...]:
    """The withheld removals of a decision, sorted; ``flags`` are options for the ``hub approve`` commands."""
    return tuple(
        Held(
            key.cluster,
            key.family,
            removal.kind,
            removal.hash,
            removal.addresses,
            rfc3339(removal.since),
            removal.message,
            f"hub approve {result.target} {removal.hash}{flags}",
        )
        for key, removal in sorted(result.withheld.items())
    )


def registry_withheld(removal: RegistryHeld | None) -> RegistryWithheld | None:
    """The withheld mass removal from the registry as an API value."""
    if removal is None:
        return None
    return RegistryWithheld(
        REGISTRY_HELD, removal.hash, removal.entries, removal.endpoints, removal.total, removal.message, removal.approve
    )


def approving_flags(hub: HubState) -> str:
    """The options that ``hub approve`` needs for this hub, each after a space."""
    return approvals.flags(hub.registry.owner, hub.options.namespace)
