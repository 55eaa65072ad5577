"""The import contracts are complete, match docs/architecture.md, and refuse forbidden imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: dict[str, Any] = {contract["id"]: contract for contract in CONFIGURATION["contracts"]}
PURE: list[str] = CONTRACTS["pure"]["source_modules"]
PROVIDERS = sorted(folder.name for folder in ROOT.glob("providers/*/src/*") if (folder / "__init__.py").exists())


class Sources:
    """A copy of the sources, to add imports to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        packages = [ROOT / "hub", *ROOT.glob("providers/*/src/hub_provider_*"), *ROOT.glob("testkit/src/*")]
        for package in packages:
            shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")

    def module_of(self, room: str) -> str:
        """The module itself, or the first module of a package."""
        path = self.folder.joinpath(*room.split("."))
        if path.with_suffix(".py").exists():
            return room
        return f"{room}.{min(file.stem for file in path.glob('*.py') if file.stem != '__init__')}"

    def plant(self, module: str, statement: str) -> None:
        """Add an import to a module, which is created if it does not exist."""
        path = self.folder.joinpath(*module.split(".")).with_suffix(".py")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{statement}\n")

    def lint(self) -> str:
        """The output of lint-imports on the copy, one line per import."""
        program = Path(sys.executable).with_name("lint-imports")
        done = subprocess.run(
            [str(program), "--no-logo", "--no-cache"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "500"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout


def section(report: str, contract: str) -> str:
    """The report's section about one broken contract."""
    _, found, rest = report.partition(f"\n{contract}\n{'-' * len(contract)}\n")
    assert found, f"{contract}: kept\n{report}"
    return re.split(r"\n[^\n]+\n-{8,}\n", rest)[0]


def imports(module: str, imported: str) -> str:
    """The start of the line about a refused import."""
    return f"{module} -> {imported} (l."


def test_every_pure_module_refuses_direct_and_indirect_imports(tmp_path: Path) -> None:
    """Every pure module refuses time and the API client, which imports asyncio."""
    sources = Sources(tmp_path)
    planted = [sources.module_of(room) for room in PURE]
    for module in planted:
        sources.plant(module, "import time")
        sources.plant(module, "from hub.kube.client import Client")
    refused = section(sources.lint(), CONTRACTS["pure"]["name"])
    missed = [module for module in planted if imports(module, "time") not in refused]
    missed += [module for module in planted if imports(module, "hub.kube.client") not in refused]
    assert missed == []


@pytest.mark.parametrize("contract", sorted(set(CONTRACTS) - {"pure"}))
def test_contract_refuses(contract: str, refusals: dict[str, str], planted: dict[str, tuple[str, str]]) -> None:
    """Each contract refuses an import that it forbids."""
    module, imported = planted[contract]
    assert imports(module, imported) in refusals[contract]


def test_rooms_without_a_layer_are_refused(refusals: dict[str, str]) -> None:
    """A new module of hub must have a place among the layers."""
    assert "- hub.new_room" in refusals["rooms"]


@pytest.fixture(scope="module")
def planted() -> dict[str, tuple[str, str]]:
    """Contract -> a module, and an import in it that breaks the contract."""
    return {
        "rooms": ("hub.errors", "hub.cli.run"),
        "app": ("hub.app.settings", "hub.app.hub"),
        "observe": ("hub.observe.health.prober", "hub.observe.local.stores"),
        "reconcile": ("hub.reconcile.gather", "hub.reconcile.workers"),
        "election": ("hub.election.elector", "hub.election.lease"),
        "testkit": ("hub_testkit.simulator.api", "hub_testkit.kubernetes"),
        "kit": ("hub_testkit.kubernetes", "hub.kube.client"),
        "values": ("hub.observe.remote.fleet", "hub.registry.load"),
        "state": ("hub.report.facts", "hub.app.oneshot"),
        "kubernetes": ("hub.observe.local.stores", "kubernetes"),
        "cel": ("hub.registry.values", "cel_expr_python"),
        "providers": (PROVIDERS[0], "hub.kube.client"),
        "hub": ("hub.app.hub", PROVIDERS[0]),
    }


@pytest.fixture(scope="module")
def refusals(planted: dict[str, tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Contract -> the report of lint-imports when all these imports are added."""
    sources = Sources(tmp_path_factory.mktemp("sources"))
    for module, imported in planted.values():
        sources.plant(f"{module}.__init__" if module in PROVIDERS else module, f"import {imported}")
    sources.plant("hub.new_room", "import hub.errors")
    report = sources.lint()
    return {contract: section(report, CONTRACTS[contract]["name"]) for contract in planted}


def test_all_providers_are_under_contract() -> None:
    """Each package of providers/ and the test kit are among the roots and in their contracts."""
    assert CONFIGURATION["root_packages"] == ["hub", *PROVIDERS, "hub_testkit"]
    assert CONTRACTS["providers"]["source_modules"] == PROVIDERS
    assert CONTRACTS["providers"]["forbidden_modules"] == ["hub", *PROVIDERS, "hub_testkit"]
    assert CONTRACTS["hub"]["forbidden_modules"] == [*PROVIDERS, "hub_testkit"]
    kit = ROOT / "testkit" / "src" / "hub_testkit"
    modules = {f"hub_testkit.{path.stem}" for path in kit.iterdir() if not path.name.startswith(("__", "py.typed"))}
    assert modules - set(CONTRACTS["kit"]["source_modules"]) == {"hub_testkit.demo"}


def test_table_of_architecture_is_that_of_the_contracts() -> None:
    """docs/architecture.md lists every room once, in the order of the layers, with the pure modules."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.findall(r"^\| (\d+) \| `hub\.(\S+)` \| [^|]+ \| ([^|]*?) ?\|$", text, re.MULTILINE)
    expected = []
    for number, layer in enumerate(reversed(CONTRACTS["rooms"]["layers"]), 1):
        for room in sorted(re.split(" [|:] ", layer)):
            modules = [module.removeprefix(f"hub.{room}.") for module in PURE if module.startswith(f"hub.{room}.")]
            pure = "all" if f"hub.{room}" in PURE else ", ".join(f"`{module}`" for module in modules)
            expected.append((str(number), room, pure))
    assert shown == expected
