"""However answers, events and lists overtake each other: in the end the store has what the API server has."""

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
    """An API server with one slice at most, and a store that is told of it late."""

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
        """What our selector finds."""
        return self.stored if self.labelled else None

    def commit(self, value: Slice | None, *, labelled: bool = True) -> Slice | None:
        """A write is carried out; None deletes."""
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
        """Create it, delete it, change it, or take our label off or back on."""
        if self.stored is None:
            self.commit(self.made())
        else:
            kept = self.chance.random() < 0.7
            self.commit(self.stored if kept else None, labelled=self.chance.random() < 0.6)

    def hear(self) -> None:
        """The watch brings an event, unless a list is under way instead."""
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
        """The hub creates or changes what it knows; the answer is on its way."""
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
        """The answer arrives, or is lost; after a conflict the slice is read again."""
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
        """What was read arrives."""
        if self.reading is not None:
            before, value = self.reading
            self.reading = None
            self.store.read(KEY, value, before)

    def list_slices(self) -> None:
        """The watch has ended: all is listed."""
        if self.listing is None and self.chance.random() < 0.5:
            self.listing = {KEY: self.ours} if self.ours is not None else {}, self.version, len(self.history)

    def enter_list(self) -> None:
        """The list arrives, and the watch goes on from there."""
        if self.listing is not None:
            found, version, self.heard = self.listing
            self.listing = None
            self.store.replace(self.store.lean(found), str(version))

    def settle(self) -> None:
        """Everything under way arrives."""
        for step in (self.answer, self.read, self.enter_list):
            step()
        while self.heard < len(self.history):
            self.hear()


def test_the_store_ends_with_what_the_api_server_has() -> None:
    """Whatever comes first."""
    for seed in range(5000):
        world = World(seed)
        for step in world.chance.choices(STEPS, k=20):
            getattr(world, step)()
        world.settle()
        assert world.store.get(KEY) == world.ours, seed
