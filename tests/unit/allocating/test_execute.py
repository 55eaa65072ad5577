"""Acts: how they wait after a refusal, and what they ask for, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import pairwise
from typing import Any, cast

import pytest

from hub.allocating.accounts import Account
from hub.allocating.execute import CALL, EVICT_PACE, FOLLOW, LAST_LOOK, Executor
from hub.allocating.follow import Sites
from hub.allocations.spec import WorkloadRef
from hub.allocations.view import Act, Attach, Evict, Follow, NodeKey, Pod
from hub.cloud.addresses import Done, Free, Order, Pending, Step
from hub.errors import Conflict, NotFound, NotLeader, ServerFault, TooManyRequests
from hub.model import LOCAL
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.fleet import Fleet
from hub.plugin import NoConfig, ProviderType, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AddressType, QuotaExceeded
from hub.registry.spec import AccountSpec, ProviderRef
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, anything
from tests.support.waiting import until
from tests.unit.allocating.scene import ONE, TWO, FakeApi
from tests.unit.observe.providers.plugins import catalog_of

VIRTUAL_TIME = True

ATTACH = Attach(ONE, Order(ONE, "z1/n1", Free(), token="t1"))
POD = Pod("edge", "web-a", "uid-web-a", "7")
PATH = "/api/v1/namespaces/edge/pods/web-a"
WEB = WorkloadRef("web", "Deployment", "edge")


class Desk:
    """An executor, a cloud whose answers are scripted, and an API server with the Pod ``web-a``.

    Attributes:
        answers: what the next steps return or raise; with one left, it is repeated.
        calls: (time, step) of each call of the cloud.
    """

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.api = FakeApi()
        self.api.put(PATH, {"metadata": {}, "spec": {"nodeName": "n1"}})
        self.answers: list[Step | Exception] = []
        self.calls: list[tuple[float, str]] = []
        self.leads = True

        @asynccontextmanager
        async def enter(*_: Any) -> AsyncIterator[Desk]:
            yield self

        type_ = ProviderType("desk", addresses=AddressType(open=enter, config=NoConfig))  # type: ignore[arg-type]
        catalog = catalog_of(type_)
        catalog.load("desk")  # in a thread, while the virtual time must stand still
        self._host = ProviderHost(catalog, clock=self.clock, folder="/nowhere", start_loop=SameLoop)
        fleet = Fleet(cast("Any", None), self._host, self.clock, anything)
        sites = Sites(self.api.client, fleet, self.clock, self.clock.now, anything, anything)
        self.executor = Executor(self.api.client, sites, self.fence, self.clock, self.clock.now, anything)
        self.account = self.open("main")

    def open(self, name: str) -> Account:
        """An account of the scripted cloud."""
        return Account(AccountSpec(name, ProviderRef("desk"), ()), self._host, self.clock.now, anything)

    def fence(self) -> float:
        """The Lease lasts 10 s."""
        if not self.leads:
            raise NotLeader("the Lease is lost")
        return 10.0

    async def attach(self, order: Order, /) -> Step:
        """Answers by the script."""
        return self._answer(order.token)

    async def follow(self, operation: str, /) -> Step:
        """Answers by the script."""
        return self._answer(operation)

    def _answer(self, what: str) -> Step:
        self.calls.append((self.clock.now(), what))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def does(self, act: Act, account: Account | None = None) -> float:
        """Carry out an act to its end; returns the time."""
        self.executor.start(account or self.account, act)
        await until(lambda: not self.executor.running, 3600)
        return self.clock.now()

    async def close(self) -> None:
        """Ends the executor and the cloud."""
        await self.executor.close()
        await self._host.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """The desk."""
    made = Desk()
    yield made
    await made.close()


# --- the cloud -------------------------------------------------------------------------------------------------


async def test_an_account_whose_quota_is_used_up_rests_longer_each_time(desk: Desk) -> None:
    """5 s, doubling to 5 minutes; a success begins anew."""
    waits = []
    desk.answers = [QuotaExceeded("too many requests")]
    for _ in range(8):
        ended = await desk.does(ATTACH)
        waits.append(round(desk.executor.quota_until["main"] - ended))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    desk.answers = [Done()]
    await desk.does(ATTACH)
    desk.answers = [QuotaExceeded("too many requests")]
    ended = await desk.does(ATTACH)
    assert round(desk.executor.quota_until["main"] - ended) == 5


async def test_an_account_rests_as_long_as_its_cloud_asks_and_alone(desk: Desk) -> None:
    """Retry-After counts instead of the hub's own time; the other accounts do not rest."""
    desk.answers = [QuotaExceeded("too many requests", 42.0)]
    ended = await desk.does(ATTACH)
    assert {name: round(until_ - ended) for name, until_ in desk.executor.quota_until.items()} == {"main": 42}
    desk.answers = [Done()]
    await desk.does(ATTACH, desk.open("other"))
    assert list(desk.executor.quota_until) == ["main"]
    assert desk.executor.outcomes["main"][ONE].error == "quota"
    assert desk.executor.outcomes["other"][ONE].error == ""


