"""The working state of one pass of the planner: the view with its indexes, and what was decided so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hub.allocations.causes import TWICE, Leave, is_stopped
from hub.allocations.eligible import why_not_instance, why_not_node
from hub.allocations.spec import LABEL_READY, NEVER, Allocation, Entry, Move, WorkloadRef, moment
from hub.allocations.view import Act, Answer, Machine, Memory, NodeKey, Site, View
from hub.cloud.addresses import Free, Held, Present
from hub.model import LABEL_ZONE, Finding

UNKNOWN_AGAIN: Final = 5.0
"""Seconds between two questions about an address that a move needs to know, while the cloud does not say."""
INSPECTION_VALID: Final = 60.0
"""Seconds that an inspection of a node with room counts; the provider looks again before it writes."""
REFUSAL_VALID: Final = 300.0
"""The same for an instance that cannot take an address."""
LET_GO: Final = "remove the finalizer to let it go as it is"
"""What an operator can do while the deletion of an allocation waits."""
MOST_ALLOCATIONS: Final = 1000
MOST_NODES: Final = 20_000
"""Allocations of an account, and nodes of a cluster, up to which a pass was measured."""
AVOID: Final = 600.0
"""Seconds in which a node is no candidate after a failed attachment."""


class Situation:
    """One address of an allocation: what is known, and what was decided.

    Attributes:
        stored: its stored status.
        move: the wanted record; it may be followed once it is stored.
        answer: the last complete answer, if it is fresh.
        holder: the node that has the address now, or had it at the last answer; None if there is none.
        claimed: whether the allocation lists the address and is not being deleted.
        live: whether this claim has the address; of several claims, the oldest has it.
        leave: the cause that holds.
        hash: approves its withheld move.
        looking: whether a node must be inspected before one can be chosen.
    """

    def __init__(self, allocation: Allocation, address: str, stored: Entry, memory: Memory) -> None:
        self.allocation = allocation
        self.address = address
        self.stored = stored
        self.memory = memory
        self.move: Move | None = None
        self.answer: Answer | None = None
        self.holder: NodeKey | None = None
        self.claimed = True
        self.live = False
        self.state = "Unknown"
        self.reason = ""
        self.message = ""
        self.node = stored.node
        self.instance = stored.instance
        self.last_node = stored.last_node
        self.before = stored.before
        self.moves = stored.moves
        self.leave: Leave | None = None
        self.wait = 0.0
        self.to = ""
        self.why_not: dict[str, str] = {}
        self.looking = False
        self.hash = ""
        self.dropped = False

    def set(self, state: str, reason: str = "", message: str = "") -> None:
        """Set the state in the status."""
        self.state, self.reason, self.message = state, reason, message

    @property
    def region(self) -> str:
        """The region of the address, as far as known."""
        state = self.answer.state if self.answer is not None else None
        return state.region if isinstance(state, Free | Held) else ""

    @property
    def recorded(self) -> bool:
        """Whether the wanted record is stored, so that its act may begin."""
        return self.move is not None and self.move == self.stored.move


class Scene:
    """What one pass works on. See :class:`hub.allocations.view.View`."""

    def __init__(self, view: View, now: float) -> None:
        self.view = view
        self.now = now
        self.account = view.account
        self.limits = view.limits
        self.own = view.own if view.limits.own_node != "allow" else None
        """The hub's node, which comes last; None = it is like any other."""
        self.situations: list[Situation] = []
        self.acts: list[Act] = []
        self.findings: list[tuple[str, Finding]] = []
        self.describe = False
        self.inspect: set[str] = set()
        self.pods: set[tuple[NodeKey, WorkloadRef]] = set()
        self.busy: set[NodeKey] = set()
        """Nodes in a record, or chosen in this pass."""
        self.occupied: dict[NodeKey, set[str]] = {}
        """Node -> the addresses that it has, or may have."""
        self.first_at: dict[NodeKey, Situation] = {}
        """Node -> the address with the oldest claim that it has."""
        self.avoid = {key: until for key, until in view.memory.avoid.items() if until > now}
        self.stopped: dict[str, float] = {}
        self._wake: float = NEVER
        self.by_instance: dict[str, NodeKey] = {}
        for site in view.sites.values():
            for name, machine in site.machines.items():
                if machine.instance is not None:
                    self.by_instance[machine.instance] = NodeKey(site.name, name)
        self.refused: frozenset[str] = frozenset()
        """UIDs of the allocations beyond the limit."""
        self.claims: set[str] = set()
        """Addresses that an allocation of this account lists."""
        intervals = [allocation.interval for allocation in view.allocations]
        self.period = max(self.account.interval, min(intervals, default=self.account.interval))
        """Seconds between two descriptions while nothing happens."""
        for address, answer in view.answers.items():
            key = self.by_instance.get(answer.state.instance) if isinstance(answer.state, Held) else None
            if key is not None and self.fresh(address) is not None:
                self.occupied.setdefault(key, set()).add(address)

    # --- time ---------------------------------------------------------------------------------------

    def wake(self, at: float) -> None:
        """Make the next pass come at this time at the latest."""
        if at > self.now:
            self._wake = min(self._wake, at)

    @property
    def next(self) -> float | None:
        """When the next pass is due; None = only when something changes."""
        return None if self._wake == NEVER else self._wake

    # --- answers ------------------------------------------------------------------------------------

    def fresh(self, address: str) -> Answer | None:
        """The last answer about an address, unless it is too old to decide anything."""
        answer = self.view.answers.get(address)
        return answer if answer is not None and self.now - answer.at <= 2 * self.period else None

    def refresh(self, address: str, after: float = 0.0, again: float = UNKNOWN_AGAIN) -> None:
        """Ask for an answer about an address: at once if the last one is not newer than ``after``, else in a while."""
        last = self.view.answers.get(address)
        if last is None or last.at <= after or self.now >= last.at + again:
            self.describe = True
        else:
            self.wake(last.at + again)

    def site(self, cluster: str) -> Site:
        """A cluster, with a problem if the account does not list it."""
        return self.view.sites.get(cluster) or Site(cluster, problem=f"cluster {cluster} is not followed")

    def machine(self, key: NodeKey | None) -> Machine | None:
        """A node; None if it does not exist, or its cluster is not known."""
        return self.site(key.cluster).machines.get(key.name) if key is not None else None

    def key(self, allocation: Allocation, name: str) -> NodeKey | None:
        """The node that the stored status names; None for ""."""
        if not name:
            return None
        cluster, slash, node = name.partition("/")
        return NodeKey(cluster, node) if slash else NodeKey(allocation.cluster, name)

    def instance(self, key: NodeKey | None) -> str:
        """The instance of a node; "" if it is not known."""
        machine = self.machine(key)
        return (machine.instance or "") if machine is not None else ""

    def look(self, instance: str, valid: float) -> bool:
        """Whether the inspection of an instance is at most ``valid`` seconds old; asks for one if it is not."""
        found = self.view.inspections.get(instance)
        if found is not None and self.now - found.at < valid:
            self.wake(found.at + valid)
            return True
        self.inspect.add(instance)
        return False

    def gone(self, instance: str) -> bool:
        """Whether two inspections in a row found that the instance does not run."""
        found = self.view.inspections.get(instance)
        if found is None or not is_stopped(found) or self.now - found.at > 2 * self.account.interval:
            return False
        first = self.view.memory.stopped.get(instance, found.at)
        self.stopped[instance] = first
        if found.at - first >= TWICE:
            return True
        if self.look(instance, TWICE):
            self.wake(found.at + TWICE)
        return False

    # --- candidates -----------------------------------------------------------------------------------

    def choose(self, situation: Situation, tried: Iterable[str] = ()) -> NodeKey | None:
        """The best node for an address; None if there is none, or it must be inspected first.

        Fills ``situation.why_not``.
        """
        allocation = situation.allocation
        site = self.site(allocation.cluster)
        if site.problem:
            situation.why_not[allocation.cluster] = site.problem
            return None
        refused = set(tried)
        found: list[tuple[tuple[object, ...], NodeKey]] = []
        spread = self._spread(allocation)
        for name, machine in site.machines.items():
            key = NodeKey(site.name, name)
            why = self.why_not(situation, key, tried=name in refused)
            if why:
                situation.why_not[name] = why
                continue
            zone = machine.node.labels.get(LABEL_ZONE, "")
            last = name not in (situation.last_node, situation.node)
            rank = (key == self.own, last, spread.get(zone, 0), machine.ready_since, name)
            found.append((rank, key))
        for _, key in sorted(found):
            instance = self.instance(key)
            inspection = self.view.inspections.get(instance)
            if inspection is None or not self._counts(situation, instance):
                self.inspect.add(instance)
                situation.looking = True
                return None
            if why := why_not_instance(inspection.state, situation.region):
                situation.why_not[key.name] = why
                continue
            return key
        return None

    def _counts(self, situation: Situation, instance: str) -> bool:
        """Whether an inspection still counts; one that refuses may do so for an address that has left since."""
        inspection = self.view.inspections[instance]
        if not why_not_instance(inspection.state, situation.region):
            return self.now - inspection.at < INSPECTION_VALID
        return self.now - inspection.at < REFUSAL_VALID and inspection.at > self.view.memory.used.get(instance, 0.0)

    def used(self) -> dict[str, float]:
        """When instances last had an address or a move, as long as inspections of them count."""
        before = {one: at for one, at in self.view.memory.used.items() if self.now - at < REFUSAL_VALID}
        now = map(self.instance, {*self.occupied, *self.busy})
        return {**before, **{instance: self.now for instance in now if instance}}

    def why_not(self, situation: Situation, key: NodeKey, *, tried: bool = False) -> str:
        """Why a node may not take an address, before it is inspected; "" if it may."""
        machine = self.machine(key)
        if machine is None:
            return "it is gone"
        if key in self.occupied or key in self.view.foreign_labels:
            return "it has an address"
        if LABEL_READY in machine.node.labels:
            return f"it has the label {LABEL_READY}, and may have an address that is not known"
        if key in self.busy:
            return "another move uses it"
        if tried or self.avoid.get(key, 0.0) > self.now:
            self.wake(self.avoid.get(key, 0.0))
            return "it could not take an address a short time ago"
        if key == self.own and (self.limits.own_node == "never" or "target" in self.account.cuts):
            return "the hub runs there (limits ownNode)"
        why = why_not_node(machine, situation.allocation, self.now)
        if why.startswith("it is Ready for less"):
            self.wake(machine.ready_since + 10.0)
        return why

    def _spread(self, allocation: Allocation) -> dict[str, int]:
        """Zone -> how many addresses of the allocation are there."""
        zones: dict[str, int] = {}
        for situation in self.situations:
            if situation.allocation.uid == allocation.uid:
                target = NodeKey(allocation.cluster, situation.move.to) if situation.move else None
                for key in (situation.holder, target):
                    if machine := self.machine(key):
                        zone = machine.node.labels.get(LABEL_ZONE, "")
                        zones[zone] = zones.get(zone, 0) + 1
        return zones

    def usual_before(self) -> str:
        """What unassigned instances have in the place of an address, if all that were inspected have the same."""
        found = {
            inspection.state.before
            for inspection in self.view.inspections.values()
            if isinstance(inspection.state, Present) and inspection.state.room
        }
        return next(iter(found)) if len(found) == 1 else ""

    def of_pool(self, cluster: str) -> Iterator[Situation]:
        """The live situations of a pool."""
        return (found for found in self.situations if found.live and found.allocation.cluster == cluster)

    def find(self, allocation: str, reason: str, message: str, *objects: str) -> None:
        """Add a finding about an allocation."""
        self.findings.append((allocation, Finding(reason, message, objects)))


def held_for(situation: Situation, now: float) -> float:
    """Seconds since the state in the stored status was entered."""
    return now - (moment(situation.stored.since) or now)


def name_of(allocation: Allocation, key: NodeKey | None) -> str:
    """A node as the status of an allocation names it: with its cluster, if that is another one."""
    if key is None:
        return ""
    return key.name if key.cluster == allocation.cluster else f"{key.cluster}/{key.name}"
