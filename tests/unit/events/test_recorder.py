"""The requests for Events: their order, pace and retries, without making the hub wait."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Self, cast

import pytest

from hub.errors import AlreadyExists, ApiError, ClusterUnreachable, Forbidden, NotFound, ServerFault, TooManyRequests
from hub.events.catalog import REASONS
from hub.events.recorder import PACE, TICK, TRIES, Recorder, hub_object
from hub.events.series import PENDING, REFRESH, EventFinding, Regarding
from hub.kube.client import Client
from tests.support.virtual import LoopClock, within

VIRTUAL_TIME = True

SERVICE = Regarding("v1", "Service", "edge", "payments", "u1")
HOLD = EventFinding(REASONS["PortMismatch"], SERVICE, "eu", "eu: which port?")
POSTED = "/apis/events.k8s.io/v1/namespaces/edge/events"


class Api:
    """An API server that accepts Events, or answers with given errors."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.always: Exception | None = None
        self.unanswered = 0
        """Number of the next requests that are carried out but not answered."""
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.times: list[float] = []

    async def request(self, method: str, path: str, *, body: bytes, **_: Any) -> bytes:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        if self.errors:
            raise self.errors.pop(0)
        if self.always is not None:
            raise self.always
        call = (method, path, json.loads(body))
        if method == "POST" and call[2]["metadata"]["name"] in {event["metadata"]["name"] for event in self.posted()}:
            raise AlreadyExists(409, "AlreadyExists")
        self.calls.append(call)
        if self.unanswered:
            self.unanswered -= 1
            raise ClusterUnreachable("no answer")
        return b"{}"

    def posted(self) -> list[dict[str, Any]]:
        """The Events that were created."""
        return [body for method, _, body in self.calls if method == "POST"]


class Desk:
    """A running recorder and its API server."""

    def __init__(self) -> None:
        self.api = Api()
        self.leads = True
        self.recorder = Recorder(cast("Client", self.api), LoopClock(), lambda: self.leads, "hub-0_1")

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.recorder.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def until(self, calls: int, seconds: float = 3600.0) -> list[tuple[str, str, dict[str, Any]]]:
        """Wait for this number of calls, and return all calls."""

        async def wait() -> None:
            while len(self.api.calls) < calls:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.05)

        await within(seconds, wait())
        return self.api.calls


async def test_an_event_has_all_that_the_api_asks_for() -> None:
    """A new Event has a unique name, a time in microseconds, the reporting instance, and the Service's uid."""
    async with Desk() as desk:
        desk.recorder.set_findings("a", [HOLD])
        [(method, path, body)] = await desk.until(1)
    assert (method, path) == ("POST", POSTED)
    name, stamp = body["metadata"].pop("name"), body.pop("eventTime")
    assert name.startswith("payments.")
    assert len(stamp) == len("2026-01-01T00:00:00.000000Z")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "edge"},
        "type": "Warning",
        "reason": "PortMismatch",
        "action": "Publish",
        "note": "eu: which port?",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "edge", "name": "payments", "uid": "u1"},
        "reportingController": "endpointslice-hub",
        "reportingInstance": "hub-0_1",
    }


async def test_new_event_is_sent_at_once() -> None:
    """A finding wakes the recorder, which does not wait for its next check."""
    async with Desk() as desk:
        await asyncio.sleep(1.0)
        desk.recorder.set_findings("a", [HOLD])
        await desk.until(1, TICK / 10)


async def test_new_event_has_all_occurrences_until_it_is_sent() -> None:
    """An Event that occurred twice before it was sent is created with a series."""
    async with Desk() as desk:
        for _ in range(2):
            desk.recorder.record_occurrence(REASONS["PlanReleased"], SERVICE, "eu: 3 endpoints may go")
        [(method, _, body)] = await desk.until(1)
    assert (method, body["series"]["count"]) == ("POST", 2)
    assert body["series"]["lastObservedTime"] == body["eventTime"]


