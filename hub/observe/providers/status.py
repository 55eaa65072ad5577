"""Keeps the state of a provider, and schedules the next call after a failure."""

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
"""Maximum seconds between retries: a cloud API that is down gets one call per minute and cluster."""

MAX_RETRY_AFTER: Final = 3600.0
"""Maximum seconds of a Retry-After; a longer one is probably a mistake."""

CREDENTIAL_CHECK: Final = 15.0
"""Seconds between checks of the credentials after a terminal error; a mounted Secret takes a minute to change."""

UNBLOCK_DELAY: Final = 1.0
"""Seconds from ``changed()`` to the next call after a terminal error, since a provider may call it constantly."""

MAX_WAIT: Final = 86_400.0
"""Maximum seconds of one wait; an event loop does not accept infinity."""

State = Literal["pending", "ready", "degraded"]


class ProviderStatus(msgspec.Struct, frozen=True):
    """State of a provider.

    Attributes:
        state: ``pending`` before the first answer; ``degraded`` while the last call failed.
        since: Unix time of the last change of ``state``.
        error: why it is degraded; one short line without secrets.
        terminal: whether the provider is not called again until the configuration or a credential changes, or the
            provider itself calls ``changed()``.
    """

    state: State
    since: float
    error: str = ""
    terminal: bool = False


class Health:
    """Keeps a ProviderStatus, schedules retries, and logs changes of state.

    Attributes:
        blocked_until: Clock.now() before which the provider must not be called; inf after a terminal error.
        failures: failed calls so far.
    """

    def __init__(self, what: str, clock: Clock, rng: random.Random | None = None) -> None:
        self._what = what
        self._clock = clock
        self._backoff = Backoff(base=RETRY_BASE, cap=RETRY_CAP, jitter=0.2, rng=rng or random.Random())
        self.status = ProviderStatus("pending", clock.wall())
        self.blocked_until = float("-inf")
        self.failures = 0
        self._renewals = 0
        self._check_at = 0.0
        """Clock.now() of the next check of the credentials after a terminal error."""

    def begin_call(self, renewals: int) -> None:
        """Note that a call begins; ``renewals`` is the number of changes of credentials so far."""
        self._renewals = renewals

    def succeeded(self, *, forget: bool = True) -> bool:
        """Note that an answer arrived; returns True if that changes the state.

        Args:
            forget: reset the backoff now; otherwise it is reset after two minutes without a failure.
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
        """Note that a call failed, and set ``blocked_until``; returns the error's text."""
        self.failures += 1
        text = describe(error)
        terminal = isinstance(error, TerminalProviderError | ConfigInvalid)
        now = self._clock.now()
        self._check_at = now + CREDENTIAL_CHECK
        self.blocked_until = float("inf") if terminal else now + max(self._backoff.next(now), _retry_after(error))
        if self.status.state != "degraded" or self.status.error != text:
            log.warning("%s: %s", self._what, text)
            if isinstance(error, ProviderDefect):
                log.debug("%s: %s\n%s", self._what, text, error.places)
        since = self.status.since if self.status.state == "degraded" else self._clock.wall()
        self.status = ProviderStatus("degraded", since, text, terminal)
        return text

    async def wait(self, seconds: float, wake: asyncio.Event, changed: Callable[[int], Awaitable[bool]]) -> None:
        """Wait before the next call; after a terminal error, check the credentials periodically.

        Args:
            seconds: longest wait.
            wake: ends the wait.
            changed: returns whether a credential has changed since there were this many renewals.
        """
        if self.status.terminal:
            seconds = min(seconds, self._check_at - self._clock.now())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, MAX_WAIT)):
                await wake.wait()
        # The check is due even if ``wake`` ended the wait: otherwise nodes that change all the time would prevent it.
        if self.status.terminal and self._clock.now() >= self._check_at:
            self._check_at = self._clock.now() + CREDENTIAL_CHECK
            if await changed(self._renewals):
                self.unblock()

    def unblock(self) -> None:
        """Retry soon after a terminal error, since its cause may be gone; no effect on other errors."""
        if self.status.terminal:
            self._backoff.reset()
            self.blocked_until = min(self.blocked_until, self._clock.now() + UNBLOCK_DELAY)


def _retry_after(error: Exception) -> float:
    after = error.retry_after if isinstance(error, TransientProviderError) else None
    if not isinstance(after, int | float) or not math.isfinite(after):
        return 0.0
    return min(max(0.0, float(after)), MAX_RETRY_AFTER)
