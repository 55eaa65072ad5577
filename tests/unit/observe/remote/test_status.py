"""Errors of a cluster as text, and the state that follows from them."""

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
    """A failure to connect makes the state Unreachable."""
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
        ClusterUnreachable("the proxy says nothing about the cluster", "proxy"),
    ],
)
def test_everything_else_is_degraded(error: HubError) -> None:
    """Every other error makes the state Degraded."""
    assert state_after(error) is State.DEGRADED


def test_a_403_names_the_rule_and_the_cluster() -> None:
    """The text of a 403 names the RBAC rule to grant and the cluster."""
    text = in_words(Forbidden(403, "Forbidden", "User x cannot"), "eu", "nodes: list")
    assert text == "403: the account lacks the rule «nodes: list»; grant it in cluster eu"


def test_text_of_401_says_to_renew_the_credential() -> None:
    """The text of a 401 says to renew the credential."""
    assert in_words(Unauthorized(401), "eu", "") == "401: the credential is not accepted; renew the kubeconfig's user"


def test_text_of_5xx_has_the_servers_message() -> None:
    """The text of a 5xx contains the server's message."""
    text = in_words(ServerFault(500, "InternalError", "etcd is away"), "eu", "")
    assert text == "500: the API server failed: etcd is away"


def test_a_starting_server_may_refuse_twice_before_a_rule_is_missed() -> None:
    """The first two 403s in a row are not worth a warning; later ones and other errors are."""
    starting, refused = StartingServer(), Forbidden(403)
    worth = [
        starting.should_warn(error) for error in (refused, refused, refused, refused, None, refused, ServerFault(500))
    ]
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
    """The text of other errors is their message."""
    assert in_words(error, "eu", "rule") == str(error)


def test_a_5xx_without_a_message_is_named_by_its_reason() -> None:
    """The text of a 5xx without a message contains its reason."""
    text = in_words(ServerFault(500, "InternalError", ""), "eu", "")
    assert text == "500: the API server failed: InternalError"