async def test_an_operation_that_never_ends_is_given_up(desk: Desk) -> None:
    """It is looked at every 2 s for 10 minutes; then its outcome is a timeout, which is no proof of anything."""
    desk.answers = [Pending("op-1")]
    began = desk.clock.now()
    ended = await desk.does(Follow(ONE, "op-1"))
    assert FOLLOW < ended - began < FOLLOW + 2 * LAST_LOOK
    times = [at for at, _ in desk.calls]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] < 0.5
    assert max(gaps) < LAST_LOOK + 0.1
    outcome = desk.executor.outcomes["main"][ONE]
    assert (outcome.step, outcome.error) == ("follow", "timeout")
    assert outcome.message == "the operation has not ended within 600 s"


@pytest.mark.parametrize(
    ("answer", "error"), [(Done(), ""), (TerminalProviderError("403: no permission"), "terminal")], ids=["done", "ill"]
)
async def test_an_operation_is_followed_through_failed_looks(desk: Desk, answer: Step | Exception, error: str) -> None:
    """What is not known is asked again after the time that the cloud asks for; the end of the operation counts."""
    desk.answers = [TransientProviderError("503", 30.0), Pending("op-1", 7.0), answer]
    await desk.does(Follow(ONE, "op-1"))
    times = [at for at, _ in desk.calls]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [30, 7]
    assert desk.executor.outcomes["main"][ONE].error == error


async def test_a_step_does_not_start_without_the_lease(desk: Desk) -> None:
    """A process that has lost the Lease calls no cloud, and asks for no eviction."""
    desk.answers = [Done()]
    desk.leads = False
    await desk.does(ATTACH)
    await desk.does(Evict(NodeKey(LOCAL, "n1"), WEB, POD))
    assert desk.calls == []
    assert desk.api.log == []
    assert desk.executor.outcomes == {}


async def test_one_act_of_an_address_is_under_way_at_a_time(desk: Desk) -> None:
    """A second act for the same address does not start; one for another address does."""
    desk.answers = [Pending("op-1"), Pending("op-1"), Done()]
    desk.executor.start(desk.account, Follow(ONE, "op-1"))
    desk.executor.start(desk.account, ATTACH)
    desk.executor.start(desk.account, Attach(TWO, Order(TWO, "z1/n2", Free(), token="t2")))
    assert desk.executor.under_way("main") == {ONE, TWO}
    await until(lambda: not desk.executor.running, CALL)
    assert "t1" not in [what for _, what in desk.calls]


# --- evictions ---------------------------------------------------------------------------------------------------


def evict(*, force: bool = False) -> Evict:
    """The eviction of the Pod."""
    return Evict(NodeKey(LOCAL, "n1"), WEB, POD, force=force)


