"""A hub without ``cloud:`` in its registry loads nothing of that capability."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, sys
import hub.app.hub, hub.app.oneshot, hub.cli.run
import hub.report.server, hub.report.metrics, hub.report.collect, hub.report.web
print(json.dumps(sorted(name for name in sys.modules if name.startswith(%r))))
"""
PARTS = (
    "hub.app.controller",
    "hub.cloud",
    "hub.controller",
    "hub.controlling",
    "hub.events.cloud",
    "hub.plugin.clouds",
    "hub.report.collect_clouds",
    "hub_provider_brightbox",
)


def test_a_hub_without_a_cloud_imports_no_module_of_it() -> None:
    """The modules of a running hub, its reports and its command line do not include the cloud controller."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM % (PARTS,)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(found.stdout) == []


@pytest.mark.parametrize(
    ("plugin", "later"),
    [
        ("hub_provider_brightbox", {"hub_provider_brightbox.client", "aiohttp"}),
        ("hub_provider_ionos", {"hub_provider_ionos.balancers", "hub_provider_ionos.instances"}),
    ],
)
def test_the_plugin_loads_its_cloud_only_when_it_is_used(plugin: str, later: set[str]) -> None:
    """Registering a plugin imports neither its part of the cloud controller nor the values of clouds."""
    program = f"import json, sys, {plugin} as plugin; list(plugin.hub_register_providers()); "
    program += "print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(found.stdout))
    assert plugin in loaded
    assert loaded & {"hub.plugin.clouds", *later} == set()
