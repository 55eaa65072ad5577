"""How a plan is carried out, and what every kind of answer means."""

from __future__ import annotations

import msgspec
import pytest

from hub.decide.plan import Plan
from hub.errors import AlreadyExists, ApiError, ClusterUnreachable, Conflict, Forbidden, Invalid, NotFound, NotLeader
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, ObjectKey, Port, Slice, TargetKey
from hub.reconcile.memory import WriteMemory
from hub.reconcile.writer import REQUEST_TIMEOUT, Free, Writer
from tests.support import build

A, B, C = (build.slice(f"s-{n}", build.endpoints(3, 10 * n)) for n in range(3))
FULL = Plan((A,), (B,), (C,))


class Api:
    """Answers each write as it is told to, and notes what it was asked."""

    def __init__(self, *answers: Exception | None, found: Slice | None = None) -> None:
        self.answers = list(answers)
        self.found = found
        self.calls: list[str] = []
        self.timeouts: list[float] = []

    def _answer(self, call: str, value: Slice, timeout: float) -> None:
        self.calls.append(f"{call} {value.name}")
        self.timeouts.append(timeout)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    async def create(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self._answer("create", value, timeout)

    async def update(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self._answer("update", value, timeout)

    async def delete(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        self._answer("delete", value, timeout)

    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None:  # noqa: ASYNC109
        self.calls.append(f"reread {key.name}")
        return self.found


class Lease:
    """A right to write that ends after some requests."""

    def __init__(self, left: int, seconds: float = 5.0) -> None:
        self.left = left
        self.seconds = seconds

    def check(self, target: TargetKey) -> float:
        """As the elector's."""
        if not self.left:
            raise NotLeader("somebody else leads")
        self.left -= 1
        return self.seconds


async def test_creates_come_before_updates_before_deletes() -> None:
    """An endpoint is never away before it is where it goes."""
    api = Api()
    outcome = await Writer(api, Free()).apply(FULL)
    assert api.calls == ["create s-0", "update s-1", "delete s-2"]
    assert outcome.done == [("create", A), ("update", B), ("delete", C)]


async def test_a_conflict_is_read_again_and_nothing_deleted() -> None:
    """No blind retry: the next plan decides."""
    api = Api(None, Conflict(409))
    outcome = await Writer(api, Free()).apply(FULL)
    assert api.calls == ["create s-0", "update s-1", "reread s-1"]
    assert (outcome.again, outcome.foreign) == (True, set())


async def test_updates_wait_where_a_create_did_not_work_out() -> None:
    """The arrivals may be what let the guard allow departures: without them it decides anew."""
    refused = Invalid(422, causes=(("endpoints[0].addresses[0]", "no"),))
    for answer in (AlreadyExists(409), refused):
        api = Api(answer)
        outcome = await Writer(api, Free()).apply(FULL)
        assert [call for call in api.calls if not call.startswith("reread")] == ["create s-0"]
        assert outcome.again


@pytest.mark.parametrize("answer", [Conflict(409), Invalid(422, "Invalid", "a policy says no")])
async def test_an_endpoint_stays_until_it_is_where_its_new_ports_are(answer: ApiError) -> None:
    """Two port sets of a source: the slice that is to lose an endpoint waits for the one that gains it."""
    other = msgspec.structs.replace(B, ports=(Port("https", 30444),))
    api = Api(answer)
    outcome = await Writer(api, Free()).apply(Plan(updates=(other, A)))
    assert [call for call in api.calls if not call.startswith("reread")] == ["update s-1"]
    assert outcome.done == []


async def test_a_name_somebody_else_has_is_foreign() -> None:
    """AlreadyExists by a slice that is not ours."""
    api = Api(AlreadyExists(409), found=build.slice("s-0", labels={LABEL_OWNER: "other"}))
    outcome = await Writer(api, Free()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == ({"s-0"}, True)


async def test_our_own_slice_of_that_name_is_just_read_again() -> None:
    """A create whose answer was lost is found by the next plan."""
    outcome = await Writer(Api(AlreadyExists(409), found=A), Free()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == (set(), True)


async def test_a_refusal_that_names_an_endpoint_blames_its_address() -> None:
    """By the index in the field path; the message is kept."""
    error = Invalid(422, "Invalid", "bad", causes=(("endpoints[1].addresses[0]", "no loopback"),))
    outcome = await Writer(Api(error), Free()).apply(Plan(creates=(A,)))
    assert outcome.refused_addresses == {A.endpoints[1].address: "no loopback"}
    assert (outcome.blamed, outcome.blocked, outcome.again) == ([(A, "bad")], [], True)


async def test_a_refused_address_that_has_to_stay_is_not_sent_again_at_once() -> None:
    """A published address leaves only as the guard allows: the same slice waits, one without the address does not."""
    error = Invalid(422, "Invalid", "bad", causes=(("endpoints[1].addresses[0]", "no loopback"),))
    memory = WriteMemory()
    memory.note(await Writer(Api(error), Free()).apply(Plan(updates=(A,))), "u", 0.0)
    assert [each.reason for each in memory.findings(0.0)] == ["InvalidAddressSkipped"]  # without it all may be well
    assert memory.allow(Plan(updates=(A,)), "u", 0.5).plan.writes == 0
    without = Plan(updates=(msgspec.structs.replace(A, endpoints=A.endpoints[::2]),))
    assert memory.allow(without, "u", 0.5).plan is without
    memory.note(await Writer(Api(error), Free()).apply(Plan(updates=(A,))), "u", 2.0)
    assert [each.reason for each in memory.findings(2.0)] == ["InvalidAddressSkipped", "SliceRefused"]


@pytest.mark.parametrize(
    "field", ["", "ports[0].port", "endpoints[3].addresses[0]", "endpoints[99].addresses[0]", "endpoints"]
)
async def test_any_other_refusal_blocks_that_slice_only(field: str) -> None:
    """The rest of the plan goes on, but for deletions."""
    api = Api(Invalid(422, "Invalid", "bad", causes=((field, "why"),)))
    outcome = await Writer(api, Free()).apply(FULL)
    assert outcome.blocked == [(A, "bad")]
    assert api.calls == ["create s-0", "update s-1"]


@pytest.mark.parametrize(
    "error",
    [NotFound(404), Forbidden(403, "Forbidden", "s is forbidden: unable to create new content in namespace x because")],
)
async def test_a_namespace_that_ends_ends_the_pass(error: ApiError) -> None:
    """Missing, or being deleted."""
    api = Api(error)
    outcome = await Writer(api, Free()).apply(FULL)
    assert (outcome.missing_namespace, api.calls) == (True, ["create s-0"])


async def test_any_other_answer_ends_the_pass() -> None:
    """The error is handed on, with its Retry-After."""
    error = ApiError(429, "TooManyRequests", "slow", retry_after=7.0)
    api = Api(error)
    outcome = await Writer(api, Free()).apply(FULL)
    assert (outcome.failure, api.calls) == (error, ["create s-0"])


async def test_an_api_that_is_away_is_the_callers_matter() -> None:
    """No answer is no outcome."""
    with pytest.raises(ClusterUnreachable):
        await Writer(Api(ClusterUnreachable("gone")), Free()).apply(FULL)


async def test_every_request_is_fenced() -> None:
    """The lease is asked before each one, and bounds its time."""
    api = Api()
    with pytest.raises(NotLeader):
        await Writer(api, Lease(2)).apply(FULL)
    assert (api.calls, api.timeouts) == (["create s-0", "update s-1"], [5.0, 5.0])


async def test_a_long_lease_allows_no_longer_request() -> None:
    """Ten seconds are the most."""
    api = Api()
    await Writer(api, Lease(9, 60.0)).apply(Plan(creates=(A,)))
    assert api.timeouts == [REQUEST_TIMEOUT]


async def test_a_stopped_writer_starts_nothing() -> None:
    """Whatever the lease says."""
    api = Api()
    writer = Writer(api, Free())
    writer.stop()
    with pytest.raises(NotLeader):
        await writer.apply(FULL)
    assert api.calls == []


async def test_requests_are_counted_by_what_became_of_them() -> None:
    """By operation: those that succeeded, and those that did not."""
    writer = Writer(Api(None, Conflict(409), None), Free())
    await writer.apply(Plan((A,), (B,), ()))
    await writer.apply(Plan((), (), (C,)))
    assert writer.writes == {"create": 1, "update": 0, "delete": 1}
    assert writer.failures == {"create": 0, "update": 1, "delete": 0}


@pytest.mark.parametrize("label", ["name", "owner", "manager"])
async def test_a_slice_of_another_service_owner_or_manager_is_foreign(label: str) -> None:
    """Ours is what has all three."""
    found = {
        "name": build.slice("s-0", service="other"),
        "owner": build.slice("s-0", owner="other"),
        "manager": build.slice("s-0", labels={LABEL_MANAGED_BY: "other"}),
    }[label]
    outcome = await Writer(Api(AlreadyExists(409), found=found), Free()).apply(Plan(creates=(A,)))
    assert outcome.foreign == {"s-0"}


async def test_a_slice_that_is_gone_by_then_is_nobodys() -> None:
    """Somebody deleted it between the refused creation and the look at it."""
    outcome = await Writer(Api(AlreadyExists(409), found=None), Free()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == (set(), True)


async def test_a_refusal_ends_nothing_that_is_not_a_deletion() -> None:
    """Another slice of the plan is written; a lost namespace ends it all."""
    api = Api(ApiError(500, "InternalError", "no"))
    outcome = await Writer(api, Free()).apply(Plan((A, B), (C,)))
    assert (api.calls, outcome.ended) == (["create s-0"], True)


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "quota"), ApiError(500, "x", "unable to create new content")]
)
async def test_only_a_namespace_that_ends_is_a_missing_namespace(error: ApiError) -> None:
    """Another 403 is a failure, and so are those words with another status."""
    outcome = await Writer(Api(error), Free()).apply(FULL)
    assert (outcome.missing_namespace, outcome.failure) == (False, error)


async def test_an_update_that_finds_nothing_is_planned_anew() -> None:
    """Somebody deleted the slice: that is no missing namespace."""
    api = Api(None, NotFound(404))
    outcome = await Writer(api, Free()).apply(FULL)
    assert (outcome.missing_namespace, outcome.again, api.calls[-1]) == (False, True, "reread s-1")
