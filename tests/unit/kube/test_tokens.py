"""What a token says of itself, and when it is due."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hub.kube.secret import Secret
from hub.kube.tokens import account_of, token_life
from hub.onboarding.renewal import due


def jwt(**claims: Any) -> Secret:
    """Unsigned: nobody here verifies."""
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return Secret(f"e30.{part}.c2ln")


@pytest.mark.parametrize(
    ("token", "life"),
    [
        (jwt(iat=100, exp=300), (100.0, 300.0)),
        (jwt(nbf=100, exp=300), (100.0, 300.0)),
        (jwt(exp=300), (None, 300.0)),
        (jwt(iat=400, exp=300), (None, 300.0)),
        (jwt(iat="x", exp="soon"), None),
        (jwt(exp=1e15), None),
        (jwt(exp=-1), None),
        (jwt(iat=1), None),
        (Secret("opaque"), None),
        (Secret("a.!.c"), None),
        (None, None),
    ],
)
def test_a_life_is_what_the_claims_say(token: Secret | None, life: object) -> None:
    """Anything that is no date, and any other token, says nothing."""
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
    """Only by one of a ServiceAccount, since a path is made of it."""
    assert account_of(jwt(sub=subject)) == account


@pytest.mark.parametrize(("now", "is_due"), [(150.0, False), (199.9, False), (200.0, True), (400.0, True)])
def test_a_token_is_due_at_half_its_life(now: float, is_due: bool) -> None:
    """And stays due."""
    assert due(jwt(iat=100, exp=300), now) is is_due
    assert due(jwt(exp=300), now) is False
