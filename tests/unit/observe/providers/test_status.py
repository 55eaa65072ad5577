"""The state of a provider: when it is called again, what is logged, and what its failures count as."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from hub.errors import CredentialError, HubError, ProviderError
from hub.observe.providers.faults import (
    ERROR_LIMIT,
    ProviderCrashed,
    ProviderDefect,
    ProviderStalled,
    ProviderSuspended,
    clean,
    describe,
)
from hub.observe.providers.stats import OUTCOMES, CallStats
from hub.observe.providers.status import (
    CREDENTIAL_CHECK,
    MAX_RETRY_AFTER,
    RETRY_BASE,
    RETRY_CAP,
    UNBLOCK_DELAY,
    Health,
    ProviderStatus,
)
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from tests.support.clocks import ManualClock

INFINITE = float("inf")


def made() -> tuple[Health, ManualClock]:
    """The health of a provider, and its clock."""
    clock = ManualClock(time=1000.0, wall_time=5000.0)
    return Health("provider x", clock, random.Random(1)), clock


def test_state_and_log_follow_the_outcomes_of_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Each change of the state or the error is logged once; ``since`` is the time of the last change of the state."""
    caplog.set_level(logging.INFO)
    health, clock = made()
    assert health.status == ProviderStatus("pending", 5000.0)
    assert health.blocked_until == -INFINITE
    clock.advance(1)
    assert health.succeeded() is True
    clock.advance(1)
    assert health.succeeded() is False
    assert health.status == ProviderStatus("ready", 5001.0)
    for text in ("a", "a", "b"):
        clock.advance(1)
        assert health.failed(TransientProviderError(text)) == text
    assert health.status == ProviderStatus("degraded", 5003.0, "b")
    health.failed(TerminalProviderError("b"))
    assert health.status == ProviderStatus("degraded", 5003.0, "b", terminal=True)
    assert health.failures == 4
    clock.advance(1)
    assert health.succeeded() is True
    assert (health.status, health.blocked_until) == (ProviderStatus("ready", 5006.0), -INFINITE)
    assert caplog.messages == ["provider x: a", "provider x: b", "provider x works again"]


@pytest.mark.parametrize(
    ("after", "wait"),
    [
        (None, 0.0),
        (-5.0, 0.0),
        (30.0, 30.0),
        (100, 100.0),
        (1e9, MAX_RETRY_AFTER),
        (INFINITE, 0.0),
        (float("nan"), 0.0),
    ],
)
def test_provider_is_not_called_before_the_time_that_it_names(after: float | None, wait: float) -> None:
    """The next call waits for the backoff, or for the Retry-After if that is longer and sensible."""
    health, clock = made()
    health.failed(TransientProviderError("busy", after))
    blocked = health.blocked_until - clock.now()
    assert blocked == wait or (wait == 0.0 and 0.0 < blocked <= 2 * RETRY_BASE)


def test_backoff_grows_up_to_its_cap_and_is_reset_by_an_answer() -> None:
    """Failures in a row are retried less and less often; an answer resets that unless it is told not to."""
    health, clock = made()

    def wait() -> float:
        health.failed(TransientProviderError("busy"))
        return health.blocked_until - clock.now()

    first = wait()
    waits = [wait() for _ in range(20)]
    assert first <= 2 * RETRY_BASE < waits[-1] <= 1.2 * RETRY_CAP  # with jitter
    health.succeeded(forget=False)
    assert wait() > 2 * RETRY_BASE
    health.succeeded()
    assert wait() <= 2 * RETRY_BASE


def test_only_a_terminal_error_blocks_until_it_is_unblocked() -> None:
    """``unblock`` ends a terminal error after a short delay, and does not change the time of other retries."""
    health, clock = made()
    health.failed(TransientProviderError("busy", 100.0))
    health.unblock()
    assert health.blocked_until == clock.now() + 100.0
    health.failed(TerminalProviderError("wrong"))
    assert health.blocked_until == INFINITE
    health.unblock()
    clock.advance(0.5)
    health.unblock()
    assert health.blocked_until == 1000.0 + UNBLOCK_DELAY


@pytest.mark.parametrize(
    ("error", "passed", "renewed", "asked", "blocked"),
    [
        (TerminalProviderError("x"), CREDENTIAL_CHECK, True, [7], False),
        (TerminalProviderError("x"), CREDENTIAL_CHECK, False, [7], True),
        (TerminalProviderError("x"), CREDENTIAL_CHECK - 1, True, [], True),
        (TransientProviderError("x"), CREDENTIAL_CHECK, True, [], False),
    ],
)
async def test_credentials_are_checked_periodically_after_a_terminal_error(
    error: Exception, passed: float, asked: list[int], *, renewed: bool, blocked: bool
) -> None:
    """After a terminal error, credentials are checked once per period, even if something else ends the wait."""
    health, clock = made()
    calls: list[int] = []
    wake = asyncio.Event()
    wake.set()

    async def changed(since: int) -> bool:
        calls.append(since)
        return renewed

    health.begin_call(7)
    health.failed(error)
    clock.advance(passed)
    for _ in range(2):
        await health.wait(60.0, wake, changed)
    assert calls == asked
    assert (health.blocked_until == INFINITE) is blocked


@pytest.mark.parametrize(
    ("error", "kind", "text", "outcome"),
    [
        (TimeoutError("late"), ProviderStalled, "TimeoutError: late", "timeout"),
        (ProviderStalled("stuck"), ProviderStalled, "stuck", "timeout"),
        (ProviderCrashed("left"), ProviderCrashed, "left", "defect"),
        (ProviderSuspended("not now", 3.0), ProviderSuspended, "not now", "suspended"),
        (TransientProviderError("busy", 3.0), TransientProviderError, "busy", "transient"),
        (TerminalProviderError("wrong"), TerminalProviderError, "wrong", "terminal"),
        (CredentialError("no key"), CredentialError, "no key", "terminal"),
        (ProviderDefect("broken", "here"), ProviderDefect, "broken", "defect"),
        (HubError("other"), ProviderError, "other", "defect"),
        (ValueError("a\nb  c"), ProviderDefect, "ValueError: a b c", "defect"),
        (KeyboardInterrupt(), ProviderDefect, "KeyboardInterrupt", "defect"),
        (ExceptionGroup("g", [ValueError("in")]), ProviderDefect, "ValueError: in", "defect"),
    ],
)
def test_errors_of_plugins_become_errors_of_the_hub(
    error: BaseException, kind: type[Exception], text: str, outcome: str
) -> None:
    """Each error of a plugin has its type and text in the hub, no traceback, and one outcome in the statistics."""
    found = clean(error)
    assert (type(found), str(found), found.__traceback__) == (kind, text, None)
    assert getattr(found, "retry_after", None) == getattr(error, "retry_after", None)
    stats = CallStats()
    stats.answered()
    stats.failed(found)
    assert stats.outcomes == {**dict.fromkeys(OUTCOMES, 0), "answered": 1, outcome: 1}


@pytest.mark.parametrize("length", [ERROR_LIMIT - 1, ERROR_LIMIT, ERROR_LIMIT + 1])
def test_long_text_is_cut_and_secrets_are_removed(length: int) -> None:
    """A text has ERROR_LIMIT characters at most, and known secrets are replaced before lines are joined."""
    text = "x" * length
    cut = text if length <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"
    assert describe(HubError(text)) == cut
    assert describe(HubError("a\nb and c"), ["a\nb", "c"]) == "*** and ***"
