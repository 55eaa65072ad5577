"""Name resolution: one look-up per name, fallback to the last good answer, and no effect on other names."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hub.kube import resolver as resolver_module
from hub.kube.resolver import ClusterResolver, LookupPool

GOOD = [(socket.AF_INET, "10.0.0.1", 443)]


class Dns:
    """Replaces the system's resolver.

    Attributes:
        answers: the address of each name; other names do not exist.
        hanging: look-ups of these names block until the event is set.
    """

    def __init__(self) -> None:
        self.answers = {"api.test": "10.0.0.1", "other.test": "10.0.0.2"}
        self.hanging: dict[str, threading.Event] = {}
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host: str, port: int, *_: Any) -> Any:
        """Replaces socket.getaddrinfo."""
        self.asked[host] += 1
        if host in self.hanging:
            self.hanging[host].wait(10)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.answers[host], port))]

    def hang(self, host: str) -> None:
        """Make look-ups of a name hang."""
        self.hanging[host] = threading.Event()

    def release(self) -> None:
        """Let hanging look-ups of a name finish."""
        for event in self.hanging.values():
            event.set()
        self.hanging.clear()


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    """A system resolver that the test controls."""
    dns = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", dns.getaddrinfo)
    yield dns
    dns.release()


@pytest.fixture
def pool() -> Iterator[LookupPool]:
    """Threads for name look-ups."""
    pool = LookupPool(8)
    yield pool
    pool.close()


@pytest.fixture
def resolver(pool: LookupPool, dns: Dns) -> ClusterResolver:
    """One cluster's resolver."""
    return ClusterResolver(pool)


