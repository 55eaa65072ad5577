"""The verdicts of the hub: who wants what probed, what came of it, and who is to be told.

Targets say what they want with :meth:`Board.follow` after every pass; equal wishes share one probe. Verdicts
are read as values; a changed one wakes the targets that asked. Nothing here runs, opens or remembers
anything while no target asks.
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

from hub.aio.clock import Clock
from hub.aio.supervise import supervise
from hub.health.flights import Flight, HttpFlight, HttpsFlight, Opener, TcpFlight
from hub.health.prober import TIMED_OUT, Lane, Probe, Prober, passed
from hub.health.spec import NO_VERDICTS, Check, Policy, Verdict, Verdicts, Watch, starting_verdict
from hub.health.suspicion import SLACK, Seen, calm, suspicious
from hub.health.tls import Trusts, trust_of
from hub.health.verdicts import Standing, advance
from hub.model import Endpoint, Finding, TargetKey

log = logging.getLogger(__name__)

AT_ONCE: Final = 1.0
"""Seconds within which a new address is probed first. One that is published already waits for its turn."""
LOOK: Final = 0.1
"""Seconds between looks for a suspicion, while something that should be healthy fails; a look at 5,000
addresses takes 2 ms."""
TOLD: Final = 10
"""New verdicts that are logged one by one, in each round."""
ROUND: Final = 0.5
"""Seconds between looks after everything else."""


class _Wanted(NamedTuple):
    """Who wants an address: a target may have it from two sources."""

    target: TargetKey
    cluster: str


class _Followed(NamedTuple):
    """A watch being carried out."""

    addresses: Mapping[str, Endpoint]
    policy: Policy | None
    probed: frozenset[str]


class _Checked(msgspec.Struct, eq=False):
    """All addresses under one check."""

    check: Check
    opener: Opener
    probes: dict[str, Probe] = msgspec.field(default_factory=dict)
    wanted: dict[str, set[_Wanted]] = msgspec.field(default_factory=dict)
    verdicts: Mapping[str, Verdict] | None = None
    """As last handed out; None after a change."""

    def snapshot(self) -> Mapping[str, Verdict]:
        if self.verdicts is None:
            self.verdicts = {address: probe.verdict for address, probe in self.probes.items()}
        return self.verdicts


class Board:
    """The verdicts of one hub.

    Args:
        on_change: called with the targets that a changed verdict, or a suspicion, matters to.
        folder: of files with certificates (``--credentials-dir``).

    Attributes:
        suspected: failures count for nothing, since the prober is the suspect.
        probes: answers since the start: ``passed``, ``timeout``, ``failed``.
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
        self._lanes: WeakValueDictionary[str, Lane] = WeakValueDictionary()  # each goes with its last probe
        self._verdicts: Verdicts = NO_VERDICTS
        self._outdated = False
        self._doubtful = False
        """Something fails that is believed to be healthy."""
        self._looked_at = float("-inf")
        self._told = 0
        self._needed = asyncio.Event()

    # --- what targets want ------------------------------------------------------------------------

    def verdicts(self) -> Verdicts:
        """The verdicts of this moment."""
        if self._outdated:
            self._outdated = False
            self._verdicts = {check: checked.snapshot() for check, checked in self._checked.items()}
        return self._verdicts

    def follow(self, target: TargetKey, watches: Sequence[Watch], policies: Mapping[str, Policy]) -> None:
        """Probe exactly this for a target, from now on.

        Args:
            target: who asks.
            watches: what for, at most one for each source, family and check.
            policies: by cluster, which addresses may be contacted; without one, none.
        """
        old = self._followed.get(target)
        if not watches and old is None:
            return
        old = old or {}
        new: dict[tuple[str, str, Check], _Followed] = {}
        for each in watches:
            key, policy = (each.cluster, each.family, each.check), policies.get(each.cluster)
            known = old.get(key)
            if known is None or known.addresses is not each.addresses or known.policy is not policy:
                known = self._carry_out(target, each, policy, known)
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
        """Nobody asks any more: this hub does not write."""
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
            self._prober.add(probe, check.interval if start is not None else min(AT_ONCE, check.interval))
            self._note(checked)
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
                self._note(checked)
        if not checked.probes:
            del self._checked[check]

    def _opener(self, check: Check) -> Opener:
        if check.mode == "tcp":
            return lambda sock, _: TcpFlight(sock)
        if check.mode == "http":
            return lambda sock, address: HttpFlight(sock, check, address)
        trusted = self._trusts.get(trust_of(check))
        self._needed.set()

        def encrypted(sock: socket.socket, address: str) -> Flight | None:
            return HttpsFlight(sock, check, address, trusted.context) if trusted.context is not None else None

        return encrypted

    # --- what comes of it -------------------------------------------------------------------------

    def _answered(self, probe: Probe, outcome: str, now: float) -> None:
        """An answer; the common one, of a healthy address that is still so, costs next to nothing."""
        good = passed(outcome)
        self.probes["passed" if good else "timeout" if outcome == TIMED_OUT else "failed"] += 1
        probe.at = now
        probe.reason = outcome
        if good and probe.passing and probe.verdict:
            return
        if good is not probe.passing:
            probe.since = now
        check, before = probe.check, Standing(probe.verdict, probe.run, probe.passing)
        after = advance(before, passed=good, rise=check.rise, fall=check.fall, frozen=self.suspected)
        probe.verdict, probe.run, probe.passing = after
        if before.verdict and not good:
            self._doubtful = True
        if after.verdict is before.verdict:
            return
        probe.fallen = bool(before.verdict)
        if probe.fallen and self._look(now) and probe.verdict:
            return  # the prober is the suspect: the verdict is what it was
        self._tell(probe)
        self._changed(self._checked[check], probe.address)

    def _tell(self, probe: Probe) -> None:
        """Log a new verdict; of many at once, the first few and a number."""
        self._told += 1
        if self._told > TOLD:
            return
        level = logging.INFO if probe.verdict else logging.WARNING
        state = "healthy" if probe.verdict else "unhealthy"
        why = f": {probe.reason}" if probe.reason else ""
        log.log(level, "%s of %s is %s (%s)%s", probe.address, probe.lane.cluster, state, probe.check, why)

    def _tell_rest(self) -> None:
        if self._told > TOLD:
            log.warning("%d more addresses changed their verdict", self._told - TOLD)
        self._told = 0

    def _note(self, checked: _Checked) -> None:
        checked.verdicts = None
        self._outdated = True

    def _changed(self, checked: _Checked, address: str) -> None:
        self._note(checked)
        self._on_change({each.target for each in checked.wanted[address]})

    def standing(self) -> Mapping[tuple[str, str], int]:
        """How many addresses are probed: (cluster, ``healthy``, ``unhealthy`` or ``unknown``) -> number."""
        found: dict[tuple[str, str], int] = {}
        for probe in self._probes():
            verdict = {True: "healthy", False: "unhealthy", None: "unknown"}[probe.verdict]
            key = (probe.lane.cluster, verdict)
            found[key] = found.get(key, 0) + 1
        return found

    def reason(self, check: Check, address: str) -> str:
        """Why the last probe of an address failed; "" where it passed, or there was none."""
        checked = self._checked.get(check)
        probe = checked.probes.get(address) if checked is not None else None
        return probe.reason if probe is not None else ""

    def findings(self, watches: Sequence[Watch]) -> Iterator[Finding]:
        """What is wrong with the probing itself, as far as it concerns a target with these watches."""
        if self.suspected and watches:
            yield Finding(
                "ProberSuspected",
                "more than half of all healthy addresses, in several clusters, stopped answering at once: "
                "the hub or its network is the suspect, no address becomes unhealthy until they answer again",
            )
        for trust in {trust_of(each.check) for each in watches if each.check.mode == "https"}:
            if problem := self._trusts.problem(trust):
                yield Finding("ProbeCertificates", f"https checks rest: {problem}")

    # --- suspicion --------------------------------------------------------------------------------

    def _probes(self) -> Iterator[Probe]:
        for checked in self._checked.values():
            yield from checked.probes.values()

    def _seen(self, now: float) -> Iterator[Seen]:
        """Everything whose verdict is healthy, or was when its failures began a moment ago."""
        for probe in self._probes():
            recent = probe.fallen and probe.since >= now - probe.check.interval * SLACK
            if (probe.verdict or (probe.verdict is False and recent)) and probe.passing is not None:
                yield Seen(probe.lane.cluster, probe.passing, probe.at, probe.since, probe.check.interval)

    def _look(self, now: float) -> bool:
        """Begin or end a suspicion, where it is time; whether there is one."""
        if now - self._looked_at < LOOK and not self.suspected:
            return False
        self._looked_at = now
        if self.suspected:
            if calm(self._seen(now)):
                self.suspected = False
                log.warning("probes are trusted again")
                self._on_change(list(self._followed))
        elif self._doubtful:
            seen = list(self._seen(now))
            self._doubtful = not all(each.passing for each in seen)
            if suspicious(seen, now):
                self._suspect(now, sum(not each.passing for each in seen), len(seen))
        return self.suspected

    def _suspect(self, now: float, failing: int, total: int) -> None:
        self.suspected = True
        log.warning(
            "%d of %d healthy addresses stopped answering at once: this hub is the suspect, verdicts are frozen",
            failing,
            total,
        )
        for probe in self._probes():
            if probe.verdict is False and probe.fallen and probe.since >= now - probe.check.interval * SLACK:
                probe.verdict, probe.run, probe.fallen = True, 0, False
                self._note(self._checked[probe.check])
        self._on_change(list(self._followed))

    # --- running ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe while somebody asks; until cancelled."""
        while True:
            await self._needed.wait()
            probing = asyncio.create_task(self._prober.run(), name="prober")
            certificates = "certificates of https checks"
            trusting = asyncio.create_task(supervise(certificates, self._trust, self._clock), name=certificates)
            try:
                while self._followed and not probing.done():
                    self._look(self._clock.now())
                    self._tell_rest()
                    await self._clock.sleep(LOOK if self._doubtful or self.suspected else ROUND)
                if not self._followed:
                    self._needed.clear()
            finally:
                trusting.cancel()
                probing.cancel()
                await asyncio.wait({trusting})
                with suppress(asyncio.CancelledError):
                    await probing

    async def _trust(self) -> None:
        """Look after the certificates: beside the verdicts, which wait for no file."""
        while True:
            await self._trusts.refresh(self._clock.now())
            await self._clock.sleep(ROUND)

    async def judge(self, ask: Callable[[], object], seconds: float) -> None:
        """Probe what ``ask`` has followed until there is a verdict on every address, at most ``seconds``."""
        running = asyncio.create_task(self.run(), name="health checks")
        try:
            ask()
            until = self._clock.now() + seconds
            while self._clock.now() < until and any(probe.verdict is None for probe in self._probes()):
                await self._clock.sleep(LOOK)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
