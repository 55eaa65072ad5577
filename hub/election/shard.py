"""One of several Leases, as this process holds it, waits for it, or gives it away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from hub.election.elector import Elector
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise


class Shard(msgspec.Struct, eq=False):
    """One Lease.

    Attributes:
        confirmed: we hold it, and all other Leases say the same as it does.
        leaving: we give it away once the writes under way have ended.
        handed_to: identity of the replica that may take it then; "" = any.
        free: resourceVersion of the Lease while nobody holds it, and when we first saw that.
        look_at: when to look at the Lease again; None = the elector's own looks suffice.
        inherited: the previous holder withheld a removal, and nobody here was told yet.
        quit: set to give the Lease back and stand by.
    """

    number: int
    elector: Elector
    confirmed: bool = False
    leaving: bool = False
    handed_to: str = ""
    free: tuple[str, float] | None = None
    look_at: float | None = None
    inherited: bool = False
    quit: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def held(self) -> bool:
        """Whether its targets may be written now, as far as tasks have noticed."""
        return self.confirmed and not self.leaving

    async def campaign(self, name: str, clock: Clock, led: Callable[[Shard, bool], None]) -> None:
        """Hold the Lease or wait for it until cancelled; start over whenever it was given away.

        Args:
            name: of the task.
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
                except asyncio.CancelledError:  # the Lease is being released already: let that finish
                    await ended
                    raise
            self.quit.clear()
            self.leaving, self.handed_to = False, ""
