"""Which targets this process may write, and which other work it does.

A replica writes the targets of the shards that it holds. The replica that holds a cluster's shard acts for the cluster:
it renews its token and writes Events about it. The replica that holds shard 0 does the work that only one may do: keep
the accepted registry, write Events about the hub, and call consumers of endpoint views. A hub without shards has shard
0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from hub.election.assignment import Assignment
from hub.election.elector import Elector, LeaseStore, Timing
from hub.election.shards import Shards
from hub.errors import NotLeader
from hub.model import TargetKey
from hub.reconcile.writer import NoElection
from hub.registry.spec import Registry
from hub.runtime.clock import Clock

ALL: Final = frozenset((0,))
"""The shards of a process that takes part in no election."""


class Leading:
    """The rights and the other work of this process.

    Args:
        store: returns the store of the Lease of a shard.
        identity: identity of this process; unique, also among earlier processes.
        registry: the registry in force.
        under_way: returns the targets whose pass is under way.
        on_change: called when this process may write other targets than before.
        elects: whether to take part in the election; if not, this process may write everything after :meth:`begin`.
        count: number of shards.
        timing: times of the election.
        withheld: returns the hash of the removal that is withheld here, "" if there is none; other replicas read it.

    Attributes:
        held: the shards whose targets this process writes.
    """

    def __init__(
        self,
        store: Callable[[int], LeaseStore],
        identity: str,
        clock: Clock,
        registry: Registry,
        under_way: Callable[[], Collection[TargetKey]],
        on_change: Callable[[], None],
        *,
        elects: bool = True,
        count: int = 1,
        timing: Timing | None = None,
        withheld: Callable[[], str] = str,
    ) -> None:
        self.count = count if elects else 1
        self.elects = elects
        self._assignment = Assignment(registry, self.count)
        self._under_way = under_way
        self._on_change = on_change
        self.withheld = withheld
        self._no_election = NoElection()
        self._moving: set[TargetKey] = set()
        """Targets that a new registry moved to another shard. Until all replicas have the new registry, the holder of
        the old shard may still write them."""
        self.held: frozenset[int] = frozenset()
        self._ended = False

        mark = self._assignment.mark
        self.shards = Shards(store, self.count, identity, clock, timing, mark=mark, holder=self)

    @property
    def elector(self) -> Elector:
        """The elector of the first shard."""
        return self.shards.electors[0]

    @property
    def problem(self) -> str:
        """What is wrong with the election; "" if nothing is."""
        if not self.elects:
            return ""
        return self.shards.problem

    # --- rights --------------------------------------------------------------------------------------

    @property
    def writing(self) -> bool:
        """Whether this process writes any targets now."""
        return bool(self.held)

    @property
    def holds_shard_0(self) -> bool:
        """Whether this process holds shard 0, and so does the work that only one replica may do."""
        return 0 in self.held

    def writes(self, key: TargetKey) -> bool:
        """Whether this process writes a target now."""
        if self.count == 1:
            return bool(self.held)
        return self._assignment.of(key) in self.held and key not in self._moving

    def acts_for(self, cluster: str) -> bool:
        """Whether this process acts for a cluster: renews its token, and writes Events about it."""
        return bool(self.held) and (self.count == 1 or self._assignment.responsible_shard(cluster) in self.held)

    def shard(self, key: TargetKey) -> int:
        """The shard of a target."""
        return self._assignment.of(key)

    def holder_of(self, key: TargetKey) -> str:
        """Identity of the replica that holds a target's shard, as far as known; "" = none."""
        return self.shards.electors[self._assignment.of(key)].holder

    def check(self, target: TargetKey) -> float:
        """Seconds that a write of a target may take if it starts now, see :meth:`hub.election.elector.Elector.check`.

        Raises:
            NotLeader: this process may not write the target now.
        """
        if not self.elects:
            return self._no_election.check(target)
        if target in self._moving:
            raise NotLeader(f"another replica may write {target} until all have the registry in force here")
        return self.shards.check(self._assignment.of(target))

    def check_duties(self) -> float:
        """As :meth:`check`, for writes of the work that only the holder of shard 0 does.

        Raises:
            NotLeader: this process may not do it now.
        """
        if not self.elects:
            return self._no_election.check(TargetKey("", ""))
        return self.shards.check(0)

    def check_cluster(self, cluster: str) -> float:
        """As :meth:`check`, for what the replica that acts for a cluster does (:meth:`acts_for`).

        Raises:
            NotLeader: this process may not do it now.
        """
        if not self.elects:
            return self._no_election.check(TargetKey("", ""))
        return self.shards.check(self._assignment.responsible_shard(cluster) if self.count > 1 else 0)

    # --- which registry ------------------------------------------------------------------------------

    def use_registry(self, registry: Registry) -> None:
        """Divide this registry from now on. Targets that it moves to another shard are not written until all agree."""
        before, self._assignment = self._assignment, Assignment(registry, self.count)
        if self.count > 1:
            self._moving |= self._assignment.moved(before)
            self.shards.use_registry(self._assignment.mark)

    def registry_part(self) -> Registry:
        """The part of the registry that this process must follow; without shards every replica follows all of it."""
        return self._assignment.registry if self.count == 1 else self._assignment.part(self.held)

    def written_elsewhere(self, keys: Iterable[TargetKey]) -> list[TargetKey]:
        """Return those of these targets that another replica writes or may write.

        Empty without shards: a standby keeps the state of all targets until it takes over.
        """
        return [key for key in keys if not self.writes(key)] if self.count > 1 else []

    # --- the election's side -------------------------------------------------------------------------

    def changed(self) -> None:
        """See :class:`hub.election.shards.Holder`."""
        held = frozenset() if self._ended else self.shards.held
        if self.shards.agreed:
            self._moving.clear()
        self.held = held
        self._on_change()

    def busy(self, shard: int) -> bool:
        """See :class:`hub.election.shards.Holder`."""
        # A target that a new registry moved while it was being written counts for its old shard, which is not known any
        # more: so it counts for all shards.
        return self.leaving() or any(self._assignment.of(key) == shard for key in self._under_way())

    def leaving(self) -> bool:
        """See :class:`hub.election.shards.Holder`."""
        return any(not self.writes(key) for key in self._under_way())

    def begin(self) -> None:
        """Write everything from now on; only without an election."""
        self.held = ALL
        self._on_change()

    def end(self) -> None:
        """Write nothing more, because this process is ending."""
        self._ended = True
        self.held = frozenset()
