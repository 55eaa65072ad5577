"""Withheld removals as API values, with the commands that approve them."""

from __future__ import annotations

from hub.decide.decision import Decision
from hub.observe.local import approvals
from hub.registry.spec import REGISTRY_HELD, RegistryHeld
from hub.report.hub_state import HubState
from hub.report.values import Held, RegistryWithheld
from hub.runtime.clock import rfc3339


def held(result: Decision, flags: str = "") -> tuple[Held, ...]:
    """The withheld removals of a pass, sorted; ``flags`` are options for the ``hub approve`` commands."""
    return tuple(
        Held(
            key.cluster,
            key.family,
            each.kind,
            each.hash,
            each.addresses,
            rfc3339(each.since),
            each.message,
            f"hub approve {result.target} {each.hash}{flags}",
        )
        for key, each in sorted(result.withheld.items())
    )


def registry_withheld(each: RegistryHeld | None) -> RegistryWithheld | None:
    """The withheld mass removal from the registry."""
    if each is None:
        return None
    return RegistryWithheld(
        REGISTRY_HELD, each.hash, each.entries, each.endpoints, each.total, each.message, each.approve
    )


def approving_flags(hub: HubState) -> str:
    """The options that ``hub approve`` needs for this hub, each with a leading space."""
    return approvals.flags(hub.registry.owner, hub.options.namespace)
