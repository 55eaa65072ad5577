"""Leader election in virtual time: pauses, outages, lost answers, clocks that run at different rates."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from hub.election.elector import Elector, LeaseRecord, Timing
from hub.errors import (
    AlreadyExists,
    ClusterUnreachable,
    Conflict,
    Forbidden,
    HubError,
    NotFound,
    NotLeader,
    TooManyRequests,
)
from tests.support.leases import Server, real, simulate

# -- a process ------------------------------------------------------------------------------------------------


class Process:
    """One hub process: its clock, its connection to the API server and its elector."""

    def __init__(self, server: Server, name: str, *, rate: float = 1.0, rng: random.Random | None = None) -> None:
        self.server = server
        self.rng = rng or random.Random(name)
        self.rate = rate
        self.offset = self.rng.uniform(0, 1e6)
        self.wall_offset = 1.7e9
        self.paused_until = 0.0
        self.latency = (0.0, 0.0)
        self.refuse = self.hang = self.lose_answers = False
        self.watches = True
        self.changes: list[tuple[float, bool]] = []
        self.asked: list[float] = []
        self.elector = Elector(self, name, self, rng=self.rng)
        self.task: asyncio.Task[None] | None = None

    # its clock

    def now(self) -> float:
        return self.offset + real() * self.rate

    def wall(self) -> float:
        return self.wall_offset + real()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self.gate()

    async def gate(self) -> None:
        """Wait while the process is paused."""
        while (left := self.paused_until - real()) > 0:  # noqa: ASYNC110 - it may be prolonged meanwhile
            await asyncio.sleep(left)

    # its lease store

    async def get(self) -> LeaseRecord:
        await self._travel("get")
        if self.server.record is None:
            raise NotFound(404)
        record = self.server.record
        await self._return()
        return record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        await self._travel("create")
        if self.server.record is not None:
            raise AlreadyExists(409)
        stored = self.server.store(record)
        await self._return()
        return stored

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        await self._travel("update")
        if self.server.record is None:
            raise NotFound(404)
        if self.server.record.version != record.version:
            raise Conflict(409)
        stored = self.server.store(record)
        await self._return()
        return stored

    async def wait_until_free(self) -> None:
        if not self.watches:
            raise Forbidden(403)
        while self.server.record is None or self.server.record.holder:
            await self.server.changed.wait()
        await self._return()
        if self.refuse or self.hang:
            raise ClusterUnreachable("connection lost", "reset")

    async def _travel(self, call: str) -> None:
        self.server.calls.append(f"{self.elector.identity} {call}")
        self.asked.append(real())
        await asyncio.sleep(self.rng.uniform(*self.latency))
        await self.gate()
        if self.refuse:
            raise ClusterUnreachable("connection refused", "refused")
        if self.hang:
            await asyncio.sleep(1e9)

    async def _return(self) -> None:
        await asyncio.sleep(self.rng.uniform(*self.latency))
        if self.lose_answers:
            await asyncio.sleep(1e9)
        await self.gate()

    # its life

    def start(self) -> None:
        """Start to take part in the election."""
        self.task = asyncio.create_task(self.elector.run(lambda leads: self.changes.append((real(), leads))))

    async def stop(self) -> None:
        """Stop as on SIGTERM."""
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    @property
    def leads(self) -> bool:
        try:
            self.elector.check()
        except NotLeader:
            return False
        return True


async def pair() -> tuple[Server, Process, Process]:
    """A process that has led for five seconds, and a standby."""
    server = Server()
    first, second = Process(server, "first"), Process(server, "second")
    first.start()
    await asyncio.sleep(1)
    second.start()
    await asyncio.sleep(4)
    assert (first.leads, second.leads) == (True, False)
    return server, first, second


# -- the rules ------------------------------------------------------------------------------------------------


def test_first_process_creates_the_lease_and_leads() -> None:
    """Without a Lease the first process creates it at once, with the fields of Kubernetes' own leader election."""

    async def main() -> None:
        server = Server()
        process = Process(server, "first")
        process.start()
        await asyncio.sleep(0.1)
        assert process.changes == [(0.0, True)]
        stamp = "2023-11-14T22:13:20.000000Z"
        assert server.record == LeaseRecord("first", 15, stamp, stamp, 0, "1")
        assert (process.leads, process.elector.holder) == (True, "first")

    simulate(main())


