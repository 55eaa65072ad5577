"""What became of the calls into one provider type, since the start. Kept when its clusters go."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from hub.errors import CredentialError
from hub.observe.providers.config import ConfigInvalid
from hub.observe.providers.faults import ProviderStalled, ProviderSuspended
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from hub.runtime.tally import CALLS, Tally

OUTCOMES: Final = ("answered", "transient", "terminal", "timeout", "suspended", "defect")


class CallStats(msgspec.Struct):
    """Calls by outcome, and how long they took.

    Attributes:
        outcomes: one of :data:`OUTCOMES` -> calls; snapshots of a watch count as answers.
        seconds: of calls of ``resolve``, whatever came of them.
    """

    outcomes: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    seconds: Tally = msgspec.field(default_factory=lambda: Tally(CALLS))

    def answered(self) -> None:
        """An answer."""
        self.outcomes["answered"] += 1

    def failed(self, error: Exception) -> None:
        """None."""
        self.outcomes[outcome_of(error)] += 1


def outcome_of(error: Exception) -> str:
    """The word for an error, of a fixed set."""
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
