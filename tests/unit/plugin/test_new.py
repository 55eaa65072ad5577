"""``hub plugin new`` writes a complete package that passes its own tests and the conformance suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hub.cli import cli
from hub.cli.plugin import KINDS as PACKAGES
from hub.cli.plugin import MAX_NAME, UNKNOWN, Kind, clone, package
from hub.registry.load import load
from tests.support.registry import strict

ROOT = Path(__file__).parents[3]
KINDS: Mapping[str, tuple[str, ...]] = {"acme": (), "my-cloud-2": ("--endpoints",), "my-cloud-3": ("--cloud",)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One package of each kind, written by the command."""
    folder = tmp_path_factory.mktemp("packages")
    for name, options in KINDS.items():
        done = CliRunner().invoke(cli, ["plugin", "new", name, "--directory", str(folder / name), *options])
        assert done.exit_code == 0, done.output
        assert f"wrote {folder / name}: {9 if options == ('--cloud',) else 8} files" in done.stdout
    return {name: folder / name for name in KINDS}


def run(folder: Path, *command: str) -> str:
    """Run a module of this environment in the package's folder, and return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "testkit" / "src")))}
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
    assert int(said.rpartition("\n")[0].rpartition("\n")[2].split(" passed")[0]) > 20, KINDS[name]


def test_a_new_package_is_installed_as_the_command_says(tmp_path: Path) -> None:
    """The printed steps work in a fresh environment with the pip of this Python; the hub comes from the sources.

    Dependencies of others are borrowed from this environment, so that pip connects to nothing.
    """
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("endpointslice_hub", "_editable_impl", "pip")):
            (borrowed / path.name).symlink_to(path)
    done = CliRunner().invoke(cli, ["plugin", "new", "acme", "--directory", str(tmp_path / "a c m e")])
    prepare, install = (line.removeprefix("next:").strip() for line in done.output.splitlines()[1:])
    assert install.startswith(f"pip install {clone()} {clone()}/testkit ")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "VIRTUAL_"))
    }
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    (tmp_path / "borrowed.pth").write_text(str(borrowed))
    borrow = "cp ../borrowed.pth .venv/lib/python3.*/site-packages"
    steps = f"{prepare} && {borrow} && {install.replace(clone(), str(ROOT))} && hub providers"

    done = subprocess.run(
        ["sh", "-c", steps], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^acme +endpointslice-hub-acme +0\.1\.0 +ok", done.stdout, re.MULTILINE), done.stdout


def test_without_a_folder_of_sources_the_command_explains_its_placeholder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that was installed from a wheel does not know its sources."""
    monkeypatch.setattr("hub.cli.plugin.clone", lambda: UNKNOWN)
    done = CliRunner().invoke(cli, ["plugin", "new", "acme", "--directory", str(tmp_path)])
    assert done.output.endswith(
        "pip install HUB HUB/testkit --editable '.[dev]' && python -m pytest\n"
        "      (HUB: a clone of the hub's repository)\n"
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_new_package_is_formatted_and_linted(packages: Mapping[str, Path], name: str) -> None:
    """A new package follows the ruff rules of its own pyproject.toml."""
    run(packages[name], "ruff", "format", "--check", "--no-cache", ".")
    run(packages[name], "ruff", "check", "--no-cache", ".")


@pytest.mark.parametrize("kind", PACKAGES)
def test_the_longest_name_fits_into_the_lines(tmp_path: Path, kind: Kind) -> None:
    """A package with the longest name is formatted correctly, too."""
    for path, text in package("a" * MAX_NAME, kind).items():
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
    services = [] if "--cloud" in KINDS[name] else [service]
    (tmp_path / "clusters.yaml").write_text(yaml.safe_dump({"version": 1, **clusters, "services": services}))
    cluster = strict(load(tmp_path / "clusters.yaml")).clusters["eu"]
    provider = cluster.cloud.provider if cluster.cloud is not None else cluster.provider
    assert provider is not None
    assert provider.name == name


@pytest.mark.parametrize("name", ["", "Bad", "1st", "a_b", "a--b", "-a", "a-", "a" * (MAX_NAME + 1), "a/b", "a\n"])
def test_a_name_no_provider_can_have_is_refused(name: str) -> None:
    """An invalid name is refused."""
    done = CliRunner().invoke(cli, ["plugin", "new", "--", name])
    assert done.exit_code == 2
    assert "cannot be a provider's name" in done.stderr


@pytest.mark.parametrize("name", ["a", "a" * MAX_NAME, "node", "found", "s3", "x-1-y", "class"])
def test_every_name_makes_a_package_that_compiles(name: str) -> None:
    """Packages compile for short and long names, and for names that resemble words of the API."""
    for kind in PACKAGES:
        for path, text in package(name, kind).items():
            if path.endswith(".py"):
                compile(text, path, "exec")


def test_a_name_that_is_installed_is_refused() -> None:
    """The name of an installed provider is refused, since the hub would use neither of the two."""
    done = CliRunner().invoke(cli, ["plugin", "new", "node-addresses"])
    assert done.exit_code == 2
    assert "provider 'node-addresses' exists: endpointslice-hub-node-addresses" in done.stderr


def test_a_package_has_one_kind(tmp_path: Path) -> None:
    """A provider that brings endpoints is no cloud."""
    options = ["--endpoints", "--cloud", "--directory", str(tmp_path / "acme")]
    done = CliRunner().invoke(cli, ["plugin", "new", "acme", *options])
    assert done.exit_code == 2
    assert "choose one" in done.stderr
    assert not (tmp_path / "acme").exists()


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    """Existing files are not overwritten."""
    (tmp_path / "mine").write_text("mine")
    done = CliRunner().invoke(cli, ["plugin", "new", "acme", "--directory", str(tmp_path)])
    assert done.exit_code == 2
    assert f"{tmp_path} exists and is not empty" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
