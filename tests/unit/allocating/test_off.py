"""A hub without ``allocations:`` in its registry loads nothing of that capability."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, sys
import hub.app.hub, hub.app.oneshot, hub.cli.run
import hub.report.server, hub.report.metrics, hub.report.collect, hub.report.web
print(json.dumps(sorted(name for name in sys.modules if name.startswith(%r))))
"""
PARTS = (
    "hub.allocating",
    "hub.allocations",
    "hub.cloud",
    "hub.plugin.addresses",
    "hub.events.allocations",
    "hub.report.collect_allocations",
)


def test_a_hub_without_allocations_imports_no_module_of_them() -> None:
    """The modules of a running hub, its reports and its command line do not include the allocations."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM % (PARTS,)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(found.stdout) == []
