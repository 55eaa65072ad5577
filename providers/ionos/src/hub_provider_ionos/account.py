"""The account that requests are sent for, and the API's rate limit for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Login(NamedTuple):
    """The credential of one request."""

    token: str = ""
    username: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """A credential at one API. Clusters with equal accounts share its client and its lists.

    Attributes:
        url: The API's address, normalised.
        secret: The reference to the token or the password, as sorted pairs.
        username: "" if the secret is a token.
        contract: The contract number; None without one.
        ca: PEM text of the certificate authority; "" = the public authorities.
    """

    url: str
    secret: tuple[tuple[str, str], ...]
    username: str = ""
    contract: int | None = None
    ca: str = field(default="", repr=False)

    @property
    def credential(self) -> str:
        """Describes where the credential comes from, for error messages."""
        names = dict(self.secret)
        place = f"Secret {names['secret']}, key {names['key']}" if "secret" in names else " ".join(*self.secret)
        return f"the {'password' if self.username else 'token'} from {place}"


@dataclass(slots=True)
class Usage:
    """Requests of one account and the API's rate limit.

    Attributes:
        requests: The number of requests sent so far.
        limited: How many of them were answered with 429.
        remaining: X-RateLimit-Remaining of the last answer; None if it had none.
        limit: X-RateLimit-Limit of the last answer, in requests per minute; None if it had none.
    """

    requests: int = 0
    limited: int = 0
    remaining: int | None = None
    limit: int | None = None

    @property
    def stretch(self) -> int:
        """The factor by which the interval between lists is longer than configured: 1, 2, 4 or 8."""
        if self.remaining is None:
            return 1
        share = self.remaining / self.limit if self.limit else self.remaining / 100
        return 8 if share < 0.05 else 4 if share < 0.1 else 2 if share < 0.25 else 1
