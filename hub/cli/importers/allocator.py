"""Turns the environment of ip-address-controller into a registry, which ``hub import ip-address-controller`` prints.

``hub run --from-allocator-env`` runs the same text, with the Lease and the ports of that controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hub.cli.importers.document import Document, Noted, render
from hub.cli.importers.variables import Variables

LEASE: Final = "ip-address-controller-leader"
LEASE_SECONDS, METRICS_PORT, HEALTH_PORT = 60, 9999, 8080
KNOWN: Final = (
    "LEASE_NAME",
    "LEASE_DURATION",
    "LEASE_SKEW_GRACE_SEC",
    "METRICS_PORT",
    "CONTROLLER_VERSION",
    "CLUSTER_NAME",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
_HEADING = "The registry of ip-address-controller, from its environment."
_USAGE = "Stop that controller first, read hub plan, then set mode: enforce."
_PROJECT = "The project is that of the credential; the controller asked the same one."
_ANY = "The controller claimed any address. Better list your networks: nothing outside of them is ever changed."


@dataclass(frozen=True, slots=True)
class Allocator:
    """The result of importing the environment.

    Attributes:
        document: the registry.
        lease: name of the Lease.
        lease_seconds: its duration.
        metrics_port: the port of /metrics.
    """

    document: Document
    lease: str
    lease_seconds: int
    metrics_port: int


def build(variables: Variables, *, enforce: bool = False) -> Allocator:
    """The registry of an environment.

    Args:
        variables: the variables of the controller.
        enforce: whether the hub acts at once, as a replacement in the same Deployment must.

    Raises:
        HubError: variables are invalid; the message names all of them.
    """
    lease = variables.text("LEASE_NAME") or LEASE
    seconds, port = variables.number("LEASE_DURATION"), variables.number("METRICS_PORT")
    if seconds is not None and not 3 <= seconds <= 3600:
        variables.problem("LEASE_DURATION", f"must be 3 to 3600 seconds, not {seconds}")
    if port is not None and not 1 <= port <= 65535:
        variables.problem("METRICS_PORT", f"must be a port, not {port}")
    variables.check()
    cloud: dict[str, Any] = {
        "name": "gcp",
        "provider": "gcp",
        "config": Noted({"credentials": {"default": True}}, _PROJECT, "GOOGLE_APPLICATION_CREDENTIALS"),
        "addresses": Noted(["0.0.0.0/0"], _ANY),
    }
    allocations: dict[str, Any] = {"mode": "enforce" if enforce else "observe"}
    if not enforce:
        allocations["interlock"] = Noted(
            f"{variables.namespace or 'kube-system'}/{lease}",
            "Nothing is changed while the controller still renews its Lease; name the namespace that it runs in.",
            "LEASE_NAME",
        )
    tree = {"version": 1, "allocations": {**allocations, "clouds": [cloud]}}
    notes = [_HEADING, *filter(None, [variables.unread_note, variables.unused_note(list(KNOWN))])]
    return Allocator(
        render(tree, "\n".join(notes), _USAGE), lease, seconds or LEASE_SECONDS, METRICS_PORT if port is None else port
    )
