"""One cloud account: a scripted plugin behind the real ProviderHost, in virtual time."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hub.cloud.balancers import Balancer, BalancerPort, Done, Marker, Step
from hub.cloud.instances import Absent, CloudNode, Unknown
from hub.controlling.account import ASK_DEADLINE, CREDENTIAL_CHECK, IN_FLIGHT, LONGEST_WAIT, RATE_LIMITED, OpenAccount
from hub.errors import NotLeader
from hub.observe.providers.faults import ProviderDefect, ProviderStalled
from hub.observe.providers.host import ProviderHost
from hub.plugin.clouds import CloudConflict, CloudContext, CloudType, QuotaExceeded, Uncertain
from hub.plugin.spec import ProviderType, TerminalProviderError, TransientProviderError
from hub.registry.spec import ProviderRef
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, VirtualLoop
from tests.unit.observe.providers.plugins import catalog_of

STEP = Step("create-load-balancer", "create load balancer web")
WANTED = Balancer("web.default.eu", Marker("c", "s"), (BalancerPort(80),))


class ScriptedCloud:
    """A plugin's cloud, whose calls of ``observe`` and ``perform`` all do the same.

    Attributes:
        context: what the hub opened it with.
        seconds: that a call takes.
        then: an exception to raise afterwards, or what ``perform`` and ``instances`` return.
        under_way: the calls that have not ended, and the most so far.
        observed: the names of the wanted balancers in each observation.
        performed: the number of writes.
    """

    context: CloudContext

    def __init__(self) -> None:
        self.seconds = 1.0
        self.then: Any = Done()
        self.under_way = [0, 0]
        self.observed: list[list[str]] = []
        self.performed = 0
        self.balancers = self
        self.instances = SimpleNamespace(instances=self._answer)

    async def observe(self, wanted: Collection[Balancer], /) -> int:
        """The number of this observation."""
        self.observed.append([balancer.name for balancer in wanted])
        number = len(self.observed)
        await self._call()
        return number

    async def perform(self, step: Step, /) -> Any:
        """Make a write."""
        assert step == STEP
        self.performed += 1
        return await self._call()

    async def _answer(self, _: object, /) -> Any:
        return await self._call()

    async def _call(self) -> Any:
        self.under_way[0] += 1
        self.under_way[1] = max(self.under_way)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.under_way[0] -= 1
        if isinstance(self.then, BaseException):
            raise self.then
        return self.then


def play(story: Callable[[ScriptedCloud, OpenAccount], Awaitable[None]]) -> None:
    """Run a story with an account that has not been used yet."""

    async def run() -> None:
        cloud = ScriptedCloud()

        @asynccontextmanager
        async def enter(context: CloudContext, *_: Any) -> AsyncIterator[Any]:
            cloud.context = context
            yield cloud

        declared = CloudType(enter, re.compile("toy://(?P<id>.+)"))
        catalog = catalog_of(ProviderType("toy", cloud=lambda: declared))
        host = ProviderHost(catalog, clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
        catalog.load("toy")  # imports run in a thread, which virtual time would overtake
        account = OpenAccount(ProviderRef("toy"), host, lambda: None)
        await story(cloud, account)
        await account.close()
        await host.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def now() -> float:
    """The time of the account's clock."""
    return LoopClock().now()


async def write(account: OpenAccount, *, left: object = None) -> Done:
    """One write, for which ``admit`` says what is left of 20 s."""
    return await account.perform(STEP, 20.0, lambda: left)


async def failed(account: OpenAccount, cloud: ScriptedCloud, error: BaseException) -> None:
    """One write that ends with this error; later calls succeed."""
    cloud.then = error
    with pytest.raises(type(error), match=str(error)):
        await write(account)
    cloud.then = Done()


# --- pauses of the whole account ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (TerminalProviderError("401"), CREDENTIAL_CHECK),
        (TransientProviderError("429", 120.0), 120.0),
        (TransientProviderError("429", 0.0), RATE_LIMITED),
        (TransientProviderError("429", 1e9), LONGEST_WAIT),
    ],
)
def test_a_refusal_that_concerns_the_account_stops_all_its_calls(error: Exception, pause: float) -> None:
    """Reads and writes end with its error, without a call of the plugin, until the time is over."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        await failed(account, cloud, error)
        await asyncio.sleep(pause - 1)
        for call in (account.observe(now()), write(account), account.opened()):
            with pytest.raises(type(error), match=str(error)):
                await call
        assert (cloud.observed, cloud.performed) == ([], 1)
        await asyncio.sleep(2)
        await account.observe(now())
        assert account.status.state == "ready"
        assert account.rate_limited == isinstance(error, TransientProviderError)

    play(story)


@pytest.mark.parametrize(
    "error",
    [
        QuotaExceeded("no more load balancers", 300.0),
        Uncertain("cut", 300.0),
        CloudConflict("locked"),
        TransientProviderError("503"),
    ],
)
def test_other_errors_stop_nothing_else(error: Exception) -> None:
    """A quota concerns one kind of object: the account's other calls go on, and no rate limit is counted."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        await failed(account, cloud, error)
        await write(account)
        await account.observe(now())
        assert account.rate_limited == 0

    play(story)


