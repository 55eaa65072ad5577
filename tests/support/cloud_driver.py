"""Drives a cloud's load balancers without a hub: observe, plan, perform, with interruptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from hub.cloud.balancers import Balancer, Done, Intent, Marker, Notice, Planned, Record
from hub.cloud.balancers import Step as CloudStep
from hub.controller.course import LAG
from hub.plugin.clouds import Balancers, CloudConflict, Uncertain, Wait

NAME: Final = "web.edge.eu"
MARKER: Final = Marker("cluster-1", "service-1")
ROUNDS: Final = 60


@dataclass
class Driver:
    """A cloud, and what a hub remembers about one Service.

    Attributes:
        kinds: of the objects that the hub creates.
        record: in the cluster; it outlives a process.
        made: in the process.
    """

    kinds: ClassVar[tuple[str, ...]]

    balancers: Balancers
    record: Record = field(default_factory=lambda: Record(NAME, MARKER))
    made: list[tuple[float, CloudStep, Done]] = field(default_factory=list)

    def now(self) -> float:
        """The cloud's clock; the answers to steps count for as long as in a hub."""
        return 0.0

    def pass_time(self, seconds: float) -> None:
        """Time passes while the cloud is waited for."""

    async def observe(self, *wanted: Balancer) -> Any:
        """An observation, with the answers to earlier steps."""
        self.made = [made for made in self.made if self.now() < made[0] + LAG]
        seen = await self.balancers.observe(wanted)
        for _, step, done in self.made:
            seen = self.balancers.after(seen, step, done)
        return seen

    async def plan(self, want: Balancer | None) -> list[Planned]:
        """The plan for a new observation."""
        seen = await self.observe(*((want,) if want is not None else ()))
        return list(self.balancers.plan(want, seen, self.record))

    async def first(self, want: Balancer | None) -> Planned | None:
        """What comes first in the plan, notices aside."""
        return next((item for item in await self.plan(want) if not isinstance(item, Notice)), None)

    async def notices(self, want: Balancer | None) -> list[str]:
        """The reasons of the notices in the plan."""
        return [item.reason for item in await self.plan(want) if isinstance(item, Notice)]

    async def step(self, want: Balancer | None) -> Planned | None:
        """Make what comes first, if it is a step; as in a hub, the intent is in the record before a creation."""
        first = await self.first(want)
        if isinstance(first, CloudStep):
            if first.creates and self.record.intent is None:
                made = tuple(dict.fromkeys((*self.record.made, *self.kinds)))
                self.record = msgspec.structs.replace(self.record, made=made, intent=Intent(0.0, self.kinds))
            done = await self.balancers.perform(first)
            self.made.append((self.now(), first, done))
        return first

    async def settle(self, want: Balancer | None, until: Callable[[Planned], bool] = lambda _: False) -> list[str]:
        """Make steps until nothing is left to do, or ``until`` says so; returns the steps that were made.

        Raises:
            AssertionError: there is no end.
        """
        steps: list[str] = []
        for _ in range(ROUNDS):
            try:
                first = await self.step(want)
            except (Uncertain, CloudConflict):
                continue
            if first is None:
                await self.publish(want)
            elif isinstance(first, CloudStep):
                steps.append(first.kind)
            elif isinstance(first, Wait):
                self.pass_time(first.after)
            if first is None or until(first):
                return steps
        raise AssertionError(f"no end after {ROUNDS} rounds: {steps}")

    async def publish(self, want: Balancer | None) -> None:
        """Write the record, as a hub does at the end."""
        found = self.balancers.found(await self.observe(), self.record)
        settings = tuple(sorted(want.settings)) if want is not None else ()
        self.record = msgspec.structs.replace(self.record, ids=found, set=settings, intent=None)

    def killed(self) -> None:
        """A new process: nothing is known but the record."""
        self.made = []

    def dies(self, _: Planned) -> bool:
        """For ``until`` of :meth:`settle`: each step is made by a process of its own."""
        self.killed()
        return False
