"""When the cloud is asked about which Nodes.

New Nodes at once, but a second after the last question about some, so that Nodes that join one by one share questions;
and again after pauses that double. Nodes that are not Ready every ``monitor``; all Nodes every
``refresh``, and when only an answer about all of them can confirm that a machine is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from hub.cloud.instances import Instance, InstanceAnswer
from hub.controller.deletion import APART
from hub.controller.nodes import uninitialized
from hub.model import Node
from hub.registry.spec import CloudNodesSpec

ASK_AGAIN: Final = (1.0, 60.0)
"""Seconds until the cloud is asked again about a new Node that it does not know: first, and at most."""
NEW_APART: Final = 1.0
"""Seconds between two questions about new Nodes."""
NEVER: Final = float("inf")


class _New(msgspec.Struct):
    """When the cloud is asked again about a new Node, and the pause before that; 0 = it was not asked yet."""

    again: float
    pause: float = 0.0


class Question(NamedTuple):
    """What is due.

    Attributes:
        names: the Nodes to ask about, unless ``everything``.
        everything: whether all Nodes of the cluster are asked about.
        monitor: whether Nodes that are not Ready are among them.
    """

    names: frozenset[str] = frozenset()
    everything: bool = False
    monitor: bool = False


class Timetable:
    """Remembers what the cloud was asked, and when.

    Attributes:
        down: Nodes that are initialised and not Ready.
    """

    def __init__(self) -> None:
        self.down: set[str] = set()
        self._new: dict[str, _New] = {}
        self._all_at = self._monitored_at = self._new_at = -NEVER

    @property
    def complete(self) -> bool:
        """Whether the cloud has answered about all Nodes once."""
        return self._all_at != -NEVER

    def note_nodes(self, changed: Iterable[Node], now: float) -> None:
        """Note changed Nodes."""
        for node in changed:
            new = uninitialized(node)
            if new:
                self._new.setdefault(node.name, _New(now))
            else:
                self._new.pop(node.name, None)
            (self.down.discard if new or node.ready == "True" else self.down.add)(node.name)

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._new.pop(name, None)
        self.down.discard(name)

    def due(self, spec: CloudNodesSpec, confirm_at: float, now: float) -> Question | None:
        """The question that is due now; None if there is none. It counts as asked.

        Args:
            spec: the cluster's section.
            confirm_at: see :meth:`hub.controller.deletion.Watch.ask_all_at`.
            now: the time.
        """
        everything = now >= min(self._all_at + spec.refresh, self._confirm_at(confirm_at))
        monitor = bool(self.down) and now >= self._monitored_at + spec.monitor
        names = set(self.down) if monitor else set[str]()
        if now >= self._ask_new_at(spec):
            # Those that are due soon come along, so that many new Nodes do not make many questions.
            names.update(name for name, new in self._new.items() if new.again <= now + new.pause / 4)
        if not names and not everything:
            return None
        for name in self._new.keys() if everything else names & self._new.keys():
            self._new_at, new = now, self._new[name]
            new.pause = min(new.pause * 2 or ASK_AGAIN[0], ASK_AGAIN[1])
            new.again = now + new.pause
        return Question(frozenset(names), everything, monitor or everything)

    def answered(self, question: Question, answers: Mapping[str, InstanceAnswer], asked_at: float) -> None:
        """Note an answer."""
        if question.monitor:
            self._monitored_at = asked_at
        if question.everything:
            self._all_at = asked_at
        for name in answers.keys() & self._new.keys():
            if isinstance(answers[name], Instance):
                self._new[name].again = NEVER  # it only waits for its writes

    def useless(self, name: str, now: float) -> bool:
        """Note that the answer about a new Node does not initialise it; returns whether it is asked about sooner."""
        new = self._new.get(name)
        if new is None or new.again != NEVER:
            return False
        new.again = now + new.pause
        return True

    def next(self, spec: CloudNodesSpec, confirm_at: float) -> float:
        """When the next question is due."""
        due = [self._all_at + spec.refresh, self._confirm_at(confirm_at), self._ask_new_at(spec)]
        if self.down:
            due.append(self._monitored_at + spec.monitor)
        return min(due)

    def _ask_new_at(self, spec: CloudNodesSpec) -> float:
        due = min((new.again for new in self._new.values()), default=NEVER) if spec.initialize else NEVER
        return max(due, self._new_at + NEW_APART)

    def _confirm_at(self, at: float) -> float:
        return max(at, self._all_at + APART)
