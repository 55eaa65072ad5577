"""Converts exceptions of plugins into the hub's own exceptions, whose texts may be shown.

A plugin's exception is plugin code: ``str()`` of it may raise, block or quote a secret, and its traceback keeps the
plugin's frames alive. :func:`clean` converts it in the plugin's own loop.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from typing import Final

from hub.errors import CredentialError, HubError, ProviderError
from hub.observe.providers.config import ConfigInvalid
from hub.plugin.spec import (
    AddressConflict,
    CloudConflict,
    CloudRefusal,
    QuotaExceeded,
    TerminalProviderError,
    TransientProviderError,
    Uncertain,
    UnsupportedInstance,
)

_TRANSIENT: Final = (QuotaExceeded, Uncertain)
_REFUSALS: Final = (AddressConflict, UnsupportedInstance, CloudConflict, CloudRefusal)

ERROR_LIMIT: Final = 256
"""Maximum characters of a plugin error's text that are shown."""


class ProviderStalled(ProviderError):
    """A provider did not answer within its deadline, or blocked its event loop."""


class ProviderCrashed(ProviderError):
    """A provider exited or cancelled itself, or its background task died."""


class ProviderSuspended(TransientProviderError):
    """A provider is not called for now because it blocked."""


class ProviderDefect(ProviderError):
    """A plugin raised an exception that the plugin API does not allow.

    Attributes:
        places: the traceback without the error's text.
    """

    def __init__(self, text: str, places: str = "") -> None:
        super().__init__(text)
        self.places = places


def clean(error: BaseException, known: Iterable[str] = ()) -> Exception:
    """Convert an error into an exception of the hub, without traceback; call it in the plugin's loop.

    Args:
        error: the plugin's exception.
        known: secrets to remove from the text, the longest first.
    """
    text = describe(error, known)
    match error:
        case ProviderStalled() | TimeoutError():
            return ProviderStalled(text)
        case ProviderCrashed():
            return ProviderCrashed(text)
        case ProviderSuspended():
            return ProviderSuspended(text, _seconds(error.retry_after))
        case TransientProviderError():
            kind = next((kind for kind in _TRANSIENT if isinstance(error, kind)), TransientProviderError)
            return kind(text, _seconds(error.retry_after))
        case AddressConflict() | UnsupportedInstance() | CloudConflict() | CloudRefusal():
            return next(kind for kind in _REFUSALS if isinstance(error, kind))(text)
        case TerminalProviderError() | ConfigInvalid():
            return TerminalProviderError(text)
        case CredentialError():
            return CredentialError(text)
        case ProviderDefect():
            return ProviderDefect(text, error.places)
        case HubError():
            return ProviderError(text)
    return ProviderDefect(text, places(error))


def describe(error: BaseException, known: Iterable[str] = ()) -> str:
    """An error's text on one line without the secrets in ``known``, with the type's name unless it is a HubError."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an exception class of a plugin
        text = ""
    for value in known:  # before lines are joined, since a secret may have several lines
        text = text.replace(value, "***")
    text = " ".join(text.split())
    if not isinstance(error, HubError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"


def places(error: BaseException) -> str:
    """The traceback of an error without the error's text, which may quote a secret."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _seconds(after: object) -> float | None:
    return float(after) if isinstance(after, int | float) and math.isfinite(after) else None
