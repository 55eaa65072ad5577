"""Remembers the writes of one target: refused addresses and slices, repeated writes, and the last problem.

No I/O and no clock: the caller passes the time. Every refusal expires, and the write is tried again, because the cause
(an admission policy, a foreign slice) may be gone by then.
"""

from __future__ import annotations

from typing import Final

import msgspec

from hub.decide.plan import Plan
from hub.model import Finding
from hub.reconcile.repeats import AllowedPlan, Repeats
from hub.reconcile.writer import Outcome
from hub.runtime.backoff import Backoff

REFUSED_FOR: Final = 600.0
"""Seconds before a refused address, or a slice name that another writer owns, is tried again."""
NAMESPACE_FIRST, NAMESPACE_CAP = 2.0, 60.0
"""Seconds between attempts to write into a namespace that is missing or being deleted."""


class _Refusal(msgspec.Struct):
    message: str
    until: float


class WriteMemory(msgspec.Struct):
    """The memory of one target's writes.

    Attributes:
        problem: why the last write failed; "" if it succeeded, or there was none.
    """

    problem: str = ""
    _refused: dict[str, _Refusal] = msgspec.field(default_factory=dict)
    _foreign: dict[str, float] = msgspec.field(default_factory=dict)
    _repeats: Repeats = msgspec.field(default_factory=Repeats)
    _blocked: dict[str, str] = msgspec.field(default_factory=dict)
    _namespace_backoff: Backoff = msgspec.field(
        default_factory=lambda: Backoff(NAMESPACE_FIRST, NAMESPACE_CAP, jitter=0.2)
    )
    _namespace_retry_at: float = 0.0
    _namespace_uid: str = ""

    # --- for deciding -----------------------------------------------------------------------------

    def expire(self, now: float) -> float | None:
        """Forget refusals that have ended; return the seconds until the next refusal of an address ends, or None."""
        if not (self._refused or self._foreign):
            return None
        self._refused = {address: refusal for address, refusal in self._refused.items() if now < refusal.until}
        self._foreign = {name: until for name, until in self._foreign.items() if now < until}
        ends = [refusal.until for refusal in self._refused.values()]
        return min(ends) - now if ends else None

    @property
    def refused(self) -> frozenset[str]:
        """Addresses that the API server refuses."""
        return frozenset(self._refused)

    @property
    def foreign(self) -> frozenset[str]:
        """Names that slices of other controllers have, so that ours cannot."""
        return frozenset(self._foreign)

    def findings(self, now: float) -> list[Finding]:
        """Findings about refused and contended writes."""
        found = []
        if self._refused:
            first = min(self._refused)
            message = f"the API server refuses {len(self._refused)} addresses, such as {first}: "
            found.append(
                Finding("InvalidAddressSkipped", message + self._refused[first].message, tuple(sorted(self._refused)))
            )
        if self._foreign:
            found.append(
                Finding("ForeignSlice", "names in use by slices of other controllers", tuple(sorted(self._foreign)))
            )
        if self._blocked:
            first = min(self._blocked)
            message = f"the API server refuses {len(self._blocked)} slices, such as {first}: {self._blocked[first]}"
            found.append(Finding("SliceRefused", message, tuple(sorted(self._blocked))))
        if contended := self._repeats.contended(now):
            message = "another client keeps changing slices; the hub restores them after growing delays"
            found.append(Finding("SliceContended", message, contended))
        return found

    # --- for writing ------------------------------------------------------------------------------

    def allow(self, plan: Plan, uid: str, now: float) -> AllowedPlan:
        """Return the part of a plan that may be written now.

        Args:
            plan: the plan.
            uid: UID of the Service. After an attempt in a missing namespace, writes wait; a Service with another UID
                does not wait, because its namespace may be a new one.
            now: seconds of a monotonic clock.
        """
        if now < self._namespace_retry_at and uid == self._namespace_uid and (plan.creates or plan.updates):
            return AllowedPlan(Plan(unchanged=plan.unchanged), self._namespace_retry_at)
        return self._repeats.allow(plan, now)

    def note(self, outcome: Outcome, uid: str, now: float) -> list[str]:
        """Remember the outcome of a plan; return the warnings to log.

        Args:
            outcome: the outcome of the plan's writes.
            uid: UID of the Service, see :meth:`allow`.
            now: seconds of a monotonic clock.
        """
        news: list[str] = []
        for operation, value in outcome.done:
            self._repeats.remember(value.name, None if operation == "delete" else value, now)
            self._blocked.pop(value.name, None)
        for address, message in sorted(outcome.refused_addresses.items()):
            news.append(f"the API server refuses {address}: {message}; it is left out")
            self._refused[address] = _Refusal(message, now + REFUSED_FOR)
        for name in sorted(outcome.foreign):
            if name not in self._foreign:
                news.append(f"slice {name} is not ours; another name is used")
            self._foreign[name] = now + REFUSED_FOR
        # The next plan leaves the refused addresses out, which usually solves it. A slice that is refused again with
        # the same content has an address that must stay, for example one that is published already: it is blocked.
        blamed = [
            (value, message)
            for value, message in outcome.blamed
            if self._repeats.remember(value.name, value, now, refused=True)
        ]
        for value, _ in outcome.blocked:
            self._repeats.remember(value.name, value, now, refused=True)
        for value, message in (*blamed, *outcome.blocked):
            if self._blocked.get(value.name) != message:
                news.append(f"slice {value.name} is refused: {message}")
            self._blocked[value.name] = message
        self._repeats.forget_deleted(now)
        old, self.problem = self.problem, self._problem_after(outcome)
        if outcome.missing_namespace:
            self._namespace_uid, self._namespace_retry_at = uid, now + self._namespace_backoff.next(now)
            if self.problem != old:
                news.append(self.problem)
        return news

    def unanswered(self, why: str) -> None:
        """Note that a write got no answer: whether it was carried out is not known."""
        self.problem = why

    def settled(self) -> None:
        """Note that a plan had no writes, so the refused slices are no longer wanted."""
        if self.problem or self._blocked:
            self.problem = ""
            self._blocked = {}

    def _problem_after(self, outcome: Outcome) -> str:
        if outcome.missing_namespace:
            return "its namespace does not exist or is being deleted"
        if outcome.failure is not None:
            return f"{outcome.failure.status}: {outcome.failure.message or outcome.failure.reason}"
        return "; ".join(f"slice {name} is refused: {why}" for name, why in sorted(self._blocked.items()))
