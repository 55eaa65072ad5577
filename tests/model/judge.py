"""Decides which writes of a hub are allowed, from the true state of the simulated world. Shares no code with the hub.

It is notified of every change of an EndpointSlice while the hub cluster commits it, and observes the world whenever the
world changes. If it cannot be certain, it allows a write: a removal is wrong only if no information that the hub can
have says that the endpoint is gone, and no policy in the registry allows it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hub_testkit import SimulatedCluster

from tests.model.cloud import ipv6_of

if TYPE_CHECKING:
    from tests.model.world import World

OURS: Final = "endpointslice-hub"
LAG: Final = 150.0
"""Seconds after which a hub must know the true state: a watch is silent for up to 80 s, a retry takes up to 60 s."""
GRACE: Final = 20.0
UNREACHABLE_AFTER: Final = 60.0
"""``unreachable.after`` of every cluster."""
HOLD: Final = 300.0
WINDOW: Final = 600.0
SHARE: Final = 0.5
EMPTY_SECONDS: Final = 20.0
"""Three answers, with ten seconds between them."""
RELOAD: Final = 10.0
"""Seconds after which a hub must have read the registry file, if it is readable."""
MOVE: Final = 5.0
LEASE: Final = 15.0
"""Seconds after which another hub may take a Lease that is not renewed."""
CALM: Final = 90.0
"""Seconds after the last disturbance in which every write has been retried: backoff ends at 60 s."""
STORM: Final = 12
"""Writes of one slice in a quiet world: more than all nodes of a cluster and all timers may cause."""
WRITER: Final[ContextVar[str]] = ContextVar("writer", default="")
"""The process whose request the hub cluster is answering."""
GOOD: Final = (("ready", True), ("serving", True), ("terminating", False))
DRAINED: Final = (("ready", False), ("serving", True), ("terminating", True))
DRAINING: Final = ("three",)
"""Services with ``drain``: an endpoint that begins to drain counts as removed."""
LOCAL: Final = "local"

Group = tuple[str, str, str]
"""Service, source cluster and address family."""
Pair = tuple[str, str]
"""Service and source cluster."""


@dataclass(slots=True)
class Knowledge:
    """What a hub may know about one address of one cluster.

    Attributes:
        gone: since when the hub may know that it must not be published; None = it cannot know.
        deleted: since when the hub may know that no node has it, ready or not.
        there: since when the hub must know without interruption that a node has it.
    """

    gone: float | None = None
    deleted: float | None = None
    there: float | None = None


@dataclass(slots=True)
class Shown:
    """A published slice: its addresses with their conditions."""

    name: str
    group: Group
    endpoints: dict[str, tuple[Any, ...]]


@dataclass(slots=True)
class Absence:
    """A cluster that has given no certain answer since a time.

    Attributes:
        since: the time at which that began.
        cut: whether only the connection may have failed.
        back: since when it answers again.
        given_up: whether an ``unreachable`` policy may have taken effect.
    """

    since: float
    cut: bool = False
    back: float | None = None
    given_up: bool = False


class Judge:
    """Judges all hubs of a world; see the module.

    Attributes:
        violations: descriptions of writes that were not allowed.
        writes: the number of slices that hubs wrote.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_world = False
        self.violations: list[str] = []
        self.writes = 0
        self.history: list[str] = []
        self.slices: dict[str, Shown] = {}
        self._said: dict[str, dict[str, Knowledge]] = {}
        self._candidates: dict[tuple[str, str], set[str]] = {}
        self._dropped: dict[Pair, float] = {}
        self._back: dict[Pair, float] = {}
        self._may: dict[tuple[str, ...], float] = {}
        self._frozen: dict[str, float] = {}
        self._absent: dict[str, Absence] = {}
        self._dead: dict[str, float] = {}
        self._levels: dict[Group, list[tuple[float, int]]] = {}
        self._approved: dict[Group, list[tuple[float, frozenset[str]]]] = {}
        self._ready: dict[Group, float] = {}
        self._shown: dict[tuple[Group, str], float] = {}
        self._twice: dict[tuple[str, str], float] = {}
        self._writer = ""
        self._holder, self._held, self._renewed = "", 0.0, 0.0
        self._storm: dict[str, int] = {}
        self.written: dict[str, int] = {}
        """Slice -> number of writes by hubs."""
        self.tampered: set[tuple[str, str]] = set()
        """(service, address) pairs that the world itself added or removed, and that no hub has repaired since."""

    def attach(self, sim: SimulatedCluster) -> None:
        """Receive each change of a cluster while it is committed."""
        ears = {"endpointslices": self.change, "leases": self._lease, "services": self._foreign, "nodes": self._foreign}
        for resource, told in ears.items():
            sim._store.tables[resource].watchers[_ChangeListener(told, resource)] = None  # type: ignore[index]

    @contextlib.contextmanager
    def world(self) -> Iterator[None]:
        """Attribute changes in the block to the world."""
        self._by_world = True
        try:
            yield
        finally:
            self._by_world = False

    def verdict(self) -> None:
        """Fail if there are violations.

        Raises:
            AssertionError: with all violations and the last writes.
        """
        assert not self.violations, "\n".join([*self.violations, "last writes:", *self.history[-25:]])

    def now(self) -> float:
        """Virtual time in seconds."""
        return self._world.loop.time()

    def start_quiet_time(self) -> None:
        """Forget the writes counted so far: from now on only time passes."""
        self._storm.clear()

    def approved(self, group: Group, addresses: Collection[str]) -> None:
        """An operator approves the removal of these addresses, which counts for an hour."""
        self._approved.setdefault(group, []).append((self.now() + 3600.0, frozenset(addresses)))

    # the true state

    def observe(self) -> None:
        """Observe the true state. Called before and after the world changes."""
        world, now = self._world, self.now()
        for name in world.remotes:
            self._observe_cluster(name, now)
        self._observe_pods(now)
        self._observe_registry(now)
        self._observe_absence(now)
        self._observe_twice(now)

    def _observe_registry(self, now: float) -> None:
        world = self._world
        wanted = world.wanted()
        for pair in world.possible():
            if pair not in wanted:
                self._dropped.setdefault(pair, now)
                self._back.pop(pair, None)
            elif not world.readable:
                self._back.pop(pair, None)
            elif pair in self._dropped and now - self._back.setdefault(pair, now) > RELOAD:
                del self._dropped[pair]
        self._observe_policies(now)
        for group in list(self._levels):  # meanwhile nothing is judged and nothing remembered
            if group[:2] not in wanted or (group[1] != LOCAL and world.entries[group[1]].state != "active"):
                del self._levels[group]

    def _observe_policies(self, now: float) -> None:
        world = self._world
        facts: set[tuple[str, ...]] = {("failover", service) for service in world.failover}
        for name, entry in world.entries.items():
            if entry.frozen and world.readable:
                self._frozen.setdefault(name, now)
            else:
                self._frozen.pop(name, None)
            if entry.present:
                facts |= {("state", name, entry.state), ("unreachable", name, entry.unreachable)}
        for fact in facts:
            self._may[fact] = now
        if not world.readable:  # policies that may have been in force stay in force
            self._may = {fact: now if now - at <= RELOAD else at for fact, at in self._may.items()}

    def _in_force(self, *fact: str) -> bool:
        """Whether a hub may assume that the registry says so."""
        return self.now() - self._may.get(fact, -math.inf) <= RELOAD

    def _observe_absence(self, now: float) -> None:
        """Find the clusters that may have been unreachable for so long that their policy takes effect."""
        world = self._world
        for name in world.remotes:
            how = world.down.get(name)
            if how == "dead":
                self._dead.setdefault(name, now)
            else:
                self._dead.pop(name, None)
            known = self._absent.get(name)
            if how is not None:
                known = self._absent.setdefault(name, Absence(now))
                known.back = None
                known.cut = known.cut or how in ("dead", "hang")
            elif known is not None:
                known.back = known.back if known.back is not None else now
                if now - known.back > LAG:
                    del self._absent[name]
        surely = sum(
            now - at > CALM + 10.0 and world.entries[name].present and not world.entries[name].frozen
            for name, at in self._dead.items()
        )
        for known in self._absent.values():
            if known.cut and surely < 2 and any(self._waited(known, process) for process in world.processes.values()):
                known.given_up = True

    def _waited(self, absence: Absence, process: Any) -> bool:
        started: float = process.started
        return self.now() - max(absence.since, started) >= UNREACHABLE_AFTER - 1.0

    def _given_up(self, cluster: str, policy: str) -> bool:
        absence = self._absent.get(cluster)
        return absence is not None and absence.given_up and self._in_force("unreachable", cluster, policy)

    def _observe_twice(self, now: float) -> None:
        """An address may be published twice only for the time of a move, unless the hub cannot write."""
        world, places = self._world, self._places()
        if world.broken or world.writer() is None or not world.readable:
            world.trouble()
        twice = {key: groups for key, groups in places.items() if len(groups) > 1}
        self._twice = {key: self._twice.get(key, now) for key in twice}
        for key, since in self._twice.items():
            start = max(since, world.troubled + CALM)
            if now - start > MOVE + 3.0 and sum(self._settled(group) for group in twice[key]) > 1:
                self._wrong(f"leaves {key[1]} of {key[0]} published twice since {since:.1f}: {sorted(twice[key])}")

    def _settled(self, group: Group) -> bool:
        """Whether the registry has had the group for a while, and lets it be written."""
        return group[:2] not in self._dropped and (group[1] == LOCAL or self._world.entries[group[1]].state == "active")

    def _places(self) -> dict[tuple[str, str], list[Group]]:
        """(service, address) -> the groups that publish it."""
        places: dict[tuple[str, str], list[Group]] = {}
        for slice_ in self.slices.values():
            for address in slice_.endpoints:
                places.setdefault((slice_.group[0], address), []).append(slice_.group)
        return places

    def _observe_pods(self, now: float) -> None:
        said, pods = self._said.setdefault(LOCAL, {}), self._world.pods
        for address in pods:
            said.setdefault(address, Knowledge())
        for address, knowledge in said.items():
            if address not in pods:
                knowledge.there = None
                knowledge.gone = knowledge.deleted = knowledge.gone if knowledge.gone is not None else now
            else:
                knowledge.there = knowledge.there if knowledge.there is not None else now
                if now - knowledge.there > LAG:
                    knowledge.gone = knowledge.deleted = None

    def _observe_cluster(self, name: str, now: float) -> None:
        cloud, said = self._world.clouds[name], self._said.setdefault(name, {})
        for machine, address in cloud.addresses.items():
            known = self._candidates.setdefault((name, machine), set())
            if cloud.includes(machine):
                for moved in known - _both(address) if address else ():
                    said[moved].gone = said[moved].gone if said[moved].gone is not None else now
                known.clear()
            if address and (cloud.includes(machine) or not known):
                known |= _both(address)
        every = {a for (cluster, _), known in self._candidates.items() if cluster == name for a in known}
        for address in every:
            said.setdefault(address, Knowledge())
        nodes = self._world.nodes(name)
        for address, knowledge in said.items():
            self._observe_address(name, address, knowledge, nodes, now)

    def _observe_address(
        self, name: str, address: str, knowledge: Knowledge, nodes: dict[str, bool], now: float
    ) -> None:
        world, cloud, entry = self._world, self._world.clouds[name], self._world.entries[name]
        reachable = name not in world.down
        having = [n for n in nodes if address in self._candidates.get((name, n), ())]
        ready = [n for n in having if nodes[n]] if address not in entry.excluded else []
        if reachable and not having and knowledge.deleted is None:
            knowledge.deleted = now
        if not ready:
            knowledge.there = None
            if (reachable or address in entry.excluded) and knowledge.gone is None:
                knowledge.gone = now
        elif reachable and any(cloud.mode == "ok" and address in _both(cloud.addresses.get(n)) for n in ready):
            knowledge.there = knowledge.there if knowledge.there is not None else now
            if now - knowledge.there > LAG:
                knowledge.gone = knowledge.deleted = None
        else:
            knowledge.there = None

    def truth(self, cluster: str, family: str) -> tuple[set[str], set[str]]:
        """The addresses of a cluster that must be published in a quiet world, and those that may be."""
        if cluster == LOCAL:
            pods = set(self._world.pods) if family == "IPv4" else set()
            return pods, pods
        nodes, machines = self._world.nodes(cluster), self._world.clouds[cluster].addresses
        addresses = {n: a if family == "IPv4" else ipv6_of(a) for n, a in machines.items() if a}
        excluded = self._world.entries[cluster].excluded
        allowed = {n: a for n, a in addresses.items() if n in nodes and a not in excluded and _is_allowed(a)}
        must = {a for n, a in allowed.items() if nodes[n]}
        unready = sum(not ready for ready in nodes.values())
        disrupted = unready * 2 > len(nodes)
        return must, must | set(allowed.values()) if disrupted else must

    # changes

    def change(self, change: Any) -> None:
        """Judge a change of a slice in the hub cluster."""
        before, after = change.before, change.after
        stored = after or before
        labels = stored.labels
        ours = [slice_ for slice_ in (before, after) if slice_ is not None and _is_ours(slice_.labels)]
        groups = {_group(slice_) for slice_ in ours}
        old = {group: self.published(group) for group in groups}
        if after is not None and _is_ours(after.labels):
            self.slices[after.key] = Shown(after.name, _group(after), _endpoints(after.decode()))
        else:
            self.slices.pop(stored.key, None)
        what = "delete" if after is None else "create" if before is None else "update"
        who = "world" if self._by_world else WRITER.get() or "hub"
        self.history.append(
            f"{self.now():9.2f} {who} {what} {stored.name} {sorted(self.slices[stored.key].endpoints)}"
            if stored.key in self.slices
            else f"{self.now():9.2f} {who} {what} {stored.name}"
        )
        self._note_writer()
        for group in groups:
            new = self.published(group)
            differing = {(group[0], address) for address in old[group].symmetric_difference(new)}
            if self._by_world:
                self.tampered |= differing
                self._levels.pop(group, None)
            else:
                self._removed(group, old[group], new)
                self.tampered -= differing
            self._note_level(group, len(new))
            self._note_shown(group, old[group], new)
        if self._by_world:
            return
        self.writes += 1
        self.written[stored.name] = self.written.get(stored.name, 0) + 1
        self._storm[stored.name] = self._storm.get(stored.name, 0) + 1
        if self._storm[stored.name] > STORM:
            self._wrong(f"wrote {stored.name} {self._storm[stored.name]} times, and nothing happened meanwhile")
        self._write(before, after, labels)
        self._check_writer(stored.name)
        self._world.written()

    def published(self, group: Group) -> set[str]:
        """The published addresses of a group, without those that drain."""
        ended = DRAINED if group[0] in DRAINING else None
        return {
            address
            for slice_ in self.slices.values()
            if slice_.group == group
            for address, conditions in slice_.endpoints.items()
            if conditions != ended
        }

    def _lease(self, change: Any) -> None:
        """Judge a change of the Lease."""
        holder = (change.after.decode()["spec"].get("holderIdentity") or "") if change.after is not None else ""
        if holder != self._holder:
            self._holder, self._held = holder, self.now()
        self._renewed = self.now()

    def _foreign(self, change: Any) -> None:
        """Judge a change of an object that no hub may write."""
        if not self._by_world:
            self._wrong(f"wrote {(change.after or change.before).key}")

    def _check_writer(self, name: str) -> None:
        """The writer must hold the Lease, and its lease must not have ended."""
        process, now = self._world.processes.get(WRITER.get()), self.now()
        if process is None or process.hub is None:
            return
        if self._holder == process.hub.elector.identity:
            if now - self._renewed > LEASE:
                self._wrong(f"wrote {name} {now - self._renewed:.1f} s after its lease was renewed")
        elif self._holder != "somebody" or now - self._held > LEASE:
            self._wrong(f"wrote {name} as {process.name} while {self._holder or 'nobody'} holds the Lease")

    def _write(self, before: Any, after: Any, labels: dict[str, str]) -> None:
        self._observe_absence(self.now())  # a policy may have taken effect since the last observation
        if before is not None and not _is_ours(before.labels):
            self._wrong(f"wrote {before.name}, which is not ours")
        if after is not None and not _is_ours(labels):
            self._wrong(f"wrote {after.name} without our labels")
        if before is not None and after is not None and _content(before.decode()) == _content(after.decode()):
            self._wrong(f"wrote {after.name} without a change")
        if after is not None:
            self._publishes(before, after)

    def _publishes(self, before: Any, after: Any) -> None:
        shown = self.slices.get(after.key)
        if shown is None:
            return  # reported already
        held = len(_endpoints(before.decode())) if before is not None else 0  # the world may have made it too large
        if len(shown.endpoints) > max(3, held):
            self._wrong(f"{after.name} has {len(shown.endpoints)} endpoints")
        if before is None and not shown.endpoints:
            known = [slice_ for key, slice_ in self.slices.items() if slice_.group == shown.group and key != after.key]
            if any(not slice_.endpoints for slice_ in known):
                self._wrong(f"{after.name} is a second empty slice")
        self._addresses(shown, after)

    def _addresses(self, shown: Shown, after: Any) -> None:
        service, cluster, _ = shown.group
        for address, conditions in shown.endpoints.items():
            strange = (service, address) in self.tampered
            if not _is_allowed(address):
                self._wrong(f"{after.name} publishes {address}, which no allowedCIDRs has")
            expected = conditions == GOOD or (conditions == DRAINED and service in DRAINING)
            if not expected and cluster != LOCAL and not strange and not self._may_be_unready(service):
                self._wrong(f"{after.name} publishes {address} with {dict(conditions)}: no policy says so")
            for key, slice_ in self.slices.items():
                if key == after.key or slice_.group[0] != service or address not in slice_.endpoints:
                    continue
                if slice_.endpoints[address] != conditions and not strange:
                    self._wrong(f"{address} is published twice, with unequal conditions")

    def _may_be_unready(self, service: str) -> bool:
        """Whether an address may not be ready because it moves to a source with other conditions."""
        clusters = [cluster for name, cluster in self._world.possible() if name == service]
        return any(cluster in self._absent and self._absent[cluster].given_up for cluster in clusters)

    def _removed(self, group: Group, old: set[str], new: set[str]) -> None:
        now, (service, cluster, _) = self.now(), group
        gone = {address for address in old - new if (service, address) not in self.tampered}
        if not gone:
            return
        if any(name == service for name, _ in self._world.wanted()):
            self._moves(group, gone)
        unsaid = [address for address in sorted(gone) if _is_allowed(address) and not self._is_gone(cluster, address)]
        if self._asked_for(group):
            self._levels.pop(group, None)
            return
        if (dropped := self._dropped.get((service, cluster))) is not None:
            if unsaid and now - dropped < GRACE - 1.0 and (service, cluster) not in self._world.wanted():
                self._wrong(f"removed {unsaid} of {group} {now - dropped:.1f} s after the registry did")
            return
        if unsaid:
            self._wrong(f"removed {unsaid} of {group}: nobody said that they are gone")
        elif self._frozen.get(cluster, now) < now - RELOAD:
            self._wrong(f"removed {sorted(gone)} of {group}, which is frozen")
        elif cluster != LOCAL:
            self._guard(group, gone, new)

    def _is_gone(self, cluster: str, address: str) -> bool:
        said = self._said.get(cluster, {}).get(address)
        return said is not None and said.gone is not None

    def _asked_for(self, group: Group) -> bool:
        """Whether the registry may have requested that the group be empty."""
        service, cluster, _ = group
        standby = self._in_force("state", cluster, "standby")
        others = [at for other, at in self._ready.items() if other[0] == service and other[1] != cluster]
        switched = self._in_force("failover", service) and any(self.now() - at >= MOVE - 0.01 for at in others)
        return standby or self._given_up(cluster, "remove") or switched

    def _moves(self, group: Group, gone: set[str]) -> None:
        """An address that another source keeps publishing must have been there long enough for consumers to see it."""
        for address in sorted(gone):
            places = [(other, at) for (other, shown), at in self._shown.items() if shown == address]
            others = [at for other, at in places if other[0] == group[0] and other != group]
            if others and self.now() - min(others) < MOVE - 0.01:
                self._wrong(f"took {address} from {group} {self.now() - min(others):.2f} s after it came elsewhere")

    def _guard(self, group: Group, gone: set[str], new: set[str]) -> None:
        now = self.now()
        if lifted := gone & self._lifted(group):
            self._levels.pop(group, None)
            gone -= lifted
        said = {address: self._said[group[1]][address] for address in gone if address in self._said[group[1]]}
        if not said:
            return
        if any(self._published_elsewhere(group, address) for address in gone):
            return  # the address moved to another cluster
        since = {address: knowledge.gone or 0.0 for address, knowledge in said.items()}
        if new and not self._too_early(group[1], gone | new):
            return  # all of it may be removed, in several writes
        if not new:
            if early := self._too_early(group[1], said):
                self._wrong(f"{group} became empty: of {early} nobody said often enough that the nodes are gone")
            return
        levels = self._levels.get(group, [])
        peak = max([level for at, level in [*levels[:-1], (now, levels[-1][1])] if at >= now - WINDOW]) if levels else 0
        if len(new) >= math.ceil(peak * SHARE):
            return
        early = [a for a, at in since.items() if now - at < HOLD - 1.0]
        if early and len(new) + len(gone) >= math.ceil(peak * SHARE):
            self._wrong(f"{group} fell to {len(new)} of {peak} before {early} had been gone for {HOLD:g} s")

    def _too_early(self, cluster: str, addresses: Iterable[str]) -> list[str]:
        """The addresses whose removal no information has supported for long enough."""
        known = self._said[cluster]
        deleted = {address: known[address].deleted if address in known else None for address in addresses}
        return [address for address, at in deleted.items() if at is None or self.now() - at < EMPTY_SECONDS]

    def _lifted(self, group: Group) -> set[str]:
        """Addresses whose removal is approved, or was a moment ago."""
        known = self._approved.get(group, ())
        return {address for until, addresses in known if self.now() < until + RELOAD for address in addresses}

    def _published_elsewhere(self, group: Group, address: str) -> bool:
        return any(
            slice_.group[0] == group[0] and slice_.group != group and address in slice_.endpoints
            for slice_ in self.slices.values()
        )

    def _note_writer(self) -> None:
        """The process that writes remembers the peak; another process starts from what is published."""
        writing = [
            name for name, process in self._world.processes.items() if process.hub is not None and process.hub.writing
        ]
        if writing and self._writer not in writing:
            self._writer = writing[0]
            self._levels.clear()

    def _note_level(self, group: Group, level: int) -> None:
        now = self.now()
        levels = self._levels.setdefault(group, [])
        if levels:  # the previous level ended only now
            levels[-1] = (now, levels[-1][1])
        levels.append((now, level))
        del levels[: max(0, len(levels) - 200)]

    def _note_shown(self, group: Group, old: set[str], new: set[str]) -> None:
        for address in new - old:
            self._shown[group, address] = self.now()
        for address in old - new:
            self._shown.pop((group, address), None)
        slices = [slice_ for slice_ in self.slices.values() if slice_.group == group]
        if any(dict(conditions).get("ready") for slice_ in slices for conditions in slice_.endpoints.values()):
            self._ready.setdefault(group, self.now())
        else:
            self._ready.pop(group, None)

    def _wrong(self, what: str) -> None:
        self.violations.append(f"at {self.now():.2f}: a hub {what}")


