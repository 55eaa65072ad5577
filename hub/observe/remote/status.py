"""States of a remote cluster, and error texts that tell an operator what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hub.errors import (
    ApiError,
    CertificateRejected,
    ClusterUnreachable,
    CredentialError,
    Forbidden,
    HubError,
    KubeconfigError,
    Unauthorized,
)


class State(StrEnum):
    """State of a remote cluster. Its nodes are current only in READY."""

    PENDING = "Pending"
    """Not contacted yet, or never (state frozen, no kubeconfig)."""
    SYNCING = "Syncing"
    """Contacted; the list of nodes is not complete, or is being read again."""
    READY = "Ready"
    """The list of nodes is complete and current."""
    DEGRADED = "Degraded"
    """An operator must act: 401, 403, a certificate, kubeconfig or proxy that cannot be used, an undecodable answer."""
    UNREACHABLE = "Unreachable"
    """The API server does not answer."""
    WRONG_CLUSTER = "WrongCluster"
    """Another cluster than before answers under this name; its answers are ignored until an operator approves it."""


READY_WITH_ERROR: Final = "Ready, with an error"
"""The state of a cluster in words if its nodes are current, but a provider has a problem."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of one cluster.

    Attributes:
        since: Unix time at which ``state`` last changed.
        error: the last error; "" in READY.
    """

    state: State
    since: float
    error: str = ""


def state_after(error: HubError) -> State:
    """The state of a cluster after an error. A proxy that fails says nothing about the cluster behind it."""
    if isinstance(error, ClusterUnreachable) and error.kind != "proxy":
        return State.UNREACHABLE
    return State.DEGRADED


class StartingServer:
    """Distinguishes a missing RBAC rule from an API server that has just started and answers 403 for some seconds."""

    PATIENCE = 3
    """403s in a row that count as a missing rule; a reflector's third attempt comes after 2 to 5 s."""

    def __init__(self) -> None:
        self._refusals = 0

    def should_warn(self, error: HubError | None) -> bool:
        """Note the outcome of an attempt (None = success), and return whether to warn about it."""
        self._refusals = self._refusals + 1 if isinstance(error, Forbidden) else 0
        return error is not None and not 0 < self._refusals < self.PATIENCE


def in_words(error: HubError, cluster: str, rule: str) -> str:
    """The error's text, with advice for the operator where possible.

    Args:
        error: the error.
        cluster: name of the cluster.
        rule: the RBAC rule that the failed request needed, for a 403.
    """
    match error:
        case ClusterUnreachable():
            return str(error)
        case Unauthorized():
            return "401: the credential is not accepted; renew the kubeconfig's user"
        case Forbidden():
            return f"403: the account lacks the rule «{rule}»; grant it in cluster {cluster}"
        case CertificateRejected() | CredentialError() | KubeconfigError():
            return str(error)
        case ApiError(status=status) if status >= 500:
            return f"{status}: the API server failed: {error.message or error.reason}"
        case _:
            return str(error)