def test_leader_renews_with_one_update_every_two_seconds() -> None:
    """The leader renews with one PUT every two seconds and no GET; the acquisition time does not change."""

    async def main() -> None:
        server = Server()
        Process(server, "first").start()
        await asyncio.sleep(20.5)
        assert server.calls == ["first get", "first create", *["first update"] * 10]
        assert server.record is not None
        assert (server.record.acquired < server.record.renewed, server.record.transitions) == (True, 0)

    simulate(main())


def test_standby_logs_the_leader_once(caplog: pytest.LogCaptureFixture) -> None:
    """A standby logs who leads once, and again after a change of the leader."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        server, first, _ = await pair()
        third = Process(server, "third")
        third.start()
        await asyncio.sleep(20)
        await first.stop()
        await asyncio.sleep(20)

    simulate(main())
    said = [message for message in caplog.messages if message.startswith("third stands by")]
    assert said == ["third stands by; first leads", "third stands by; second leads"]


def test_standby_waits_and_knows_the_leader() -> None:
    """A standby does not lead, knows the leader, and reads the Lease every 2 to 4.4 seconds."""

    async def main() -> None:
        server, _, second = await pair()
        server.calls.clear()
        await asyncio.sleep(100)
        looks = server.calls.count("second get")
        assert (second.leads, second.elector.holder, second.changes) == (False, "first", [])
        assert 100 / 4.4 - 1 <= looks <= 100 / 2 + 1
        with pytest.raises(NotLeader, match="second may not write: first leads"):
            second.elector.check()
        assert second.elector.remaining() == 0

    simulate(main())


def test_standby_takes_over_from_a_dead_leader_after_the_lease() -> None:
    """A standby takes the Lease 15 s after it saw the last change, and increments the transitions."""

    async def main() -> None:
        server, first, second = await pair()
        first.paused_until = 1e9
        died = real()
        await asyncio.sleep(40)
        assert second.leads
        assert died - 2 + 15 <= second.changes[0][0] <= died + 15 + 5
        assert server.record is not None
        assert (server.record.holder, server.record.transitions) == ("second", 1)

    simulate(main())


def test_expiry_ignores_times_in_the_record() -> None:
    """A standby waits the whole duration even if the record says that it was renewed in 1970."""

    async def main() -> None:
        server = Server()
        server.store(LeaseRecord("ghost", 15, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", 7))
        process = Process(server, "first")
        process.start()
        await asyncio.sleep(14.9)
        assert process.changes == []
        await asyncio.sleep(5)
        assert process.leads

    simulate(main())


def test_record_without_a_duration_counts_as_a_whole_lease() -> None:
    """A Lease without leaseDurationSeconds, such as one written by hand, expires after the default duration."""

    async def main() -> None:
        server = Server()
        server.store(LeaseRecord("ghost", 0, "", ""))
        process = Process(server, "first")
        process.start()
        await asyncio.sleep(14)
        assert process.changes == []

    simulate(main())


def test_stopped_leader_releases_the_lease() -> None:
    """On SIGTERM the leader releases the Lease (no holder, a duration of 1 s), and a standby leads within seconds."""

    async def main() -> None:
        server, first, second = await pair()
        await first.stop()
        assert server.record is not None
        assert (server.record.holder, server.record.duration) == ("", 1)
        assert [leads for _, leads in first.changes] == [True, False]
        stopped = real()
        await asyncio.sleep(5)
        assert second.leads
        assert second.changes[0][0] - stopped <= 0.1  # it watches the Lease

    simulate(main())


def test_standby_that_may_not_watch_the_lease_looks_at_it() -> None:
    """A standby without permission to watch Leases notices a release by polling, within seconds."""

    async def main() -> None:
        server = Server()
        first, second = Process(server, "first"), Process(server, "second")
        second.watches = False
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(4)
        await first.stop()
        stopped = real()
        await asyncio.sleep(5)
        assert 0.1 < second.changes[0][0] - stopped <= 4.5

    simulate(main())


def test_watch_that_broke_is_soon_there_again() -> None:
    """A watch that lost its connection is restored after one retry period and notices a release again."""

    async def main() -> None:
        server = Server()
        first, second = Process(server, "first"), Process(server, "second")
        follow, breaks = second.wait_until_free, [ClusterUnreachable("connection lost", "reset")]

        async def freed() -> None:
            if breaks:
                raise breaks.pop()
            await follow()

        second.wait_until_free = freed  # type: ignore[method-assign]
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(2.1)
        server.calls.clear()
        await first.stop()
        stopped = real()
        await asyncio.sleep(5)
        assert second.changes[0][0] - stopped <= 0.1

    simulate(main())


def test_false_release_events_cause_one_read_per_second() -> None:
    """If a watch keeps reporting a released Lease, the standby reads the Lease once per second, not in a busy loop."""

    async def main() -> None:
        server, _, second = await pair()

        async def lies() -> None:
            await second._return()

        second.wait_until_free = lies  # type: ignore[method-assign]
        first_look = len(server.calls)
        await second.stop()
        second.start()
        await asyncio.sleep(60)
        assert server.calls[first_look:].count("second get") <= 62
        assert second.changes == []

    simulate(main())


def test_leader_that_keeps_its_lease_at_the_end_is_waited_for() -> None:
    """A stopped leader that keeps its Lease, since a write may be under way, is replaced only after the expiry."""

    async def main() -> None:
        server, first, second = await pair()
        first.elector.keep_lease()
        await first.stop()
        assert server.holder == "first"
        await asyncio.sleep(30)
        assert second.changes[0][0] >= 4 + 15

    simulate(main())


def test_stop_during_creation_releases_the_lease() -> None:
    """A process that stops before it gets the answer to its creation of the Lease releases the Lease."""

    async def main() -> None:
        server = Server()
        process = Process(server, "first")
        process.latency = (0.1, 0.1)
        process.start()
        await asyncio.sleep(0.25)  # created, not yet answered
        assert server.holder == "first"
        await process.stop()
        assert server.holder == ""

    simulate(main())


def test_stop_during_renewal_releases_the_lease() -> None:
    """A process that stops before it gets the answer to a renewal releases the Lease."""

    async def main() -> None:
        server, first, _ = await pair()
        first.latency = (0.5, 0.5)
        await asyncio.sleep(1.7)
        before = server.version
        first.latency = (0.0, 0.0)
        await first.stop()
        assert (server.holder, server.version > before) == ("", True)

    simulate(main())


@pytest.mark.parametrize(
    ("fault", "stored", "within"),
    [
        (ClusterUnreachable("connection lost", "reset"), False, 0.3),
        (ClusterUnreachable("connection lost", "reset"), True, 0.3),
        (TooManyRequests(429, retry_after=1.0), False, 1.1),
        (TooManyRequests(429, retry_after=60.0), False, 1.6),
    ],
)
def test_release_that_met_a_fault_is_tried_again(fault: HubError, within: float, *, stored: bool) -> None:
    """A failed release is retried, but not if it was stored and another process has taken the Lease."""

    async def main() -> None:
        server, first, second = await pair()
        update, faults = first.update, [fault]

        async def fails_once(record: LeaseRecord) -> LeaseRecord:
            if record.holder or not faults:
                return await update(record)
            if stored:
                await update(record)
            raise faults.pop()

        first.update = fails_once  # type: ignore[method-assign]
        stopped = real()
        await first.stop()
        await asyncio.sleep(5)
        assert second.changes[0][0] - stopped <= within
        assert (server.holder, second.leads, len(second.changes)) == ("second", True, 1)

    simulate(main())


def test_stop_without_the_right_to_release_ends_at_once() -> None:
    """A release that is forbidden is not retried."""

    async def main() -> None:
        _, first, _ = await pair()

        async def refused(record: LeaseRecord) -> LeaseRecord:
            raise Forbidden(403)

        first.update = refused  # type: ignore[method-assign]
        stopped = real()
        await first.stop()
        assert real() == stopped

    simulate(main())


def test_stop_without_an_api_server_ends_in_time() -> None:
    """If the API server does not answer, a leader stops after the timeout of one request, a standby at once."""

    async def main() -> None:
        _, first, second = await pair()
        first.hang = second.hang = True
        started = real()
        await first.stop()
        await second.stop()
        assert real() - started <= 3.1

    simulate(main())


def test_leader_steps_down_ten_seconds_after_its_last_renewal() -> None:
    """If the API server does not answer, the leader steps down before another process can lead."""

    async def main() -> None:
        _, first, _ = await pair()
        first.hang = True
        await asyncio.sleep(20)
        (_, _), (down, leads) = first.changes
        assert (leads, 4.0 + 10 <= down <= 4.0 + 10.1) == (False, True)
        with pytest.raises(NotLeader):
            first.elector.check()

    simulate(main())


def test_leader_tries_more_often_before_it_steps_down() -> None:
    """The leader retries every 2 s, then after half of the remaining time, but after 0.25 s at least."""

    async def main() -> None:
        _, first, _ = await pair()
        first.refuse = True
        renewed = first.asked[-1]
        await asyncio.sleep(12)
        tried = [round(at - renewed, 2) for at in first.asked if at > renewed]
        assert tried[:8] == [2.0, 4.0, 6.0, 8.0, 9.0, 9.5, 9.75, 10.0]

    simulate(main())


def test_leader_survives_an_outage_shorter_than_the_deadline() -> None:
    """An outage of eight seconds does not change the leader."""

    async def main() -> None:
        _, first, second = await pair()
        first.refuse = second.refuse = True
        await asyncio.sleep(8)
        first.refuse = second.refuse = False
        await asyncio.sleep(30)
        assert (first.leads, len(first.changes), second.changes) == (True, 1, [])

    simulate(main())


def test_leader_continues_after_an_outage_of_all_replicas() -> None:
    """After an outage in which no process could take the Lease, the old holder leads again and has continued."""

    async def main() -> None:
        server, first, second = await pair()
        assert not first.elector.continued
        first.refuse = second.refuse = True
        await asyncio.sleep(12)
        first.refuse = False
        await asyncio.sleep(5)
        assert first.elector.continued
        assert (first.leads, [leads for _, leads in first.changes]) == (True, [True, False, True])
        assert server.record is not None
        assert server.record.transitions == 0

    simulate(main())


@pytest.mark.parametrize("lost", [False, True])
def test_leader_with_a_successor_has_not_continued(*, lost: bool) -> None:
    """A leader has not continued if another process led in between, even if the answer to its takeover was lost."""

    async def main() -> None:
        server, first, second = await pair()
        first.refuse = True
        await asyncio.sleep(30)
        assert second.leads
        second.paused_until = 1e9
        first.refuse, first.latency = False, (0.1, 0.1)
        while server.holder != "first":  # noqa: ASYNC110 - the test's own state
            await asyncio.sleep(0.01)
        assert not first.leads  # the answer is on its way
        first.lose_answers = lost
        await asyncio.sleep(1)
        first.lose_answers = False
        await asyncio.sleep(10)
        assert (first.leads, first.elector.continued) == (True, False)

    simulate(main())


def test_lost_answers_do_not_lose_the_lease() -> None:
    """After a stored update without an answer, the next update gets a conflict, and the leader repeats it."""

    async def main() -> None:
        _, first, _ = await pair()
        first.lose_answers = True
        await asyncio.sleep(3)
        first.lose_answers = False
        await asyncio.sleep(60)
        assert (first.leads, len(first.changes)) == (True, 1)

    simulate(main())


def test_foreign_write_to_the_lease_costs_nothing() -> None:
    """After another client changed the Lease, the next renewal only needs one more read."""

    async def main() -> None:
        server, first, _ = await pair()
        assert server.record is not None
        server.store(server.record)
        await asyncio.sleep(10)
        assert (first.leads, len(first.changes), server.calls.count("first get")) == (True, 1, 2)

    simulate(main())


def test_leader_steps_down_when_another_holds_the_lease() -> None:
    """The leader steps down at the next renewal if the Lease names another holder."""

    async def main() -> None:
        server, first, _ = await pair()
        assert server.record is not None
        server.store(replace(server.record, holder="admin"))
        await asyncio.sleep(2.1)
        assert (first.leads, first.elector.holder, len(first.changes)) == (False, "admin", 2)

    simulate(main())


def test_deleted_lease_is_made_again_by_its_holder() -> None:
    """The leader creates a deleted Lease again before a standby can."""

    async def main() -> None:
        server, first, second = await pair()
        for _ in range(20):
            server.record = None
            await asyncio.sleep(random.Random(server.version).uniform(0, 9))
            assert not (first.leads and second.leads)
        assert (first.leads, second.changes) == (True, [])

    simulate(main())


def test_releasing_process_does_not_recreate_the_lease() -> None:
    """A process that released the Lease does not create it after a deletion: its successor may still write."""

    async def main() -> None:
        server, first, second = await pair()
        await first.stop()
        await asyncio.sleep(0.5)
        first.start()
        await asyncio.sleep(0.5)
        assert (first.leads, second.leads) == (False, True)
        server.record, second.refuse = None, True
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert not (first.leads and second.leads)
        assert first.leads

    simulate(main())


def test_unreadable_lease_restarts_the_standbys_wait() -> None:
    """A standby that could not read the Lease for half a duration restarts its wait: the Lease may have existed."""

    async def main() -> None:
        server, first, second = await pair()
        server.record, first.paused_until = None, real() + 6
        await asyncio.sleep(5)  # the standby has found it missing
        second.refuse = True
        await asyncio.sleep(15)
        assert (server.holder, first.leads) == ("first", True)
        server.record, first.paused_until, second.refuse = None, real() + 7, False
        await asyncio.sleep(6)
        assert second.changes == []
        await asyncio.sleep(20)
        assert (first.leads, second.changes) == (True, [])

    simulate(main())


@pytest.mark.parametrize("retry", [2.0, 5.0, 8.0])
def test_deleted_lease_of_a_dead_leader_is_taken_after_the_duration(retry: float) -> None:
    """A standby reads a missing Lease often enough to take it in time, even with a long retry period."""

    async def main() -> None:
        server = Server()
        first, second = Process(server, "first"), Process(server, "second")
        for process in (first, second):
            process.elector = Elector(process, process.elector.identity, process, Timing(retry=retry), process.rng)
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(20)
        first.paused_until, server.record, deleted = 1e9, None, real()
        await asyncio.sleep(60)
        assert second.leads
        assert 15 <= second.changes[0][0] - deleted <= 15 + 2.2 * retry + 15 / 4

    simulate(main())


def test_two_processes_with_one_identity_do_not_lead_together() -> None:
    """Of two processes with the same identity only one leads, and it can hand over to the other."""

    async def main() -> None:
        server = Server()
        twins = [Process(server, "same", rng=random.Random(seed)) for seed in range(2)]
        for twin in twins:
            twin.start()
        for _ in range(400):
            await asyncio.sleep(0.1)
            assert [twin.leads for twin in twins] == [True, False]
        await twins[0].stop()
        await asyncio.sleep(1)
        assert twins[1].leads

    simulate(main())


@pytest.mark.parametrize(("conflicts", "amended"), [(0, True), (1, True), (2, True), (3, False), (9, False)])
def test_notes_on_a_lease_of_another_survive_some_conflicts(*, conflicts: int, amended: bool) -> None:
    """Annotating the Lease of another holder is tried three times on conflicts, then raises Conflict."""

    async def main() -> None:
        server, first, second = await pair()
        left = conflicts

        def change(record: LeaseRecord) -> LeaseRecord:
            nonlocal left
            if left:
                left -= 1
                server.store(record)
            return replace(record, notes={"wanted": "yes"})

        if amended:
            assert await second.elector.change_annotations(change) is True
        else:
            with pytest.raises(Conflict):
                await second.elector.change_annotations(change)
        assert server.record is not None
        assert server.record.notes == ({"wanted": "yes"} if amended else {})
        assert await second.elector.change_annotations(lambda _: None) is False
        assert first.leads

    simulate(main())


def test_first_term_has_not_continued() -> None:
    """Neither a standby nor a leader in its first term has continued."""

    async def main() -> None:
        _, first, second = await pair()
        assert (first.elector.continued, second.elector.continued) == (False, False)

    simulate(main())


def test_storm_of_foreign_writes_does_not_cost_the_lease() -> None:
    """The leader keeps the Lease while another client writes to it five times per second."""

    async def main() -> None:
        server, first, second = await pair()
        for _ in range(300):
            assert server.record is not None
            server.store(server.record)
            await asyncio.sleep(0.2)
        assert (first.leads, len(first.changes), second.changes) == (True, 1, [])

    simulate(main())


def test_foreign_lease_writes_do_not_delay_takeover() -> None:
    """Another client's writes to a dead leader's Lease do not delay the takeover."""

    async def main() -> None:
        server, first, second = await pair()
        first.paused_until = 1e9
        died = real()
        for _ in range(20):
            assert server.record is not None
            server.store(server.record)
            await asyncio.sleep(2)
        assert second.leads
        assert died - 2 + 15 <= second.changes[0][0] <= died + 15 + 5

    simulate(main())


def test_attempt_retries_after_a_conflict() -> None:
    """After a conflict the same attempt reads the Lease again and repeats the update."""

    async def main() -> None:
        server, first, _ = await pair()
        first.latency = (0.1, 0.1)
        server.calls.clear()
        for _ in range(2):
            while not server.calls or server.calls[-1] != "first update":  # noqa: ASYNC110 - the test's own state
                await asyncio.sleep(0.01)
            assert server.record is not None
            server.store(server.record)
            server.calls.append("meanwhile")
        await asyncio.sleep(1)
        own = [call for call in server.calls if call.startswith("first")]
        assert own[:5] == ["first update", "first get", "first update", "first get", "first update"]

    simulate(main())


@pytest.mark.parametrize(
    ("duration", "leads_after"), [(15, 15), (0, 15), (-5, 15), (1, 1), (10**9, 3600)], ids=lambda value: str(value)
)
def test_lease_with_any_duration_expires_after_an_hour(duration: int, leads_after: int) -> None:
    """A Lease with any duration expires after an hour at most, and the printed holder cannot forge log lines."""

    async def main() -> None:
        server = Server()
        server.store(LeaseRecord("evil\nERROR hub: gone\x1b[2J" + "x" * 10_000, duration, "never", "\x00", -7))
        process = Process(server, "first")
        process.start()
        await asyncio.sleep(0.5)
        assert process.elector.holder == "evil?ERROR hub: gone?[2J" + "x" * (256 - 24)
        await asyncio.sleep(leads_after - 0.6)
        assert process.changes == []
        await asyncio.sleep(5)
        assert process.leads

    simulate(main())


def test_api_that_is_away_for_longer_than_the_lease() -> None:
    """In a long outage the leader steps down and no process leads; within 5 s after it exactly one does."""

    async def main() -> None:
        server, first, second = await pair()
        for way in ("refuse", "hang"):
            leader = server.holder
            for process in (first, second):
                setattr(process, way, True)
            await asyncio.sleep(10.1)
            for _ in range(600):
                await asyncio.sleep(0.1)
                assert [first.leads, second.leads] == [False, False]
            for process in (first, second):
                setattr(process, way, False)
            await asyncio.sleep(5)
            assert [first.leads, second.leads].count(True) == 1, (way, leader)

    simulate(main())


def test_suspended_machine_may_not_write_when_it_wakes() -> None:
    """After a suspend the fence refuses writes before any task has run."""

    async def main() -> None:
        _, first, _ = await pair()
        first.elector.check()
        first.offset += 60
        assert (first.leads, first.elector.remaining()) == (False, 0.0)
        with pytest.raises(NotLeader, match="its lease runs out"):
            first.elector.check()
        assert len(first.changes) == 1

    simulate(main())


def test_wall_clock_is_for_people_only() -> None:
    """Jumps of the wall clock do not affect the election."""

    async def main() -> None:
        _, first, second = await pair()
        for jump in (3600.0, -7200.0):
            first.wall_offset += jump
            second.wall_offset -= jump
            await asyncio.sleep(30)
        assert (first.leads, len(first.changes), second.changes) == (True, 1, [])

    simulate(main())


def test_check_gives_the_time_a_write_may_take() -> None:
    """A write may take what is left of the lease minus one second; none may start in the last two seconds."""

    async def main() -> None:
        process = Process(Server(), "first")
        process.start()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        process.paused_until = 1e9
        seen = []
        for at in (4.0, 12.9, 13.1):
            await asyncio.sleep(at - real())
            try:
                seen.append(round(process.elector.check(), 3))
            except NotLeader:
                seen.append(-1.0)
        assert seen == [10.0, 1.1, -1.0]

    simulate(main())


def test_slow_renewal_counts_from_its_start() -> None:
    """The lease counts from before the request, so a renewal that takes two seconds is two seconds shorter."""

    async def main() -> None:
        process = Process(Server(), "first")
        process.latency = (1.0, 1.0)
        process.start()
        await asyncio.sleep(3.0001)  # one second for the look, two for the creation
        assert process.leads
        assert process.elector.remaining() == pytest.approx(13.0, abs=0.01)

    simulate(main())


def test_acquisition_that_took_too_long_is_not_used() -> None:
    """A process that was suspended while it took the Lease does not lead with a lease that is about to expire."""

    async def main() -> None:
        process = Process(Server(), "first")
        process.latency = (0.1, 0.1)
        process.start()
        await asyncio.sleep(0.25)  # created, not yet answered
        process.offset += 12
        await asyncio.sleep(1)
        assert process.changes == []
        await asyncio.sleep(5)
        assert process.leads

    simulate(main())


# -- everything at once ---------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Writes whenever its elector allows it, within the time that the elector gave."""

    process: Process
    written: int = 0

    async def run(self) -> None:
        """Write until cancelled."""
        process, rng = self.process, self.process.rng
        while True:
            await asyncio.sleep(rng.uniform(0, 1))
            await process.gate()
            with suppress(NotLeader):
                budget = process.elector.check()
                await asyncio.sleep(rng.uniform(0, budget) / process.rate)
                assert process.server.holder in (process.elector.identity, ""), (
                    "a write landed after somebody took over"
                )
                self.written += 1


