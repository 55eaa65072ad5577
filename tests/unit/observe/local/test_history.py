"""The history in memory and in its ConfigMap: what is written when, what is read back, and what damaged text does."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.history import NOTHING, PER_SERVICE, TOTAL, Entry, Named
from hub.errors import BadAnswer, ClusterUnreachable, Conflict, Forbidden, Invalid, NotFound
from hub.kube.client import Client
from hub.model import LABEL_OWNER, MANAGED_BY, TargetKey
from hub.observe.local.history import (
    DATA_KEY,
    PACKED_LIMIT,
    PERIOD,
    TRIES,
    UNPACKED_LIMIT,
    History,
    config_map,
    pack,
    read,
    unpack,
)
from tests.support.clocks import ManualClock
from tests.unit.observe.local.one_config_map import Api as SimpleApi

KEY, OTHER = TargetKey("edge", "payments"), TargetKey("edge", "orders")
PATH = "/api/v1/namespaces/ops/configmaps"
NAME = "endpointslice-hub-history-default"


class Clock(ManualClock):
    """A clock that a sleep advances at once; every sleep lets the other tasks run."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await asyncio.sleep(0)


class Api:
    """An API server with one ConfigMap, or none.

    Attributes:
        writes: the writes, and when they were made.
        meanwhile: done once, between the next read and the write that follows it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.requests: list[str] = []
        self.writes: list[tuple[str, float]] = []
        self.away: Exception | None = None
        self.meanwhile: History | None = None

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        self.requests.append(method)
        if self.away is not None:
            raise self.away
        if method == "GET":
            if self.stored is None:
                raise NotFound(404)
            return json.dumps(self.stored).encode()
        if (other := self.meanwhile) is not None:
            self.meanwhile = None
            await other.flush()
        assert path == (PATH if method == "POST" else f"{PATH}/{NAME}")
        sent = json.loads(body)
        version = sent["metadata"].pop("resourceVersion", "")
        if version != (str(self.version) if self.stored is not None else ""):
            raise Conflict(409)
        self.version += 1
        sent["metadata"]["resourceVersion"] = str(self.version)
        self.stored = sent
        self.writes.append((method, self.clock.time))
        return b"{}"


def history(api: Api, *, leads: bool = True) -> History:
    """A history of owner ``default`` in namespace ``ops``."""
    return History(cast("Client", api), api.clock, "ops", "default", lambda: leads)


async def run(past: History, api: Api, seconds: float) -> None:
    """Run the store for so many seconds of its clock."""
    task = asyncio.create_task(past.run())
    end = api.clock.time + seconds
    async with asyncio.timeout(20):
        while api.clock.time < end:  # noqa: ASYNC110 - a state
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def entry(at: int, kind: Any = "added", **more: Any) -> Entry:
    """An entry about one endpoint."""
    more.setdefault("endpoints", (Named(f"10.0.0.{at % 250}", f"n{at}"),))
    return Entry(at, kind, "because", "eu", "IPv4", count=1, **more)


# --- when it is written ----------------------------------------------------------------------------


async def test_nothing_is_written_while_nothing_happens() -> None:
    """A leader reads once and then sends nothing at all."""
    api = Api()
    await run(history(api), api, 600.0)
    assert api.requests == ["GET"]


async def test_entries_of_a_minute_share_one_write() -> None:
    """The write comes a minute after the first entry that is not stored, with all entries until then."""
    api = Api()
    past = history(api)
    for number in range(50):
        past.add(KEY, [entry(number)])
        await run(past, api, 1.0)
    await run(past, api, 200.0)
    (method, at), *more = api.writes
    assert (method, more) == ("POST", [])
    assert 1000.0 + PERIOD <= at < 1000.0 + PERIOD + 2.0
    assert await read(cast("Client", api), "ops", "default") == {KEY: tuple(map(entry, range(50)))}


async def test_the_end_of_a_process_writes_at_once_and_only_once() -> None:
    """``flush`` does not wait for the minute; without a new entry it sends nothing."""
    api = Api()
    past = history(api)
    past.add(KEY, [entry(1)])
    await past.flush()
    await past.flush()
    assert [method for method, _ in api.writes] == ["POST"]
    assert api.stored is not None
    assert api.stored["metadata"]["name"] == NAME == config_map("default")
    assert api.stored["metadata"]["labels"] == {"app.kubernetes.io/managed-by": MANAGED_BY, LABEL_OWNER: "default"}
    past.add(KEY, [entry(2)])
    past.rights_changed()
    await run(past, api, 5.0)
    assert [method for method, _ in api.writes] == ["POST", "PUT"]


async def test_failed_write_is_tried_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without the permission, the history stays in memory and the log names the rule once; later it is written."""
    caplog.set_level(logging.INFO)
    api = Api()
    past = history(api)
    api.away = Forbidden(403)
    past.add(KEY, [entry(1)])
    await run(past, api, 400.0)
    rule = "the hub's account lacks the rule «configmaps: get, create, update»"
    assert caplog.text.count(f"{rule} for the ConfigMap {NAME} in namespace ops") == 1
    assert rule in past.problem
    assert past.of(KEY) == (entry(1),)
    assert len(api.requests) < 20
    api.away = None
    await run(past, api, 700.0)
    assert (past.problem, [method for method, _ in api.writes]) == ("", ["POST"])