async def test_an_eviction_names_the_pod_by_uid(desk: Desk) -> None:
    """The subresource is asked, so that budgets count; a Pod of the same name and another UID stays."""
    ended = await desk.does(evict())
    [(method, path, body)] = desk.api.log
    assert (method, path) == ("POST", f"{PATH}/eviction")
    assert (body["apiVersion"], body["kind"]) == ("policy/v1", "Eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-web-a"}}
    assert PATH not in desk.api.objects
    assert desk.executor.evict_after == {LOCAL: pytest.approx(ended + EVICT_PACE, abs=1)}
    assert desk.executor.counts == {("main", "evict", "succeeded"): 1}


async def test_force_delete_has_no_grace_period_and_names_the_pod_as_it_was_seen(desk: Desk) -> None:
    """DELETE with grace 0, and the UID and the resourceVersion as preconditions."""
    await desk.does(evict(force=True))
    [(method, path, body)] = desk.api.log
    assert (method, path) == ("DELETE", PATH)
    assert (body["kind"], body["gracePeriodSeconds"]) == ("DeleteOptions", 0)
    assert body["preconditions"] == {"uid": "uid-web-a", "resourceVersion": "7"}


@pytest.mark.parametrize(
    "error", [NotFound(HTTPStatus.NOT_FOUND, "NotFound"), Conflict(HTTPStatus.CONFLICT, "Conflict")], ids=["404", "409"]
)
async def test_an_eviction_of_a_pod_that_is_gone_is_done(desk: Desk, error: Exception) -> None:
    """The Pod does not exist, or another one has its name: no failure, and no waiting for the workload."""
    desk.api.refusals["POST", "/eviction"] = error
    await desk.does(evict())
    assert desk.executor.failures == {}
    assert list(desk.executor.evict_after) == [LOCAL]


@pytest.mark.parametrize(
    "error",
    [
        TooManyRequests(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", "the budget needs 1 healthy Pod"),
        ServerFault(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError"),
    ],
    ids=["429", "500"],
)
async def test_a_refused_eviction_waits_longer_each_time(desk: Desk, error: Exception) -> None:
    """10 s, doubling to 5 minutes, for this workload only; the failure is known. A success ends both."""
    desk.api.refusals["POST", "/eviction"] = error
    waits = []
    for _ in range(7):
        ended = await desk.does(evict())
        waits.append(round(desk.executor.evict_after[str(WEB)] - ended))
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert list(desk.executor.evict_after) == [str(WEB)]
    assert "Pod edge/web-a of Deployment edge/web stays on node n1" in desk.executor.failures[str(WEB)].message
    desk.api.refusals.clear()
    await desk.does(evict())
    assert desk.executor.failures == {}
    await asyncio.sleep(EVICT_PACE)
    desk.api.refusals["POST", "/eviction"] = error
    ended = await desk.does(evict())
    assert round(desk.executor.evict_after[str(WEB)] - ended) == 10


async def test_two_accounts_evict_no_two_pods_of_a_cluster_at_once(desk: Desk) -> None:
    """Both plans were made before either eviction; only one starts, and 12 s later the other account may go on."""
    api = WorkloadRef("api", "Deployment", "edge")
    desk.api.put(PATH.replace("web", "api"), {"metadata": {}, "spec": {"nodeName": "n1"}})
    other = desk.open("other"), Evict(NodeKey(LOCAL, "n1"), api, Pod("edge", "api-a", "uid-api-a", "8"))
    desk.executor.start(desk.account, evict())
    desk.executor.start(*other)
    await until(lambda: not desk.executor.running, 3600)
    assert [path for _, path, _ in desk.api.log] == [f"{PATH}/eviction"]
    await asyncio.sleep(EVICT_PACE)
    desk.executor.start(*other)
    await until(lambda: not desk.executor.running, 3600)
    assert len(desk.api.log) == 2


async def test_a_refused_eviction_waits_as_long_as_the_server_asks(desk: Desk) -> None:
    """Retry-After of a 429 counts instead of the hub's own time."""
    error = TooManyRequests(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", retry_after=90.0)
    desk.api.refusals["POST", "/eviction"] = error
    ended = await desk.does(evict())
    assert round(desk.executor.evict_after[str(WEB)] - ended) == 90
