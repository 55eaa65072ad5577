"""Translates errors of the SDK, of urllib3 and of the API into errors of the plugin API, with readable messages."""

from __future__ import annotations

import email.utils
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from hub.plugin import ProviderError, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressConflict, QuotaExceeded
from hub.plugin.spec import CloudConflict, CloudRefusal, Uncertain

RATE_LIMITED: Final = 60.0
"""Seconds to wait after a 429 without Retry-After: the API's limits are per minute."""

MAX_WAIT: Final = 3600.0
"""The most seconds to wait, whatever Retry-After says."""


_BUSY: Final = re.compile(r"(?i)\b(busy|locked|in progress|provisioning|currently being|cannot be executed)\b")
"""In the text of a refused change: another change has to end first."""

_QUOTA: Final = re.compile(r"(?i)\b(quota|resource limits?|contract limits?|limits? exceeded|exceeds? the limits?)\b")
"""In the text of a refused creation: the contract allows no more. The codes are not documented."""

_TAKEN: Final = re.compile(r"(?i)\b(already|in use|not reserved)\b")
"""In the text of a refused change: something has come or gone that the lists do not show yet."""


class Unauthorised(ProviderError):
    """401: the credential is not accepted."""


class Missing(TerminalProviderError):
    """404: the account sees no such object."""


class RetryLater(QuotaExceeded):
    """429, or 503 with Retry-After: the account has to wait."""


class Refusal(NamedTuple):
    """An answer of the API with an error status.

    Attributes:
        status: The HTTP status; 0 if the SDK's error has none.
        headers: The answer's headers.
        said: The messages in its body; "" if the body is not the API's.
    """

    status: int
    headers: Mapping[str, str]
    said: str


def refusal(error: BaseException) -> Refusal | None:
    """Returns the API's answer that the error is about; None if there was no answer."""
    found = _api_error(error)
    return None if found is None else Refusal(int(found.status or 0), found.headers or {}, _messages(found.body))


def error_for(refused: Refusal, what: str, credential: str, wall: float, *, write: bool = False) -> ProviderError:
    """Returns the error to raise for an answer.

    Args:
        refused: The answer.
        what: The API, the status and the request, in words.
        credential: Where the credential comes from, in words.
        wall: The time now, in seconds since 1970.
        write: Whether the request is a change.
    """
    status = refused.status
    if status == 429 or (status == 503 and "Retry-After" in refused.headers):
        wait = _retry_after(refused.headers.get("Retry-After"), wall)
        return RetryLater(f"{what}; asking again in {wait:.0f} s", retry_after=wait)
    if status == 401:
        return Unauthorised(f"{what}; renew {credential}")
    if status in (402, 403):
        right = "edit the data center and use the reserved block" if write else "read them"
        return TerminalProviderError(f"{what}; the account lacks the right to {right}")
    if status == 404:
        return Missing(f"{what}; it does not exist, or the account cannot see it")
    if write and status in (400, 409, 422):
        # The codes of these refusals are not documented, so the text counts.
        return TransientProviderError(what) if _BUSY.search(refused.said) else AddressConflict(what)
    if 300 <= status <= 399:
        return TerminalProviderError(f"{what}; redirects are not followed, correct apiUrl")
    return TransientProviderError(what) if status == 408 or status >= 500 else TerminalProviderError(what)


def cloud_error(refused: Refusal, what: str) -> ProviderError | None:
    """Returns the error of a refused change of a load balancer; None if :func:`error_for` knows it.

    Args:
        refused: The answer.
        what: The API, the status and the request, in words.
    """
    status = refused.status
    if status >= 500:
        return Uncertain(what)  # a gateway in between may have lost the answer
    if status in (400, 402, 403, 422) and _QUOTA.search(refused.said):
        return QuotaExceeded(f"{what}; raise the limits of the contract, or delete what is not needed")
    if status == 409 or (status in (400, 422) and (_BUSY.search(refused.said) or _TAKEN.search(refused.said))):
        return CloudConflict(what)
    return CloudRefusal(what) if status in (400, 422) else None


def may_have_arrived(error: BaseException) -> bool:
    """Whether a request without an answer may have reached the API: not if there was no connection."""
    current: BaseException | None = error
    while current is not None:
        if type(current).__name__ in ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ProxyError"):
            return False
        current = current.__cause__ or current.__context__
    return True


def _api_error(error: BaseException) -> Any:
    """Returns the SDK's own error: ``error``, or the one during whose handling ``error`` was raised."""
    module = sys.modules.get("ionoscloud.exceptions")
    current: BaseException | None = error if module is not None else None
    while current is not None and not isinstance(current, getattr(module, "ApiException")):  # noqa: B009 - untyped
        current = current.__context__
    return current


def describe_connection_error(error: BaseException) -> str:
    """Describes a failed connection, without the addresses and object ids in urllib3's own messages."""
    names = {
        "NewConnectionError": "connection refused or no route",
        "NameResolutionError": "the name does not resolve",
        "ConnectTimeoutError": "no connection in time",
        "ReadTimeoutError": "no answer in time",
        "SSLError": "its certificate is not accepted (caFile names another authority)",
        "ProtocolError": "the answer was cut short",
        "IncompleteRead": "the answer was cut short",
    }
    current: BaseException | None = error
    while current is not None:
        name = type(current).__name__
        if name in names:
            return names[name]
        if name == "LimitExceeded":
            return str(current)
        if name == "ProxyError":
            return _of_proxy(current)
        current = current.__cause__ or current.__context__
    return type(error).__name__


def _of_proxy(error: BaseException) -> str:
    """Describes a failed proxy. Of its answer, only the status is shown: the text could repeat the password."""
    found = re.search(r"Tunnel connection failed: (\d{3})\b", str(error))
    said = f"answers {found[1]}" if found else "does not answer"
    return f"the proxy of HTTPS_PROXY {said}"


def _messages(body: object) -> str:
    """Returns the messages in the API's error body, at most 200 characters; "" if the body is not the API's."""
    try:
        said = json.loads(body) if isinstance(body, str | bytes) else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(said, Mapping):
        return ""
    messages = cast("Mapping[str, object]", said).get("messages")
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    texts = [cast("Mapping[str, object]", entry).get("message") for entry in listed if isinstance(entry, Mapping)]
    return "; ".join(text for text in texts if isinstance(text, str))[:200]


def _retry_after(value: str | None, wall: float) -> float:
    """Returns the seconds to wait for a Retry-After, a number or an HTTP date: from 1 to :data:`MAX_WAIT`."""
    wait = RATE_LIMITED
    if value is not None:
        try:
            wait = float(value)
        except ValueError:
            try:
                wait = email.utils.parsedate_to_datetime(value).timestamp() - wall
            except (ValueError, OverflowError):
                wait = RATE_LIMITED
    return min(max(1.0, wait if math.isfinite(wait) else RATE_LIMITED), MAX_WAIT)