def test_a_plugin_ends_the_pause_itself() -> None:
    """``changed()`` says that a credential was replaced: the next call is made at once."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        await failed(account, cloud, TerminalProviderError("401"))
        cloud.context.changed()
        await asyncio.sleep(0.1)
        assert await write(account) == Done()

    play(story)


def test_an_error_that_is_raised_again_does_not_grow() -> None:
    """In an hour of pause thousands of calls get the same error; its traceback has the frames of one of them."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        await failed(account, cloud, TransientProviderError("429", 3600.0))
        lengths: list[int] = []
        for _ in range(20):
            with pytest.raises(TransientProviderError) as caught:
                await write(account)
            lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert lengths[-1] == lengths[0]

    play(story)


# --- writes ---------------------------------------------------------------------------------------------


def test_a_limited_number_of_writes_is_under_way() -> None:
    """Eight at a time; the others wait in a queue, and all are made."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        begun = now()
        await asyncio.gather(*(write(account) for _ in range(17)))
        assert cloud.under_way == [0, 8]
        assert (cloud.performed, now() - begun) == (17, 3 * cloud.seconds)

    play(story)


def test_the_right_to_write_is_asked_for_after_the_queue() -> None:
    """The Lease is lost while writes wait: those that have begun end, and no other is sent."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        lost = now() + 0.5

        def admit() -> float:
            if now() > lost:
                raise NotLeader("the Lease is lost")
            return 20.0

        results = await asyncio.gather(
            *(account.perform(STEP, 20.0, admit) for _ in range(IN_FLIGHT + 3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [Done] * IN_FLIGHT + [NotLeader] * 3
        assert cloud.performed == IN_FLIGHT

    play(story)


@pytest.mark.parametrize(("left", "seconds"), [(5.0, 5.0), (60.0, 20.0), (None, 20.0)])
def test_a_write_takes_no_longer_than_the_lease(left: object, seconds: float) -> None:
    """What is left of the Lease after the queue shortens the time, and never lengthens it."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        cloud.seconds, begun = 3600.0, now()
        with pytest.raises(Uncertain, match=f"perform did not end within {seconds:g} s"):
            await write(account, left=left)
        assert seconds <= now() - begun <= seconds + 1

    play(story)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (SystemExit(3), "SystemExit"),
        (asyncio.CancelledError(), "perform cancelled itself"),
        (ValueError("oops"), "ValueError: oops"),
        ({"id": "lba-1"}, r"perform\(\) returned dict, not Done"),
        (TimeoutError("slow"), "slow"),
    ],
)
def test_a_write_that_a_plugin_breaks_off_is_uncertain(then: object, said: str) -> None:
    """The request may have been sent: nobody may take it for a write that was not made."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        cloud.then = then
        with pytest.raises(Uncertain, match=f"^create load balancer web: .*{said}"):
            await write(account)

    play(story)


# --- questions about machines ---------------------------------------------------------------------------


def test_a_machine_that_an_answer_leaves_out_is_unknown() -> None:
    """It is not absent, and names that nobody asked about do not matter."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        cloud.then = {"n1": Absent("no server"), "other": "?"}
        found = await account.instances([CloudNode("n1"), CloudNode("n2")])
        assert found == {"n1": Absent("no server"), "n2": Unknown("the answer leaves it out")}

    play(story)


@pytest.mark.parametrize(
    ("then", "said"),
    [([], r"instances\(\) returned list, not a mapping"), ({"n1": None}, r"instances\(\) answered NoneType for n1")],
)
def test_a_wrong_answer_about_machines_is_a_defect(then: object, said: str) -> None:
    """Nothing of it is used."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        cloud.then = then
        with pytest.raises(ProviderDefect, match=said):
            await account.instances([CloudNode("n1")])

    play(story)


# --- observations ---------------------------------------------------------------------------------------


def test_an_observation_is_shared_by_all_for_whom_it_is_new_enough() -> None:
    """Those who ask while it is under way wait for it, later ones get it; it is told what all clusters want."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        account.want("eu", {WANTED.name: WANTED})
        account.want("us", {})
        begun = now()
        seen = await asyncio.gather(*(account.observe(begun) for _ in range(20)))
        assert {(found.value, found.begun) for found in seen} == {(1, begun)}
        await asyncio.sleep(100)
        assert await account.observe(begun) == seen[0]
        assert cloud.observed == [[WANTED.name]]

    play(story)


def test_an_observation_that_began_too_early_does_not_count() -> None:
    """A write that is made while the lists are read may be missing in them: its Service waits for the next ones.

    A cluster that has gone wants nothing any more.
    """

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        account.want("eu", {WANTED.name: WANTED})
        first = asyncio.ensure_future(account.observe(now()))
        await asyncio.sleep(0.5)
        later = await asyncio.gather(*(account.observe(now()) for _ in range(3)))
        assert ((await first).value, {found.value for found in later}) == (1, {2})
        account.forget("eu")
        assert (await account.observe(now())).value == 3
        assert cloud.observed == [[WANTED.name], [WANTED.name], []]

    play(story)


def test_an_observation_that_fails_is_everybodys_error_and_is_not_kept() -> None:
    """One that hangs ends after its deadline; the next question makes a new one."""

    async def story(cloud: ScriptedCloud, account: OpenAccount) -> None:
        cloud.seconds, begun = 3600.0, now()
        errors = await asyncio.gather(*(account.observe(begun) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in errors] == [ProviderStalled] * 3
        assert ASK_DEADLINE <= now() - begun <= ASK_DEADLINE + 1
        cloud.seconds = 1.0
        assert (await account.observe(begun)).value == 2

    play(story)
