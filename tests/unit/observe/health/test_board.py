"""The board: who shares a probe, what starts from what, who is woken, and when the prober is the suspect.

Answers are given by hand and time by a clock of the test: no socket is opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from hub.decide.checks import Check, Verdict, Watch
from hub.model import FAILED, Endpoint, TargetKey
from hub.observe.health import tls
from hub.observe.health.board import Board
from hub.observe.health.prober import TIMED_OUT, Probe
from hub.runtime.clock import SystemClock
from tests.support import build
from tests.support.clocks import ManualClock

A, B = TargetKey("edge", "a"), TargetKey("edge", "b")
CHECK = Check("tcp", 30443)


class Only:
    """A policy that accepts what does not start with ``10.9.``."""

    def accepts(self, text: str) -> bool:
        return not text.startswith("10.9.")


class Hand(Board):
    """A board whose probes are answered by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.woken: list[TargetKey] = []
        super().__init__(self.clock, self.woken.extend)

    def flown(self) -> dict[tuple[Check, str], Probe]:
        """By check and address."""
        return {(probe.check, probe.address): probe for probe in self._probes()}

    def answer(self, *addresses: str, wrong: str = "", check: Check = CHECK) -> None:
        """The next probe of these addresses: passed, or failed for a reason."""
        for address in addresses:
            self._answered(self.flown()[check, address], wrong, self.clock.now())

    def ask(
        self,
        target: TargetKey,
        *addresses: str,
        cluster: str = "eu",
        published: Mapping[str, Endpoint] | None = None,
        check: Check = CHECK,
    ) -> None:
        """Follow these addresses of one cluster."""
        wanted = {address: build.endpoint(address) for address in addresses}
        watch = Watch(cluster, "IPv4", check, wanted, published if published is not None else {})
        self.follow(target, [watch] if addresses else [], {cluster: POLICY})

    def known(self, check: Check = CHECK) -> Mapping[str, Verdict]:
        """The verdicts under a check."""
        return self.verdicts().get(check, {})


POLICY = Only()
ONE, TWO = build.address(1), build.address(2)


def published(*addresses: str, **more: Any) -> dict[str, Endpoint]:
    """Endpoints by address."""
    return {address: build.endpoint(address, **more) for address in addresses}


def test_nothing_is_there_while_nobody_asks() -> None:
    """A hub without checks has one empty mapping for ever."""
    board = Hand()
    nothing = board.verdicts()
    board.follow(A, (), {})
    assert board.verdicts() is nothing
    assert nothing == {}


def test_equal_checks_share_a_probe_for_as_long_as_one_target_asks() -> None:
    """The first to leave does not end it; the last one does."""
    board = Hand()
    board.ask(A, ONE, TWO)
    board.ask(B, ONE)
    assert board.flown().keys() == {(CHECK, ONE), (CHECK, TWO)}
    board.ask(A)
    assert board.flown().keys() == {(CHECK, ONE)}
    probe = board.flown()[CHECK, ONE]
    board.ask(B)
    assert board.flown() == {}
    assert not probe.active
    assert board.verdicts() == {}


def test_the_sockets_of_a_cluster_are_counted_for_as_long_as_it_has_probes() -> None:
    """All of its probes share them; clusters come and go, and nothing is kept of those that went."""
    board = Hand()
    board.ask(A, ONE)
    board.ask(B, TWO)
    assert len({id(probe.lane) for probe in board.flown().values()}) == len(board._lanes) == 1
    board.ask(A)
    assert board.flown()[CHECK, TWO].lane is board._lanes["eu"]
    board.ask(B)
    board.clock.time += 60.0
    board._prober.tick()  # what was due is let go of
    assert len(board._lanes) == 0


def test_another_check_is_another_probe() -> None:
    """Even of the same address and port."""
    board = Hand()
    other = Check("tcp", 30443, fall=1)
    board.ask(A, ONE)
    board.ask(B, ONE, check=other)
    board.answer(ONE, ONE, check=other)
    assert (board.known()[ONE], board.known(other)[ONE]) == (None, True)


def test_a_target_with_one_address_from_two_sources_keeps_it() -> None:
    """When one of them lets go of it, the other one still wants it probed."""
    board = Hand()
    watches = [Watch(name, "IPv4", CHECK, published(ONE), {}) for name in ("eu", "us")]
    board.follow(A, watches, {"eu": POLICY, "us": POLICY})
    board.follow(A, watches[:1], {"eu": POLICY})
    assert board.flown().keys() == {(CHECK, ONE)}


def test_verdicts_start_from_what_is_published() -> None:
    """Healthy, failed, or unknown where there is nothing."""
    board = Hand()
    board.ask(A, ONE, published=published(ONE))
    board.ask(B, TWO, published=published(TWO, conditions=FAILED))
    assert board.known() == {ONE: True, TWO: False}


def test_who_publishes_an_address_lends_it_to_who_does_not_know_it() -> None:
    """A probe that another target began without knowledge learns from the slice of the second."""
    board = Hand()
    board.ask(A, ONE)
    assert board.known() == {ONE: None}
    board.ask(B, ONE, published=published(ONE))
    assert board.known() == {ONE: True}
    assert board.woken == [A, B] or set(board.woken) == {A, B}


def test_only_what_may_be_published_is_probed() -> None:
    """An address that the policy refuses, or of a cluster without one, has no probe and no verdict."""
    board = Hand()
    board.ask(A, ONE, "10.9.0.1", published=published(ONE, "10.9.0.1"))
    assert board.known() == {ONE: True}
    board.follow(A, [Watch("eu", "IPv4", CHECK, published(ONE), {})], {})
    assert board.known() == {}


