"""When the start of ``hub run`` is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hub.cli.run import _settled
from hub.observe.remote.status import State


def hub(*states: State, waiting: int = 0, synced: bool = True, registered: int | None = None) -> Any:
    """A hub whose clusters are in these states."""
    clusters = {str(number): SimpleNamespace(status=SimpleNamespace(state=each)) for number, each in enumerate(states)}
    return SimpleNamespace(
        fleet=SimpleNamespace(clusters=clusters),
        registry=SimpleNamespace(clusters=range(len(states) if registered is None else registered)),
        local=SimpleNamespace(synced=synced),
        queue=range(waiting),
    )


@pytest.mark.parametrize(
    ("there", "settled"),
    [
        (hub(State.READY, State.UNREACHABLE, State.DEGRADED), True),
        (hub(), True),
        (hub(State.READY, State.SYNCING), False),
        (hub(State.PENDING), False),
        (hub(State.READY, waiting=1), False),
        (hub(State.READY, synced=False), False),
        (hub(registered=3), False),
    ],
)
def test_the_start_is_over_when_every_cluster_was_asked_and_nothing_waits(there: Any, settled: bool) -> None:
    """The start is over when every cluster has answered or failed, and no target waits."""
    assert _settled(there) is settled
