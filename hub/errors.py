"""All errors that the hub raises on purpose, as one tree.

    HubError
    ├── UsageError                 a wrong argument or option: exit code 2, where the other errors have 3
    ├── RegistryError              clusters.yaml: carries every Problem of the file at once
    ├── KubeconfigError            a kubeconfig that cannot or must not be used
    ├── CredentialError            a token, certificate or exec plugin gave no usable credential
    ├── ApiError                   a Kubernetes API answered with an error
    │   ├── Unauthorized 401 · Forbidden 403 · NotFound 404 · Conflict 409 · AlreadyExists 409
    │   ├── Expired 410 · Invalid 422 · TooManyRequests 429 · ServerFault 5xx
    │   └── BadAnswer              a success status with an unusable body (garbage, cut short, too large)
    ├── ClusterUnreachable         no answer at all: DNS, refused, reset, timed out
    ├── CertificateRejected        a TLS certificate was rejected
    ├── ProviderError              a provider could not answer; see hub.plugin
    └── NotLeader                  this process must not write now

A message names the cause, the place and, if there is one, the next step. It never quotes a credential. It quotes an
HTTP body only if that is a Kubernetes ``Status``, cut to 256 characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STATUS_QUOTE_LIMIT = 256
"""Characters of a Kubernetes Status message that may appear in an error."""
REASON_LIMIT = 64
"""Characters of a Kubernetes Status reason that may appear in an error; Kubernetes uses single words."""
WORD_LIMIT = 100
"""Characters of a word that are compared with known words; the comparison takes quadratic time."""


def one_line(text: str, limit: int | None = None) -> str:
    """Escape line breaks and terminal codes in untrusted text, and cut it to ``limit`` characters (None: no limit)."""
    escaped = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:limit])
    return "".join(escaped)[:limit]


def closest(word: object, known: Iterable[str]) -> str:
    """The known word most similar to ``word``, ignoring case; "" if none is similar."""
    import difflib  # here, because most processes never need it

    folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    found = difflib.get_close_matches(str(word)[:WORD_LIMIT].casefold(), folded)
    return folded[found[0]] if found else ""


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """The hint "did you mean X?" with the closest known word; ``otherwise`` if none is similar."""
    found = closest(word, known)
    return f"did you mean {one_line(found, WORD_LIMIT)}?" if found else otherwise


class HubError(Exception):
    """Base class of all errors that the hub raises on purpose."""


class UsageError(HubError):
    """A command cannot be carried out with these arguments and options."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem in a file that a user wrote.

    Attributes:
        file: the path as the user gave it.
        line: 1-based; 0 if the problem concerns the whole file, for example if it can't be read.
        column: 1-based; 0 if ``line`` is 0.
        path: the key's path, such as ``clusters[2].provider.name``; empty for the whole file.
        message: what is wrong, in one sentence without a full stop.
        hint: the next step, such as a "did you mean"; may be empty.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        key = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}: {key}{self.message}{hint}"


class RegistryError(HubError):
    """clusters.yaml cannot be used; ``problems`` lists all problems in it, in file order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class KubeconfigError(HubError):
    """A kubeconfig can't be read, lacks a required entry, or uses a forbidden feature."""


class CredentialError(HubError):
    """A credential source (token file, certificate, exec plugin, Secret) gave no usable credential."""


class ApiError(HubError):
    """A Kubernetes API server answered with an error status.

    Attributes:
        status: the HTTP status, or the ``code`` of a Status object inside a watch.
        reason: the Status object's machine-readable reason, cut to 64 characters, or "".
        message: the Status object's message on one line, cut to 256 characters, or the HTTP reason phrase.
        retry_after: seconds that the server asks the client to wait, or None.
        causes: (field path, message) pairs of a 422.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        what: str = "",
        retry_after: float | None = None,
        causes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        message, reason = one_line(message, STATUS_QUOTE_LIMIT), one_line(reason, REASON_LIMIT)
        super().__init__(f"{what}: {status} {reason}: {message}" if what else f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class Unauthorized(ApiError):
    """401: the server rejects the credential."""


class Forbidden(ApiError):
    """403: the account lacks an RBAC rule; the message names it."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object changed since it was read."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists: the name is taken."""


class Expired(ApiError):
    """410: the resourceVersion or the continue token is too old; the client must list again."""


class Invalid(ApiError):
    """422: the server refuses the object; ``causes`` names the fields."""


class TooManyRequests(ApiError):
    """429: wait ``retry_after`` seconds."""


class ServerFault(ApiError):
    """Any 5xx."""


class BadAnswer(ApiError):
    """A success status with an unusable body: garbage, cut short, of an unexpected kind, or too large."""


class ClusterUnreachable(HubError):
    """No answer from an API server.

    Attributes:
        kind: ``dns``, ``refused``, ``reset``, ``timeout`` or ``network``; ``proxy`` = the proxy failed, and nothing is
            known about the server.
    """

    def __init__(self, message: str, kind: str = "network") -> None:
        super().__init__(message)
        self.kind = kind


class CertificateRejected(HubError):
    """The server's or the client's certificate was rejected. Retrying doesn't help; replace the certificate."""


class ProviderError(HubError):
    """A provider could not answer; the addresses of the requested nodes are unknown, not empty."""


class NotLeader(HubError):
    """A write was about to start while this process does not hold the Lease."""
