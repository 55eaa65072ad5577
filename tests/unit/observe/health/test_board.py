"""Which targets share a probe, where verdicts start, which targets are woken, and when the prober is suspected.

Tests give the answers and move the clock; no socket is opened.
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
    """A policy that rejects addresses that start with ``10.9.``."""

    def accepts(self, text: str) -> bool:
        return not text.startswith("10.9.")


class Hand(Board):
    """A board whose probes are answered by the test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.woken: list[TargetKey] = []
        super().__init__(self.clock, self.woken.extend)

    def flown(self) -> dict[tuple[Check, str], Probe]:
        """The probes, by check and address."""
        return {(probe.check, probe.address): probe for probe in self._probes()}

    def answer(self, *addresses: str, wrong: str = "", check: Check = CHECK) -> None:
        """Answer the next probe of each of these addresses: ``wrong`` is the reason of a failure, "" = a pass."""
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
        """Follow these addresses of one cluster for a target."""
        wanted = {address: build.endpoint(address) for address in addresses}
        watch = Watch(cluster, "IPv4", check, wanted, published if published is not None else {})
        self.follow(target, [watch] if addresses else [], {cluster: POLICY})

    def known(self, check: Check = CHECK) -> Mapping[str, Verdict]:
        """The verdicts of a check."""
        return self.verdicts().get(check, {})


POLICY = Only()
ONE, TWO = build.address(1), build.address(2)


def published(*addresses: str, **more: Any) -> dict[str, Endpoint]:
    """Endpoints by address."""
    return {address: build.endpoint(address, **more) for address in addresses}


def test_board_without_checks_is_empty() -> None:
    """A board without checks always returns the same empty mapping."""
    board = Hand()
    nothing = board.verdicts()
    board.follow(A, (), {})
    assert board.verdicts() is nothing
    assert nothing == {}


def test_equal_checks_share_a_probe_for_as_long_as_one_target_asks() -> None:
    """The shared probe ends only when the last target stops asking for it."""
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
    """All probes of a cluster share one lane, which is dropped with the last probe."""
    board = Hand()
    board.ask(A, ONE)
    board.ask(B, TWO)
    assert len({id(probe.lane) for probe in board.flown().values()}) == len(board._lanes) == 1
    board.ask(A)
    assert board.flown()[CHECK, TWO].lane is board._lanes["eu"]
    board.ask(B)
    board.clock.time += 60.0
    board._prober.tick()  # drops the due items of removed probes
    assert len(board._lanes) == 0


def test_different_checks_have_separate_probes() -> None:
    """Different checks of the same address and port have separate probes and verdicts."""
    board = Hand()
    other = Check("tcp", 30443, fall=1)
    board.ask(A, ONE)
    board.ask(B, ONE, check=other)
    board.answer(ONE, ONE, check=other)
    assert (board.known()[ONE], board.known(other)[ONE]) == (None, True)


def test_a_target_with_one_address_from_two_sources_keeps_it() -> None:
    """If one of two sources drops an address, it is still probed for the other one."""
    board = Hand()
    watches = [Watch(name, "IPv4", CHECK, published(ONE), {}) for name in ("eu", "us")]
    board.follow(A, watches, {"eu": POLICY, "us": POLICY})
    board.follow(A, watches[:1], {"eu": POLICY})
    assert board.flown().keys() == {(CHECK, ONE)}


def test_first_verdict_is_the_published_one() -> None:
    """The first verdict is that of the published endpoint: healthy or failed."""
    board = Hand()
    board.ask(A, ONE, published=published(ONE))
    board.ask(B, TWO, published=published(TWO, conditions=FAILED))
    assert board.known() == {ONE: True, TWO: False}


def test_new_probe_takes_the_published_verdict() -> None:
    """A probe without a verdict takes the verdict that a second target has published."""
    board = Hand()
    board.ask(A, ONE)
    assert board.known() == {ONE: None}
    board.ask(B, ONE, published=published(ONE))
    assert board.known() == {ONE: True}
    assert board.woken == [A, B] or set(board.woken) == {A, B}


def test_rejected_address_is_not_probed() -> None:
    """An address that the policy rejects, or whose cluster has no policy, has no probe and no verdict."""
    board = Hand()
    board.ask(A, ONE, "10.9.0.1", published=published(ONE, "10.9.0.1"))
    assert board.known() == {ONE: True}
    board.follow(A, [Watch("eu", "IPv4", CHECK, published(ONE), {})], {})
    assert board.known() == {}


