"""How a plan is carried out, and how every kind of answer is handled."""

from __future__ import annotations

import msgspec
import pytest

from hub.decide.plan import Plan
from hub.errors import AlreadyExists, ApiError, ClusterUnreachable, Conflict, Forbidden, Invalid, NotFound, NotLeader
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, ObjectKey, Port, Slice, TargetKey
from hub.reconcile.memory import WriteMemory
from hub.reconcile.writer import REQUEST_TIMEOUT, NoElection, Writer
from tests.support import build

A, B, C = (build.slice(f"s-{n}", build.endpoints(3, 10 * n)) for n in range(3))
FULL = Plan((A,), (B,), (C,))


class Api:
    """An API that gives prepared answers and notes the requests."""

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
    """A fence that allows some requests, then none."""

    def __init__(self, left: int, seconds: float = 5.0) -> None:
        self.left = left
        self.seconds = seconds

    def check(self, target: TargetKey) -> float:
        """Seconds that a request may take."""
        if not self.left:
            raise NotLeader("somebody else leads")
        self.left -= 1
        return self.seconds


async def test_creates_come_before_updates_before_deletes() -> None:
    """Slices are created first and deleted last, so no endpoint is missing while it moves."""
    api = Api()
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert api.calls == ["create s-0", "update s-1", "delete s-2"]
    assert outcome.done == [("create", A), ("update", B), ("delete", C)]


async def test_a_conflict_is_read_again_and_nothing_deleted() -> None:
    """After a conflict the slice is read again, for the next plan, and nothing is retried or deleted."""
    api = Api(None, Conflict(409))
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert api.calls == ["create s-0", "update s-1", "reread s-1"]
    assert (outcome.again, outcome.foreign) == (True, set())


async def test_updates_wait_where_a_create_did_not_work_out() -> None:
    """After a failed create, no update is sent: the guard may have allowed its removals because of the create."""
    refused = Invalid(422, causes=(("endpoints[0].addresses[0]", "no"),))
    for answer in (AlreadyExists(409), refused):
        api = Api(answer)
        outcome = await Writer(api, NoElection()).apply(FULL)
        assert [call for call in api.calls if not call.startswith("reread")] == ["create s-0"]
        assert outcome.again


@pytest.mark.parametrize("answer", [Conflict(409), Invalid(422, "Invalid", "a policy says no")])
async def test_an_endpoint_stays_until_it_is_where_its_new_ports_are(answer: ApiError) -> None:
    """A slice does not lose an endpoint before the slice with the other ports has gained it."""
    other = msgspec.structs.replace(B, ports=(Port("https", 30444),))
    api = Api(answer)
    outcome = await Writer(api, NoElection()).apply(Plan(updates=(other, A)))
    assert [call for call in api.calls if not call.startswith("reread")] == ["update s-1"]
    assert outcome.done == []


