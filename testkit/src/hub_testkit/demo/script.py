"""What happens in the demo, and when: a pure function of a seed.

An act of 24 seconds shows everything once; it is shortened or stretched to the time there is, or repeated
with other nodes. The end of a show is quiet, so that whatever was out of order has time to come back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from hub_testkit.demo.layout import AP, CLUSTERS, EU, POOLS, US, Cluster

Action = Literal[
    "fail", "recover", "join", "cordon", "leave", "blip", "calm", "dark", "light", "cloud-down", "cloud-up"
]

SEED: Final = 7
ACT: Final = 24.0
"""Seconds of one act."""
SHORTEST: Final = 4.0
"""A shorter show has no act: nobody could follow it."""
QUIET: Final = 5.0
"""Seconds at the end of a show without incidents: about the longest that a reflector waits between two looks
at a cluster that was dark for a few seconds (0.8 s doubling, jittered up to twofold)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One incident.

    Attributes:
        at: seconds after the start of the show.
        cluster: name; "" where it concerns none.
        node: name; "" where it concerns a whole cluster or the cloud.
        pool: of a node that joins.
    """

    at: float
    action: Action
    cluster: str = ""
    node: str = ""
    pool: str = ""


def script(seconds: float | None, seed: int = SEED) -> Iterator[Step]:
    """The incidents of a show in order.

    Args:
        seconds: how long it lasts; None = for ever.
        seed: another seed, other nodes.
    """
    company = _Company(random.Random(seed))
    if seconds is None:
        for number in count():
            yield from _act(company, number * ACT, 1.0)
    elif seconds >= SHORTEST:
        time = seconds - min(QUIET, 0.3 * seconds)
        acts = max(1, round(time / ACT))
        scale = time / (acts * ACT)
        for number in range(acts):
            yield from _act(company, number * ACT * scale, scale)


class _Company:
    """The nodes that can be on stage, by cluster, with their pools."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._hired = {each.name: len(POOLS) for each in CLUSTERS}
        self._on_stage = {
            each.name: {f"{each.prefix}-{number}": pool for number, pool in enumerate(POOLS, 1)} for each in CLUSTERS
        }

    def some(self, cluster: Cluster, number: int) -> list[str]:
        """Different nodes of a cluster."""
        return self._rng.sample(sorted(self._on_stage[cluster.name]), number)

    def replace(self, cluster: Cluster, old: str) -> tuple[str, str]:
        """A new node for an old one, with its pool."""
        pool = self._on_stage[cluster.name].pop(old)
        self._hired[cluster.name] += 1
        new = f"{cluster.prefix}-{self._hired[cluster.name]}"
        self._on_stage[cluster.name][new] = pool
        return new, pool


def _act(company: _Company, start: float, scale: float) -> list[Step]:
    steps: list[Step] = []

    def add(at: float, action: Action, cluster: Cluster | None = None, node: str = "", pool: str = "") -> None:
        steps.append(Step(round(start + at * scale, 3), action, cluster.name if cluster else "", node, pool))

    def rotate(at: float, cluster: Cluster, old: str, pace: float = 0.8) -> None:
        """As a cluster upgrade does it: the new one first, then the old one is emptied and goes."""
        new, pool = company.replace(cluster, old)
        add(at, "join", cluster, new, pool)
        add(at + pace, "cordon", cluster, old)
        add(at + 2 * pace, "leave", cluster, old)

    one, two, three = company.some(EU, 3)
    us_one, us_two = company.some(US, 2)
    ap_one, ap_two, ap_three = company.some(AP, 3)
    add(0.5, "fail", EU, one)
    add(1.5, "recover", EU, one)
    rotate(2.2, EU, two)
    add(4.6, "fail", US, us_one)
    # A cluster whose API server is away: nothing of what it last said goes, whatever happens in it meanwhile.
    add(5.5, "dark", US)
    rotate(6.2, US, us_two, pace=0.5)
    add(6.4, "fail", EU, three)
    add(7.8, "blip", AP, ap_one)
    add(8.6, "calm", AP, ap_one)
    add(9.0, "recover", EU, three)
    add(10.5, "light", US)
    rotate(11.2, AP, ap_two)
    # The cloud out of order: known addresses stay, and what needs none of its answers goes on.
    add(14.0, "cloud-down")
    add(15.0, "recover", US, us_one)
    add(16.5, "cordon", AP, ap_three)
    add(17.5, "cloud-up")
    add(18.0, "leave", AP, ap_three)
    add(21.0, "join", AP, *company.replace(AP, ap_three))
    return sorted(steps, key=lambda step: step.at)