def test_changed_verdict_wakes_its_targets() -> None:
    """Only targets that asked for the address are woken; an answer that changes no verdict wakes no target."""
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
    """``clear`` ends all probes."""
    board = Hand()
    board.ask(A, ONE)
    board.clear()
    assert board.flown() == {}


# --- suspicion -------------------------------------------------------------------------------------


def fleet(board: Hand, count: int = 10) -> dict[str, list[str]]:
    """Two clusters of healthy addresses that have just answered, and a target for each."""
    found: dict[str, list[str]] = {}
    for number, (target, cluster) in enumerate(((A, "eu"), (B, "us"))):
        mine = found[cluster] = [build.address(number << 8 | host) for host in range(1, count + 1)]
        board.ask(target, *mine, cluster=cluster, published=published(*mine))
        board.answer(*mine)
    return found


def fails(board: Hand, addresses: Iterable[str], rounds: int = 3) -> None:
    """Let these addresses fail in several rounds of probes."""
    for _ in range(rounds):
        board.clock.time += 5.0
        board.answer(*addresses, wrong="timed out")
        board._check_suspicion(board.clock.now())


def test_an_outage_of_everything_freezes_verdicts(caplog: pytest.LogCaptureFixture) -> None:
    """If all addresses of two clusters stop answering, none becomes unhealthy until they answer again."""
    board = Hand()
    found = fleet(board)
    every = [*found["eu"], *found["us"]]
    fails(board, every)
    assert board.suspected
    assert set(board.known().values()) == {True}
    assert [finding.reason for finding in board.findings([Watch("eu", "IPv4", CHECK, {}, {})])] == ["ProberSuspected"]
    assert set(board.woken) == {A, B}

    board.clock.time += 5.0
    board.answer(*every[:14])
    board._check_suspicion(board.clock.now())
    assert board.suspected  # six of twenty: 30 %
    board.answer(every[14])
    board._check_suspicion(board.clock.now())
    assert not board.suspected
    assert [record.levelname for record in caplog.records].count("WARNING") == 2
    fails(board, every[15:])
    assert {address for address, verdict in board.known().items() if not verdict} == set(every[15:])


def test_outage_of_one_cluster_makes_it_unhealthy() -> None:
    """If only one cluster stops answering, its addresses become unhealthy."""
    board = Hand()
    found = fleet(board)
    fails(board, found["eu"])
    assert not board.suspected
    assert {address for address, verdict in board.known().items() if verdict is False} == set(found["eu"])


def test_verdicts_that_fell_before_the_suspicion_are_taken_back() -> None:
    """Verdicts that fell just before the suspicion, as with ``fall: 1``, become healthy again."""
    board = Hand()
    check = Check("tcp", 30443, fall=1)
    eu, us = ([build.address(number << 8 | host) for host in range(1, 11)] for number in (0, 1))
    for target, cluster, mine in ((A, "eu", eu), (B, "us", us)):
        board.ask(target, *mine, cluster=cluster, published=published(*mine), check=check)
        board.answer(*mine, check=check)
    board.clock.time += 5.0
    for address in (address for pair in zip(eu, us, strict=True) for address in pair):
        board.clock.time += 0.2
        board.answer(address, wrong="timed out", check=check)
    assert board.suspected
    assert set(board.known(check).values()) == {True}


class Nothing:
    """A policy that rejects every address."""

    def accepts(self, text: str) -> bool:
        return False


def test_a_stricter_policy_ends_probes() -> None:
    """An address that a new policy rejects is no longer probed, although the target still asks for it."""
    board = Hand()
    watch = Watch("eu", "IPv4", CHECK, published(ONE), published(ONE))
    board.follow(A, [watch], {"eu": POLICY})
    board.follow(A, [watch], {"eu": Nothing()})
    assert board.flown() == {}
    board.follow(A, [watch], {"eu": POLICY})
    assert board.flown().keys() == {(CHECK, ONE)}


async def test_certificates_that_cannot_be_read_hold_up_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspicion can end while the mount of the certificates hangs."""
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


def test_answers_are_counted_by_outcome() -> None:
    """Answers are counted as passed, timeout or failed."""
    board = Hand()
    board.ask(A, ONE, TWO)
    board.answer(ONE, ONE, ONE)
    board.answer(TWO, TWO, wrong=TIMED_OUT)
    board.answer(TWO, wrong="refused")
    assert board.probes == {"passed": 3, "timeout": 2, "failed": 1}