async def test_existing_name_of_another_owner_is_foreign() -> None:
    """After AlreadyExists, a name is foreign if the existing slice is not ours."""
    api = Api(AlreadyExists(409), found=build.slice("s-0", labels={LABEL_OWNER: "other"}))
    outcome = await Writer(api, NoElection()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == ({"s-0"}, True)


async def test_existing_name_of_our_own_is_reread() -> None:
    """After AlreadyExists, our own slice is read again: the answer to its create was lost."""
    outcome = await Writer(Api(AlreadyExists(409), found=A), NoElection()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == (set(), True)


async def test_a_refusal_that_names_an_endpoint_blames_its_address() -> None:
    """A refusal blames the address of the endpoint whose index is in the field path, and keeps the message."""
    error = Invalid(422, "Invalid", "bad", causes=(("endpoints[1].addresses[0]", "no loopback"),))
    outcome = await Writer(Api(error), NoElection()).apply(Plan(creates=(A,)))
    assert outcome.refused_addresses == {A.endpoints[1].address: "no loopback"}
    assert (outcome.blamed, outcome.blocked, outcome.again) == ([(A, "bad")], [], True)


async def test_a_refused_address_that_has_to_stay_is_not_sent_again_at_once() -> None:
    """A slice with a refused address that must stay waits; the same slice without that address does not."""
    error = Invalid(422, "Invalid", "bad", causes=(("endpoints[1].addresses[0]", "no loopback"),))
    memory = WriteMemory()
    memory.note(await Writer(Api(error), NoElection()).apply(Plan(updates=(A,))), "u", 0.0)
    assert [each.reason for each in memory.findings(0.0)] == ["InvalidAddressSkipped"]  # without it all may be well
    assert memory.allow(Plan(updates=(A,)), "u", 0.5).plan.writes == 0
    without = Plan(updates=(msgspec.structs.replace(A, endpoints=A.endpoints[::2]),))
    assert memory.allow(without, "u", 0.5).plan is without
    memory.note(await Writer(Api(error), NoElection()).apply(Plan(updates=(A,))), "u", 2.0)
    assert [each.reason for each in memory.findings(2.0)] == ["InvalidAddressSkipped", "SliceRefused"]


@pytest.mark.parametrize(
    "field", ["", "ports[0].port", "endpoints[3].addresses[0]", "endpoints[99].addresses[0]", "endpoints"]
)
async def test_any_other_refusal_blocks_that_slice_only(field: str) -> None:
    """A refusal that names no endpoint blocks that slice and all deletes; the other writes are done."""
    api = Api(Invalid(422, "Invalid", "bad", causes=((field, "why"),)))
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert outcome.blocked == [(A, "bad")]
    assert api.calls == ["create s-0", "update s-1"]


@pytest.mark.parametrize(
    "error",
    [NotFound(404), Forbidden(403, "Forbidden", "s is forbidden: unable to create new content in namespace x because")],
)
async def test_a_namespace_that_ends_ends_the_pass(error: ApiError) -> None:
    """The pass ends if the namespace is missing or is being deleted."""
    api = Api(error)
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert (outcome.missing_namespace, api.calls) == (True, ["create s-0"])


async def test_any_other_answer_ends_the_pass() -> None:
    """Another error ends the pass and is returned with its Retry-After."""
    error = ApiError(429, "TooManyRequests", "slow", retry_after=7.0)
    api = Api(error)
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert (outcome.failure, api.calls) == (error, ["create s-0"])


async def test_an_api_that_is_away_is_the_callers_matter() -> None:
    """A lost connection is raised, not returned in the outcome."""
    with pytest.raises(ClusterUnreachable):
        await Writer(Api(ClusterUnreachable("gone")), NoElection()).apply(FULL)


async def test_every_request_is_fenced() -> None:
    """The fence is asked before each request, and bounds its time."""
    api = Api()
    with pytest.raises(NotLeader):
        await Writer(api, Lease(2)).apply(FULL)
    assert (api.calls, api.timeouts) == (["create s-0", "update s-1"], [5.0, 5.0])


async def test_a_long_lease_allows_no_longer_request() -> None:
    """A request may take ten seconds at most, even if the fence allows more."""
    api = Api()
    await Writer(api, Lease(9, 60.0)).apply(Plan(creates=(A,)))
    assert api.timeouts == [REQUEST_TIMEOUT]


async def test_a_stopped_writer_starts_nothing() -> None:
    """After ``stop`` no request starts, even if the fence allows it."""
    api = Api()
    writer = Writer(api, NoElection())
    writer.stop()
    with pytest.raises(NotLeader):
        await writer.apply(FULL)
    assert api.calls == []


async def test_requests_are_counted_by_operation_and_outcome() -> None:
    """Successful and failed requests are counted by operation."""
    writer = Writer(Api(None, Conflict(409), None), NoElection())
    await writer.apply(Plan((A,), (B,), ()))
    await writer.apply(Plan((), (), (C,)))
    assert writer.writes == {"create": 1, "update": 0, "delete": 1}
    assert writer.failures == {"create": 0, "update": 1, "delete": 0}


@pytest.mark.parametrize("label", ["name", "owner", "manager"])
async def test_a_slice_of_another_service_owner_or_manager_is_foreign(label: str) -> None:
    """An existing slice is ours only if Service, owner and managed-by are all ours."""
    found = {
        "name": build.slice("s-0", service="other"),
        "owner": build.slice("s-0", owner="other"),
        "manager": build.slice("s-0", labels={LABEL_MANAGED_BY: "other"}),
    }[label]
    outcome = await Writer(Api(AlreadyExists(409), found=found), NoElection()).apply(Plan(creates=(A,)))
    assert outcome.foreign == {"s-0"}


async def test_a_slice_that_is_gone_by_then_is_nobodys() -> None:
    """A name is not foreign if the existing slice is deleted before it is read."""
    outcome = await Writer(Api(AlreadyExists(409), found=None), NoElection()).apply(Plan(creates=(A,)))
    assert (outcome.foreign, outcome.again) == (set(), True)


async def test_a_refusal_ends_nothing_that_is_not_a_deletion() -> None:
    """An error of the server ends the pass: no other slice is written."""
    api = Api(ApiError(500, "InternalError", "no"))
    outcome = await Writer(api, NoElection()).apply(Plan((A, B), (C,)))
    assert (api.calls, outcome.ended) == (["create s-0"], True)


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "quota"), ApiError(500, "x", "unable to create new content")]
)
async def test_only_a_terminating_namespace_is_missing(error: ApiError) -> None:
    """Another 403, or the same words with another status, is a failure and not a missing namespace."""
    outcome = await Writer(Api(error), NoElection()).apply(FULL)
    assert (outcome.missing_namespace, outcome.failure) == (False, error)


async def test_update_of_a_deleted_slice_is_planned_again() -> None:
    """An update of a deleted slice asks for a new plan; the namespace is not missing."""
    api = Api(None, NotFound(404))
    outcome = await Writer(api, NoElection()).apply(FULL)
    assert (outcome.missing_namespace, outcome.again, api.calls[-1]) == (False, True, "reread s-1")
