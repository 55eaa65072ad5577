"""The rights that the cloud controller needs in a cluster, and what to say when one of them is missing."""

from __future__ import annotations

from hub.errors import Forbidden, HubError


class MissingRight(Forbidden):
    """The hub's account lacks a rule; the message names the rule, the cluster and what grants it."""


def explained(error: HubError, rule: str, cluster: str) -> HubError:
    """A :class:`MissingRight` if the account lacks ``rule``; else the error itself.

    Webhooks also answer 403; the message of such an answer is better than any of ours.
    """
    if not isinstance(error, Forbidden) or " cannot " not in error.message:
        return error
    grants = f"hub cluster add {cluster} --cloud grants it"
    return MissingRight(
        error.status, error.reason, f"the account lacks the rule «{rule}» in cluster {cluster}; {grants}"
    )
