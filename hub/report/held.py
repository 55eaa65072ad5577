"""What is withheld, since when, and the command that lets it happen."""

from __future__ import annotations

from hub.decide.decision import Decision
from hub.observe.local import approvals
from hub.registry.spec import REGISTRY_HELD, RegistryHeld
from hub.report.hub_state import HubState
from hub.report.values import Held, RegistryWithheld
from hub.runtime.clock import rfc3339


def held(result: Decision, flags: str = "") -> tuple[Held, ...]:
    """What a pass withholds, sorted; ``flags`` are what an approving command needs."""
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
    """What a mass removal from the registry withholds."""
    if each is None:
        return None
    return RegistryWithheld(
        REGISTRY_HELD, each.hash, each.entries, each.endpoints, each.total, each.message, each.approve
    )


def approving_flags(hub: HubState) -> str:
    """The options by which ``hub approve`` finds the approvals of this hub, with a space before each."""
    return approvals.flags(hub.registry.owner, hub.options.namespace)
