"""The script of a soak, which a seed determines, and the addresses that must be published after each step. Pure.

Production replaces 1 % of its nodes per hour, and each node reports every 5 minutes. A soak does this ``times`` as
often, with constant faults. The addresses that must be published are computed in the simplest way, without the hub's
code; the hub's slices are compared with them.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["node-addresses", "ionos", "inventory"]
Action = Literal["replace", "unready", "break", "heal", "edit"]

REPLACED, REPORT = 0.01, 300.0
"""Production rates: share of nodes replaced per hour, and seconds between two reports of a node."""
BLIPS, OUTAGES = 0.01, 0.005
"""Production rates: shares of nodes that turn not Ready per hour, for less and for more than the grace."""
GRACE = 30.0
"""Seconds that a node may be not Ready before its endpoint is removed: the hub's default."""
BLIP, OUTAGE = (4.0, 20.0), (45.0, 90.0)
"""Seconds that a node is not Ready: clearly less, and clearly more, than the grace."""
LATE = 60.0
"""Seconds after a node became Ready again in which the hub may still remove its endpoint."""

FAULTS: dict[str, tuple[float, float]] = {
    "hang": (20, 120),
    "die": (15, 150),
    "500": (10, 60),
    "429": (10, 60),
    "garbage": (10, 40),
    "cut": (1, 2),
    "half-line": (1, 2),
    "expire": (1, 2),
    "compact": (1, 2),
    "provider": (20, 90),
}
"""Faults of a cluster: name -> shortest and longest duration in seconds."""
FAULT_EVERY = 200.0
"""Rate of a bad production day: average seconds between two faults anywhere in the fleet."""
EDITS = ("add-source", "drop-source", "repack", "cluster", "break-file", "repair-file", "drop-service", "add-service")
EDIT_EVERY = 750.0
"""Production rate: seconds between two edits of the registry."""
RESTARTS = ((0.08, 12.0), (0.22, 1.0), (0.5, 12.0), (0.8, 1.0))
"""When the hub's API server is killed (share of the time between the quiet stretches), and seconds until it is started.

It is started at once, or late enough for the hub to lose the Lease: each once before memory is judged, and once after.
"""
CALM = 40.0
"""Seconds at the end without any change, so that what is published can be compared."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The size of the fleet.

    Attributes:
        nodes: nodes per cluster.
        sources: source clusters of each Service.
    """

    clusters: int = 50
    nodes: int = 100
    services: int = 200
    sources: int = 2

    @property
    def names(self) -> list[str]:
        """The names of the clusters."""
        return [f"c{number}" for number in range(self.clusters)]

    def kind(self, cluster: str) -> Kind:
        """Return the provider of a cluster: ``inventory`` for the last tenth, ``ionos`` for the tenth before."""
        number, tenth = int(cluster[1:]), max(1, self.clusters // 10)
        if number >= self.clusters - tenth:
            return "inventory"
        return "ionos" if number >= self.clusters - 2 * tenth else "node-addresses"

    def sources_of(self, service: int) -> list[str]:
        """Return the source clusters of a Service at the start."""
        return [f"c{(service + 7 * number * number + number) % self.clusters}" for number in range(self.sources)]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the script.

    Attributes:
        at: seconds after the start.
        cluster: name; "" = the hub cluster or the registry.
        node: a number that selects a node, modulo the number of nodes at that moment.
        what: the kind of fault or edit.
        seconds: duration.
    """

    at: float
    action: Action
    cluster: str = ""
    node: int = 0
    what: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and its time. ``cluster`` is "" for the hub cluster's API server (``hub-api``) and the ``registry``."""

    what: str
    cluster: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a whole soak.

    Attributes:
        quiet: two stretches without faults (begin, end): soon after the start, and before the end.
    """

    seed: int
    seconds: float
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    quiet: tuple[tuple[float, float], tuple[float, float]]


def script(seed: int, seconds: float, fleet: Fleet, times: float) -> Script:
    """Return the script of a soak of ``seconds``; the same arguments give the same script."""
    rng = random.Random(seed)
    rest = max(CALM + 20, seconds / 12)
    first, last = rest, seconds - rest
    faults = [*_faults(rng, fleet, first, last, times), *_restarts(rng, first, last)]
    steps = [*_churn(rng, fleet, seconds - CALM, times), *_edits(rng, first, last - 30, times)]
    for fault in faults:
        steps.append(Step(fault.begin, "break", fault.cluster, what=fault.what, seconds=fault.end - fault.begin))
        steps.append(Step(fault.end, "heal", fault.cluster, what=fault.what))
    steps.sort(key=lambda step: step.at)
    faults += _rejections(steps)
    faults.sort(key=lambda fault: fault.begin)
    quiet = ((rest / 3, first), (seconds - rest / 3 * 2, seconds))
    return Script(seed, seconds, tuple(steps), tuple(faults), quiet)


def _times(rng: random.Random, begin: float, end: float, every: float) -> Iterator[float]:
    """Yield times between ``begin`` and ``end``, on average ``every`` seconds apart, at least half of that."""
    at = begin
    while at < end:
        yield at
        at += rng.uniform(0.5, 1.5) * every


def _churn(rng: random.Random, fleet: Fleet, end: float, times: float) -> Iterator[Step]:
    nodes = fleet.clusters * fleet.nodes
    with_api = [name for name in fleet.names if fleet.kind(name) != "inventory"]
    for at in _times(rng, 1.0, end, 3600 / (REPLACED * times * nodes)):
        yield Step(at, "replace", rng.choice(fleet.names), rng.randrange(1 << 30))
    for share, (short, long) in ((BLIPS, BLIP), (OUTAGES, OUTAGE)):
        for at in _times(rng, 1.0, end - long, 3600 / (share * times * nodes)):
            cluster, node, away = rng.choice(with_api), rng.randrange(1 << 30), rng.uniform(short, long)
            yield Step(at, "unready", cluster, node, seconds=away)


def _faults(rng: random.Random, fleet: Fleet, begin: float, end: float, times: float) -> Iterator[Fault]:
    """Yield faults: at most one at a time per cluster.

    At most a fifth of the clusters is broken at a time: with more, the hub would assume that its own network fails.
    """
    busy: dict[str, float] = {}
    for at in _times(rng, begin, end, FAULT_EVERY / times):
        broken = [name for name, until in busy.items() if until > at]
        what = rng.choice(list(FAULTS))
        kinds = ("ionos", "inventory") if what == "provider" else ("node-addresses", "ionos")
        free = [name for name in fleet.names if fleet.kind(name) in kinds and busy.get(name, 0.0) + 30 < at]
        until = min(at + rng.uniform(*FAULTS[what]), end)
        if free and len(broken) < max(1, fleet.clusters // 5):
            cluster = rng.choice(free)
            busy[cluster] = until
            yield Fault(what, cluster, at, until)


def _restarts(rng: random.Random, begin: float, end: float) -> Iterator[Fault]:
    for share, away in RESTARTS:
        at = begin + (end - begin) * (share + rng.uniform(-0.04, 0.04))
        yield Fault(
            "hub-api", "", at, at + min(away, (end - begin) * 0.05)
        )  # ends before the next fault of the API server


def _rejections(steps: list[Step]) -> Iterator[Fault]:
    """Yield the times in which the registry file is broken, as faults."""
    begin = None
    for step in steps:
        if step.what == "break-file":
            begin = step.at
        elif step.what == "repair-file" and begin is not None:
            yield Fault("registry", "", begin, step.at)
            begin = None


def _edits(rng: random.Random, begin: float, end: float, times: float) -> Iterator[Step]:
    """Yield edits in the order of ``EDITS``, and at the end those that restore the original registry.

    ``node`` is a number that selects the Service or cluster.
    """
    for number, at in enumerate(_times(rng, begin, end, EDIT_EVERY / times)):
        yield Step(at, "edit", node=rng.randrange(1 << 30), what=EDITS[number % len(EDITS)])
    for number, what in enumerate(("drop-source", "repair-file", "add-service")):
        yield Step(end + number, "edit", what=what)


# --- what must be published -----------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A node.

    Attributes:
        serial: number within its cluster. Serials and addresses are never used again.
        unready: time since which it has not been Ready; None = Ready.
        ready_again: time at which it last became Ready after more than the grace.
    """

    serial: int
    address: str
    unready: float | None = None
    ready_again: float = float("-inf")


def address(cluster: str, serial: int) -> str:
    """Return the address of a node."""
    return f"10.{int(cluster[1:])}.{serial // 250}.{serial % 250 + 1}"


@dataclass(slots=True)
class Truth:
    """The real state of all clusters, which the hub may not know yet. Times are seconds after the start.

    Attributes:
        nodes: nodes by cluster and address.
        sources: source clusters of each Service in the registry.
        dropped: time at which a source (Service, cluster) last left the registry.
    """

    fleet: Fleet
    nodes: dict[str, dict[str, Node]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    dropped: dict[tuple[str, str], float] = field(default_factory=dict)
    _serials: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cluster in self.fleet.names:
            self._serials[cluster] = 0
            self.nodes[cluster] = {}
            for _ in range(self.fleet.nodes):
                self.join(cluster)
        self.sources |= {f"svc-{number}": self.fleet.sources_of(number) for number in range(self.fleet.services)}

    def join(self, cluster: str) -> Node:
        """Add a node and return it."""
        serial = self._serials[cluster]
        self._serials[cluster] += 1
        node = Node(serial, address(cluster, serial))
        self.nodes[cluster][node.address] = node
        return node

    def pick(self, cluster: str, number: int) -> Node:
        """Return one of the Ready nodes of a cluster."""
        ready = sorted(node.serial for node in self.nodes[cluster].values() if node.unready is None)
        return self.nodes[cluster][address(cluster, ready[number % len(ready)])]

    def leave(self, cluster: str, node: Node) -> None:
        """Delete a node."""
        del self.nodes[cluster][node.address]

    def drop(self, service: str, cluster: str, now: float) -> None:
        """Remove a source from a Service."""
        self.sources[service].remove(cluster)
        self.dropped[service, cluster] = now

    def wanted(self, service: str, now: float) -> set[str]:
        """Return the addresses that a Service must publish, apart from the hub's delay."""
        return {
            node.address
            for cluster in self.sources.get(service, ())
            for node in self.nodes[cluster].values()
            if node.unready is None or now < node.unready + GRACE
        }

    def may_leave(self, service: str, ip: str, now: float) -> bool:
        """Whether a Service may remove an endpoint, or publish it as not ready, at this time."""
        cluster = f"c{ip.split('.')[1]}"
        if cluster not in self.sources.get(service, ()):
            return True  # the cluster was a source earlier
        node = self.nodes[cluster].get(ip)
        if node is None:
            return True
        if (service, cluster) in self.dropped and now < self.dropped[service, cluster] + 2 * LATE:
            return True
        away = node.unready is not None and now >= node.unready + GRACE - 2
        return away or now < node.ready_again + LATE


def active_faults(faults: list[Fault], moment: float, linger: float) -> list[Fault]:
    """Return the faults that were active at a moment or at most ``linger`` seconds before.

    ``faults`` must be sorted by their begin.
    """
    until = bisect_left([fault.begin for fault in faults], moment)
    return [fault for fault in faults[:until] if moment <= fault.end + linger]
