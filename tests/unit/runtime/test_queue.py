"""The keyed queue in virtual time: keys, delays, storms, failures and cancelled workers."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.runtime.queue import RETRY_CAP, SPARE, STORM_END, STORM_FIRST, STORM_LIMIT, STORM_REST, KeyedQueue
from tests.support.virtual import LoopClock, VirtualLoop


def simulate(main: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Decorator that runs a test in virtual time."""

    @functools.wraps(test)
    def run() -> None:
        simulate(test())

    return run


def now() -> float:
    """The current virtual time in seconds."""
    return asyncio.get_running_loop().time()


def queue() -> KeyedQueue[str]:
    """A queue whose clock is the virtual time."""
    return KeyedQueue(LoopClock(), random.Random(0))


async def work(q: KeyedQueue[str]) -> list[str]:
    """Process all keys that are ready and return them in their order."""
    keys = []
    while len(q):
        keys.append(await q.get())
        q.done(keys[-1])
    return keys


async def arrival(q: KeyedQueue[str]) -> float:
    """Wait for the next key; returns the seconds that it took."""
    started = now()
    q.done(await q.get())
    return now() - started


# --- keys ----------------------------------------------------------------------------------------


@virtual
async def test_keys_come_in_order_and_once() -> None:
    """A key that is added several times is processed once, at its first position."""
    q = queue()
    for key in "abcab":
        q.add(key)
    assert await work(q) == ["a", "b", "c"]


@virtual
async def test_waiting_getter_gets_the_key() -> None:
    """A worker that waits gets a key that is added later."""
    q = queue()
    asyncio.get_running_loop().call_later(5, q.add, "a")
    assert await arrival(q) == 5


@virtual
async def test_key_added_while_in_work_comes_again_afterwards() -> None:
    """A key that is added several times during its pass gets exactly one more pass, after the current one."""
    q = queue()
    q.add("a")
    key = await q.get()
    for _ in range(3):
        q.add("a")
    await asyncio.sleep(1)
    assert len(q) == 0
    q.done(key)
    assert await work(q) == ["a"]
    assert q.idle


@virtual
async def test_key_in_work_does_not_hold_up_others() -> None:
    """Other keys can be processed while a key is being processed."""
    q = queue()
    q.add("a")
    await q.get()
    q.add("a")
    q.add("b")
    assert await q.get() == "b"


@virtual
async def test_finished_key_does_not_come_back() -> None:
    """A finished key does not come back by itself."""
    q = queue()
    q.add("a")
    q.done(await q.get())
    assert q.idle


@virtual
async def test_queue_counters_reflect_its_keys() -> None:
    """Its length, ``working`` and ``idle`` reflect ready, processed and delayed keys."""
    q = queue()
    states = [(len(q), q.working, q.idle)]
    q.add_after("a", 1)
    states.append((len(q), q.working, q.idle))
    q.add("a")
    states.append((len(q), q.working, q.idle))
    await q.get()
    states.append((len(q), q.working, q.idle))
    assert states == [(0, False, True), (0, False, False), (1, False, False), (0, True, False)]


# --- storms --------------------------------------------------------------------------------------


async def begin_storm(q: KeyedQueue[str], key: str = "a") -> None:
    """Request a key while it is being processed, and finish the pass for that request too."""
    q.add(key)
    await q.get()
    q.add(key)
    q.done(key)
    q.done(await q.get())


async def waited(q: KeyedQueue[str], *requests: float) -> float:
    """Request a key at these seconds from now; returns the seconds until the pass that all of them share."""
    for delay in requests:
        asyncio.get_running_loop().call_later(delay, q.add, "a")
    seconds = await arrival(q)
    assert len(q) == q.delayed == 0
    return seconds


@virtual
async def test_requests_outside_a_storm_never_wait() -> None:
    """Many keys that are requested again and again, but never during a pass, do not wait."""
    q = queue()
    keys = "abcdefghijklmnopqrst"
    for _ in range(5):
        for key in keys:
            q.add(key)
        assert await work(q) == list(keys)
        await asyncio.sleep(0.001)