async def test_lasting_finding_is_patched_and_recreated_after_expiry() -> None:
    """A lasting finding updates its Event's series; if the Event has expired, a new one is created."""
    async with Desk() as desk:
        desk.recorder.set_findings("a", [HOLD])
        await desk.until(1)
        [_, (method, path, body)] = await desk.until(2, REFRESH + 200)
        assert (method, path) == ("PATCH", f"{POSTED}/{desk.api.calls[0][2]['metadata']['name']}")
        assert body["series"]["count"] == 2
        desk.api.errors = [NotFound(404)]
        *_, (method, path, body) = await desk.until(3, REFRESH + 200)
        assert (method, path, body["series"]["count"]) == ("POST", POSTED, 3)
        assert body["metadata"]["name"] != desk.api.calls[0][2]["metadata"]["name"]


async def test_an_api_that_is_away_gets_it_later() -> None:
    """While the API is unreachable, an Event is sent again with backoff, at the earliest after Retry-After."""
    async with Desk() as desk:
        desk.api.errors = [
            ClusterUnreachable("no answer"),
            ServerFault(500),
            TooManyRequests(429, retry_after=20.0),
            ClusterUnreachable("no answer"),
        ]
        desk.recorder.set_findings("a", [HOLD])
        await desk.until(1, 120)
        assert desk.api.times[3] - desk.api.times[2] >= 20
        assert (desk.recorder.written, desk.recorder.refused) == (1, 0)


async def test_event_with_a_lost_answer_is_not_duplicated() -> None:
    """If an answer is lost, the next try has the same name, so that AlreadyExists means success."""
    async with Desk() as desk:
        desk.api.unanswered = 1
        desk.recorder.set_findings("a", [HOLD])
        await asyncio.sleep(60)
        assert len(desk.api.times) == 2
        assert (len(desk.api.posted()), desk.recorder.written, desk.recorder.refused) == (1, 1, 0)
        desk.api.errors, desk.api.unanswered = [NotFound(404)], 1
        await asyncio.sleep(REFRESH + 200)
        first, second = desk.api.posted()
        assert first["metadata"]["name"] != second["metadata"]["name"]
        assert (desk.recorder.written, desk.recorder.refused) == (2, 0)
        await desk.until(3, REFRESH + 200)
        assert desk.api.calls[2][:2] == ("PATCH", f"{POSTED}/{second['metadata']['name']}")


async def test_event_is_dropped_after_twelve_attempts() -> None:
    """After twelve failed attempts the next Event is sent."""
    async with Desk() as desk:
        desk.api.errors = [ServerFault(500)] * TRIES
        desk.recorder.set_findings("a", [HOLD])
        desk.recorder.set_findings("b", [HOLD._replace(scope="us", note="us: which port?")])
        [(_, _, body)] = await desk.until(1)
        assert body["note"] == "us: which port?"
        assert (desk.recorder.written, desk.recorder.refused) == (1, 1)


async def test_a_missing_right_is_named_once_for_each_namespace(caplog: pytest.LogCaptureFixture) -> None:
    """A forbidden Event is not sent again, and the log names the missing rule once for each namespace."""
    caplog.set_level(logging.INFO)
    async with Desk() as desk:
        desk.api.always = Forbidden(403, "Forbidden", "not yours")
        for number in range(5):
            desk.recorder.set_findings(number, [HOLD._replace(scope=f"c{number}")])
        await asyncio.sleep(60)
        assert len(desk.api.times) == 5
        assert caplog.text.count("no Events in namespace edge: 403") == 1
        assert "«events.events.k8s.io: create, patch»" in desk.recorder.problem
        desk.api.always = None
        desk.recorder.set_findings("new", [HOLD._replace(scope="new")])
        await desk.until(1)
        assert desk.recorder.problem == ""


async def test_problem_names_one_namespace_and_the_number_of_others() -> None:
    """The problem is that of the first namespace in order; a process that does not lead has none."""
    async with Desk() as desk:
        desk.api.always = Forbidden(403, "Forbidden", "not yours")
        rule = "the hub's account lacks the rule «events.events.k8s.io: create, patch», or the API does not take Events"
        text = f"no Events in namespace edge: 403: {rule} there: not yours"
        for number, (namespace, more) in enumerate(
            (("edge", ""), ("shop", " (and in 1 more namespaces)"), ("ops", " (and in 2 more namespaces)"))
        ):
            desk.recorder.set_findings(number, [HOLD._replace(regarding=SERVICE._replace(namespace=namespace))])
            await asyncio.sleep(60)
            assert desk.recorder.problem == text + more
        desk.leads = False
        assert desk.recorder.problem == ""


