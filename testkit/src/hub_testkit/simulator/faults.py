"""What can go wrong on purpose: an ordered list of faults, each for some requests, for a while or for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from hub_testkit.simulator.answers import Refusal

Action = Literal["answer", "hang", "garbage", "cut", "lose"]


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        action: ``answer`` with an error, ``hang`` until healed, ``garbage`` with status 200, ``cut`` the connection
            instead of answering, ``lose`` the answer after having done what was asked.
        verb, resource: which requests; None is any.
        remaining: how many more requests; None is until healed.
    """

    action: Action
    verb: str | None = None
    resource: str | None = None
    remaining: int | None = None
    status: int = 500
    message: str = ""
    reason: str | None = None
    retry_after: float | None = None
    body: bytes = b""
    content_type: str = "text/html"
    healed: asyncio.Event = field(default_factory=asyncio.Event)

    def hits(self, verb: str, resource: str) -> bool:
        """Whether a request is meant."""
        return self.verb in (None, verb) and self.resource in (None, resource)

    @property
    def refusal(self) -> Refusal:
        """The answer of an ``answer`` fault."""
        return Refusal(self.status, self.message or f"simulated {self.status}", self.reason)


class Faults:
    """All faults under way."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._hanging: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Let it go wrong from now on; earlier faults come first."""
        self._faults.append(fault)

    def take(self, verb: str, resource: str) -> Fault | None:
        """The fault that hits this request, if any; counts it."""
        for fault in self._faults:
            if fault.hits(verb, resource):
                if fault.remaining is not None:
                    fault.remaining -= 1
                    if fault.remaining <= 0:
                        self._faults.remove(fault)
                if fault.action == "hang":
                    self._hanging.append(fault)
                return fault
        return None

    async def until_unfrozen(self, resource: str) -> None:
        """Wait while watches of this resource hang: a frozen server writes to no stream."""
        for fault in tuple(self._faults):
            if fault.action == "hang" and fault.remaining is None and fault.hits("watch", resource):
                await fault.healed.wait()

    def heal(self) -> None:
        """End all faults; what hung goes on."""
        for fault in (*self._faults, *self._hanging):
            fault.healed.set()
        self._faults.clear()
        self._hanging.clear()
