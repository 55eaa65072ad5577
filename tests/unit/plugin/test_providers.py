"""``hub providers`` shows each plugin's origin and problems."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hub.cli import cli
from hub.observe.providers import catalog
from tests.unit.observe.providers.plugins import GOOD, distribution

PLUGINS = {
    "fine": GOOD,
    "no-module": "import no_such_module",
    "misspelt": GOOD.replace("hub_register_providers", "hub_register_provider"),
    "another-name": GOOD.replace("name=NAME", "name='other'"),
    "newer": GOOD.replace("name=NAME", "name=NAME, api_version=2"),
    "slow": "import time; time.sleep(3)",
    "twice": GOOD,
}
STATES = {
    "fine": ("ok", ""),
    "no-module": ("import-failed", "ModuleNotFoundError: No module named 'no_such_module'"),
    "misspelt": ("wrong-hook", "unknown hook 'hub_register_provider'"),
    "another-name": ("wrong-type", "the entry point is called 'another-name', but hub_register_providers returned"),
    "newer": ("unsupported-api", "written for plugin API 2, this hub supports 1"),
    "slow": ("import-stalled", "importing plugin_hub_slow did not end within"),
    "twice": ("name-taken", "several distributions provide it: hub-twice 1.2, second 1.2; uninstall all but one"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A function that runs ``hub providers`` with one plugin of each kind installed, and returns its output."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog.Catalog.__init__, "__defaults__", (None, 2.0))
    for name, source in PLUGINS.items():
        distribution(tmp_path, name, source)
    distribution(tmp_path, "twice", GOOD, dist="second")
    before = set(sys.modules)

    def invoke(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["providers", *arguments])
        assert done.exit_code == 0
        return done.output

    yield invoke
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]


def test_every_kind_of_defect_has_its_state(run: Callable[..., str], tmp_path: Path) -> None:
    """Each defect has its state and error text, and does not affect a good plugin."""
    listed = json.loads(run("-o", "json"))["providers"]
    for name, (state, error) in STATES.items():
        mine = [provider for provider in listed if provider["name"] == name]
        assert {provider["state"] for provider in mine} == {state}
        assert all(error in provider["error"] for provider in mine)
        assert {provider["version"] for provider in mine} == {"1.2"}
        assert all(provider["file"].startswith(str(tmp_path)) for provider in mine)
    fine = next(provider for provider in listed if provider["name"] == "fine")
    assert (fine["apiVersion"], fine["bringsEndpoints"], fine["distribution"]) == (1, False, "hub-fine")


def test_verbose_shows_the_plugins_origin(run: Callable[..., str], tmp_path: Path) -> None:
    """``-v`` shows distribution, module, file, state and error."""
    said = run("-v")
    fine = said.split("\nfine\n")[1].split("\n\n")[0].splitlines()
    assert fine[:6] == [
        "  distribution: hub-fine 1.2",
        "  module: plugin_hub_fine",
        f"  file: {tmp_path / 'plugin_hub_fine.py'}",
        "  state: ok",
        "  plugin API: 1",
        "  purpose: resolve nodes",
    ]
    misspelt = said.split("\nmisspelt\n")[1].split("\n\n")[0]
    assert "  state: wrong-hook\n  error: provider 'misspelt': hub-misspelt 1.2: wrong hook" in misspelt
