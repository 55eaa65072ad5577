"""``hub plugin new`` writes a complete package that passes its own tests and the conformance suite."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hub.cli import cli
from hub.cli.plugin import MAX_NAME, package
from hub.registry.load import load
from tests.support.registry import strict

ROOT = Path(__file__).parents[3]
KINDS: Mapping[str, tuple[str, ...]] = {"acme": (), "my-cloud-2": ("--endpoints",)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One package of each kind, written by the command."""
    folder = tmp_path_factory.mktemp("packages")
    for name, options in KINDS.items():
        done = CliRunner().invoke(cli, ["plugin", "new", name, "--directory", str(folder / name), *options])
        assert done.exit_code == 0, done.output
        assert f"wrote {folder / name}: 8 files" in done.stdout
    return {name: folder / name for name in KINDS}


def run(folder: Path, *command: str) -> str:
    """Run a module of this environment in the package's folder, and return its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", KINDS)
def test_a_new_package_passes_its_tests(packages: Mapping[str, Path], name: str) -> None:
    """A new package passes its own tests and the conformance suite."""
    said = run(packages[name], "pytest", "-q", "-p", "no:cacheprovider")
    assert "failed" not in said
    kind = "watch" if "--endpoints" in KINDS[name] else "resolve"
    assert int(said.rpartition("\n")[0].rpartition("\n")[2].split(" passed")[0]) > 20, kind


@pytest.mark.parametrize("name", KINDS)
def test_a_new_package_is_formatted_and_linted(packages: Mapping[str, Path], name: str) -> None:
    """A new package follows the ruff rules of its own pyproject.toml."""
    run(packages[name], "ruff", "format", "--check", "--no-cache", ".")
    run(packages[name], "ruff", "check", "--no-cache", ".")


@pytest.mark.parametrize("endpoints", [False, True])
def test_the_longest_name_fits_into_the_lines(tmp_path: Path, endpoints: bool) -> None:
    """A package with the longest name is formatted correctly, too."""
    for path, text in package("a" * MAX_NAME, endpoints=endpoints).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    run(tmp_path, "ruff", "format", "--check", "--no-cache", ".")
    run(tmp_path, "ruff", "check", "--no-cache", ".")


def test_new_packages_are_typed(packages: Mapping[str, Path], tmp_path: Path) -> None:
    """Sources and tests pass strict mypy."""
    folders = [str(folder / part) for folder in packages.values() for part in ("src", "tests")]
    sources = os.pathsep.join(str(folder / "src") for folder in packages.values())
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = true\nmypy_path = {sources}:{ROOT}\n")
    run(ROOT, "mypy", "--config-file", str(config), "--cache-dir", str(ROOT / ".mypy_cache" / "plugins"), *folders)


@pytest.mark.parametrize("name", KINDS)
def test_the_entry_point_is_the_providers_name(packages: Mapping[str, Path], name: str) -> None:
    """The entry point has the name and group by which the hub finds the provider."""
    project = tomllib.loads((packages[name] / "pyproject.toml").read_text())["project"]
    module = f"hub_provider_{name.replace('-', '_')}"
    assert project["entry-points"]["hub.providers"] == {name: module}
    assert project["name"] == f"endpointslice-hub-{name}"
    assert (packages[name] / "src" / module / "__init__.py").exists()


@pytest.mark.parametrize("name", KINDS)
def test_the_readme_shows_a_registry_that_loads(packages: Mapping[str, Path], name: str, tmp_path: Path) -> None:
    """The README's example is a valid entry of clusters.yaml."""
    text = (packages[name] / "README.md").read_text()
    clusters = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    service = {"name": "web", "namespace": "edge", "sources": [{"cluster": "eu"}], "ports": [{"port": 80}]}
    (tmp_path / "clusters.yaml").write_text(yaml.safe_dump({"version": 1, **clusters, "services": [service]}))
    assert strict(load(tmp_path / "clusters.yaml")).clusters["eu"].provider.name == name


@pytest.mark.parametrize("name", ["", "Bad", "1st", "a_b", "a--b", "-a", "a-", "a" * (MAX_NAME + 1), "a/b", "a\n"])
def test_a_name_no_provider_can_have_is_refused(name: str) -> None:
    """An invalid name is refused."""
    done = CliRunner().invoke(cli, ["plugin", "new", "--", name])
    assert done.exit_code == 3
    assert "cannot be a provider's name" in done.stderr


@pytest.mark.parametrize("name", ["a", "a" * MAX_NAME, "node", "found", "s3", "x-1-y", "class"])
def test_every_name_makes_a_package_that_compiles(name: str) -> None:
    """Packages compile for short and long names, and for names that resemble words of the API."""
    for endpoints in (False, True):
        for path, text in package(name, endpoints=endpoints).items():
            if path.endswith(".py"):
                compile(text, path, "exec")


def test_a_name_that_is_installed_is_refused() -> None:
    """The name of an installed provider is refused, since the hub would use neither of the two."""
    done = CliRunner().invoke(cli, ["plugin", "new", "node-addresses"])
    assert done.exit_code == 3
    assert "provider 'node-addresses' exists: endpointslice-hub-node-addresses" in done.stderr


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    """Existing files are not overwritten."""
    (tmp_path / "mine").write_text("mine")
    done = CliRunner().invoke(cli, ["plugin", "new", "acme", "--directory", str(tmp_path)])
    assert done.exit_code == 3
    assert f"{tmp_path} exists and is not empty" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