@virtual
async def test_request_after_one_that_overlapped_waits_a_moment_for_others() -> None:
    """If no other request arrives during that wait, no request waits for ``STORM_REST`` seconds."""
    q = queue()
    await begin_storm(q)
    assert await waited(q, 0) == pytest.approx(STORM_FIRST, abs=0.002)
    begin = now()
    while now() < begin + STORM_REST - 0.1:
        await begin_storm(q)
        assert await waited(q, 0.01) == pytest.approx(0.01)
    await asyncio.sleep(0.1)
    await begin_storm(q)
    assert await waited(q, 0) == pytest.approx(STORM_FIRST, abs=0.002)


@virtual
async def test_request_that_comes_at_the_end_of_a_pass_does_not_wait() -> None:
    """A request shortly before the end of a pass is served as soon as that pass ends."""
    q = queue()
    q.add("a")
    for _ in range(5):
        key = await q.get()
        await asyncio.sleep(0.01)
        q.add("a")
        q.done(key)
        assert len(q) == 1


@virtual
async def test_wait_doubles_while_others_come_up_to_a_limit() -> None:
    """The wait starts with the first request for a pass; later ones do not extend it."""
    q = queue()
    await begin_storm(q)
    found = [await waited(q, 0, 0.005, 0.01) for _ in range(6)]
    assert found == pytest.approx([0.012, 0.024, 0.048, 0.096, STORM_LIMIT, STORM_LIMIT], abs=0.002)


@virtual
async def test_requests_that_are_not_close_together_end_a_storm() -> None:
    """Requests that share a long wait by chance, for example 20 a second, do not keep a storm going."""
    q = queue()
    await begin_storm(q)
    for _ in range(4):
        await waited(q, 0, 0.005)
    assert await waited(q, 0, 0.05, 0.1) == pytest.approx(STORM_LIMIT, abs=0.002)
    assert await waited(q, 0) == 0


@virtual
async def test_request_during_a_pass_waits_as_long_as_any_in_a_storm() -> None:
    """Its wait starts with its arrival and lasts at least until the pass ends."""
    q = queue()
    await begin_storm(q)
    await waited(q, 0, 0.005)
    for seconds, left in ((0.01, 4 * STORM_FIRST - 0.01), (0.1, 0.0)):
        q.add("a")
        asyncio.get_running_loop().call_later(0.005, q.add, "a")
        key = await q.get()
        q.add("a")
        await asyncio.sleep(seconds)
        q.done(key)
        assert await arrival(q) == pytest.approx(left, abs=0.002)


@virtual
async def test_storm_ends_when_it_is_quiet() -> None:
    """After ``STORM_END`` seconds without a request, the next one is served at once."""
    q = queue()
    await begin_storm(q)
    await asyncio.sleep(STORM_END - STORM_FIRST - 0.001)
    assert await waited(q, 0, 0.005) == pytest.approx(STORM_FIRST, abs=0.002)
    await asyncio.sleep(STORM_END + 0.001)
    assert await waited(q, 0) == 0


@virtual
async def test_storm_of_one_key_delays_no_other() -> None:
    """A storm of one key does not delay other keys."""
    q = queue()
    await begin_storm(q, "b")
    assert await waited(q, 0) == 0


@virtual
async def test_discarded_key_leaves_its_storm() -> None:
    """Discarding a key ends its storm."""
    q = queue()
    await begin_storm(q)
    q.discard("a")
    assert await waited(q, 0) == 0


# --- delays --------------------------------------------------------------------------------------


@virtual
async def test_delayed_key_comes_when_it_is_due() -> None:
    """A delayed key becomes ready after its delay and not before."""
    q = queue()
    q.add_after("a", 7)
    assert await arrival(q) == pytest.approx(7, abs=0.002)
    assert q.idle


@virtual
async def test_delays_that_do_not_count_any_more_are_forgotten() -> None:
    """Outdated delays of a key that is processed again and again do not accumulate."""
    q = queue()
    q.add_after("b", 400)
    for _ in range(2000):
        q.add("a")
        assert await work(q) == ["a"]
        q.add_after("a", 300)
        assert len(q._heap) <= 2 * 2 + SPARE
    assert [await arrival(q), await arrival(q)] == [pytest.approx(300, abs=0.002), pytest.approx(100, abs=0.002)]


@pytest.mark.parametrize("delays", [(7, 3, 5), (3, 7, 5), (5, 7, 3)])
def test_earliest_delay_wins_and_counts_once(delays: tuple[float, ...]) -> None:
    """Several delays of one key make one pass, at the earliest time."""

    async def main() -> None:
        q = queue()
        for delay in delays:
            q.add_after("a", delay)
        assert await arrival(q) == pytest.approx(3, abs=0.002)
        await asyncio.sleep(20)
        assert q.idle

    simulate(main())


