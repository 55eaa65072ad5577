"""Reads the claims of ServiceAccount tokens and requests new tokens. Only the API server verifies their signatures."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from hub.errors import BadAnswer
from hub.kube.client import Client
from hub.kube.secret import Secret

FAR_FUTURE: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""An ``exp`` claim from here on is ignored: datetime cannot hold years above 9999."""
SHORTEST: Final = 600
"""The shortest life of a token, in seconds, that kube-apiserver accepts (pkg/apis/authentication/validation)."""
TIMEOUT: Final = 15.0
"""Seconds for one TokenRequest."""

Life = tuple[float | None, float]
"""The begin and end of a validity, Unix times. None = the begin is not known."""

_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]+):([a-z0-9.-]+)")


class _Claims(msgspec.Struct):
    exp: object = None
    iat: object = None
    nbf: object = None
    sub: object = None


def _claims(token: Secret | None) -> _Claims | None:
    """The claims of a JWT; None for any other token."""
    parts = token.reveal().split(".") if token is not None else []
    if len(parts) != 3:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(text, type=_Claims)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def token_life(token: Secret | None) -> Life | None:
    """The life of a JWT by its ``iat`` (or ``nbf``) and ``exp`` claims; None if it has no ``exp`` or is not a JWT."""
    claims = _claims(token)
    end = claims.exp if claims is not None else None
    if claims is None or not isinstance(end, int | float) or not 0 < end < FAR_FUTURE:
        return None
    begin = claims.iat if claims.iat is not None else claims.nbf
    return (float(begin) if isinstance(begin, int | float) and 0 < begin < end else None), float(end)


def account_of(token: Secret | None) -> tuple[str, str] | None:
    """The namespace and name of the ServiceAccount that a JWT belongs to; None for any other token."""
    claims = _claims(token)
    match = _ACCOUNT.fullmatch(claims.sub) if claims is not None and isinstance(claims.sub, str) else None
    return (match[1], match[2]) if match is not None else None


class _Status(msgspec.Struct):
    token: str


class _Answer(msgspec.Struct):
    status: _Status


async def request_token(
    client: Client, account: tuple[str, str], seconds: int, admit: Callable[[], object] | None = None
) -> Secret:
    """Request a new token of a ServiceAccount.

    Args:
        client: a client whose account may ``create`` ``serviceaccounts/token`` for this ServiceAccount; it may be the
            ServiceAccount itself.
        account: the namespace and name of the ServiceAccount.
        seconds: the requested life of the token, at least SHORTEST; the API server may grant less.
        admit: see :meth:`~hub.kube.client.Client.request`.

    Raises:
        HubError: the request failed, or the answer has no token with an expiry.
    """
    path = "/api/v1/namespaces/{}/serviceaccounts/{}/token".format(*account)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
    answer = await client.request("POST", path, body=msgspec.json.encode(body), timeout=TIMEOUT, admit=admit)
    try:
        token = Secret(msgspec.json.decode(answer, type=_Answer).status.token)
    except msgspec.MsgspecError:
        raise BadAnswer(200, "", "no token in the answer to a TokenRequest", what=path) from None
    if token_life(token) is None:
        raise BadAnswer(200, "", "a token that does not say when it ends", what=path)
    return token