def soon(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Shorten the module's timeouts."""
    for name, value in seconds.items():
        monkeypatch.setattr(resolver_module, name, value)


async def test_name_resolves_to_addresses(resolver: ClusterResolver) -> None:
    """An answer is a list of family, address and port."""
    assert await resolver.resolve("api.test", 443) == GOOD


async def test_fresh_answer_is_used_again(resolver: ClusterResolver, dns: Dns) -> None:
    """A second connection within half a minute causes no look-up."""
    await resolver.resolve("api.test", 443)
    assert await resolver.resolve("api.test", 443) == GOOD
    assert dns.asked["api.test"] == 1


async def test_old_answer_is_asked_for_again(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half a minute a new look-up finds a changed address."""
    soon(monkeypatch, FRESH_FOR=0.0)
    await resolver.resolve("api.test", 443)
    dns.answers["api.test"] = "10.0.0.9"
    assert await resolver.resolve("api.test", 443) == [(socket.AF_INET, "10.0.0.9", 443)]


async def test_callers_share_a_look_up(resolver: ClusterResolver, dns: Dns) -> None:
    """Concurrent callers share one look-up of a name."""
    answers = await asyncio.gather(*(resolver.resolve("api.test", 443) for _ in range(9)))
    assert (answers, dns.asked["api.test"]) == ([GOOD] * 9, 1)


async def test_name_that_does_not_exist_is_an_error(resolver: ClusterResolver) -> None:
    """Without an earlier answer, the caller gets the system's error."""
    with pytest.raises(socket.gaierror, match="not known"):
        await resolver.resolve("nowhere.test", 443)


@pytest.mark.parametrize("name", ["a..b", f"{'x' * 64}.test"])
async def test_invalid_name_is_an_ordinary_lookup_error(pool: LookupPool, name: str) -> None:
    """A name that Python's codec rejects gives the same kind of error."""
    with pytest.raises(socket.gaierror):
        await ClusterResolver(pool).resolve(name, 443)


async def test_failing_look_up_falls_back_on_the_last_good_answer(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a look-up fails, the last good answer is used."""
    soon(monkeypatch, FRESH_FOR=0.0)
    await resolver.resolve("api.test", 443)
    del dns.answers["api.test"]
    assert await resolver.resolve("api.test", 443) == GOOD


async def test_hanging_look_up_is_given_up(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up that hangs gives a clear error after the timeout."""
    soon(monkeypatch, LOOKUP_TIMEOUT=0.05)
    dns.hang("api.test")
    with pytest.raises(socket.gaierror, match="no answer within") as caught:
        await resolver.resolve("api.test", 443)
    assert caught.value.errno == socket.EAI_AGAIN


async def test_hanging_look_up_falls_back_sooner_where_there_is_an_answer(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with an older answer waits for a shorter time."""
    soon(monkeypatch, FRESH_FOR=0.0, PATIENCE=0.05)
    await resolver.resolve("api.test", 443)
    dns.hang("api.test")
    async with asyncio.timeout(2):  # LOOKUP_TIMEOUT is 5
        assert await resolver.resolve("api.test", 443) == GOOD


async def test_hanging_look_up_is_not_started_again(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a look-up hangs, no second one is started for the same name."""
    soon(monkeypatch, LOOKUP_TIMEOUT=0.02)
    dns.hang("api.test")
    for _ in range(3):
        with pytest.raises(socket.gaierror):
            await resolver.resolve("api.test", 443)
    assert dns.asked["api.test"] == 1


async def test_late_answer_is_kept(resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that arrives after the timeout is used by the next caller."""
    soon(monkeypatch, LOOKUP_TIMEOUT=0.02)
    dns.hang("api.test")
    with pytest.raises(socket.gaierror):
        await resolver.resolve("api.test", 443)
    dns.release()
    await asyncio.sleep(0.05)
    assert await resolver.resolve("api.test", 443) == GOOD
    assert dns.asked["api.test"] == 1


async def test_late_lookup_failure_is_not_unhandled(
    resolver: ClusterResolver, dns: Dns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look-up that fails after its caller has left is not reported as an unhandled error."""
    soon(monkeypatch, LOOKUP_TIMEOUT=0.02)
    del dns.answers["api.test"]
    dns.hang("api.test")
    with pytest.raises(socket.gaierror):
        await resolver.resolve("api.test", 443)
    dns.release()
    await asyncio.sleep(0.05)
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_hanging_name_delays_no_other(resolver: ClusterResolver, pool: LookupPool, dns: Dns) -> None:
    """A name that hangs does not delay other names of any cluster."""
    dns.hang("api.test")
    stuck = asyncio.create_task(resolver.resolve("api.test", 443))
    async with asyncio.timeout(1):
        for other in (resolver, ClusterResolver(pool)):
            assert (await other.resolve("other.test", 443))[0][1] == "10.0.0.2"
    dns.release()
    assert await stuck == GOOD


async def test_busy_default_threads_delay_no_look_up(resolver: ClusterResolver) -> None:
    """Look-ups have their own threads, so a full default pool does not delay them."""
    release = threading.Event()
    busy = [asyncio.create_task(asyncio.to_thread(release.wait, 5)) for _ in range(64)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(1):
        assert await resolver.resolve("api.test", 443) == GOOD
    release.set()
    await asyncio.gather(*busy)


async def test_cancelled_caller_leaves_the_look_up_to_the_others(resolver: ClusterResolver, dns: Dns) -> None:
    """Cancelling one caller does not cancel the look-up for others."""
    dns.hang("api.test")
    first, second = (asyncio.create_task(resolver.resolve("api.test", 443)) for _ in range(2))
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.sleep(0)
    dns.release()
    assert await second == GOOD
    assert first.cancelled()


async def test_cancellation_is_not_lost_to_an_answer(resolver: ClusterResolver, dns: Dns) -> None:
    """A caller that is cancelled when its answer arrives is cancelled."""
    dns.hang("api.test")
    caller = asyncio.create_task(resolver.resolve("api.test", 443))
    await asyncio.sleep(0.02)
    (look_up,) = resolver._pending.values()
    look_up.add_done_callback(lambda _: caller.cancel())
    dns.release()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_close_raises_an_error_in_waiting_callers(resolver: ClusterResolver, dns: Dns) -> None:
    """Closing the resolver gives waiting callers an error, not CancelledError."""
    dns.hang("api.test")
    caller = asyncio.create_task(resolver.resolve("api.test", 443))
    await asyncio.sleep(0.02)
    await resolver.close()
    with pytest.raises(socket.gaierror):
        await caller


async def test_pool_closes_without_waiting_for_hanging_lookups(dns: Dns) -> None:
    """Closing the pool does not wait for look-ups that hang."""
    pool = LookupPool(1)
    dns.hang("api.test")
    caller = asyncio.create_task(ClusterResolver(pool).resolve("api.test", 443))
    await asyncio.sleep(0.02)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 0.5
    dns.release()
    await caller
