"""Plays all rows of a run together, before the first of their tests."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.faults.rows import Row
from tests.faults.run import RESULTS, Outcome, play
from tests.faults.stage import Stage
from tests.support.apiserver.fleet import ServerFleet


@pytest.fixture(scope="session")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server_fleet: ServerFleet
) -> Outcome:
    """The results of all rows that this run has tests for. They also go to a file for :mod:`tests.faults.table`."""
    rows = [item.callspec.params.get("row") for item in request.session.items if hasattr(item, "callspec")]
    wanted = [row for row in rows if isinstance(row, Row)]
    with Stage(tmp_path_factory.mktemp("faults")) as stage:
        found = play(stage, wanted)
    RESULTS.parent.mkdir(exist_ok=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measured = {name: dataclasses.asdict(result) for name, result in found.rows.items()}
    RESULTS.write_text(json.dumps({**known, **measured}, indent=1))
    return found
