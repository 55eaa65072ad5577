"""Translates error answers and failed operations of the Compute Engine API into errors of the plugin API.

A message has the API's reason and, if the API refused the request, its text without secrets. The text of a server that
failed is not quoted.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from hub.plugin import ProviderError, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressConflict, QuotaExceeded, UnsupportedInstance

MAX_WAIT: Final = 3600.0
"""The most seconds to wait, whatever Retry-After says."""

# Reasons of answers (``rateLimitExceeded``) and codes of operations (``RATE_LIMIT_EXCEEDED``) differ only in spelling.
QUOTA: Final = frozenset(
    ("quotaexceeded", "ratelimitexceeded", "userratelimitexceeded", "dailylimitexceeded", "resourceexhausted")
)
TRANSIENT: Final = frozenset(("resourcenotready", "internalerror", "backenderror", "resourceoperationrateexceeded"))
UNSUPPORTED: Final = frozenset(("conditionnotmet", "unsupportedoperation"))
FORBIDDEN: Final = frozenset(("forbidden", "permissionserror", "permissiondenied", "accessnotconfigured"))

_PERMISSION: Final = re.compile(r"Required '([A-Za-z.]{3,80})' permission")


class Problem(NamedTuple):
    """The API's reason and message; "" if it gave none."""

    reason: str = ""
    message: str = ""


class Refused(ProviderError):
    """A request that only reads was refused with 400, 404, 409, 410 or 412.

    Args:
        message: what was refused, in words.
        status: the HTTP status.
        problem: the API's reason and message.
    """

    def __init__(self, message: str, status: int, problem: Problem) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem

    def is_missing(self, name: str) -> bool:
        """Whether the API says that the resource of this name does not exist; a 404 of a proxy does not say so."""
        return self.status == 404 and self.problem.reason == "notFound" and f"/{name}'" in self.problem.message


def decoded(body: bytes) -> dict[str, Any] | None:
    """Returns the object in a JSON body; None for anything else."""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def problem_in(error: object) -> Problem:
    """Returns the problem in the ``error`` of an answer or of an operation; both have a list ``errors``."""
    if not isinstance(error, Mapping):
        return Problem()
    found = cast("Mapping[str, object]", error)
    errors = found.get("errors")
    first = cast("list[object]", errors)[0] if isinstance(errors, list) and errors else None
    detail = cast("Mapping[str, object]", first) if isinstance(first, Mapping) else found
    reasons = [value for value in (detail.get("reason"), detail.get("code"), found.get("status")) if _is_word(value)]
    messages = [text for text in (detail.get("message"), found.get("message")) if isinstance(text, str)]
    return Problem(str(next(iter(reasons), "")), next(iter(messages), ""))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_]{1,80}", value) is not None


def error_for(
    status: int, problem: Problem, what: str, redact: Callable[[str], str], wait: float | None, *, write: bool
) -> ProviderError:
    """Returns the error to raise.

    Args:
        status: the HTTP status; 0 for a failed operation.
        problem: the API's reason and message.
        what: the account and the request, in words.
        redact: removes secrets from a text.
        wait: the seconds of Retry-After, if the answer has one.
        write: whether the request or operation is a change.
    """
    reason = problem.reason.replace("_", "").lower()
    what = f"{what}: {' '.join(filter(None, (str(status) if status else 'failed', problem.reason)))}"
    if status == 429 or reason in QUOTA:
        return QuotaExceeded(f"{what}; the project's rate limit or quota is used up", retry_after=wait)
    if status == 408 or status >= 500 or reason in TRANSIENT:
        return TransientProviderError(what, retry_after=wait)
    if 200 <= status <= 399:
        return TransientProviderError(f"{what}; not an answer of the Compute Engine API, check endpoint")
    said = f"{what}: {redact(problem.message)}" if problem.message else what
    if status == 403 or reason in FORBIDDEN:
        named = _PERMISSION.search(problem.message)
        return TerminalProviderError(f"{what}; grant the permission {named[1]}" if named else said)
    if not write:
        return Refused(said, status, problem)
    # Which reason the API gives for an address of another network tier is not verified, so the text counts.
    if reason in UNSUPPORTED or "tier" in problem.message.lower():
        return UnsupportedInstance(said)
    return AddressConflict(said) if status in (0, 400, 404, 409, 410, 412) else TerminalProviderError(said)


def retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Returns the seconds of a Retry-After, a number or an HTTP date; None if there is none.

    Args:
        headers: of the answer; names may be in any case.
        wall: the time now, in seconds since 1970.
    """
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        wait = float(value)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(value).timestamp() - wall
        except (ValueError, OverflowError):
            return None
    return min(max(wait, 0.0), MAX_WAIT) if math.isfinite(wait) else None