@virtual
async def test_add_overtakes_a_delay() -> None:
    """A delayed key that is added without a delay is processed once, at once."""
    q = queue()
    q.add_after("a", 5)
    q.add("a")
    assert await work(q) == ["a"]
    await asyncio.sleep(10)
    assert q.idle


@virtual
async def test_delay_of_a_ready_key_is_nothing_new() -> None:
    """Delaying a key that is already ready has no effect."""
    q = queue()
    q.add("a")
    q.add_after("a", 5)
    assert await work(q) == ["a"]
    assert q.idle


@pytest.mark.parametrize("delay", [0, -1])
def test_delay_of_nothing_is_now(delay: float) -> None:
    """A delay of 0 or less makes the key ready at once."""

    async def main() -> None:
        q = queue()
        q.add_after("a", delay)
        assert await work(q) == ["a"]

    simulate(main())


@virtual
async def test_delay_that_ends_during_a_pass_makes_another() -> None:
    """A key whose delay ends during its pass gets another pass."""
    q = queue()
    q.add("a")
    key = await q.get()
    q.add_after(key, 1)
    await asyncio.sleep(2)
    assert len(q) == 0
    q.done(key)
    assert await work(q) == ["a"]


@virtual
async def test_delays_of_many_keys_end_in_order_of_time() -> None:
    """Delayed keys become ready in the order of their due times."""
    q = queue()
    for key, delay in {"c": 3, "a": 1, "d": 4, "b": 2}.items():
        q.add_after(key, delay)
    order = [await q.get() for _ in range(4)]
    assert order == ["a", "b", "c", "d"]


@virtual
async def test_discarded_key_is_forgotten() -> None:
    """A discarded key is not processed any more, whether it was ready, delayed or had failed."""
    q = queue()
    q.add("a")
    q.add_after("b", 1)
    q.retry("c")
    for key in "abcd":
        q.discard(key)
    await asyncio.sleep(100)
    assert q.idle
    assert q.retry("c") < 2


@virtual
async def test_discarded_key_in_work_does_not_come_again() -> None:
    """Discarding a key during its pass drops requests that arrived meanwhile."""
    q = queue()
    q.add("a")
    key = await q.get()
    q.add("a")
    q.discard("a")
    q.done(key)
    assert q.idle


# --- failures ------------------------------------------------------------------------------------


@virtual
async def test_retries_grow_to_a_cap() -> None:
    """The delay starts at 1 s, doubles up to 60 s, and has up to 20 % jitter."""
    q = queue()
    delays = [q.retry("a") for _ in range(9)]
    plain = [1, 2, 4, 8, 16, 32, RETRY_CAP, RETRY_CAP, RETRY_CAP]
    assert all(want <= delay <= 1.2 * want for want, delay in zip(plain, delays, strict=True))


@virtual
async def test_failed_key_comes_again_after_its_delay() -> None:
    """``retry`` returns the delay after which the key is ready."""
    q = queue()
    delay = q.retry("a")
    assert await arrival(q) == pytest.approx(delay, abs=0.002)


@virtual
async def test_forget_resets_the_delay() -> None:
    """``forget`` resets the delay: only failures in a row count."""
    q = queue()
    for _ in range(5):
        q.retry("a")
    q.forget("a")
    assert q.retry("a") <= 1.2


@virtual
async def test_failures_of_one_key_do_not_slow_down_another() -> None:
    """Failures are counted per key."""
    q = queue()
    for _ in range(5):
        q.retry("a")
    assert q.retry("b") <= 1.2


@virtual
async def test_servers_wish_is_a_minimum() -> None:
    """The delay is the longer one of Retry-After and the key's own backoff."""
    q = queue()
    assert q.retry("a", at_least=17) == 17
    q.retry("a", 0)
    assert q.retry("a", at_least=0.1) >= 4


@virtual
async def test_change_does_not_shorten_a_servers_wait() -> None:
    """Changes before and during the wait that a server asked for share one pass after it."""
    q = queue()
    q.add("a")
    key = await q.get()
    q.add(key)
    q.retry(key, at_least=30)
    q.done(key)
    asyncio.get_running_loop().call_later(5, q.add, key)
    asyncio.get_running_loop().call_later(6, q.add_after, key, 2)
    assert await arrival(q) == pytest.approx(30, abs=0.002)
    q.add(key)
    assert await work(q) == ["a"]
    await asyncio.sleep(100)
    assert q.idle


