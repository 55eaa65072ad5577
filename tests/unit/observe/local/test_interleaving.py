"""In whatever order answers, events and lists arrive, the store ends with the state of the API server."""

from __future__ import annotations

import random
from contextlib import ExitStack

import msgspec

from hub.model import ObjectKey, Slice
from hub.observe.local.stores import Reading, SliceStore
from tests.support import build

KEY = ObjectKey("edge", "payments-1")
STEPS = 2 * ("others_write", "hear", "list_slices", "enter_list") + ("send", "answer", "read")


class World:
    """An API server with at most one slice, and a store that learns of changes late."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = SliceStore(lambda _: None)
        self.store.replace({}, "100")
        self.version = 100
        self.uids = 0
        self.stored: Slice | None = None
        self.labelled = False
        self.history: list[tuple[int, bool, Slice]] = []
        """Version, whether the slice is ours from then on, and the slice."""
        self.heard = 0
        self.sent: tuple[ExitStack, Slice | None] | None = None
        self.reading: tuple[Reading, Slice | None] | None = None
        self.listing: tuple[dict[ObjectKey, Slice], int, int] | None = None

    @property
    def ours(self) -> Slice | None:
        """The slice if our selector matches it."""
        return self.stored if self.labelled else None

    def commit(self, value: Slice | None, *, labelled: bool = True) -> Slice | None:
        """Carry out a write; None = a deletion."""
        self.version += 1
        new = value and msgspec.structs.replace(value, resource_version=str(self.version))
        if (labelled and new is not None) or self.labelled:
            event = new or msgspec.structs.replace(self.stored or build.slice(), resource_version=str(self.version))
            self.history.append((self.version, labelled and new is not None, event))
        self.stored, self.labelled = new, labelled and new is not None
        return new

    def made(self) -> Slice:
        """A new slice."""
        self.uids += 1
        return msgspec.structs.replace(build.slice(KEY.name), uid=f"u{self.uids}")

    def others_write(self) -> None:
        """Let another client create, delete or change the slice, or remove or add our label."""
        if self.stored is None:
            self.commit(self.made())
        else:
            kept = self.chance.random() < 0.7
            self.commit(self.stored if kept else None, labelled=self.chance.random() < 0.6)

    def hear(self) -> None:
        """Let the watch deliver an event, unless a list is under way."""
        if self.listing is not None or self.heard == len(self.history):
            return
        event = self.history[self.heard]
        self.heard += 1
        if not self.store.defers(KEY, lambda: self.enter(*event)):
            self.enter(*event)

    def enter(self, version: int, ours: bool, value: Slice) -> None:
        if not self.store.knows(KEY, str(version)):
            (self.store.upsert if ours else self.store.delete)(KEY, value, str(version))

    def send(self) -> None:
        """Let the hub create or change the slice that it knows; the answer arrives later."""
        if self.sent is not None or self.reading is not None:
            return
        known = self.store.get(KEY)
        there = self.stored
        state = (known.uid, known.resource_version) if known is not None else None
        done = state == ((there.uid, there.resource_version) if there is not None else None)
        under_way = ExitStack()
        under_way.enter_context(self.store.writing(KEY))
        self.sent = under_way, self.commit(known or self.made()) if done else None

    def answer(self) -> None:
        """Let the answer arrive or get lost; after a conflict the slice is read again."""
        if self.sent is None:
            return
        under_way, written = self.sent
        self.sent = None
        lost = self.chance.random() < 0.3
        with under_way:
            if written is not None and not lost:
                self.store.wrote(written)
        if written is None and not lost:
            self.reading = self.store.reading(KEY), self.ours

    def read(self) -> None:
        """Let the result of a GET arrive."""
        if self.reading is not None:
            before, value = self.reading
            self.reading = None
            self.store.read(KEY, value, before)

    def list_slices(self) -> None:
        """Begin a list, because the watch has ended."""
        if self.listing is None and self.chance.random() < 0.5:
            self.listing = {KEY: self.ours} if self.ours is not None else {}, self.version, len(self.history)

    def enter_list(self) -> None:
        """Let the list arrive; the watch continues from its version."""
        if self.listing is not None:
            found, version, self.heard = self.listing
            self.listing = None
            self.store.replace(self.store.shrink_page(found), str(version))

    def settle(self) -> None:
        """Let everything under way arrive."""
        for step in (self.answer, self.read, self.enter_list):
            step()
        while self.heard < len(self.history):
            self.hear()


def test_the_store_ends_with_what_the_api_server_has() -> None:
    """After any sequence of steps the store has what the API server has."""
    for seed in range(5000):
        world = World(seed)
        for step in world.chance.choices(STEPS, k=20):
            getattr(world, step)()
        world.settle()
        assert world.store.get(KEY) == world.ours, seed
