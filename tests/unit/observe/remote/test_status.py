"""What is wrong with a cluster, in words, and which state it means."""

from __future__ import annotations

import pytest

from hub.errors import (
    BadAnswer,
    CertificateRejected,
    ClusterUnreachable,
    CredentialError,
    Forbidden,
    HubError,
    KubeconfigError,
    ServerFault,
    Unauthorized,
)
from hub.observe.remote.status import StartingServer, State, in_words, state_after


@pytest.mark.parametrize("kind", ["dns", "refused", "reset", "timeout", "network"])
def test_only_a_failure_to_connect_is_unreachable(kind: str) -> None:
    """Policies for unreachable clusters follow from nothing else."""
    assert state_after(ClusterUnreachable("x", kind)) is State.UNREACHABLE


@pytest.mark.parametrize(
    "error",
    [
        Unauthorized(401),
        Forbidden(403),
        ServerFault(503),
        BadAnswer(200, "", "garbage"),
        CertificateRejected("x"),
        CredentialError("x"),
        KubeconfigError("x"),
    ],
)
def test_everything_else_is_degraded(error: HubError) -> None:
    """Somebody must act; the endpoints stay."""
    assert state_after(error) is State.DEGRADED


def test_a_403_names_the_rule_and_the_cluster() -> None:
    """Ready to be pasted into a ClusterRole."""
    text = in_words(Forbidden(403, "Forbidden", "User x cannot"), "eu", "nodes: list")
    assert text == "403: the account lacks the rule «nodes: list»; grant it in cluster eu"


def test_a_401_says_what_to_renew() -> None:
    """The server's own words add nothing."""
    assert in_words(Unauthorized(401), "eu", "") == "401: the credential is not accepted; renew the kubeconfig's user"


def test_a_5xx_is_the_servers_own_problem() -> None:
    """With its message."""
    text = in_words(ServerFault(500, "InternalError", "etcd is away"), "eu", "")
    assert text == "500: the API server failed: etcd is away"


def test_a_starting_server_may_refuse_twice_before_a_rule_is_missed() -> None:
    """It refuses everybody until its roles are there; other errors and later refusals are worth a warning at once."""
    starting, refused = StartingServer(), Forbidden(403)
    worth = [starting.over(error) for error in (refused, refused, refused, refused, None, refused, ServerFault(500))]
    assert worth == [False, False, True, True, False, False, True]


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnreachable("https://eu: connection refused"),
        CertificateRejected("the certificate has expired"),
        CredentialError("token file t: empty"),
        KubeconfigError("no such context"),
        BadAnswer(200, "", "garbage", what="list nodes"),
    ],
)
def test_other_errors_speak_for_themselves(error: HubError) -> None:
    """Their words are the report."""
    assert in_words(error, "eu", "rule") == str(error)


def test_a_5xx_without_a_message_is_named_by_its_reason() -> None:
    """Something is always said."""
    text = in_words(ServerFault(500, "InternalError", ""), "eu", "")
    assert text == "500: the API server failed: InternalError"
