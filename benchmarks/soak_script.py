"""What happens in a soak, decided by a seed before it begins; and what, after each step, ought to be published. Pure.

Production replaces 1 % of its nodes per hour, and each node reports every 5 minutes. A soak does so ``times`` as often,
and breaks something all the while. What ought to be published is computed here in the simplest way, with none of the
hub's code: that is what the hub's slices are compared with.
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
"""Of production: the share of nodes replaced per hour, and seconds between two reports of a node."""
BLIPS, OUTAGES = 0.01, 0.005
"""Of production: shares of nodes that turn not Ready per hour, for less and for more than the grace."""
GRACE = 30.0
"""Seconds that a node may be not Ready before it leaves: the hub's default."""
BLIP, OUTAGE = (4.0, 20.0), (45.0, 90.0)
"""Seconds a node is not Ready; between the two lies the grace, with room for both clocks."""
LATE = 60.0
"""Seconds after a node is Ready again in which the hub may still carry out that it was not."""

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
"""What breaks in a cluster, and for how many seconds."""
FAULT_EVERY = 200.0
"""Of production, bad as it may be: seconds from one fault of a cluster to the next one, on average."""
EDITS = ("add-source", "drop-source", "repack", "cluster", "break-file", "mend-file", "drop-service", "add-service")
EDIT_EVERY = 750.0
"""Of production: seconds between two edits of the registry."""
RESTARTS = ((0.08, 12.0), (0.22, 1.0), (0.5, 12.0), (0.8, 1.0))
"""Where between the quiet stretches the hub's API server is killed, and for how many seconds beside its start.

Each kind, a restart and an absence that costs the lease, comes once while memory may still find its size, and once
after.
"""
CALM = 40.0
"""Seconds at the end without any change, so that what is published can be compared."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """How much there is.

    Attributes:
        sources: remote clusters behind each Service.
    """

    clusters: int = 50
    nodes: int = 100
    services: int = 200
    sources: int = 2

    @property
    def names(self) -> list[str]:
        """The clusters."""
        return [f"c{number}" for number in range(self.clusters)]

    def kind(self, cluster: str) -> Kind:
        """Who says a cluster's addresses: the last tenth (at least one) has no API, the tenth before is in a cloud."""
        number, tenth = int(cluster[1:]), max(1, self.clusters // 10)
        if number >= self.clusters - tenth:
            return "inventory"
        return "ionos" if number >= self.clusters - 2 * tenth else "node-addresses"

    def sources_of(self, service: int) -> list[str]:
        """Which clusters stand behind a Service at the start."""
        return [f"c{(service + 7 * each * each + each) % self.clusters}" for each in range(self.sources)]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens.

    Attributes:
        at: seconds after the start.
        cluster: where; "" = in the hub cluster or the registry.
        node: which one, as a number that the nodes of that moment are counted with.
        what: the kind of fault or edit.
        seconds: how long it is going to be so.
    """

    at: float
    action: Action
    cluster: str = ""
    node: int = 0
    what: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is broken from when to when; ``cluster`` "" = its API server (``hub-api``) or its ``registry``."""

    what: str
    cluster: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Script:
    """A whole soak.

    Attributes:
        quiet: two stretches without faults: soon after the start, and before the end.
    """

    seed: int
    seconds: float
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    quiet: tuple[tuple[float, float], tuple[float, float]]


def script(seed: int, seconds: float, fleet: Fleet, times: float) -> Script:
    """What happens in so many seconds; the same for the same arguments."""
    rng = random.Random(seed)
    rest = max(CALM + 20, seconds / 12)
    first, last = rest, seconds - rest
    faults = [*_faults(rng, fleet, first, last, times), *_restarts(rng, first, last)]
    steps = [*_churn(rng, fleet, seconds - CALM, times), *_edits(rng, first, last - 30, times)]
    for each in faults:
        steps.append(Step(each.begin, "break", each.cluster, what=each.what, seconds=each.end - each.begin))
        steps.append(Step(each.end, "heal", each.cluster, what=each.what))
    steps.sort(key=lambda each: each.at)
    faults += _rejections(steps)
    faults.sort(key=lambda each: each.begin)
    quiet = ((rest / 3, first), (seconds - rest / 3 * 2, seconds))
    return Script(seed, seconds, tuple(steps), tuple(faults), quiet)


def _times(rng: random.Random, begin: float, end: float, every: float) -> Iterator[float]:
    """Moments ``every`` so many seconds on average, none of them close upon another."""
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
    """At most one at a time in each cluster, and in at most a fifth of them: more, and the hub suspects itself."""
    busy: dict[str, float] = {}
    for at in _times(rng, begin, end, FAULT_EVERY / times):
        broken = [each for each, until in busy.items() if until > at]
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
        yield Fault("hub-api", "", at, at + min(away, (end - begin) * 0.05))  # over before the next one


def _rejections(steps: list[Step]) -> Iterator[Fault]:
    """While the registry file is of no use."""
    begin = None
    for step in steps:
        if step.what == "break-file":
            begin = step.at
        elif step.what == "mend-file" and begin is not None:
            yield Fault("registry", "", begin, step.at)
            begin = None


def _edits(rng: random.Random, begin: float, end: float, times: float) -> Iterator[Step]:
    """In turn, each with a number that picks the Service or cluster; at the end, what is undone is done again."""
    for number, at in enumerate(_times(rng, begin, end, EDIT_EVERY / times)):
        yield Step(at, "edit", node=rng.randrange(1 << 30), what=EDITS[number % len(EDITS)])
    for number, what in enumerate(("drop-source", "mend-file", "add-service")):
        yield Step(end + number, "edit", what=what)


# --- what ought to be published ----------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A node of the world.

    Attributes:
        serial: of its cluster's nodes; never used again, nor is the address.
        unready: since when it is not Ready; None while it is.
        ready_again: when it last was Ready again after more than the grace.
    """

    serial: int
    address: str
    unready: float | None = None
    ready_again: float = float("-inf")


def address(cluster: str, serial: int) -> str:
    """Of a node."""
    return f"10.{int(cluster[1:])}.{serial // 250}.{serial % 250 + 1}"


@dataclass(slots=True)
class Truth:
    """The world as it is, not as the hub sees it; moments are seconds after the start.

    Attributes:
        nodes: by cluster, then address.
        sources: clusters behind each Service of the registry.
        dropped: when a source, or a whole Service, last left the registry.
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
        self.sources |= {f"svc-{each}": self.fleet.sources_of(each) for each in range(self.fleet.services)}

    def join(self, cluster: str) -> Node:
        """A new node."""
        serial = self._serials[cluster]
        self._serials[cluster] += 1
        node = Node(serial, address(cluster, serial))
        self.nodes[cluster][node.address] = node
        return node

    def pick(self, cluster: str, number: int) -> Node:
        """One of its nodes that are Ready."""
        ready = sorted(each.serial for each in self.nodes[cluster].values() if each.unready is None)
        return self.nodes[cluster][address(cluster, ready[number % len(ready)])]

    def leave(self, cluster: str, node: Node) -> None:
        """It is gone for good."""
        del self.nodes[cluster][node.address]

    def drop(self, service: str, cluster: str, now: float) -> None:
        """A source leaves the registry."""
        self.sources[service].remove(cluster)
        self.dropped[service, cluster] = now

    def wanted(self, service: str, now: float) -> set[str]:
        """What a Service ought to publish, give or take the time it takes."""
        return {
            node.address
            for cluster in self.sources.get(service, ())
            for node in self.nodes[cluster].values()
            if node.unready is None or now < node.unready + GRACE
        }

    def may_go(self, service: str, gone: str, now: float) -> bool:
        """Whether an endpoint may leave a Service, or be shown as not ready, at this moment."""
        cluster = f"c{gone.split('.')[1]}"
        if cluster not in self.sources.get(service, ()):
            return True  # only ever published because it was a source
        node = self.nodes[cluster].get(gone)
        if node is None:
            return True
        if (service, cluster) in self.dropped and now < self.dropped[service, cluster] + 2 * LATE:
            return True
        away = node.unready is not None and now >= node.unready + GRACE - 2
        return away or now < node.ready_again + LATE


def covered(faults: list[Fault], moment: float, linger: float) -> list[Fault]:
    """Those that were under way at a moment, or not longer than ``linger`` ago; ``faults`` by their begin."""
    until = bisect_left([each.begin for each in faults], moment)
    return [each for each in faults[:until] if moment <= each.end + linger]
