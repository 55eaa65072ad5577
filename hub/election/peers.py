"""Compares this replica with the other replicas, by the annotations on the Leases that they hold.

Annotations on a Lease state the number of shards that its holder is configured with (``--shards``) and the registry
that it divides. While any held Lease states another number or another registry, this replica takes no shard. A replica
with more shards holds Leases that do not exist for this replica ("Leases beyond ours"). They are read here too, as long
as any Lease states so many shards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from hub.election import MOST_SHARDS
from hub.election.elector import Elector, LeaseRecord
from hub.errors import HubError
from hub.model import ANNOTATION_WITHHELD
from hub.runtime.clock import Clock

SHARDS: Final = "endpointslice-hub/shards"
"""Annotation: the number of shards; absent = 1."""
REGISTRY: Final = "endpointslice-hub/registry"
"""Annotation: the mark of the registry that the holder divides (hub.election.assignment)."""
WANTED: Final = "endpointslice-hub/wanted-by"
"""Annotation on a Lease that is held: the identity of the replica that asks for it."""
HANDED: Final = "endpointslice-hub/handed-to"
"""Annotation on a Lease that was released: the identity of the replica that may take it first."""


def count_of(record: LeaseRecord | None) -> int:
    """The number of shards that a Lease states; 0 = no Lease.

    MOST_SHARDS if the annotation is not a number or is larger, so that every possible Lease is read.
    """
    if record is None:
        return 0
    text = record.notes.get(SHARDS, "1")
    return min(int(text), MOST_SHARDS) if text.isascii() and text.isdigit() and len(text) < 9 else MOST_SHARDS


class Peers:
    """The state of all Leases as last read, and the statements of the replicas that hold them.

    Args:
        own: the electors of this replica's shards, by number of the shard.
        make: returns an elector for the Lease with a number; it is used only to read the Lease.
    """

    def __init__(self, own: Sequence[Elector], make: Callable[[int], Elector]) -> None:
        self._own = own
        self._make = make
        self._beyond: dict[int, Elector] = {}
        """Leases beyond ours, by number: only replicas with more shards hold them."""
        self._unread: dict[int, str] = {}
        """Leases of ``_beyond`` that were not read yet -> the error; "" before the first attempt."""
        self._beyond_added = asyncio.Event()

    @property
    def larger_count_seen(self) -> bool:
        """Whether a Lease states more shards than this replica has."""
        return bool(self._beyond)

    @property
    def withholding(self) -> bool:
        """Whether another replica that holds a shard withholds a removal."""
        return any(ANNOTATION_WITHHELD in record.notes for _, _, record in self._held(enumerate(self._own)))

    def holders(self) -> set[str]:
        """Identities of the replicas that hold one of our shards, this replica included."""
        return {elector.seen.holder for elector in self._own if elector.maybe_held and elector.seen is not None}

    def loads(self) -> Counter[str] | None:
        """Identity -> number of shards, for all other replicas; None while any shard is free."""
        others = [elector for elector in self._own if not elector.leading]
        if not all(elector.maybe_held for elector in others):
            return None
        return Counter(elector.seen.holder for elector in others if elector.seen is not None)

    def load_of(self, identity: str) -> int:
        """The number of shards that one other replica holds, as last read."""
        return sum(record.holder == identity for _, _, record in self._held(enumerate(self._own)))

    def counts_differ(self) -> bool:
        """Whether another replica holds a Lease that states a different number of shards."""
        return any(count_of(record) != len(self._own) for _, _, record in self._held(self._all()))

    def obstacle(self, mark: str) -> str:
        """Why this replica may not take a Lease while it divides the registry ``mark``; "" = it may."""
        if self._unread:
            why = next(filter(None, self._unread.values()), "")
            return f"Leases of a replica with a larger --shards were not read yet{f': {why}' if why else ''}"
        own = len(self._own)
        for number, elector, record in self._held(self._all()):
            if (count := count_of(record)) != own:
                if own == 1 and number == 0:
                    continue  # the only Lease of a hub without shards: stand by for it as usual
                return f"{elector.holder} has --shards {count} and holds shard {number}; this replica has {own}"
            if own > 1 and record.notes.get(REGISTRY) != mark:
                return f"{elector.holder} holds shard {number} with another registry than this replica's"
        return ""

    def read_beyond(self, record: LeaseRecord) -> None:
        """Start to read the Leases beyond ours if this Lease states more shards."""
        for number in range(len(self._own), count_of(record)):
            if number not in self._beyond:
                self._beyond[number] = self._make(number)
                self._unread[number] = ""
                self._beyond_added.set()

    async def follow(self, clock: Clock, seconds: float) -> None:
        """Read the Leases beyond ours every ``seconds``, whenever there are any; runs until cancelled."""
        while True:
            await self._beyond_added.wait()
            self._beyond_added.clear()
            while self._beyond:
                await asyncio.gather(*(self._read(number) for number in self._beyond))
                await clock.sleep(seconds)

    async def refresh(self) -> None:
        """Read every Lease that this replica does not hold.

        Raises:
            HubError: a Lease cannot be read.
        """
        beyond = tuple(self._beyond)
        answers = await asyncio.gather(*(elector.refresh() for _, elector in self._all()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        for number in beyond:
            self._unread.pop(number, None)

    async def _read(self, number: int) -> None:
        """Read one Lease beyond ours; stop reading it once no Lease states so many shards."""
        try:
            await self._beyond[number].refresh()
        except HubError as error:
            if number in self._unread:
                self._unread[number] = str(error)
        else:
            self._unread.pop(number, None)
        if max(count_of(elector.seen) for elector in self._own) <= number:
            del self._beyond[number]
            self._unread.pop(number, None)

    def _all(self) -> Iterator[tuple[int, Elector]]:
        yield from enumerate(self._own)
        yield from self._beyond.items()

    @staticmethod
    def _held(electors: Iterable[tuple[int, Elector]]) -> Iterator[tuple[int, Elector, LeaseRecord]]:
        """Yields number, elector and record of the Leases that another replica holds."""
        for number, elector in electors:
            if elector.maybe_held and not elector.leading and elector.seen is not None:
                yield number, elector, elector.seen
