"""Adds what each pass decided and wrote to the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hub.decide.decision import Decision
from hub.decide.history import of_decision, of_writes
from hub.decide.snapshot import TargetSnapshot
from hub.model import Slice
from hub.observe.local.history import History


class Historian:
    """Turns passes into entries of a history.

    Args:
        history: receives the entries.
        approvers: returns, for each hash that is approved now, who approved it.
    """

    def __init__(self, history: History, approvers: Callable[[], Mapping[str, str]]) -> None:
        self._history = history
        self._approvers = approvers

    def decided(self, decision: Decision, snapshot: TargetSnapshot) -> None:
        """Note what a decision began or ended."""
        key = decision.target
        self._history.add(key, of_decision(decision, snapshot, self._history.lasting_states(key), self._approvers()))

    def wrote(self, decision: Decision, snapshot: TargetSnapshot, done: Iterable[tuple[str, Slice]]) -> None:
        """Note the writes of a pass that succeeded."""
        self._history.add(decision.target, of_writes(decision, snapshot, done))
