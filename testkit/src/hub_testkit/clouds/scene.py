"""An open cloud and its fake, driven as the hub drives it: observe, plan, make the first step, and again."""

# ruff: noqa: S101 - these are parts of tests

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import msgspec

from hub.errors import ProviderError
from hub.plugin.clouds import (
    Balancer,
    BalancerNode,
    BalancerPort,
    Balancers,
    Cloud,
    CloudNode,
    CloudType,
    Done,
    Intent,
    Marker,
    Notice,
    Planned,
    Record,
    Refused,
    Setting,
    Step,
    Wait,
)
from hub_testkit.clouds.fake import CloudFake, CloudObject, World

DEADLINE: Final = 20.0
"""Seconds that one call may take in a test."""

ROUNDS: Final = 40
"""Rounds of observing, planning and making one step within which everything is as wanted."""

NAME: Final = "web.edge.kit"
MARKER: Final = Marker("kit-cluster", "kit-service")
OTHERS: Final = Marker("another-cluster", "another-service")


class Made(NamedTuple):
    """A step that was made: the observation on which it was planned, and the answer."""

    seen: Any
    step: Step
    done: Done


@dataclass(slots=True)
class Scene:
    """An open cloud and its fake, and what a hub remembers about one Service.

    Attributes:
        world: the running fake.
        type: the cloud's declaration.
        cloud: the open cloud.
        reopen: opens the cloud again, as a new process does.
        ports: the ports of the Service.
        record: the Service's record; it outlives a process.
        made: the steps that this process has made.
        number: how many machines there have been.
    """

    world: World
    type: CloudType
    cloud: Cloud
    reopen: Callable[[], Awaitable[Cloud]]
    ports: Sequence[BalancerPort]
    record: Record = field(default_factory=lambda: Record(NAME, MARKER))
    made: list[Made] = field(default_factory=list[Made])
    number: int = 0

    @property
    def fake(self) -> CloudFake:
        """The fake."""
        return self.world.fake

    @property
    def balancers(self) -> Balancers:
        """The cloud's load balancers."""
        found = self.cloud.balancers
        assert found is not None, "the cloud has no load balancers: write parts=frozenset({'nodes'}) in its CloudType"
        return found

    def machines(self, number: int) -> list[CloudNode]:
        """Creates machines, and returns their Nodes, sorted by the machine's id."""
        self.number += number
        names = [f"kit-{index}" for index in range(self.number - number, self.number)]
        return sorted(map(self.fake.add_machine, names), key=self.id)

    def id(self, node: CloudNode) -> str:
        """The id of a Node's machine."""
        found = self.type.provider_id.fullmatch(node.provider_id)
        assert found, f"CloudType.provider_id does not match {node.provider_id!r}, of a Node of the cloud's own machine"
        return str(found["id"])

    def want(
        self,
        machines: Sequence[CloudNode],
        settings: Mapping[str, Setting] | None = None,
        ports: Sequence[BalancerPort] = (),
    ) -> Balancer:
        """What a Service wants: these machines behind these ports."""
        nodes = tuple(
            BalancerNode(f"n{index:02}", node.provider_id, node.addresses) for index, node in enumerate(machines)
        )
        return Balancer(NAME, MARKER, tuple(ports or self.ports), nodes, settings=settings or {})

    # --- as the hub does -------------------------------------------------------------------------------------

    async def observe(self, want: Balancer | None) -> Any:
        """An observation, with the steps that this process has made."""
        async with asyncio.timeout(DEADLINE):
            seen = await self.balancers.observe(() if want is None else (want,))
        for made in self.made:
            seen = self.balancers.after(seen, made.step, made.done)
        return seen

    def full(self) -> Record:
        """The record, with what this process has created since it was written."""
        ids = {kind: id_ for made in self.made for kind, id_ in made.done.ids.items()}
        return msgspec.structs.replace(self.record, ids={**self.record.ids, **ids})

    def planned(self, want: Balancer | None, seen: Any) -> list[Planned]:
        """The plan, without notices."""
        plan = self.balancers.plan(want, seen, self.full())
        return [item for item in plan if not isinstance(item, Notice)]

    async def plan(self, want: Balancer | None) -> list[Planned]:
        """The plan for a new observation, without notices."""
        return self.planned(want, await self.observe(want))

    async def perform(self, step: Step) -> Done:
        """Make one step."""
        async with asyncio.timeout(DEADLINE):
            return await self.balancers.perform(step)

    async def first(self, want: Balancer | None) -> Planned | None:
        """Make what comes first, if it is a step; the intent is in the record before a creation."""
        seen = await self.observe(want)
        plan = self.planned(want, seen)
        first = next(iter(plan), None)
        if isinstance(first, Step):
            kinds = tuple(dict.fromkeys(item.creates for item in plan if isinstance(item, Step) and item.creates))
            if first.creates and first.creates not in (self.record.intent or Intent()).make:
                made = tuple(dict.fromkeys((*self.record.made, *kinds)))
                self.record = msgspec.structs.replace(self.record, made=made, intent=Intent(0.0, kinds))
            self.made.append(Made(seen, first, await self.perform(first)))
        return first

    async def settle(
        self, want: Balancer | None, *, killed: bool = False, refused: bool = False, waits: bool = False
    ) -> list[Made]:
        """Make steps until nothing is left to do; returns them.

        Args:
            want: what the Service wants.
            killed: whether each step is made by a process of its own, also after an error.
            refused: whether the plugin may refuse what the Service wants.
            waits: whether the plugin may wait for ever.
        """
        made: list[Made] = []
        first: Planned | None = None
        for _ in range(ROUNDS):
            try:
                first = await self.first(want)
                made += self.made[-1:] if isinstance(first, Step) else []
            except ProviderError:
                if not killed:
                    raise
                await self.restart()
                continue
            if killed:
                self.made = []
            if first is None or (refused and isinstance(first, Refused)):
                await self.publish(want)
                return made
            assert not isinstance(first, Refused), f"the plan refuses what the rules want: {first}"
            if isinstance(first, Wait):
                await asyncio.sleep(min(first.after, 0.02))
        if waits and isinstance(first, Wait):
            return made
        texts = [each.step.summary for each in made[-6:]]
        text = f"after {ROUNDS} rounds there is still something to do: {first}"
        raise AssertionError(f"{text}; the last steps were {texts}")

    async def restart(self) -> None:
        """Another process goes on: it knows nothing but the record."""
        self.cloud, self.made = await self.reopen(), []

    async def publish(self, want: Balancer | None) -> None:
        """Write the record, as the hub does at the end."""
        found = self.balancers.found(await self.observe(want), self.full())
        names = tuple(sorted(want.settings)) if want is not None else ()
        self.record = msgspec.structs.replace(self.record, ids=dict(found), set=names, intent=None)

    # --- the truth -------------------------------------------------------------------------------------------

    def ours(self, *foreign: Collection[str]) -> list[str]:
        """All objects but these, in a form that two runs can be compared by: ids are replaced by kinds and names."""
        objects = self.fake.objects()
        shown = {id_: f"<{each.kind} {each.name}>" for id_, each in objects.items()}
        skipped = {id_ for ids in foreign for id_ in ids}
        return sorted(
            json.dumps([each.kind, each.name, _replaced(each.state, shown)], sort_keys=True)
            for id_, each in objects.items()
            if id_ not in skipped
        )

    def kept(self, foreign: Mapping[str, CloudObject]) -> None:
        """Fails unless these objects are as they were."""
        now = self.fake.objects()
        for id_, each in foreign.items():
            assert now.get(id_) == each, f"{each.kind} {id_} called {each.name} is not ours, and is now {now.get(id_)}"


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """A JSON value with other texts, and with sorted lists."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        return {key: _replaced(each, texts) for key, each in items.items()}
    if isinstance(value, list | tuple):
        parts = cast("Sequence[Any]", value)
        return sorted((_replaced(each, texts) for each in parts), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def renamed(plan: Sequence[Planned], nodes: Sequence[CloudNode], ids: Sequence[str]) -> str:
    """The steps of a plan as text, with numbers for machines and their addresses; sorted lists stay sorted."""
    numbers = {id_: f"<{number}>" for number, id_ in enumerate(ids)}
    for number, node in enumerate(nodes):
        numbers |= {found.address: f"<{number} {index}>" for index, found in enumerate(node.addresses)}
    words = "|".join(re.escape(word) for word in sorted(numbers, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({words})(?![\w-])")

    def text(value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda found: numbers[found[0]], value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value)
            return {key: changed(each) for key, each in items.items()}
        if isinstance(value, list | tuple):
            parts = [*cast("Sequence[Any]", value)]
            found = [changed(each) for each in parts]
            return sorted(found, key=text) if parts == sorted(parts, key=text) else found
        return value

    steps = [item for item in plan if isinstance(item, Step)]
    return text([(step.kind, step.creates, changed(msgspec.to_builtins(step.request))) for step in steps])
