"""Describes incidents and their effects in words, and collects the values of the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hub.app.hub import Hub
from hub_testkit.demo.layout import CLUSTERS, NAMESPACE, SERVICES
from hub_testkit.demo.ledger import Change, Ledger, counted
from hub_testkit.demo.screen import ClusterRow, Count, Event, Picture, ServiceRow, duration
from hub_testkit.demo.script import Action, Step
from hub_testkit.demo.world import Published, Shown, World

REMEMBERED: Final = 100
"""The most events that are kept: more than a terminal has lines."""

_WORDS: Final[dict[Action, str]] = {
    "fail": "failed",
    "recover": "recovered",
    "join": "joined",
    "cordon": "cordoned",
    "leave": "left",
    "blip": "is not Ready for a moment",
    "calm": "is Ready again",
}
_TONES: Final[dict[Action, str]] = {
    "fail": "red",
    "recover": "green",
    "join": "green",
    "leave": "yellow",
    "cordon": "yellow",
    "dark": "bold red",
    "light": "bold green",
    "cloud-down": "bold red",
    "cloud-up": "bold green",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last error of a cluster; ``seen`` is when the cluster last had it, in seconds."""

    text: str
    seen: float


class Narrator:
    """Describes one run of the demo.

    Args:
        world: The simulated world.
        hub: The hub.
        ledger: The records of the run.
        tell: Called with each event as it happens.
        footer: Lines that are shown below the picture.
    """

    def __init__(
        self, world: World, hub: Hub, ledger: Ledger, tell: Callable[[Event], None], footer: tuple[str, ...] = ()
    ) -> None:
        self._world = world
        self._hub = hub
        self._ledger = ledger
        self._tell = tell
        self._footer = footer
        self._ending = False
        self._start = hub.clock.now()
        self._events: list[Event] = []
        self._tones: dict[str, str] = {}
        self._trouble: dict[str, Trouble] = {}

    def end(self) -> None:
        """Marks the end of the incidents; pending changes may still be published."""
        self._ending = True

    # --- in words ----------------------------------------------------------------------------------

    def begun(self, step: Step, change: Change) -> None:
        """Tells an incident without an effect at once; others are told by :meth:`done` when the effect is complete."""
        self._tones[change.text] = _TONES.get(step.action, "")
        if not change.wanted:
            self._say(change.at, f"{change.text} → {self._why_nothing(step)}", _TONES.get(step.action, ""))

    def done(self, change: Change) -> None:
        """Tells a change that is now published."""
        took = f" in {duration(change.seconds)}" if change.seconds is not None else ", overtaken by the next change"
        at = change.at + (change.seconds or 0.0)
        self._say(at, f"{change.text} → {change.effect}{took}", self._tones.pop(change.text, ""))

    def words(self, step: Step) -> str:
        """Describes an incident."""
        match step.action:
            case "dark":
                return f"{step.cluster}: its API server is gone"
            case "light":
                return f"{step.cluster}: its API server is back"
            case "cloud-down":
                return "the cloud's API answers 503"
            case "cloud-up":
                return "the cloud's API works again"
            case _:
                return f"{step.cluster}: node {step.node} {_WORDS[step.action]}"

    def _why_nothing(self, step: Step) -> str:
        match step.action:
            case "dark":
                kept = sum(shown.cluster == step.cluster for shown in self._world.wanted().values())
                return f"unknown is not empty: its {counted(kept, 'endpoint')} stay"
            case "light":
                return "nothing to catch up with"
            case "cloud-down":
                return "known addresses stay"
            case "cloud-up":
                return "nothing was lost"
            case "blip":
                grace = next(cluster.grace for cluster in CLUSTERS if cluster.name == step.cluster)
                return f"nothing: it has a grace of {grace:g} s"
            case "calm":
                return "nothing was written"
            case _:
                return "unseen: the cluster is dark" if self._world.dark(step.cluster) else "nothing to publish"

    def _say(self, now: float, text: str, tone: str) -> None:
        event = Event(now - self._start, text, tone)
        self._events = [*self._events[-REMEMBERED:], event]
        self._tell(event)

    @property
    def writes(self) -> int:
        """How many EndpointSlices the hub created, updated and deleted."""
        return sum(self._hub.writer.writes.values())

    # --- the picture -------------------------------------------------------------------------------

    def picture(self, published: Published, until: float | None) -> Picture:
        """Returns the picture of this moment; ``until`` is when the demo ends, None = when it is stopped."""
        now = self._hub.clock.now()
        return Picture(
            elapsed=now - self._start,
            left=None if until is None else until - now,
            clusters=[self._cluster(cluster.name, now) for cluster in CLUSTERS],
            services=service_rows(published),
            events=self._events,
            changes=self._ledger.changes,
            writes=self.writes,
            heartbeats=self._world.heartbeats,
            idle_writes=self._ledger.idle_writes,
            lost=self._ledger.lost,
            latencies=tuple(self._ledger.latencies),
            ending=self._ending,
            footer=self._footer,
        )

    def _cluster(self, name: str, now: float) -> ClusterRow:
        unit = self._hub.fleet.clusters.get(name)
        if unit is None:  # a user has edited the registry
            return ClusterRow(name, "Unknown", 0.0, Count(*self._world.nodes_of(name)), "not in the registry")
        status = unit.status
        problems = [source.problem for key, source in self._hub.fleet.sources.items() if key.cluster == name]
        error = next((problem for problem in problems if ": " in problem), "")
        if error:
            self._trouble[name] = Trouble(error.removeprefix(f"{status.state}: "), now)
        trouble = self._trouble.get(name)
        return ClusterRow(
            name,
            str(status.state),
            max(0.0, self._hub.clock.wall() - status.since),
            Count(*self._world.nodes_of(name)),
            trouble.text if trouble is not None else "",
            None if error or trouble is None else now - trouble.seen,
        )


def service_rows(published: Published) -> list[ServiceRow]:
    """Counts what is published, by Service and cluster."""
    counts: dict[tuple[str, str], list[Shown]] = {}
    for spot, shown in published.items():
        counts.setdefault((spot.service, shown.cluster), []).append(shown)
    return [
        ServiceRow(
            f"{NAMESPACE}/{service.name}",
            tuple(
                Count(sum(shown.ready for shown in found), len(found))
                if (found := counts.get((service.name, cluster.name), [])) or cluster.name in service.published_sources
                else None
                for cluster in CLUSTERS
            ),
            "failover" if service.failover else "",
        )
        for service in SERVICES
    ]
