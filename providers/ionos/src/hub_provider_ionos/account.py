"""Who asks the API, and what it said of its limits."""

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
    """Who asks which API; equal accounts share everything.

    Attributes:
        secret: reference of the token or the password, as sorted pairs.
        username: "" = the secret is a token.
        ca: PEM text; "" = the public authorities.
    """

    url: str
    secret: tuple[tuple[str, str], ...]
    username: str = ""
    contract: int | None = None
    ca: str = field(default="", repr=False)

    @property
    def credential(self) -> str:
        """The credential in words."""
        names = dict(self.secret)
        place = f"Secret {names['secret']}, key {names['key']}" if "secret" in names else " ".join(*self.secret)
        return f"the {'password' if self.username else 'token'} from {place}"


@dataclass(slots=True)
class Usage:
    """What the API said of its rate limit, and what was asked.

    Attributes:
        requests: sent so far.
        limited: of these, answered 429.
        remaining: X-RateLimit-Remaining of the last answer; None = not said.
        limit: X-RateLimit-Limit, requests a minute.
    """

    requests: int = 0
    limited: int = 0
    remaining: int | None = None
    limit: int | None = None

    @property
    def stretch(self) -> int:
        """How many times slower than configured the lists should come."""
        if self.remaining is None:
            return 1
        share = self.remaining / self.limit if self.limit else self.remaining / 100
        return 8 if share < 0.05 else 4 if share < 0.1 else 2 if share < 0.25 else 1
