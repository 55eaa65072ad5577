"""States of a remote cluster, in words an operator can act on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
    """How a remote cluster is doing. Only READY makes a statement about its nodes."""

    PENDING = "Pending"
    """Not contacted yet, or never (state frozen, no kubeconfig)."""
    SYNCING = "Syncing"
    """Contacted; the list of nodes is not complete yet, or has to be read anew."""
    READY = "Ready"
    DEGRADED = "Degraded"
    """Something answers, or would, but somebody must act: 401, 403, certificate, kubeconfig, garbage."""
    UNREACHABLE = "Unreachable"
    """Connection-level failure only."""
    WRONG_CLUSTER = "WrongCluster"
    """Another cluster answers under this name than before; nothing it says counts until that is approved."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of one cluster.

    Attributes:
        since: Unix time at which ``state`` last changed.
        error: the last error in plain words; "" in READY.
    """

    state: State
    since: float
    error: str = ""


def state_after(error: HubError) -> State:
    """The state an error puts a cluster into."""
    return State.UNREACHABLE if isinstance(error, ClusterUnreachable) else State.DEGRADED


class StartingServer:
    """Tells a missing RBAC rule from an API server that has just started: that refuses everything for some seconds."""

    PATIENCE = 3
    """Refusals in a row; a reflector's third comes after 2 to 5 s."""

    def __init__(self) -> None:
        self._refusals = 0

    def over(self, error: HubError | None) -> bool:
        """Whether what an attempt came to (None = an answer) is worth a warning."""
        self._refusals = self._refusals + 1 if isinstance(error, Forbidden) else 0
        return error is not None and not 0 < self._refusals < self.PATIENCE


def in_words(error: HubError, cluster: str, rule: str) -> str:
    """What is wrong and what to do about it.

    Args:
        error: what happened.
        cluster: where.
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
            return f"{status}: the API server has a problem of its own: {error.message or error.reason}"
        case _:
            return str(error)