def test_a_changed_verdict_wakes_those_who_asked() -> None:
    """And nobody else; an answer that changes nothing wakes nobody and keeps the mapping."""
    board = Hand()
    board.ask(A, ONE, TWO, published=published(ONE, TWO))
    board.ask(B, TWO, published=published(TWO))
    before = board.known()
    board.answer(ONE, TWO)
    board.answer(ONE, wrong="timed out")
    assert board.known() is before
    assert board.woken == []
    board.answer(ONE, ONE, wrong="timed out")
    assert board.known() == {ONE: False, TWO: True}
    assert board.woken == [A]
    assert board.reason(CHECK, ONE) == "timed out"


def test_a_hub_that_does_not_write_probes_nothing() -> None:
    """Whoever takes over starts from the slices."""
    board = Hand()
    board.ask(A, ONE)
    board.clear()
    assert board.flown() == {}


# --- suspicion -------------------------------------------------------------------------------------


def fleet(board: Hand, count: int = 10) -> dict[str, list[str]]:
    """Two clusters of healthy addresses that have just answered, and a target for each."""
    found: dict[str, list[str]] = {}
    for number, (target, cluster) in enumerate(((A, "eu"), (B, "us"))):
        mine = found[cluster] = [build.address(number << 8 | each) for each in range(1, count + 1)]
        board.ask(target, *mine, cluster=cluster, published=published(*mine))
        board.answer(*mine)
    return found


def fails(board: Hand, addresses: Iterable[str], rounds: int = 3) -> None:
    """These fail in one round of probes after the other."""
    for _ in range(rounds):
        board.clock.time += 5.0
        board.answer(*addresses, wrong="timed out")
        board._look(board.clock.now())


def test_an_outage_of_everything_freezes_verdicts(caplog: pytest.LogCaptureFixture) -> None:
    """All addresses of two clusters stop answering: none becomes unhealthy, until they answer again."""
    board = Hand()
    found = fleet(board)
    every = [*found["eu"], *found["us"]]
    fails(board, every)
    assert board.suspected
    assert set(board.known().values()) == {True}
    assert [each.reason for each in board.findings([Watch("eu", "IPv4", CHECK, {}, {})])] == ["ProberSuspected"]
    assert set(board.woken) == {A, B}

    board.clock.time += 5.0
    board.answer(*every[:14])
    board._look(board.clock.now())
    assert board.suspected  # six of twenty: 30 %
    board.answer(every[14])
    board._look(board.clock.now())
    assert not board.suspected
    assert [each.levelname for each in caplog.records].count("WARNING") == 2
    fails(board, every[15:])
    assert {address for address, verdict in board.known().items() if not verdict} == set(every[15:])


def test_the_outage_of_one_cluster_is_its_own() -> None:
    """Its addresses become unhealthy, as they should."""
    board = Hand()
    found = fleet(board)
    fails(board, found["eu"])
    assert not board.suspected
    assert {address for address, verdict in board.known().items() if verdict is False} == set(found["eu"])


def test_verdicts_that_fell_before_the_suspicion_are_taken_back() -> None:
    """With ``fall: 1`` the first ones fall before it is clear that all do."""
    board = Hand()
    check = Check("tcp", 30443, fall=1)
    eu, us = ([build.address(number << 8 | each) for each in range(1, 11)] for number in (0, 1))
    for target, cluster, mine in ((A, "eu", eu), (B, "us", us)):
        board.ask(target, *mine, cluster=cluster, published=published(*mine), check=check)
        board.answer(*mine, check=check)
    board.clock.time += 5.0
    for address in (each for pair in zip(eu, us, strict=True) for each in pair):
        board.clock.time += 0.2
        board.answer(address, wrong="timed out", check=check)
    assert board.suspected
    assert set(board.known(check).values()) == {True}


class Nothing:
    """A policy that accepts nothing."""

    def accepts(self, text: str) -> bool:
        return False


def test_a_stricter_policy_ends_probes() -> None:
    """What was allowed and is not any more is contacted no more, although the target still wants it."""
    board = Hand()
    watch = Watch("eu", "IPv4", CHECK, published(ONE), published(ONE))
    board.follow(A, [watch], {"eu": POLICY})
    board.follow(A, [watch], {"eu": Nothing()})
    assert board.flown() == {}
    board.follow(A, [watch], {"eu": POLICY})
    assert board.flown().keys() == {(CHECK, ONE)}


async def test_certificates_that_cannot_be_read_hold_up_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspicion ends while the mount they lie on does not answer."""
    answers = threading.Event()
    monkeypatch.setattr(tls, "stamp", lambda _: answers.wait(10))
    board = Board(SystemClock(), lambda _: None)
    board.follow(A, [Watch("eu", "IPv4", CHECK, published(ONE), {})], {})  # without a policy nothing is probed
    board._trusts.get(tls.Trust("/mnt/ca.pem"))
    board.suspected = True
    running = asyncio.create_task(board.run())
    try:
        async with asyncio.timeout(5):
            while board.suspected:  # noqa: ASYNC110 - the board's
                await asyncio.sleep(0.01)
    finally:
        answers.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_answers_are_counted_by_what_they_are() -> None:
    """Passed, no answer in time, or another failure."""
    board = Hand()
    board.ask(A, ONE, TWO)
    board.answer(ONE, ONE, ONE)
    board.answer(TWO, TWO, wrong=TIMED_OUT)
    board.answer(TWO, wrong="refused")
    assert board.probes == {"passed": 3, "timeout": 2, "failed": 1}
