"""The hub's health verdicts: which addresses targets want probed, and the results.

Every pass of a target calls :meth:`Board.follow` with the addresses to probe; targets that ask for the same check of an
address share one probe. A pass reads the verdicts as plain values, and a changed verdict wakes the targets that asked
for it. While no target wants a probe, nothing runs, no socket is open and no memory is used.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from hub.decide.checks import NO_VERDICTS, Check, Policy, Verdict, Verdicts, Watch, starting_verdict
from hub.model import Endpoint, Finding, TargetKey
from hub.observe.health.flights import Exchange, Flight, Opener, StreamFlight, TcpFlight, TlsFlight
from hub.observe.health.http import HttpExchange
from hub.observe.health.prober import TIMED_OUT, Lane, Probe, Prober, passed
from hub.observe.health.suspicion import SLACK, LastAnswer, calm, suspicious
from hub.observe.health.tls import Trusts, trust_of
from hub.observe.health.verdicts import CheckState, advance
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

FIRST_PROBE_WITHIN: Final = 1.0
"""Seconds within which a new address is probed. An address that is published already is probed within its interval."""
SUSPICION_CHECK: Final = 0.1
"""Seconds between checks for a failure of the prober itself, while a healthy address fails. One check of 5,000
addresses takes 2 ms."""
LOGGED: Final = 10
"""Maximum number of new verdicts that are logged in each round; the others are only counted."""
ROUND: Final = 0.5
"""Seconds between rounds of :meth:`Board.run` while no healthy address fails; else SUSPICION_CHECK."""


class _Wanted(NamedTuple):
    """A target that wants an address probed, and the source cluster; two of its sources may have the same address."""

    target: TargetKey
    cluster: str


class _Followed(NamedTuple):
    """A watch in progress.

    Attributes:
        addresses: those of the watch.
        policy: that of the source cluster; None = no address may be contacted.
        probed: the addresses that the policy accepts.
    """

    addresses: Mapping[str, Endpoint]
    policy: Policy | None
    probed: frozenset[str]


class _Checked(msgspec.Struct, eq=False):
    """All addresses under one check.

    Attributes:
        probes: address -> its probe.
        wanted: address -> the targets that want it probed.
    """

    check: Check
    opener: Opener
    probes: dict[str, Probe] = msgspec.field(default_factory=dict)
    wanted: dict[str, set[_Wanted]] = msgspec.field(default_factory=dict)
    verdicts: Mapping[str, Verdict] | None = None
    """The last snapshot; None after a change."""

    def snapshot(self) -> Mapping[str, Verdict]:
        if self.verdicts is None:
            self.verdicts = {address: probe.verdict for address, probe in self.probes.items()}
        return self.verdicts


def exchanges(check: Check) -> Callable[[str], Exchange]:
    """A function that makes the exchange with an address. Loads the libraries for HTTP/2 if the check needs them."""
    if check.mode in ("grpc", "grpcs"):
        from hub.observe.health import grpc

        return grpc.exchanges(check)
    return lambda address: HttpExchange(check, address)


class Board:
    """The verdicts of one hub.

    Args:
        on_change: called with the targets whose verdicts, or findings, have changed.
        folder: the folder that files with certificates must be in (``--credentials-dir``).

    Attributes:
        suspected: whether failures are ignored because the prober itself probably fails.
        probes: ``passed``, ``timeout`` or ``failed`` -> number of such answers since the start.
    """

    def __init__(self, clock: Clock, on_change: Callable[[Iterable[TargetKey]], None], folder: str = ".") -> None:
        self.suspected = False
        self.probes = {"passed": 0, "timeout": 0, "failed": 0}
        self._clock = clock
        self._on_change = on_change
        self._trusts = Trusts(folder)
        self._prober = Prober(clock, self._answered)
        self._checked: dict[Check, _Checked] = {}
        self._followed: dict[TargetKey, dict[tuple[str, str, Check], _Followed]] = {}
        self._lanes: WeakValueDictionary[str, Lane] = WeakValueDictionary()  # a lane is dropped with its last probe
        self._verdicts: Verdicts = NO_VERDICTS
        self._outdated = False
        self._failing = False
        """Whether a probe of a healthy address has failed since the last check of all addresses."""
        self._suspicion_checked_at = float("-inf")
        self._changes = 0
        """Number of new verdicts in this round, to limit the log."""
        self._needed = asyncio.Event()

    # --- what targets want ------------------------------------------------------------------------

    def verdicts(self) -> Verdicts:
        """The current verdicts."""
        if self._outdated:
            self._outdated = False
            self._verdicts = {check: checked.snapshot() for check, checked in self._checked.items()}
        return self._verdicts

    def follow(self, target: TargetKey, watches: Sequence[Watch], policies: Mapping[str, Policy]) -> None:
        """Probe exactly these addresses for a target, from now on.

        Args:
            target: the target that asks.
            watches: what to probe, at most one for each source, family and check.
            policies: cluster -> which addresses may be contacted; addresses of other clusters are not probed.
        """
        old = self._followed.get(target)
        if not watches and old is None:
            return
        old = old or {}
        new: dict[tuple[str, str, Check], _Followed] = {}
        for watch in watches:
            key, policy = (watch.cluster, watch.family, watch.check), policies.get(watch.cluster)
            known = old.get(key)
            if known is None or known.addresses is not watch.addresses or known.policy is not policy:
                known = self._carry_out(target, watch, policy, known)
            new[key] = known
        for key in old.keys() - new.keys():
            cluster, _, check = key
            self._drop(_Wanted(target, cluster), check, old[key].probed)
        if new:
            self._followed[target] = new
            self._needed.set()
        else:
            del self._followed[target]

    def clear(self) -> None:
        """Stop all probes; called when this process no longer writes."""
        for target in list(self._followed):
            self.follow(target, (), {})
        self.suspected = False

    def _carry_out(self, target: TargetKey, watch: Watch, policy: Policy | None, known: _Followed | None) -> _Followed:
        old = known.probed if known is not None else frozenset()
        wanted = _Wanted(target, watch.cluster)
        kept = old & watch.addresses.keys()
        if policy is None:
            kept = frozenset()
        elif known is None or policy is not known.policy:
            kept = frozenset(filter(policy.accepts, kept))
        new = sorted(filter(policy.accepts, watch.addresses.keys() - kept)) if policy is not None else []
        for address in new:
            self._want(wanted, watch, address)
        self._drop(wanted, watch.check, old - kept)
        return _Followed(watch.addresses, policy, kept.union(new))

    def _want(self, wanted: _Wanted, watch: Watch, address: str) -> None:
        check = watch.check
        checked = self._checked.get(check)
        if checked is None:
            checked = self._checked[check] = _Checked(check, self._opener(check))
        checked.wanted.setdefault(address, set()).add(wanted)
        start = starting_verdict(watch.published.get(address))
        probe = checked.probes.get(address)
        if probe is None:
            lane = self._lanes.get(watch.cluster)
            if lane is None:
                lane = self._lanes[watch.cluster] = Lane(watch.cluster)
            probe = checked.probes[address] = Probe(address, check, lane, checked.opener, start)
            self._prober.add(probe, check.interval if start is not None else min(FIRST_PROBE_WITHIN, check.interval))
            self._mark_outdated(checked)
        elif probe.verdict is None and start is not None:
            probe.verdict, probe.run = start, 0
            self._changed(checked, address)

    def _drop(self, wanted: _Wanted, check: Check, addresses: Iterable[str]) -> None:
        checked = self._checked.get(check)
        if checked is None:
            return
        for address in addresses:
            checked.wanted[address].discard(wanted)
            if not checked.wanted[address]:
                self._prober.remove(checked.probes.pop(address))
                del checked.wanted[address]
                self._mark_outdated(checked)
        if not checked.probes:
            del self._checked[check]

    def _opener(self, check: Check) -> Opener:
        if check.mode == "tcp":
            return lambda sock, _: TcpFlight(sock)
        exchange = exchanges(check)
        if not check.tls:
            return lambda sock, address: StreamFlight(sock, exchange(address))
        trusted = self._trusts.get(trust_of(check))
        self._needed.set()

        def encrypted(sock: socket.socket, address: str) -> Flight | None:
            if trusted.context is None:
                return None
            return TlsFlight(sock, exchange(address), check.server_name or address, trusted.context)

        return encrypted

    # --- results -------------------------------------------------------------------------

    def _answered(self, probe: Probe, outcome: str, now: float) -> None:
        """Handle an answer; returns early in the common case that a healthy address passes again."""
        good = passed(outcome)
        self.probes["passed" if good else "timeout" if outcome == TIMED_OUT else "failed"] += 1
        probe.at = now
        probe.reason = outcome
        if good and probe.passing and probe.verdict:
            return
        if good is not probe.passing:
            probe.since = now
        check, before = probe.check, CheckState(probe.verdict, probe.run, probe.passing)
        after = advance(before, passed=good, rise=check.rise, fall=check.fall, frozen=self.suspected)
        probe.verdict, probe.run, probe.passing = after
        if before.verdict and not good:
            self._failing = True
        if after.verdict is before.verdict:
            return
        probe.fallen = bool(before.verdict)
        if probe.fallen and self._check_suspicion(now) and probe.verdict:
            return  # the prober itself probably fails, and the old verdict was restored
        self._log(probe)
        self._changed(self._checked[check], probe.address)

    def _log(self, probe: Probe) -> None:
        """Log a new verdict, at most :data:`LOGGED` in each round."""
        self._changes += 1
        if self._changes > LOGGED:
            return
        level = logging.INFO if probe.verdict else logging.WARNING
        state = "healthy" if probe.verdict else "unhealthy"
        why = f": {probe.reason}" if probe.reason else ""
        log.log(level, "%s of %s is %s (%s)%s", probe.address, probe.lane.cluster, state, probe.check, why)

    def _log_rest(self) -> None:
        if self._changes > LOGGED:
            log.warning("%d more addresses changed their verdict", self._changes - LOGGED)
        self._changes = 0

    def _mark_outdated(self, checked: _Checked) -> None:
        checked.verdicts = None
        self._outdated = True

    def _changed(self, checked: _Checked, address: str) -> None:
        self._mark_outdated(checked)
        self._on_change({wanted.target for wanted in checked.wanted[address]})

    def verdict_counts(self) -> Mapping[tuple[str, str], int]:
        """The number of probed addresses, by (cluster, ``healthy``, ``unhealthy`` or ``unknown``)."""
        found: dict[tuple[str, str], int] = {}
        for probe in self._probes():
            verdict = {True: "healthy", False: "unhealthy", None: "unknown"}[probe.verdict]
            key = (probe.lane.cluster, verdict)
            found[key] = found.get(key, 0) + 1
        return found

    def reason(self, check: Check, address: str) -> str:
        """Why the last probe of an address failed; "" if it passed, or there was none."""
        checked = self._checked.get(check)
        probe = checked.probes.get(address) if checked is not None else None
        return probe.reason if probe is not None else ""

    def findings(self, watches: Sequence[Watch]) -> Iterator[Finding]:
        """Problems of the prober itself that affect a target with these watches."""
        if self.suspected and watches:
            yield Finding(
                "ProberSuspected",
                "more than half of all healthy addresses, in several clusters, stopped answering at once: "
                "probably the hub's own network fails; no address becomes unhealthy until they answer again",
            )
        for trust in {trust_of(watch.check) for watch in watches if watch.check.tls}:
            if problem := self._trusts.problem(trust):
                yield Finding("ProbeCertificates", f"the certificates of health checks cannot be loaded: {problem}")

    # --- suspicion --------------------------------------------------------------------------------

    def _probes(self) -> Iterator[Probe]:
        for checked in self._checked.values():
            yield from checked.probes.values()

    def _last_answers(self, now: float) -> Iterator[LastAnswer]:
        """Addresses whose verdict is healthy, or was healthy until their present failures began."""
        for probe in self._probes():
            recent = probe.fallen and probe.since >= now - probe.check.interval * SLACK
            if (probe.verdict or (probe.verdict is False and recent)) and probe.passing is not None:
                yield LastAnswer(probe.lane.cluster, probe.passing, probe.at, probe.since, probe.check.interval)

    def _check_suspicion(self, now: float) -> bool:
        """Update ``suspected`` and return it; return False if the last check is less than SUSPICION_CHECK old."""
        if now - self._suspicion_checked_at < SUSPICION_CHECK and not self.suspected:
            return False
        self._suspicion_checked_at = now
        if self.suspected:
            if calm(self._last_answers(now)):
                self.suspected = False
                log.warning("enough addresses answer again: health verdicts change again")
                self._on_change(list(self._followed))
        elif self._failing:
            seen = list(self._last_answers(now))
            self._failing = not all(address.passing for address in seen)
            if suspicious(seen, now):
                self._suspect(now, sum(not address.passing for address in seen), len(seen))
        return self.suspected

    def _suspect(self, now: float, failing: int, total: int) -> None:
        self.suspected = True
        log.warning(
            "%d of %d healthy addresses stopped answering at once: suspecting the hub's network; verdicts are frozen",
            failing,
            total,
        )
        for probe in self._probes():
            if probe.verdict is False and probe.fallen and probe.since >= now - probe.check.interval * SLACK:
                probe.verdict, probe.run, probe.fallen = True, 0, False
                self._mark_outdated(self._checked[probe.check])
        self._on_change(list(self._followed))

    # --- running ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe while any target wants it; runs until cancelled."""
        while True:
            await self._needed.wait()
            probing = asyncio.create_task(self._prober.run(), name="prober")
            certificates = "certificates of health checks"
            trusting = asyncio.create_task(supervise(certificates, self._trust, self._clock), name=certificates)
            try:
                while self._followed and not probing.done():
                    self._check_suspicion(self._clock.now())
                    self._log_rest()
                    await self._clock.sleep(SUSPICION_CHECK if self._failing or self.suspected else ROUND)
                if not self._followed:
                    self._needed.clear()
            finally:
                trusting.cancel()
                probing.cancel()
                await asyncio.wait({trusting})
                with suppress(asyncio.CancelledError):
                    await probing

    async def _trust(self) -> None:
        """Keep the certificates current. Runs in its own task, so that verdicts never wait for a file."""
        while True:
            await self._trusts.refresh(self._clock.now())
            await self._clock.sleep(ROUND)

    async def probe_once(self, ask: Callable[[], object], seconds: float) -> None:
        """Call ``ask``, which calls :meth:`follow`; probe until every address has a verdict, at most ``seconds``."""
        running = asyncio.create_task(self.run(), name="health checks")
        try:
            ask()
            until = self._clock.now() + seconds
            while self._clock.now() < until and any(probe.verdict is None for probe in self._probes()):
                await self._clock.sleep(SUSPICION_CHECK)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
