"""Faults on request: an ordered list. Each matches some requests, and lasts for a number of them or until healed."""

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
            instead of answering, ``lose`` the answer after processing the request.
        verb, resource: The requests that match; None = any.
        remaining: How many more requests it affects; None = all until healed.
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

    def matches(self, verb: str, resource: str) -> bool:
        """Whether the fault affects a request."""
        return self.verb in (None, verb) and self.resource in (None, resource)

    @property
    def refusal(self) -> Refusal:
        """The error of an ``answer`` fault."""
        return Refusal(self.status, self.message or f"simulated {self.status}", self.reason)


class Faults:
    """All faults in effect."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._hanging: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Adds a fault; it takes effect after earlier faults that match the same requests."""
        self._faults.append(fault)

    def next_for(self, verb: str, resource: str) -> Fault | None:
        """Returns the first fault that matches the request, and counts it; None if there is none."""
        for fault in self._faults:
            if fault.matches(verb, resource):
                if fault.remaining is not None:
                    fault.remaining -= 1
                    if fault.remaining <= 0:
                        self._faults.remove(fault)
                if fault.action == "hang":
                    self._hanging.append(fault)
                return fault
        return None

    async def until_unfrozen(self, resource: str) -> None:
        """Waits while watches of this resource hang: a frozen server sends nothing."""
        for fault in tuple(self._faults):
            if fault.action == "hang" and fault.remaining is None and fault.matches("watch", resource):
                await fault.healed.wait()

    def heal(self) -> None:
        """Ends all faults, and lets hanging requests continue."""
        for fault in (*self._faults, *self._hanging):
            fault.healed.set()
        self._faults.clear()
        self._hanging.clear()