async def test_cancelled_write_is_not_forgotten() -> None:
    """A write that is cut off at the end of the time is still due."""
    api = Api()
    past = history(api)
    past.add(KEY, [entry(1)])
    api.away = cast("Exception", asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await past.flush()
    api.away = None
    await past.flush()
    assert len(api.writes) == 1


@pytest.mark.parametrize(("conflicts", "problem"), [(TRIES - 1, ""), (TRIES, "409 : ")])
async def test_write_that_is_overtaken_is_repeated_a_few_times(conflicts: int, problem: str) -> None:
    """A write that other replicas overtake is repeated TRIES times at most; then it is due later."""
    api = SimpleApi()
    api.errors = [Conflict(409)] * conflicts
    past = History(cast("Client", api), Clock(), "ops", "default", lambda: True)
    past.add(KEY, [entry(1)])
    await past.flush()
    assert (past.problem, api.writes) == (problem, [f"POST {PATH}"] * TRIES)
    await past.flush()
    assert (past.problem, len(api.writes)) == ("", TRIES + bool(problem))


async def test_history_that_is_stored_already_is_not_written() -> None:
    """Entries that the ConfigMap has already are not written again, and no entries are nothing to write."""
    api = Api()
    one, two = history(api), history(api)
    one.add(KEY, [entry(1)])
    await one.flush()
    two.add(KEY, [entry(1)])
    await two.flush()
    two.add(KEY, [])
    await two.flush()
    assert [method for method, _ in api.writes] == ["POST"]
    assert api.requests == ["GET", "POST", "GET"]
    assert two.of(KEY) == (entry(1),)


async def test_each_new_api_error_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the API is a warning unless it is the last one again; an API that is away is only for debugging."""
    caplog.set_level(logging.DEBUG, "hub.observe.local.history")
    api = Api()
    past = history(api)
    for error in (Invalid(422, "", "a"), Invalid(422, "", "a"), ClusterUnreachable("gone")):
        api.away = error
        await past.load()
    assert past.problem == "gone"
    past.add(KEY, [entry(1)])
    await past.flush()
    api.away = None
    await past.load()
    assert past.problem == ""
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "the history is not read, it is only in memory: 422 : a"),
        ("DEBUG", "the history is not read, it is only in memory: 422 : a"),
        ("DEBUG", "the history is not read, it is only in memory: gone"),
        ("DEBUG", "the history is not stored, it is only in memory: gone"),
    ]


# --- several processes ------------------------------------------------------------------------------


async def test_next_leader_continues_the_history() -> None:
    """A process that begins to lead reads the stored entries; its own are added to them, not written over them."""
    api = Api()
    first, second = history(api), history(api)
    withheld = entry(1, "withheld", hash="abc")
    first.add(KEY, [withheld])
    await first.flush()
    await run(second, api, 5.0)
    assert second.of(KEY) == (withheld,)
    assert second.lasting_states(KEY).withheld == {("eu", "IPv4"): "abc"}
    second.add(KEY, [entry(2, "released")])
    assert second.lasting_states(KEY) is NOTHING
    await second.flush()
    assert await read(cast("Client", api), "ops", "default") == {KEY: (withheld, entry(2, "released"))}


async def test_entries_made_before_the_history_was_read_are_kept() -> None:
    """Entries that were added first are merged with the stored ones by time."""
    api = Api()
    first, second = history(api), history(api)
    first.add(KEY, [entry(1), entry(3)])
    await first.flush()
    second.add(KEY, [entry(2)])
    await second.flush()
    assert [past.at for past in second.of(KEY)] == [1, 2, 3]


async def test_two_writers_lose_nothing_of_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """A write that another replica overtakes is repeated at once with the entries of both; that is no problem."""
    api = Api()
    one, two = history(api), history(api)
    one.add(KEY, [entry(1)])
    two.add(OTHER, [entry(2)])
    api.meanwhile = two
    await one.flush()
    assert await read(cast("Client", api), "ops", "default") == {KEY: (entry(1),), OTHER: (entry(2),)}
    assert (one.problem, caplog.text) == ("", "")


async def test_standby_reads_once_a_minute_and_never_writes() -> None:
    """A standby knows the stored history, and follows it."""
    api = Api()
    leader, standby = history(api), history(api, leads=False)
    await run(standby, api, 10.0)
    leader.add(KEY, [entry(1)])
    await leader.flush()
    api.requests.clear()
    await run(standby, api, 10 * PERIOD)
    assert standby.of(KEY) == (entry(1),)
    assert set(api.requests) == {"GET"}
    assert 9 <= len(api.requests) <= 11


async def test_former_leader_reads_again_like_a_standby() -> None:
    """A process that leads reads once; when it has lost the Lease, it follows what the next leader stores."""
    api, leads = Api(), [True]
    former, leader = History(cast("Client", api), api.clock, "ops", "default", lambda: leads[0]), history(api)
    await run(former, api, 10 * PERIOD)
    assert len(api.requests) == 1
    leads[0] = False
    former.rights_changed()
    await run(former, api, 5.0)
    leader.add(KEY, [entry(1)])
    await leader.flush()
    await run(former, api, 2 * PERIOD)
    assert former.of(KEY) == (entry(1),)


async def test_unreachable_cluster_does_not_end_the_reading() -> None:
    """A leader that could not read at first reads later."""
    api = Api()
    stored = history(api)
    stored.add(KEY, [entry(1)])
    await stored.flush()
    api.away = ClusterUnreachable("refused")
    past = history(api)
    await run(past, api, 5.0)
    api.away = None
    await run(past, api, 2 * PERIOD)
    assert past.of(KEY) == (entry(1),)


# --- limits ------------------------------------------------------------------------------------------


async def test_memory_is_bounded() -> None:
    """A Service keeps its newest entries, and all Services together no more than a tenth above TOTAL."""
    past = history(Api())
    for at in range(PER_SERVICE + 50):
        past.add(KEY, [entry(at)])
    assert [kept.at for kept in past.of(KEY)] == list(range(50, PER_SERVICE + 50))
    for at in range(TOTAL * 5 // 4):
        past.add(TargetKey("edge", f"s{at % 1000}"), [entry(1000 + at)])
    kept = past.entries()
    assert TOTAL // 2 <= sum(map(len, kept.values())) <= 1.1 * TOTAL
    assert KEY not in kept


def test_equal_entries_of_many_services_are_one_object() -> None:
    """Two thousand Services of one node cost one entry."""
    past = history(Api())
    for number in range(2000):
        past.add(TargetKey("edge", f"s{number}"), [entry(7)])
    assert len({id(ring[0]) for ring in past.entries().values()}) == 1
    stored = unpack(pack(past.entries()))
    assert stored == past.entries()
    assert len({id(ring[0]) for ring in stored.values()}) == 1


def test_stored_history_fits_into_its_room() -> None:
    """If it is too large, the oldest entries are left out, and the newest stay."""
    rng = random.Random(1)
    rings = {
        TargetKey("edge", f"s{number}"): tuple(
            entry(at, endpoints=(Named(rng.randbytes(60).hex(), rng.randbytes(60).hex()),)) for at in range(100)
        )
        for number in range(50)
    }
    text = pack(rings)
    assert PACKED_LIMIT // 2 < len(base64.b64decode(text)) <= PACKED_LIMIT
    kept = unpack(text)
    assert all(rings[key][-len(ring) :] == ring for key, ring in kept.items())


def test_stored_entries_are_read_in_the_order_of_time() -> None:
    """Entries are sorted by time, a Service keeps its newest ones, and Services without entries are left out."""
    many = tuple(entry(at) for at in range(PER_SERVICE + 2))
    text = pack({KEY: (entry(3), entry(1), entry(2)), OTHER: many, TargetKey("edge", "none"): ()})
    assert unpack(text) == {KEY: (entry(1), entry(2), entry(3)), OTHER: many[2:]}


# --- damaged text ------------------------------------------------------------------------------------


def stored(plain: bytes) -> str:
    """Text of a ConfigMap with this content."""
    return base64.b64encode(gzip.compress(plain)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "no base64!",
        "!" + base64.b64encode(gzip.compress(b'{"version":1,"services":{}}')).decode(),
        base64.b64encode(b"no gzip").decode(),
        base64.b64encode(gzip.compress(b'{"version":1,"services":{}}')[:-9]).decode(),
        stored(b"no JSON"),
        stored(b"[" * 100_000),
        stored(b'{"version":2,"services":{}}'),
        stored(b'{"version":1,"services":{"a/b":[{"at":-1,"kind":"added","why":""}]}}'),
        stored(b'{"version":1,"services":{"a/b":[{"at":999999999999999,"kind":"added","why":""}]}}'),
        stored(b'{"version":1,"services":{"a/b":[{"at":1,"kind":"exploded","why":""}]}}'),
        stored(b'{"version":1,"services":{"a/b":[{"at":1,"kind":"added","why":"' + b"x" * 401 + b'"}]}}'),
        stored(b"0" * (UNPACKED_LIMIT + 1)),
    ],
    ids=["base64", "other signs", "gzip", "cut", "JSON", "nested", "version", "past", "future", "kind", "long", "bomb"],
)
async def test_damaged_history_is_ignored_and_replaced(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Damaged text is reported once, changes nothing in memory, and is replaced by the next write."""
    api = Api()
    api.stored, api.version = {"metadata": {"resourceVersion": "7"}, "binaryData": {DATA_KEY: text}}, 7
    with pytest.raises(BadAnswer, match=f"{NAME}.*{DATA_KEY} cannot be read"):
        await read(cast("Client", api), "ops", "default")
    past = history(api)
    await run(past, api, 5.0)
    assert caplog.text.count(f"the history in ConfigMap ops/{NAME} is ignored") == 1
    past.add(KEY, [entry(1)])
    await past.flush()
    assert await read(cast("Client", api), "ops", "default") == {KEY: (entry(1),)}
    assert caplog.text.count("is ignored") == 1


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_history_or_an_error(content: bytes) -> None:
    """Any content is either refused with ValueError, or a history that can be packed again."""
    for text in (content.decode("latin-1"), stored(content)):
        try:
            found = unpack(text)
        except ValueError:
            continue
        assert unpack(pack(found)) == found


@given(st.binary(min_size=1, max_size=4), st.integers(0))
def test_flipped_bytes_are_a_history_or_an_error(noise: bytes, place: int) -> None:
    """The stored text with some bytes replaced is refused, or is a history within its limits."""
    whole = json.dumps({"version": 1, "services": {"edge/payments": [{"at": 1, "kind": "added", "why": "x"}]}}).encode()
    at = place % len(whole)
    try:
        found = unpack(stored(whole[:at] + noise + whole[at + len(noise) :]))
    except ValueError:
        return
    assert all(0 <= kept.at <= 253402300799 for ring in found.values() for kept in ring)
