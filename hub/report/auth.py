"""Authenticates and authorizes callers with the hub cluster's API, as controller-runtime's metrics server does.

A caller sends a token of the hub cluster (``Authorization: Bearer …``, or as the password in a browser's dialogue).
TokenReview returns the token's account, and SubjectAccessReview whether the account may ``get`` the path
(``nonResourceURLs`` in a ClusterRole): ``/metrics`` unchanged, every other path with the prefix ``/endpointslice-hub``,
since Kubernetes allows every account to get ``/api/*``. Answers are cached by a digest of the token. If the API does
not answer, the caller is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from hub.errors import HubError
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

ALLOWED_SECONDS: Final = 60.0
"""Seconds for which a permission is cached; a revoked token works for at most so long."""
REFUSED_SECONDS: Final = 10.0
"""Seconds for which a refusal is cached; short, so that a new role takes effect soon."""
LIMIT: Final = 1024
"""Most cached answers of each kind."""
AT_ONCE: Final = 4
"""Most concurrent reviews of each kind: unauthenticated callers could otherwise open many connections to the API."""
TOKEN_LIMIT: Final = 8192
"""Most characters of a token; a service account's has about 1,000."""
TIMEOUT: Final = 10.0
"""Seconds for a review."""
TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RULES: Final = "tokenreviews.authentication.k8s.io and subjectaccessreviews.authorization.k8s.io: create"


def right_of(path: str) -> str:
    """The non-resource URL that a caller of ``path`` must be allowed to ``get``."""
    return path if path == "/metrics" else f"/endpointslice-hub{path}"


class Api(Protocol):
    """The part of the hub cluster's client that :class:`Reviews` needs."""

    async def request(self, method: str, path: str, *, body: bytes | None = None, timeout: float = TIMEOUT) -> bytes:  # noqa: ASYNC109, D102 - as the client's
        ...


class Unauthenticated(HubError):
    """The caller has no valid token."""


class Unauthorized(HubError):
    """The caller's account may not read the path."""


class Unavailable(HubError):
    """The hub cluster's API did not answer."""


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class _Answers(Generic[K, V]):
    """A cache of the hub cluster's answers; a false value is a refusal.

    It holds values instead of exceptions, whose tracebacks would keep the callers' frames, and with them their tokens.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[K, tuple[float, V]] = {}
        self._asking: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """The cached answer for ``key``, else the result of ``ask``, which concurrent callers share."""
        async with self._asking.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is not None and self._clock.now() < known[0]:
                return known[1]
            async with self._slots:
                now = self._clock.now()
                found = await ask()
            self._keep(key, found, now)
            return found

    def _keep(self, key: K, found: V, now: float) -> None:
        """Cache an answer. A full cache drops its oldest refusal, so that refused callers displace no permissions."""
        self._known = {old: known for old, known in self._known.items() if now < known[0]}
        if len(self._known) >= LIMIT:
            refusals = (old for old, (_, answer) in self._known.items() if not answer)
            del self._known[next(refusals, next(iter(self._known)))]
        self._known[key] = now + (ALLOWED_SECONDS if found else REFUSED_SECONDS), found


class Reviews:
    """Checks callers with TokenReview and SubjectAccessReview.

    Args:
        api: the hub cluster's client.
        clock: for the expiry of cached answers.
    """

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._users: _Answers[bytes, _User | None] = _Answers(clock)
        self._rights: _Answers[tuple[_User, str], bool] = _Answers(clock)

    async def check(self, authorization: str, path: str) -> None:
        """Raise unless the caller may read ``path``.

        Args:
            authorization: the request's Authorization header; "" if there is none.
            path: the request's path, decoded as the router uses it.

        Raises:
            Unauthenticated: the caller has no valid token.
            Unauthorized: the caller's account may not read the path.
            Unavailable: the hub cluster's API did not answer.
        """
        token = token_of(authorization)
        if not token:
            raise Unauthenticated("a token of the hub cluster is needed")
        user = await self._users.get(hashlib.sha256(token.encode()).digest(), lambda: self._user_of(token))
        if user is None:
            raise Unauthenticated("the hub cluster does not know this token")
        if not await self._rights.get((user, path), lambda: self._is_allowed(user, path)):
            right = right_of(path)
            raise Unauthorized(f"{user.name} may not get {right}: grant it with nonResourceURLs in a ClusterRole")

    async def _is_allowed(self, user: _User, path: str) -> bool:
        spec: dict[str, Any] = {
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": dict(user.extra),
            "nonResourceAttributes": {"path": right_of(path), "verb": "get"},
        }
        answer = await self._review(ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return answer.get("allowed") is True and answer.get("denied") is not True

    async def _user_of(self, token: str) -> _User | None:
        answer = await self._review(TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = answer.get("user")
        if answer.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return None
        try:
            extra = tuple((str(key), tuple(map(str, values))) for key, values in (user.get("extra") or {}).items())
            groups = tuple(map(str, user.get("groups") or ()))
            return _User(str(user["username"]), str(user.get("uid") or ""), groups, extra)
        except (AttributeError, TypeError):
            return None

    async def _review(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Create a review, and return its status.

        Raises:
            Unavailable: the API did not answer.
        """
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        try:
            answer = msgspec.json.decode(await self._api.request("POST", path, body=body, timeout=TIMEOUT))
        except (HubError, msgspec.DecodeError) as error:
            log.warning("a %s failed, so the caller is refused: %s (needs %s)", kind, error, RULES)
            raise Unavailable("the hub cluster cannot check the caller now") from error
        status = answer.get("status") if isinstance(answer, dict) else None
        return status if isinstance(status, dict) else {}


def token_of(authorization: str) -> str:
    """The token in a header: a bearer token, or the password of basic authentication; "" if there is none."""
    if not authorization.isascii():  # tokens are ASCII
        return ""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    if len(rest) > 2 * TOKEN_LIMIT:
        return ""
    if scheme.lower() == "bearer":
        return rest if len(rest) <= TOKEN_LIMIT else ""
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