async def trouble(processes: list[Process], rng: random.Random) -> None:
    """Pauses, outages, hanging requests, lost answers and deletions, for one process at a time."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / 8))
        process = rng.choice(processes)
        length = rng.choice((0.5, 3.0, 9.0, 16.0, 40.0)) * rng.uniform(0.5, 1.5)
        kind = rng.choice(("pause", "refuse", "hang", "lose_answers", "delete"))
        if kind == "pause":
            process.paused_until = real() + length
        elif kind == "delete":
            process.server.record = None
            await asyncio.sleep(45)  # gone, made anew and gone again between two looks cannot be noticed
        else:
            setattr(process, kind, True)
            await asyncio.sleep(length)
            setattr(process, kind, False)


@pytest.mark.parametrize("seed", range(40))
def test_never_two_leaders_and_no_late_write(seed: int) -> None:
    """In ten minutes of faults never two processes may write, no write ends in another's lease, and work continues."""

    async def main() -> None:
        rng = random.Random(seed)
        server = Server()
        processes = [
            Process(server, f"hub-{n}", rate=rng.uniform(0.98, 1.02), rng=random.Random(f"{seed}-{n}"))
            for n in range(3)
        ]
        for process in processes:
            process.latency = (0.0, rng.choice((0.01, 0.3, 1.4)))
            process.start()
            await asyncio.sleep(rng.uniform(5, 9))
        writers = [Writer(process) for process in processes]
        chaos = asyncio.create_task(trouble(processes, rng))
        tasks = [chaos, *(asyncio.create_task(writer.run()) for writer in writers)]
        for _ in range(2400):
            await asyncio.sleep(0.25)
            assert sum(process.leads for process in processes) <= 1
            for task in tasks:
                if task.done():
                    task.result()
        assert sum(writer.written for writer in writers) > 50
        chaos.cancel()
        for process in processes:
            process.refuse = process.hang = process.lose_answers = False
        await asyncio.sleep(60)
        assert sum(process.leads for process in processes) == 1
        for task in [*tasks, *(process.task for process in processes if process.task)]:
            task.cancel()

    simulate(main())
