"""The script of the demo: its incidents and their times, as a pure function of a seed.

An act of 24 seconds shows each kind of incident. It is shortened or stretched to the available time, or repeated with
other nodes. The end of a run has no incidents, so that everything has time to recover.
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
"""The length of one act in seconds."""

SHORTEST: Final = 4.0
"""The shortest run in seconds that has an act: a faster one would be too hard to follow."""

QUIET: Final = 5.0
"""Seconds without incidents at the end of a run: about the longest that a reflector waits before it retries a cluster
that was away for a few seconds (0.8 s doubling, jittered up to twofold)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One incident.

    Attributes:
        at: Seconds after the start of the script.
        action: The kind of incident.
        cluster: The cluster's name; "" for an incident of the cloud.
        node: The node's name; "" for an incident of a whole cluster or the cloud.
        pool: The pool of a node that joins.
    """

    at: float
    action: Action
    cluster: str = ""
    node: str = ""
    pool: str = ""


def script(seconds: float | None, seed: int = SEED) -> Iterator[Step]:
    """Yields the incidents of a run, in order.

    Args:
        seconds: The length of the run; None = endless.
        seed: Selects the nodes.
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
    """The nodes that exist, by cluster, with their pools."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._hired = {cluster.name: len(POOLS) for cluster in CLUSTERS}
        self._on_stage = {
            cluster.name: {f"{cluster.prefix}-{number}": pool for number, pool in enumerate(POOLS, 1)}
            for cluster in CLUSTERS
        }

    def some(self, cluster: Cluster, number: int) -> list[str]:
        """Chooses ``number`` different nodes of a cluster."""
        return self._rng.sample(sorted(self._on_stage[cluster.name]), number)

    def replace(self, cluster: Cluster, old: str) -> tuple[str, str]:
        """Replaces a node by a new one with the same pool; returns the new node's name and the pool."""
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
        """Replaces a node as a cluster upgrade does: the new node joins, then the old one is cordoned and leaves."""
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
    # The cluster's API server is away: its endpoints stay as last published, whatever happens in the cluster.
    add(5.5, "dark", US)
    rotate(6.2, US, us_two, pace=0.5)
    add(6.4, "fail", EU, three)
    add(7.8, "blip", AP, ap_one)
    add(8.6, "calm", AP, ap_one)
    add(9.0, "recover", EU, three)
    add(10.5, "light", US)
    rotate(11.2, AP, ap_two)
    # The cloud fails: known addresses stay, and changes that need no answer of the cloud are still published.
    add(14.0, "cloud-down")
    add(15.0, "recover", US, us_one)
    add(16.5, "cordon", AP, ap_three)
    add(17.5, "cloud-up")
    add(18.0, "leave", AP, ap_three)
    add(21.0, "join", AP, *company.replace(AP, ap_three))
    return sorted(steps, key=lambda step: step.at)