@virtual
async def test_earlier_delay_does_not_shorten_a_servers_wait() -> None:
    """A delay from before the failure does not shorten the wait that the server asked for."""
    q = queue()
    q.add("a")
    key = await q.get()
    q.add_after(key, 5)
    q.retry(key, at_least=30)
    q.done(key)
    assert await arrival(q) == pytest.approx(30, abs=0.002)


@virtual
async def test_change_ends_the_backoff() -> None:
    """A change ends the backoff of a key, but not before the wait that the server asked for."""
    q = queue()
    for _ in range(6):
        q.retry("a")
    q.add("a")
    assert await work(q) == ["a"]
    assert q.retry("a", at_least=5) >= RETRY_CAP
    q.add("a")
    assert await arrival(q) == pytest.approx(5, abs=0.002)


@virtual
async def test_a_discarded_key_has_nothing_to_wait_for() -> None:
    """Discarding a key also drops the wait that a server asked for."""
    q = queue()
    q.retry("a", at_least=30)
    q.discard("a")
    q.add("a")
    assert await work(q) == ["a"]


# --- those who stop waiting ----------------------------------------------------------------------


@virtual
async def test_wake_up_of_a_cancelled_getter_goes_to_the_next() -> None:
    """A worker that is woken and cancelled in the same moment passes the key on."""
    q = queue()
    first, second = asyncio.create_task(q.get()), asyncio.create_task(q.get())
    await asyncio.sleep(0)
    q.add("a")
    first.cancel()
    assert await second == "a"
    assert first.cancelled()


@virtual
async def test_key_of_a_cancelled_getter_stays_for_a_later_one() -> None:
    """The key of a cancelled worker stays in the queue until another worker asks."""
    q = queue()
    first = asyncio.create_task(q.get())
    await asyncio.sleep(0)
    q.add("a")
    first.cancel()
    await asyncio.sleep(0)
    assert await work(q) == ["a"]


class Model:
    """A model of the queue: the requested keys, the keys in process, and workers that start and stop."""

    def __init__(self) -> None:
        self.queue = queue()
        self.wanted: set[str] = set()
        self.working: list[str] = []
        self.getters: list[asyncio.Task[None]] = []

    async def get(self) -> None:
        """A worker takes one key."""
        key = await self.queue.get()
        assert key in self.wanted, "a key nobody asked for"
        assert key not in self.working, "one key in two hands"
        self.wanted.discard(key)
        self.working.append(key)

    async def do(self, operation: str, key: str, number: int) -> None:
        """Do one step."""
        if operation == "add":
            self.wanted.add(key)
            self.queue.add(key)
        elif operation == "later":
            self.wanted.add(key)
            self.queue.add_after(key, number / 10)
        elif operation == "retry":
            self.wanted.add(key)
            self.queue.retry(key, (number % 3) * 4)
        elif operation == "get":
            self.getters.append(asyncio.create_task(self.get()))
        elif operation == "cancel" and self.getters:
            self.getters.pop(number % len(self.getters)).cancel()
        elif operation == "done" and self.working:
            self.queue.done(self.working.pop(number % len(self.working)))
        elif operation == "pause":
            await asyncio.sleep(number / 20)

    async def finish(self) -> None:
        """All workers stop; a new one processes the remaining keys."""
        for getter in self.getters:
            getter.cancel()
        for outcome in await asyncio.gather(*self.getters, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        while self.wanted or self.working:
            for key in self.working:
                self.queue.done(key)
            self.working.clear()
            if self.wanted:
                await asyncio.wait_for(self.get(), 200)
        assert self.queue.idle


STEPS = st.tuples(
    st.sampled_from(["add", "add", "later", "retry", "get", "get", "cancel", "cancel", "done", "pause"]),
    st.sampled_from("abc"),
    st.integers(0, 30),
)


@given(st.lists(STEPS, max_size=60))
def test_no_key_is_lost_or_doubled_by_cancellation(steps: list[tuple[str, str, int]]) -> None:
    """Under any sequence of steps, every request is served, and no key is processed twice at a time."""

    async def main() -> None:
        model = Model()
        for step in steps:
            await model.do(*step)
        await model.finish()

    simulate(main())
