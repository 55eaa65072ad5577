"""What this process may write and what else is its business: everything, nothing, or some shards.

What only one replica may do for the whole hub (keep the registry, speak for it in Events, call consumers of endpoint
views) is the business of who holds shard 0. What is done for a cluster is that of the shard which speaks for it; what
is done for a target is that of the target's shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from hub.election.assignment import Assignment
from hub.election.elector import Elector, LeaseStore, Timing
from hub.election.shards import Shards
from hub.errors import NotLeader
from hub.model import TargetKey
from hub.reconcile.writer import Free
from hub.registry.spec import Registry
from hub.runtime.clock import Clock

ALL: Final = frozenset((0,))
"""The shards of a hub that takes part in no election."""


class Leading:
    """The rights of this process.

    Args:
        store: of the Lease of a shard.
        identity: who we are, different for every process ever started.
        registry: the one in force.
        under_way: targets whose pass is under way.
        on_change: called when other targets are written here than before.
        elects: take part in the election; else everything is ours from :meth:`begin` on.
        count: of shards.
        timing: of the election.
        withheld: hash of the removal that is withheld here, for the others; "" = none is.
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
        self._free = Free()
        self._moving: set[TargetKey] = set()
        """Targets that another registry brought to our shards: another replica may write them yet."""
        self.held: frozenset[int] = frozenset()
        """The shards whose targets are written here."""
        self._ended = False

        mark = self._assignment.mark
        self.shards = Shards(store, self.count, identity, clock, timing, mark=mark, holder=self)

    @property
    def elector(self) -> Elector:
        """Of the first shard."""
        return self.shards.electors[0]

    @property
    def problem(self) -> str:
        """What is wrong with the election; "" = nothing."""
        if not self.elects:
            return ""
        return self.shards.problem

    # --- rights --------------------------------------------------------------------------------------

    @property
    def writing(self) -> bool:
        """Whether this process writes any targets."""
        return bool(self.held)

    @property
    def first(self) -> bool:
        """Whether what is done once for the whole hub is this process's business."""
        return 0 in self.held

    def writes(self, key: TargetKey) -> bool:
        """Whether this process writes a target."""
        if self.count == 1:
            return bool(self.held)
        return self._assignment.of(key) in self.held and key not in self._moving

    def minds(self, cluster: str) -> bool:
        """Whether this process speaks for a cluster."""
        return bool(self.held) and (self.count == 1 or self._assignment.minder(cluster) in self.held)

    def shard(self, key: TargetKey) -> int:
        """The shard of a target."""
        return self._assignment.of(key)

    def holder_of(self, key: TargetKey) -> str:
        """Identity of who writes a target, as far as known; "" = nobody."""
        return self.shards.electors[self._assignment.of(key)].holder

    def check(self, target: TargetKey) -> float:
        """The fence of every write, see :meth:`hub.election.elector.Elector.check`.

        Raises:
            NotLeader: this process may not write the target now.
        """
        if not self.elects:
            return self._free.check(target)
        if target in self._moving:
            raise NotLeader(f"another replica may write {target} until all have the registry in force here")
        return self.shards.check(self._assignment.of(target))

    # --- which registry ------------------------------------------------------------------------------

    def use(self, registry: Registry) -> None:
        """Another registry is in force: what is not ours any more is not written from here on."""
        before, self._assignment = self._assignment, Assignment(registry, self.count)
        if self.count > 1:
            self._moving |= self._assignment.moved(before)
            self.shards.use(self._assignment.mark)

    def part(self) -> Registry:
        """What of the registry is to be followed here: in a hub without shards all of it, by every replica."""
        return self._assignment.registry if self.count == 1 else self._assignment.part(self.held)

    def strangers(self, keys: Iterable[TargetKey]) -> list[TargetKey]:
        """Those of these targets that another replica writes, or may: without shards none is, until one has written."""
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
        # What a registry moved while it was being written is in another shard by now: it holds up all of them.
        return self.leaving() or any(self._assignment.of(key) == shard for key in self._under_way())

    def leaving(self) -> bool:
        """See :class:`hub.election.shards.Holder`."""
        return any(not self.writes(key) for key in self._under_way())

    def begin(self) -> None:
        """Without an election: everything is ours from now on."""
        self.held = ALL
        self._on_change()

    def end(self) -> None:
        """This process is ending: nothing is begun any more."""
        self._ended = True
        self.held = frozenset()
