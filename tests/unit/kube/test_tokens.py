"""The claims of tokens, when tokens are due for renewal, and requests for new ones."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pytest

from hub.errors import BadAnswer
from hub.kube.client import Client
from hub.kube.secret import Secret
from hub.kube.tokens import FAR_FUTURE, account_of, request_token, token_life
from hub.onboarding.renewal import due


def jwt(**claims: Any) -> Secret:
    """An unsigned JWT, since signatures are not verified here."""
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return Secret(f"e30.{part}.c2ln")


@pytest.mark.parametrize(
    ("token", "life"),
    [
        (jwt(iat=100, exp=300), (100.0, 300.0)),
        (jwt(nbf=100, exp=300), (100.0, 300.0)),
        (jwt(exp=300), (None, 300.0)),
        (jwt(iat=100, nbf=50, exp=300), (100.0, 300.0)),
        (jwt(iat=1, exp=2), (1.0, 2.0)),
        (jwt(iat=0, exp=1), (None, 1.0)),
        (jwt(iat=300, exp=300), (None, 300.0)),
        (jwt(iat="x", exp=300), (None, 300.0)),
        (jwt(iat=400, exp=300), (None, 300.0)),
        (jwt(exp=FAR_FUTURE - 1), (None, FAR_FUTURE - 1)),
        (jwt(exp=FAR_FUTURE), None),
        (Secret(jwt(exp=300).reveal() + ".x"), None),
        (Secret(jwt(exp=300).reveal().rpartition(".")[0]), None),
        (jwt(iat="x", exp="soon"), None),
        (jwt(exp=1e15), None),
        (jwt(exp=-1), None),
        (jwt(exp=0), None),
        (jwt(iat=1), None),
        (Secret("opaque"), None),
        (Secret("a.!.c"), None),
        (None, None),
    ],
)
def test_invalid_claims_are_ignored(token: Secret | None, life: object) -> None:
    """Claims that are not dates are ignored; a token that is not a JWT has no known life."""
    assert token_life(token) == life


@pytest.mark.parametrize(
    ("subject", "account"),
    [
        ("system:serviceaccount:hub:reader", ("hub", "reader")),
        ("system:serviceaccount:hub/../x:reader", None),
        ("system:serviceaccount:hub:reader:x", None),
        ("jane", None),
        (7, None),
    ],
)
def test_an_account_is_named_by_the_subject(subject: object, account: object) -> None:
    """Only the subject of a ServiceAccount is accepted, since it becomes part of a path."""
    assert account_of(jwt(sub=subject)) == account


@pytest.mark.parametrize(("now", "is_due"), [(150.0, False), (199.9, False), (200.0, True), (400.0, True)])
def test_a_token_is_due_at_half_its_life(now: float, is_due: bool) -> None:
    """A token is due for renewal from half its life on."""
    assert due(jwt(iat=100, exp=300), now) is is_due
    assert due(jwt(exp=300), now) is False


class Api:
    """A client that answers and records a TokenRequest."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, object, object]] = []

    async def request(self, method: str, path: str, *, body: bytes, timeout: float, admit: object) -> bytes:  # noqa: ASYNC109
        self.asked.append((method, path, json.loads(body), admit))
        return json.dumps(self.answer).encode()


async def test_a_token_is_asked_for_by_account_and_length() -> None:
    """The request has the account and the life; the token of the answer is returned."""

    def admit() -> None:
        """Called before the request is sent."""

    written = jwt(exp=2_000_000_000).reveal()
    api = Api({"status": {"token": written}})
    found = await request_token(cast("Client", api), ("hub", "reader"), 3600, admit)
    assert found.reveal() == written
    [(method, path, body, handed)] = api.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/hub/serviceaccounts/reader/token")
    assert body == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    assert handed is admit


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "no token in the answer"),
        ({"status": {"token": 7}}, "no token in the answer"),
        ({"status": {"token": "opaque"}}, "does not say when it ends"),
    ],
)
async def test_an_answer_without_a_usable_token_is_an_error(answer: object, says: str) -> None:
    """An answer without a token or without an expiry is a BadAnswer."""
    with pytest.raises(BadAnswer, match=says) as caught:
        await request_token(cast("Client", Api(answer)), ("hub", "reader"), 3600)
    assert (caught.value.status, caught.value.reason) == (200, "")
