"""What one target remembers of its writes: what was refused, what is held back, what is wrong.

Values in, values out; the caller brings the time. Everything in here ends by itself: a refusal is tried
again later, since whoever refused (an admission policy, a foreign slice) may have changed its mind.
"""

from __future__ import annotations

from typing import Final

import msgspec

from hub.decide.plan import Plan
from hub.model import Finding
from hub.reconcile.repeats import Held, Repeats
from hub.reconcile.writer import Outcome
from hub.runtime.backoff import Backoff

REFUSED_FOR: Final = 600.0
"""Seconds before a refused address, or a slice name that another writer owns, is tried again."""
AWAY_FIRST, AWAY_CAP = 2.0, 60.0
"""Seconds between attempts to write into a namespace that is missing or being deleted."""


class _Refusal(msgspec.Struct):
    message: str
    until: float


class WriteMemory(msgspec.Struct):
    """What is remembered of one target's writes.

    Attributes:
        problem: why the last write did not succeed, in words; "" where it did or there was none.
    """

    problem: str = ""
    _refused: dict[str, _Refusal] = msgspec.field(default_factory=dict)
    _foreign: dict[str, float] = msgspec.field(default_factory=dict)
    _repeats: Repeats = msgspec.field(default_factory=Repeats)
    _blocked: dict[str, str] = msgspec.field(default_factory=dict)
    _away: Backoff = msgspec.field(default_factory=lambda: Backoff(AWAY_FIRST, AWAY_CAP, jitter=0.2))
    _away_until: float = 0.0
    _away_uid: str = ""

    # --- for deciding -----------------------------------------------------------------------------

    def expire(self, now: float) -> float | None:
        """Forget refusals that are over; seconds until the next one is."""
        if not (self._refused or self._foreign):
            return None
        self._refused = {address: each for address, each in self._refused.items() if now < each.until}
        self._foreign = {name: until for name, until in self._foreign.items() if now < until}
        ends = [each.until for each in self._refused.values()]
        return min(ends) - now if ends else None

    @property
    def refused(self) -> frozenset[str]:
        """Addresses that the API server refuses."""
        return frozenset(self._refused)

    @property
    def foreign(self) -> frozenset[str]:
        """Names of slices that are not ours."""
        return frozenset(self._foreign)

    def findings(self, now: float) -> list[Finding]:
        """Findings about refused and contended writes."""
        found = []
        if self._refused:
            some = min(self._refused)
            message = f"the API server refuses {len(self._refused)} addresses, such as {some}: "
            found.append(
                Finding("InvalidAddressSkipped", message + self._refused[some].message, tuple(sorted(self._refused)))
            )
        if self._foreign:
            found.append(Finding("ForeignSlice", "names taken by slices of others", tuple(sorted(self._foreign))))
        if self._blocked:
            some = min(self._blocked)
            message = f"the API server refuses {len(self._blocked)} slices, such as {some}: {self._blocked[some]}"
            found.append(Finding("SliceRefused", message, tuple(sorted(self._blocked))))
        if contended := self._repeats.contended(now):
            message = "somebody else keeps changing slices; they are set back after growing delays"
            found.append(Finding("SliceContended", message, contended))
        return found

    # --- for writing ------------------------------------------------------------------------------

    def allow(self, plan: Plan, uid: str, now: float) -> Held:
        """What of a plan may be written now; ``uid`` is the Service's: a new one may have a new namespace."""
        if now < self._away_until and uid == self._away_uid and (plan.creates or plan.updates):
            return Held(Plan(unchanged=plan.unchanged), self._away_until)
        return self._repeats.allow(plan, now)

    def note(self, outcome: Outcome, uid: str, now: float) -> list[str]:
        """Enter what became of a plan; returns what is new and worth a warning."""
        news: list[str] = []
        for operation, value in outcome.done:
            self._repeats.done(value.name, None if operation == "delete" else value, now)
            self._blocked.pop(value.name, None)
        for address, message in sorted(outcome.refused_addresses.items()):
            news.append(f"the API server refuses {address}: {message}; it is left out")
            self._refused[address] = _Refusal(message, now + REFUSED_FOR)
        for name in sorted(outcome.foreign):
            if name not in self._foreign:
                news.append(f"slice {name} is not ours; another name is used")
            self._foreign[name] = now + REFUSED_FOR
        # Whoever has to stay is planned with its address again; else the slice without it may be all that it takes.
        blamed = [each for each in outcome.blamed if self._repeats.done(each[0].name, each[0], now, refused=True)]
        for value, _ in outcome.blocked:
            self._repeats.done(value.name, value, now, refused=True)
        for value, message in (*blamed, *outcome.blocked):
            if self._blocked.get(value.name) != message:
                news.append(f"slice {value.name} is refused: {message}")
            self._blocked[value.name] = message
        self._repeats.forget_deleted(now)
        old, self.problem = self.problem, self._problem_after(outcome)
        if outcome.missing_namespace:
            self._away_uid, self._away_until = uid, now + self._away.next(now)
            if self.problem != old:
                news.append(self.problem)
        return news

    def unanswered(self, why: str) -> None:
        """There was no answer: what became of the write shows later."""
        self.problem = why

    def settled(self) -> None:
        """Nothing is to be written: what was refused is no longer wanted."""
        if self.problem or self._blocked:
            self.problem = ""
            self._blocked = {}

    def _problem_after(self, outcome: Outcome) -> str:
        if outcome.missing_namespace:
            return "its namespace does not exist or is being deleted"
        if outcome.failure is not None:
            return f"{outcome.failure.status}: {outcome.failure.message or outcome.failure.reason}"
        return "; ".join(f"slice {name} is refused: {why}" for name, why in sorted(self._blocked.items()))
