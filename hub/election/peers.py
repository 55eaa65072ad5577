"""What the other replicas say on the Leases that they hold.

Annotations on a Lease say how many shards its holder counts and which registry it divides. While a Lease is held that
says something else than this replica does, this replica takes no shard. Replicas that count more shards hold Leases
beyond ours: those are followed here as well, for as long as any replica counts them.
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
"""Annotation: how many Leases there are; absent = one."""
REGISTRY: Final = "endpointslice-hub/registry"
"""Annotation: which registry the holder divides."""
WANTED: Final = "endpointslice-hub/wanted-by"
"""Annotation on a Lease that is held: the identity of the replica that asks for it."""
HANDED: Final = "endpointslice-hub/handed-to"
"""Annotation on a Lease that was released: the identity of the replica that may take it first."""


def count_of(record: LeaseRecord | None) -> int:
    """How many shards a Lease says there are; 0 = there is no Lease."""
    if record is None:
        return 0
    text = record.notes.get(SHARDS, "1")
    return min(int(text), MOST_SHARDS) if text.isascii() and text.isdigit() and len(text) < 9 else MOST_SHARDS


class Peers:
    """The Leases as they were last seen, and what the replicas that hold them say.

    Args:
        own: the electors of our own number of shards, by number.
        make: an elector for the Lease with a number; it only reads the Lease.
    """

    def __init__(self, own: Sequence[Elector], make: Callable[[int], Elector]) -> None:
        self._own = own
        self._make = make
        self._beyond: dict[int, Elector] = {}
        """Leases of replicas that count more shards than we do."""
        self._unread: dict[int, str] = {}
        """Those of ``_beyond`` that were not read yet, and why."""
        self._found = asyncio.Event()

    @property
    def count_more(self) -> bool:
        """Whether some replica counts more shards than we do."""
        return bool(self._beyond)

    @property
    def withholding(self) -> bool:
        """Whether another replica that writes withholds a removal."""
        return any(ANNOTATION_WITHHELD in record.notes for _, _, record in self._held(enumerate(self._own)))

    def holders(self) -> set[str]:
        """Identities of the replicas that hold any of our own number of shards."""
        return {elector.seen.holder for elector in self._own if elector.taken and elector.seen is not None}

    def loads(self) -> Counter[str] | None:
        """How many shards each other replica holds; None while any shard is free."""
        others = [elector for elector in self._own if not elector.leading]
        if not all(elector.taken for elector in others):
            return None
        return Counter(elector.seen.holder for elector in others if elector.seen is not None)

    def load_of(self, identity: str) -> int:
        """How many shards one other replica holds, as far as is known."""
        return sum(record.holder == identity for _, _, record in self._held(enumerate(self._own)))

    def counts_differ(self) -> bool:
        """Whether another replica holds a shard and counts another number of them."""
        return any(count_of(record) != len(self._own) for _, _, record in self._held(self._all()))

    def obstacle(self, mark: str) -> str:
        """Why no Lease may be taken while we divide the registry ``mark``; "" = nothing prevents it."""
        if self._unread:
            why = next(filter(None, self._unread.values()), "")
            return f"the Leases of a larger --shards were not seen yet{f': {why}' if why else ''}"
        own = len(self._own)
        for number, elector, record in self._held(self._all()):
            if (count := count_of(record)) != own:
                if own == 1 and number == 0:
                    continue  # this is the Lease that we stand by for
                return f"{elector.holder} has --shards {count} and holds shard {number}; this replica has {own}"
            if own > 1 and record.notes.get(REGISTRY) != mark:
                return f"{elector.holder} holds shard {number} with another registry than this replica's"
        return ""

    def widen(self, record: LeaseRecord) -> None:
        """Follow the Leases beyond ours if the holder of this one counts more shards."""
        for number in range(len(self._own), count_of(record)):
            if number not in self._beyond:
                self._beyond[number] = self._make(number)
                self._unread[number] = ""
                self._found.set()

    async def follow(self, clock: Clock, seconds: float) -> None:
        """Read the Leases beyond ours as soon as there are any, and every ``seconds`` from then on."""
        while True:
            await self._found.wait()
            self._found.clear()
            while self._beyond:
                await asyncio.gather(*(self._read(number) for number in self._beyond))
                await clock.sleep(seconds)

    async def refresh(self) -> None:
        """Read every Lease that we do not hold.

        Raises:
            HubError: one of them cannot be read.
        """
        beyond = tuple(self._beyond)
        answers = await asyncio.gather(*(each.refresh() for _, each in self._all()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        for number in beyond:
            self._unread.pop(number, None)

    async def _read(self, number: int) -> None:
        """Read one Lease beyond ours; stop following it when nobody counts so many shards any more."""
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
        """The Leases among these that another replica holds."""
        for number, elector in electors:
            if elector.taken and not elector.leading and elector.seen is not None:
                yield number, elector, elector.seen
