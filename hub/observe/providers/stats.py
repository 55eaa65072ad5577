"""Counts the outcomes of calls into a provider type since the start; kept when its clusters leave the registry."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from hub.errors import CredentialError
from hub.observe.providers.config import ConfigInvalid
from hub.observe.providers.faults import ProviderStalled, ProviderSuspended
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from hub.runtime.tally import CALL_BOUNDS, Tally

OUTCOMES: Final = ("answered", "transient", "terminal", "timeout", "suspended", "defect")


class CallStats(msgspec.Struct):
    """Number of calls by outcome, and their durations.

    Attributes:
        outcomes: one of :data:`OUTCOMES` -> number of calls; every snapshot of a watch counts as ``answered``.
        seconds: durations of ``resolve`` calls, failed ones included.
    """

    outcomes: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    seconds: Tally = msgspec.field(default_factory=lambda: Tally(CALL_BOUNDS))

    def answered(self) -> None:
        """Count an answer."""
        self.outcomes["answered"] += 1

    def failed(self, error: Exception) -> None:
        """Count a failure."""
        self.outcomes[outcome_of(error)] += 1


def outcome_of(error: Exception) -> str:
    """The outcome of an error, one of :data:`OUTCOMES`."""
    match error:
        case ProviderSuspended():
            return "suspended"
        case ProviderStalled() | asyncio.TimeoutError():
            return "timeout"
        case TerminalProviderError() | ConfigInvalid() | CredentialError():
            return "terminal"
        case TransientProviderError():
            return "transient"
        case _:
            return "defect"
