"""The state of one shard's Lease in this process: waiting for it, holding it, or giving it away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from hub.election.elector import Elector
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise


class Shard(msgspec.Struct, eq=False):
    """One shard and its Lease.

    Attributes:
        number: of the shard.
        elector: holds the Lease or waits for it.
        confirmed: this process holds the Lease, and all other held Leases state the same shards and registry.
        leaving: this process gives the Lease away once the writes under way have ended.
        handed_to: while leaving, identity of the replica that may take the Lease first; "" = any.
        free: while the Lease is free, its resourceVersion and the time when this process first saw it free.
        read_at: when to read the free Lease again; None = when the elector does.
        inherited: the previous holder withheld a removal, which :meth:`hub.election.shards.Shards.inherit` has not
            reported yet.
        quit: set to give the Lease back and stand by.
    """

    number: int
    elector: Elector
    confirmed: bool = False
    leaving: bool = False
    handed_to: str = ""
    free: tuple[str, float] | None = None
    read_at: float | None = None
    inherited: bool = False
    quit: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def held(self) -> bool:
        """Whether this process may write the shard's targets, as far as its tasks have noticed."""
        return self.confirmed and not self.leaving

    async def campaign(self, name: str, clock: Clock, led: Callable[[Shard, bool], None]) -> None:
        """Hold the Lease or wait for it, until cancelled; start over whenever it was given away.

        Args:
            name: of the election's task.
            clock: of the election.
            led: called when this process takes the Lease (True) and when it loses it (False).
        """
        while True:
            work = partial(self.elector.run, partial(led, self))
            run = asyncio.create_task(supervise(name, work, clock), name=name)
            quit_ = asyncio.create_task(self.quit.wait(), name=f"end of {name}")
            try:
                await asyncio.wait((run, quit_), return_when=asyncio.FIRST_COMPLETED)
            finally:
                run.cancel()
                quit_.cancel()
                ended = asyncio.gather(run, quit_, return_exceptions=True)
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError:  # the release of the Lease is under way: let it finish
                    await ended
                    raise
            self.quit.clear()
            self.leaving, self.handed_to = False, ""