ENDING = "events is forbidden: unable to create new content in namespace edge because it is being terminated"


@pytest.mark.parametrize(
    "errors",
    [[Forbidden(403, "Forbidden", ENDING)], [Forbidden(403, "Forbidden", "not yours"), NotFound(404)]],
    ids=["being deleted", "gone"],
)
async def test_a_namespace_that_ends_leaves_no_problem_behind(errors: list[Exception]) -> None:
    """A namespace that is being deleted refuses Events, which is not a problem of permissions."""
    async with Desk() as desk:
        desk.api.errors = list(errors)
        for number in range(len(errors)):
            desk.recorder.set_findings(number, [HOLD._replace(scope=f"c{number}")])
        await asyncio.sleep(60)
        assert (desk.recorder.refused, desk.recorder.problem) == (len(errors), "")


@pytest.mark.parametrize("error", [NotFound(404), ApiError(422, "Invalid", "what is that")], ids=["gone", "invalid"])
async def test_rejected_event_is_not_retried(error: ApiError) -> None:
    """An Event is not sent again if its namespace does not exist or the API finds it invalid."""
    async with Desk() as desk:
        desk.api.errors = [error]
        desk.recorder.set_findings("a", [HOLD])
        desk.recorder.set_findings("b", [HOLD._replace(scope="us")])
        await desk.until(1, 10)
        assert (desk.recorder.written, desk.recorder.refused) == (1, 1)


async def test_a_storm_is_paced_and_bounded() -> None:
    """Reporting never waits; the queue is bounded, and 20 requests are sent per second."""
    async with Desk() as desk:
        for number in range(2 * PENDING):
            desk.recorder.set_findings(number, [HOLD._replace(regarding=SERVICE._replace(name=f"s{number}"))])
        assert desk.recorder.suppressed == PENDING
        await desk.until(PENDING)
        seconds = desk.api.times[-1] - desk.api.times[0]
        assert seconds >= (PENDING - 1) * PACE
        names = [body["metadata"]["name"] for _, _, body in desk.api.calls]
        assert len(set(names)) == PENDING
        assert names[0].startswith(f"s{PENDING}.")


async def test_standby_sends_no_events() -> None:
    """A process that does not lead sends neither old Events nor new ones."""
    async with Desk() as desk:
        desk.leads = False
        desk.recorder.set_findings("a", [HOLD])
        desk.recorder.record_occurrence(REASONS["PlanReleased"], SERVICE, "eu: 3 endpoints may go")
        await asyncio.sleep(10 * TICK)
        assert desk.api.times == []
        desk.leads = True
        desk.api.errors = [ServerFault(500)] * 3
        desk.recorder.set_findings("a", [HOLD])
        await asyncio.sleep(0.5)
        desk.leads = False
        desk.recorder.clear()
        await asyncio.sleep(100)
        assert len(desk.api.times) == 1


@pytest.mark.parametrize(("enabled", "leads"), [(False, True), (True, False), (False, False)])
async def test_recorder_that_is_off_or_does_not_lead_records_nothing(*, enabled: bool, leads: bool) -> None:
    """What is reported while the recorder is off, or while another process leads, is not sent later either."""
    async with Desk() as desk:
        desk.recorder.enabled, desk.leads = enabled, leads
        desk.recorder.set_findings("a", [HOLD])
        desk.recorder.record_occurrence(REASONS["PlanReleased"], SERVICE, "eu: 3 endpoints may go")
        assert not desk.recorder.has_findings("a")
        desk.recorder.enabled = desk.leads = True
        await asyncio.sleep(10 * TICK)
        assert desk.api.times == []


def test_the_hub_is_its_pod_or_its_lease() -> None:
    """The environment selects the object that stands for the hub."""
    pod = {"POD_NAME": "hub-0", "POD_NAMESPACE": "ops", "POD_UID": "u"}
    assert hub_object("ops/lease", pod) == Regarding("v1", "Pod", "ops", "hub-0", "u")
    lease = Regarding("coordination.k8s.io/v1", "Lease", "ops", "endpointslice-hub-default")
    assert hub_object("ops/endpointslice-hub-default", {"POD_NAME": "hub-0"}) == lease
