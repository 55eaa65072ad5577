"""Says what a hub may do, from what is true in the simulated world; shares no code with the hub.

It is told of every change of an EndpointSlice while the hub cluster commits it, and looks at the world whenever that
changes. What it does not know for certain it allows: a removal is wrong only if nobody can have told the hub, in time,
that the endpoint is gone, and no policy of the registry asked for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hub.plugin.testing import SimulatedCluster

if TYPE_CHECKING:
    from tests.model.world import World

OURS: Final = "endpointslice-hub"
LAG: Final = 150.0
"""Seconds after which a hub has surely heard of what is true: a watch is silent for 80 s at most, a retry for 60 s."""
GRACE: Final = 20.0
HOLD: Final = 300.0
WINDOW: Final = 600.0
SHARE: Final = 0.5
EMPTY_SECONDS: Final = 20.0
"""Three answers, and ten seconds between two of them."""

Group = tuple[str, str]
"""Service and source cluster."""


@dataclass(slots=True)
class Said:
    """What may have been said of one address of one cluster.

    Attributes:
        gone: since when the hub may know that it is not to be published; None = it cannot.
        deleted: since when it may know that no node has it any more, ready or not.
        there: since when, without a break, it must hear the contrary.
    """

    gone: float | None = None
    deleted: float | None = None
    there: float | None = None


@dataclass(slots=True)
class Shown:
    """A slice as published: addresses with their conditions."""

    group: Group
    endpoints: dict[str, tuple[Any, ...]]
    raw: bytes = b""


class Judge:
    """See the module.

    Attributes:
        violations: what was done and must not have been, in words.
        writes: of slices, by hubs.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_world = False
        self.violations: list[str] = []
        self.writes = 0
        self.history: list[str] = []
        self.slices: dict[str, Shown] = {}
        self._said: dict[str, dict[str, Said]] = {}
        self._candidates: dict[tuple[str, str], set[str]] = {}
        self._dropped: dict[Group, float] = {}
        self._back: dict[Group, float] = {}
        self._frozen: dict[str, float] = {}
        self._levels: dict[Group, list[tuple[float, int]]] = {}
        self._writer = ""
        self.tampered: set[tuple[str, str]] = set()
        """(service, address) that the world put there, or took away, itself."""

    def attach(self, sim: SimulatedCluster) -> None:
        """Be told of each change, at once."""
        sim._store.tables["endpointslices"].watchers.add(_Ear(self))  # type: ignore[arg-type]

    @contextlib.contextmanager
    def world(self) -> Iterator[None]:
        """What happens within is the world's doing."""
        self._by_world = True
        try:
            yield
        finally:
            self._by_world = False

    def verdict(self) -> None:
        """Raise what was found wrong.

        Raises:
            AssertionError: with everything, and what led to it.
        """
        assert not self.violations, "\n".join([*self.violations, "last writes:", *self.history[-25:]])

    def now(self) -> float:
        """Virtual seconds."""
        return self._world.loop.time()

    # --- what is true -------------------------------------------------------------------------------

    def observe(self) -> None:
        """Take in what is true now. Called before and after the world changes."""
        world, now = self._world, self.now()
        for name in world.remotes:
            self._observe_cluster(name, now)
        wanted = world.wanted()
        for group in world.possible():
            if group not in wanted or world.entries[group[1]].frozen:
                self._levels.pop(group, None)  # nothing is judged, and nothing remembered, meanwhile
            if group not in wanted:
                self._dropped.setdefault(group, now)
                self._back.pop(group, None)
            elif not world.readable:
                self._back.pop(group, None)
            elif group in self._dropped and now - self._back.setdefault(group, now) > 10.0:
                del self._dropped[group]
        for name, entry in world.entries.items():
            if entry.frozen and entry.present and world.readable:
                self._frozen.setdefault(name, now)
            else:
                self._frozen.pop(name, None)

    def _observe_cluster(self, name: str, now: float) -> None:
        cloud = self._world.clouds[name]
        for machine, address in cloud.addresses.items():
            known = self._candidates.setdefault((name, machine), set())
            if cloud.tells(machine):
                known.clear()
            if address and (cloud.tells(machine) or not known):
                known.add(address)
        said = self._said.setdefault(name, {})
        every = {a for (cluster, _), known in self._candidates.items() if cluster == name for a in known}
        for address in every:
            said.setdefault(address, Said())
        for address, each in said.items():
            self._observe_address(name, address, each, now)

    def _observe_address(self, name: str, address: str, each: Said, now: float) -> None:
        world, cloud, entry = self._world, self._world.clouds[name], self._world.entries[name]
        nodes, reachable = world.nodes(name), name not in world.down
        having = [n for n in nodes if address in self._candidates.get((name, n), ())]
        ready = [n for n in having if nodes[n]] if address not in entry.excluded else []
        if reachable and not having and each.deleted is None:
            each.deleted = now
        if not ready:
            each.there = None
            if (reachable or address in entry.excluded) and each.gone is None:
                each.gone = now
        elif reachable and any(cloud.mode == "ok" and cloud.addresses.get(n) == address for n in ready):
            each.there = each.there if each.there is not None else now
            if now - each.there > LAG:
                each.gone = each.deleted = None
        else:
            each.there = None

    def truth(self, cluster: str) -> tuple[set[str], set[str]]:
        """Addresses of a cluster that must be published once all is quiet, and those that may be."""
        nodes, addresses = self._world.nodes(cluster), self._world.clouds[cluster].addresses
        excluded = self._world.entries[cluster].excluded
        allowed = {n: a for n, a in addresses.items() if a and n in nodes and a not in excluded and a.startswith("10.")}
        must = {a for n, a in allowed.items() if nodes[n]}
        unready = sum(not ready for ready in nodes.values())
        disrupted = unready * 2 > len(nodes)
        return must, must | set(allowed.values()) if disrupted else must

    # --- what is done -------------------------------------------------------------------------------

    def change(self, change: Any) -> None:
        """A slice has changed in the hub cluster."""
        before, after = change.before, change.after
        stored = after or before
        labels = stored.labels
        ours = [each for each in (before, after) if each is not None and _is_ours(each.labels)]
        groups = {(each.labels["kubernetes.io/service-name"], _cluster(each.labels)) for each in ours}
        old = {group: self.published(group) for group in groups}
        if after is not None and _is_ours(after.labels):
            self.slices[after.key] = Shown(
                (after.labels["kubernetes.io/service-name"], _cluster(after.labels)), _endpoints(after.decode())
            )
        else:
            self.slices.pop(stored.key, None)
        what = "delete" if after is None else "create" if before is None else "update"
        who = "world" if self._by_world else "hub"
        self.history.append(
            f"{self.now():9.2f} {who} {what} {stored.name} {sorted(self.slices[stored.key].endpoints)}"
            if stored.key in self.slices
            else f"{self.now():9.2f} {who} {what} {stored.name}"
        )
        self._note_writer()
        for group in groups:
            new = self.published(group)
            if self._by_world:
                self.tampered |= {(group[0], address) for address in old[group].symmetric_difference(new)}
                self._levels.pop(group, None)
            else:
                self._removed(group, old[group], new)
            self._note_level(group, len(new))
        if self._by_world:
            return
        self.writes += 1
        self._write(before, after, labels)
        self._world.written()

    def published(self, group: Group) -> set[str]:
        """Addresses of a group."""
        return {address for each in self.slices.values() if each.group == group for address in each.endpoints}

    def _write(self, before: Any, after: Any, labels: dict[str, str]) -> None:
        if before is not None and not _is_ours(before.labels):
            self._wrong(f"wrote {before.name}, which is not ours")
        if after is not None and not _is_ours(labels):
            self._wrong(f"wrote {after.name} without our labels")
        if before is not None and after is not None and _content(before.decode()) == _content(after.decode()):
            self._wrong(f"wrote {after.name} without a change")
        if after is not None:
            self._publishes(before, after)

    def _publishes(self, before: Any, after: Any) -> None:
        shown = self.slices[after.key]
        if len(shown.endpoints) > 3:
            self._wrong(f"{after.name} has {len(shown.endpoints)} endpoints")
        if before is None and not shown.endpoints:
            known = [each for key, each in self.slices.items() if each.group == shown.group and key != after.key]
            if any(not each.endpoints for each in known):
                self._wrong(f"{after.name} is a second empty slice")
        self._addresses(shown, after)

    def _addresses(self, shown: Shown, after: Any) -> None:
        for address, conditions in shown.endpoints.items():
            if not address.startswith("10."):
                self._wrong(f"{after.name} publishes {address}, which no allowedCIDRs has")
            for key, each in self.slices.items():
                if key == after.key or each.group[0] != shown.group[0] or address not in each.endpoints:
                    continue
                if each.endpoints[address] != conditions and (shown.group[0], address) not in self.tampered:
                    self._wrong(f"{address} is published twice, with unequal conditions")

    def _removed(self, group: Group, old: set[str], new: set[str]) -> None:
        now, (service, cluster) = self.now(), group
        if (dropped := self._dropped.get(group)) is not None:
            if old - new and now - dropped < GRACE - 1.0 and group not in self._world.wanted():
                self._wrong(f"removed {sorted(old - new)} of {group} {now - dropped:.1f} s after the registry did")
            return
        gone = {address for address in old - new if (service, address) not in self.tampered}
        for address in sorted(gone):
            if not address.startswith("10."):
                continue
            said = self._said.get(cluster, {}).get(address)
            if said is None or said.gone is None:
                self._wrong(f"removed {address} of {group}: nobody said that it is gone")
            elif self._frozen.get(cluster, now) < now - 10.0:
                self._wrong(f"removed {address} of {group}, which is frozen")
        if gone:
            self._guard(group, gone, new)

    def _guard(self, group: Group, gone: set[str], new: set[str]) -> None:
        now = self.now()
        said = {address: self._said[group[1]][address] for address in gone if address in self._said[group[1]]}
        if any(each.gone is None for each in said.values()):
            return  # said already
        if any(self._published_elsewhere(group, address) for address in gone):
            return  # moved to another cluster's claim
        since = {address: each.gone or 0.0 for address, each in said.items()}
        if not new:
            early = [a for a, each in said.items() if each.deleted is None or now - each.deleted < EMPTY_SECONDS]
            if early:
                self._wrong(f"{group} became empty: of {early} nobody said often enough that the nodes are gone")
            return
        levels = self._levels.get(group, [])
        peak = max([level for at, level in [*levels[:-1], (now, levels[-1][1])] if at >= now - WINDOW]) if levels else 0
        if len(new) >= math.ceil(peak * SHARE):
            return
        early = [a for a, at in since.items() if now - at < HOLD - 1.0]
        if early and len(new) + len(gone) >= math.ceil(peak * SHARE):
            self._wrong(f"{group} fell to {len(new)} of {peak} before {early} had been gone for {HOLD:g} s")

    def _published_elsewhere(self, group: Group, address: str) -> bool:
        return any(
            each.group[0] == group[0] and each.group != group and address in each.endpoints
            for each in self.slices.values()
        )

    def _note_writer(self) -> None:
        """The peak is remembered by the process that writes: another one starts from what is published."""
        writing = [name for name, each in self._world.processes.items() if each.hub is not None and each.hub.writing]
        if writing and self._writer not in writing:
            self._writer = writing[0]
            self._levels.clear()

    def _note_level(self, group: Group, level: int) -> None:
        now = self.now()
        levels = self._levels.setdefault(group, [])
        if levels:  # the level before ended only now
            levels[-1] = (now, levels[-1][1])
        levels.append((now, level))
        del levels[: max(0, len(levels) - 200)]

    def _wrong(self, what: str) -> None:
        self.violations.append(f"at {self.now():.2f}: a hub {what}")


class _Ear:
    """In the place of a watch, but called while a change is committed."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.resource = "endpointslices"

    def push(self, change: Any) -> None:
        self._judge.change(change)

    def drop_if_lagging(self) -> None:
        """It never does."""

    def push_line(self, line: bytes) -> None:
        """Of no interest."""

    def abort(self) -> None:
        """Cannot be cut."""

    def end(self, *, reset: bool = False) -> None:
        """Cannot be ended."""


def _is_ours(labels: dict[str, str]) -> bool:
    return (
        labels.get("endpointslice.kubernetes.io/managed-by") == OURS
        and labels.get("endpointslice-hub/owner") == "default"
    )


def _cluster(labels: dict[str, str]) -> str:
    return labels.get("multicluster.kubernetes.io/source-cluster", "")


def _endpoints(obj: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        address: tuple(sorted((each.get("conditions") or {}).items()))
        for each in obj.get("endpoints") or ()
        for address in each["addresses"]
    }


def _content(obj: dict[str, Any]) -> dict[str, Any]:
    meta = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("resourceVersion", "generation", "managedFields")
    }
    return {**obj, "metadata": meta}
