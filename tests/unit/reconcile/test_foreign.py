"""Slices that other controllers wrote: which targets are checked, and when."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

from hub.errors import ClusterUnreachable, HubError
from hub.model import Finding, TargetKey
from hub.reconcile.foreign import IDLE, LISTED, PACE, PERIOD, ROUND_SIZE, ForeignSlices
from tests.support.virtual import LoopClock, VirtualLoop

ONE = b'{"items":[{"metadata":{"name":"old","labels":{"endpointslice.kubernetes.io/managed-by":"somebody"}}}]}'


def key(number: int) -> TargetKey:
    """The key of a target."""
    return TargetKey("edge", f"s{number:03}")


class World:
    """An API server in which every Service has a slice of another controller."""

    def __init__(self, targets: int) -> None:
        self.targets = [key(number) for number in range(targets)]
        self.lost: set[TargetKey] = set()
        self.looks: list[tuple[float, TargetKey]] = []
        self.found: list[TargetKey] = []
        self.told: list[Finding] = []
        self.adopts: dict[TargetKey, str] = {}
        self.answer: bytes | HubError = ONE
        self.foreign = ForeignSlices(
            self,  # type: ignore[arg-type]  # the one method of a Client that is called
            LoopClock(),
            lambda: ("hub",),
            lambda: self.targets,
            lambda each: each not in self.lost,
            self.report,
            lambda each: self.adopts.get(each, ""),
        )

    async def request(self, method: str, path: str, *, params: dict[str, str], timeout: float) -> bytes:  # noqa: ASYNC109
        """Answer a list of slices."""
        name = params["labelSelector"].partition(",")[0].partition("=")[2]
        self.looks.append((asyncio.get_running_loop().time() - self.began, TargetKey("edge", name)))
        if isinstance(self.answer, HubError):
            raise self.answer
        return self.answer

    def report(self, target: TargetKey, findings: tuple[Finding, ...]) -> None:
        """Note the findings of a check."""
        self.found.extend([target] * len(findings))
        self.told.extend(findings)

    def run(self, *acts: tuple[float, Any]) -> None:
        """Run the checks in virtual time; call each act at its time, the last one at the end."""

        async def main() -> None:
            self.began = asyncio.get_running_loop().time()
            looking = asyncio.create_task(self.foreign.run())
            for at, act in acts:
                await asyncio.sleep(self.began + at - asyncio.get_running_loop().time())
                act()
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())


def nothing() -> None:
    """Do nothing until the end."""


def test_every_target_is_looked_at_once_in_ten_minutes() -> None:
    """Every target is checked once in ten minutes, at most five in a second."""
    world = World(3 * ROUND_SIZE)

    def once() -> None:
        assert [target for _, target in world.looks] == world.found == world.targets

    world.run((PERIOD - 1, once), (2 * PERIOD - 1, nothing))
    assert [target for _, target in world.looks] == 2 * world.targets
    times = [at for at, _ in world.looks]
    assert min(after - before for before, after in pairwise(times)) > PACE - 0.001


def test_a_new_target_comes_before_those_that_were_looked_at() -> None:
    """A new target is checked within one round, before those that were checked already."""
    world = World(100 * ROUND_SIZE)
    new = TargetKey("edge", "a-new-one")
    world.run((100.0, lambda: world.targets.append(new)), (100.0 + 2 * IDLE, nothing))
    [seen] = [at for at, target in world.looks if target == new]
    assert seen <= 100.0 + IDLE + PACE


def test_a_target_that_was_lost_meanwhile_is_not_looked_at() -> None:
    """A target that another replica took over is not checked: its finding would never be withdrawn."""
    world = World(ROUND_SIZE)
    world.run((2.5 * PACE, lambda: world.lost.update(world.targets)), (2 * PERIOD, nothing))
    assert [target for _, target in world.looks] == world.targets[:3]


def test_a_target_without_a_look_is_waited_for() -> None:
    """Without any target, the next search comes after the idle time."""
    world = World(0)
    world.run((7.0, lambda: world.targets.append(key(1))), (20.0, nothing))
    assert [at for at, _ in world.looks] == [2 * IDLE]


def test_foreign_finding_names_slices_and_controllers() -> None:
    """The finding has the sorted names of the slices and of their controllers, also of one without a label."""
    world = World(1)
    named = [{"metadata": {"name": f"old-{number:03}", "labels": {}}} for number in range(LISTED + 5)]
    named[3]["metadata"]["labels"] = {"endpointslice.kubernetes.io/managed-by": "somebody"}
    world.answer = json.dumps({"items": named[::-1]}).encode()
    world.run((1.0, nothing))
    [finding] = world.told
    assert finding.reason == "ForeignEndpoints"
    assert finding.message == (
        f"{LISTED + 5} slices of other controllers are published for this Service too: an unnamed controller, somebody"
    )
    assert finding.objects == tuple(f"old-{number:03}" for number in range(LISTED))


def test_no_foreign_slices_withdraw_the_finding() -> None:
    """A check without foreign slices reports no finding, which withdraws the last one."""
    world = World(1)
    world.answer = b'{"items":[]}'
    world.run((1.0, nothing))
    assert (len(world.looks), world.found) == (1, [])


def test_slices_that_a_target_adopts_are_not_reported() -> None:
    """Slices that the target adopts are left out; endpoint-copier's have no managed-by label, others are reported."""
    labels = [
        {"endpointslice.kubernetes.io/managed-by": "old-controller"},
        {"endpoint-copier/source": "web"},
        {"endpoint-copier/source": "web", "endpointslice.kubernetes.io/managed-by": "somebody"},
    ]
    items = [{"metadata": {"name": f"s{number}", "labels": each}} for number, each in enumerate(labels)]
    world = World(3)
    world.answer = json.dumps({"items": items}).encode()
    world.adopts = {key(1): "old-controller", key(2): "endpoint-copier"}
    world.run((PERIOD - 1, nothing))
    assert [finding.objects for finding in world.told] == [("s0", "s1", "s2"), ("s1", "s2"), ("s0", "s2")]


def test_failed_check_reports_nothing() -> None:
    """After a lost connection or an unreadable answer nothing is reported, and the next check comes as usual."""
    for answer in (ClusterUnreachable("gone"), b"<html>", b'{"items":[{}]}'):
        world = World(1)
        world.answer = answer
        world.run((PERIOD + 2 * IDLE, nothing))
        assert (len(world.looks), world.found) == (2, [])