class _ChangeListener:
    """Takes the place of a watcher, but is called while a change is committed."""

    def __init__(self, told: Callable[[Any], None], resource: str) -> None:
        self._told = told
        self.resource = resource

    def push(self, change: Any) -> None:
        self._told(change)

    def drop_if_lagging(self) -> None:
        """Does nothing: it never lags."""

    def push_line(self, line: bytes) -> None:
        """Does nothing."""

    def abort(self) -> None:
        """Does nothing: it has no connection."""

    def end(self, *, reset: bool = False) -> None:
        """Does nothing: it has no stream."""


def _is_ours(labels: dict[str, str]) -> bool:
    return (
        labels.get("endpointslice.kubernetes.io/managed-by") == OURS
        and labels.get("endpointslice-hub/owner") == "default"
    )


def _group(stored: Any) -> Group:
    labels = stored.labels
    cluster = labels.get("multicluster.kubernetes.io/source-cluster", "")
    return labels["kubernetes.io/service-name"], cluster, stored.decode()["addressType"]


def _is_allowed(address: str) -> bool:
    return address.startswith(("10.", "fd10:"))


def _both(address: str | None) -> set[str]:
    return {address, ipv6_of(address)} if address else set()


def _endpoints(obj: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        address: tuple(sorted((endpoint.get("conditions") or {}).items()))
        for endpoint in obj.get("endpoints") or ()
        for address in endpoint["addresses"]
    }


def _content(obj: dict[str, Any]) -> dict[str, Any]:
    meta = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("resourceVersion", "generation", "managedFields")
    }
    return {**obj, "metadata": meta}
