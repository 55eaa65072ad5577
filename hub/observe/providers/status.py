"""How a provider is doing: state, since when, why, and counters."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal

import msgspec

from hub.observe.providers.config import ConfigInvalid
from hub.observe.providers.faults import ProviderDefect, describe
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

RETRY_BASE: Final = 1.0
RETRY_CAP: Final = 60.0
"""Seconds between retries: a cloud API that is down for an hour is asked once a minute per cluster."""

MAX_RETRY_AFTER: Final = 3600.0
"""Seconds; a longer Retry-After is a mistake of the other side."""

CREDENTIAL_CHECK: Final = 15.0
"""Seconds between looks at the credentials after a TerminalProviderError: a mounted Secret takes a minute to change."""

UNBLOCK_DELAY: Final = 1.0
"""Seconds; a provider that says "changed" without end is not asked without end."""

MAX_REST: Final = 86_400.0
"""Seconds; an event loop takes no infinite ones."""

State = Literal["pending", "ready", "degraded"]


class ProviderStatus(msgspec.Struct, frozen=True):
    """How a provider is doing.

    Attributes:
        state: ``pending`` before the first answer; ``degraded`` while the last call failed.
        since: Unix time of the last change of ``state``.
        error: why it is degraded; one short line without secrets.
        terminal: nothing is asked until the configuration or a credential changes.
    """

    state: State
    since: float
    error: str = ""
    terminal: bool = False


class Health:
    """Keeps a ProviderStatus, decides when to try again, logs changes of state."""

    def __init__(self, what: str, clock: Clock, rng: random.Random | None = None) -> None:
        self._what = what
        self._clock = clock
        self._backoff = Backoff(base=RETRY_BASE, cap=RETRY_CAP, jitter=0.2, rng=rng or random.Random())
        self.status = ProviderStatus("pending", clock.wall())
        self.blocked_until = float("-inf")
        self.failures = 0
        self._renewals = 0
        self._look_at = 0.0

    def asking(self, renewals: int) -> None:
        """A call begins, after so many renewals of credentials: it may not know of later ones."""
        self._renewals = renewals

    def succeeded(self, *, forget: bool = True) -> bool:
        """An answer arrived; True where that changes the state.

        Args:
            forget: failures before it count no more; else two minutes without one are needed for that.
        """
        if forget:
            self._backoff.reset()
        self.blocked_until = float("-inf")
        if self.status.state == "ready":
            return False
        if self.status.state == "degraded":
            log.info("%s works again", self._what)
        self.status = ProviderStatus("ready", self._clock.wall())
        return True

    def failed(self, error: Exception) -> str:
        """A call failed: its text; nothing is to be asked before ``blocked_until``."""
        self.failures += 1
        text = describe(error)
        terminal = isinstance(error, TerminalProviderError | ConfigInvalid)
        now = self._clock.now()
        self._look_at = now + CREDENTIAL_CHECK
        self.blocked_until = float("inf") if terminal else now + max(self._backoff.next(now), _retry_after(error))
        if self.status.state != "degraded" or self.status.error != text:
            log.warning("%s: %s", self._what, text)
            if isinstance(error, ProviderDefect):
                log.debug("%s: %s\n%s", self._what, text, error.places)
        since = self.status.since if self.status.state == "degraded" else self._clock.wall()
        self.status = ProviderStatus("degraded", since, text, terminal)
        return text

    async def rest(self, seconds: float, wake: asyncio.Event, changed: Callable[[int], Awaitable[bool]]) -> None:
        """Wait so long, until ``wake`` is set, or until a credential has changed that a terminal error waits for.

        Args:
            seconds: how long.
            wake: ends it.
            changed: whether a credential reads otherwise than after so many renewals.
        """
        if self.status.terminal:
            seconds = min(seconds, self._look_at - self._clock.now())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, MAX_REST)):
                await wake.wait()
        # Whatever woke us: nodes that change all the time must not put it off for ever.
        if self.status.terminal and self._clock.now() >= self._look_at:
            self._look_at = self._clock.now() + CREDENTIAL_CHECK
            if await changed(self._renewals):
                self.unblock()

    def unblock(self) -> None:
        """Something a terminal error waits for may have changed: try again in a moment; no effect on other errors."""
        if self.status.terminal:
            self._backoff.reset()
            self.blocked_until = min(self.blocked_until, self._clock.now() + UNBLOCK_DELAY)


def _retry_after(error: Exception) -> float:
    after = error.retry_after if isinstance(error, TransientProviderError) else None
    if not isinstance(after, int | float) or not math.isfinite(after):
        return 0.0
    return min(max(0.0, float(after)), MAX_RETRY_AFTER)
