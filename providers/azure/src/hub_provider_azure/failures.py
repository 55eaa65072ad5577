"""Translates answers of Azure into errors of the plugin API.

A message quotes the error code of an answer and, if the request was refused, its text without secrets. The text of a
failed server is not quoted.
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

CONFLICTS: Final = frozenset({"PublicIPAddressInUse", "PublicIPReferencedByMultipleIPConfigs", "PreconditionFailed"})
TRANSIENT: Final = frozenset(
    {"RetryableError", "AnotherOperationInProgress", "OperationPreempted", "Canceled", "InternalServerError"}
)


class NotFound(ProviderError):
    """404, with the error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Invalid(TerminalProviderError):
    """400 to a read: Azure does not accept the request as it is."""


class Problem(NamedTuple):
    """The error in an answer: Azure's code and message, both "" if the answer has none."""

    code: str = ""
    message: str = ""


def problem_in(document: object) -> Problem:
    """Returns the error of a decoded body, ``{"error": {"code": ..., "message": ...}}``."""
    error = cast("Mapping[str, Any]", document).get("error") if isinstance(document, Mapping) else None
    if not isinstance(error, Mapping):
        return Problem()
    code, message = (cast("Mapping[str, object]", error).get(key) for key in ("code", "message"))
    return Problem(
        code if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9_.]{1,100}", code) else "",
        message if isinstance(message, str) else "",
    )


def decoded(body: bytes) -> object:
    """Returns the value of a JSON body; None for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def error_for(
    status: int, problem: Problem, what: str, redact: Callable[[str], str], wait: float | None, *, write: bool
) -> ProviderError:
    """Returns the error to raise.

    Args:
        status: the HTTP status; 0 if an operation failed.
        problem: the error in the answer.
        what: the account and the request, in words.
        redact: removes secrets from a text.
        wait: the seconds of Retry-After, if the answer has one.
        write: whether the request or operation is a change.
    """
    code = problem.code
    what = f"{what}: {' '.join(filter(None, (str(status) if status else 'failed', code)))}"
    if status == 429:
        return QuotaExceeded(f"{what}; the account's rate limit is used up", retry_after=wait)
    if status == 408 or status >= 500 or code in TRANSIENT:
        return TransientProviderError(what, retry_after=wait)
    said = f"{what}: {redact(problem.message)[:300]}" if problem.message else what
    if status == 412 or code in CONFLICTS:
        return AddressConflict(said)
    if status == 404:
        return NotFound(said, code)
    if status == 403:
        permission = _permission(problem.message)
        return TerminalProviderError(f"{what}; grant the identity {permission}" if permission else said)
    if status == 409:
        return TransientProviderError(said, retry_after=wait)
    if 300 <= status < 400:
        return TerminalProviderError(f"{what}; redirects are not followed, correct endpoint")
    if write and ("Zone" in code or "Sku" in code):
        return UnsupportedInstance(said)
    if write:
        return ProviderError(said)
    return Invalid(said) if status == 400 else TerminalProviderError(said)


def _permission(message: str) -> str:
    """Returns the permissions that the text of a 403 names, such as Microsoft.Network/networkInterfaces/write."""
    found = re.search(
        r"not have (?:authorization|permission) to perform action(?:\(s\))? '([A-Za-z0-9./,* ]{1,400})'", message
    )
    return found[1] if found else ""


def retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Returns the seconds of a Retry-After, a number or an HTTP date; None if there is none."""
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
