"""Health checks on behalf of targets: what a pass wants probed goes to the board, what it learns comes back.

Without a board (one-shot commands, which probe nothing) slices are believed: an address is as healthy as it
is published.
"""

from __future__ import annotations

from hub.decide.checks import NO_VERDICTS, Verdicts
from hub.decide.target import Desired
from hub.model import Finding, TargetKey
from hub.observe.health.board import Board
from hub.observe.remote.fleet import Fleet, SourceKey
from hub.registry.spec import TargetSpec


class Checking:
    """Connects passes and probes.

    Args:
        board: None = nothing is probed.
    """

    def __init__(self, fleet: Fleet, board: Board | None) -> None:
        self._fleet = fleet
        self._board = board

    def verdicts(self) -> Verdicts:
        """Those of this moment."""
        return self._board.verdicts() if self._board is not None else NO_VERDICTS

    def follow(self, spec: TargetSpec, desired: Desired) -> tuple[Finding, ...]:
        """Have probed what a pass came to want; what is wrong with the probing.

        An address is contacted only where its source's policy lets it be published, whatever a slice says.
        """
        if self._board is None:
            return ()
        watches = desired.watches
        if not watches:
            self._board.follow(spec.key, (), {})
            return ()
        units = {each.cluster: self._fleet.sources.get(SourceKey(each.cluster, each.provider)) for each in spec.sources}
        policies = {name: unit.addresses for name, unit in units.items() if unit is not None}
        self._board.follow(spec.key, watches, policies)
        return tuple(self._board.findings(watches))

    def forget(self, key: TargetKey) -> None:
        """Nothing is to be published for a target: nothing is to be probed."""
        if self._board is not None:
            self._board.follow(key, (), {})
