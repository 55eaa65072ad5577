"""The contents of the image: the lock's closure, hashes and wheels, the bill of materials, and the Dockerfile."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

import hub
from hub.cli.exits import Exit

ROOT = Path(__file__).parents[2]
HUB = "endpointslice-hub"
PROVIDERS = sorted(folder.name for folder in (ROOT / "providers").iterdir())


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``tools/lock.py``, imported as the other tools import it."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import lock

    yield lock
    for name in ("lock", "sbom", "image", "oci"):
        sys.modules.pop(name, None)


def installed(*roots: str) -> set[str]:
    """The dependencies of distributions, according to their metadata in this environment."""
    found: set[str] = set()
    todo = [(name, frozenset[str]()) for name in roots]
    while todo:
        name, extras = todo.pop()
        if canonicalize_name(name) in found and not extras:
            continue
        found.add(canonicalize_name(name))
        for line in distribution(name).requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                todo.append((need.name, frozenset(need.extras)))
    return found


def test_lock_has_exactly_the_required_packages(lock: ModuleType) -> None:
    """The lock has exactly the packages that the metadata of the installed distributions require."""
    locked = lock.packages()
    for members in (lock.members(locked), lock.shipped(locked)):
        needs = lock.closure(locked, members)
        here = {package["name"] for package, marker in needs if not marker or Marker(marker).evaluate()}
        assert installed(*members) == here
        assert HUB in here
    assert not {"pytest", "ruff", "hypothesis"} & here


def test_members_are_the_packages_of_this_repository(lock: ModuleType) -> None:
    """The members are the hub, one provider per folder of providers/, and the test kit, which is not shipped."""
    projects = [*sorted(ROOT.glob("providers/*/pyproject.toml")), ROOT / "testkit" / "pyproject.toml"]
    names = [HUB, *(tomllib.loads(project.read_text())["project"]["name"] for project in projects)]
    assert lock.members(lock.packages()) == names
    assert lock.shipped(lock.packages()) == names[:-1]


def test_requirements_pin_version_and_hash(lock: ModuleType) -> None:
    """Every requirement has one version and at least one hash; our own packages are not among them."""
    locked = lock.packages()
    lines = lock.requirements(locked, lock.shipped(locked)).replace("\\\n", "").splitlines()
    assert len(lines) > 30
    for line in lines:
        assert re.match(r"[a-z0-9-]+==[0-9][^ ]*( ; .+)? +--hash=sha256:[0-9a-f]{64}", line), line
        assert not line.startswith(HUB)


def test_markers_of_all_ways_to_a_package_count(lock: ModuleType) -> None:
    """A package is needed if any path to it applies: one path without markers suffices, several are alternatives."""
    old, win = "python_version < '3.13'", "sys_platform == 'win32'"
    locked = [
        {"name": "a", "version": "1", "source": {}, "dependencies": [{"name": "b", "marker": old}, {"name": "c"}]},
        {"name": "b", "version": "1", "source": {}, "dependencies": [{"name": "d", "marker": win}, {"name": "e"}]},
        {"name": "c", "version": "1", "source": {}, "dependencies": [{"name": "e"}, {"name": "b", "marker": win}]},
        {"name": "d", "version": "1", "source": {}},
        {"name": "e", "version": "1", "source": {}},
    ]
    found = {package["name"]: marker for package, marker in lock.closure(locked, ["a"])}
    assert found["b"] == f"{old} or {win}"
    assert {name for name, marker in found.items() if not marker} == {"a", "c", "e"}
    for platform, version, expected in [("win32", "3.11", True), ("linux", "3.11", False), ("win32", "3.14", True)]:
        environment = {**default_environment(), "sys_platform": platform, "python_version": version}
        assert Marker(found["d"]).evaluate(environment) is expected


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_package_has_a_wheel_for_the_image(lock: ModuleType, machine: str) -> None:
    """Every package has a wheel for the Dockerfile's Python on Debian bookworm (glibc 2.36)."""
    [major, minor] = map(int, re.findall(r"python:(\d+)\.(\d+)-slim-bookworm", dockerfile())[0])
    platforms = [f"manylinux_2_{minor_}_{machine}" for minor_ in range(36, 16, -1)] + [f"manylinux2014_{machine}"]
    tags = {*cpython_tags((major, minor), platforms=platforms), *compatible_tags((major, minor), platforms=platforms)}
    locked = lock.packages()
    missing = [
        package["name"]
        for package, _ in lock.closure(locked, [*lock.shipped(locked), "hatchling"])
        if "editable" not in package["source"]
        and not any(tags & parse_wheel_filename(each["url"].rpartition("/")[2])[3] for each in package["wheels"])
    ]
    assert missing == []


def test_bill_of_materials_lists_the_closure(lock: ModuleType) -> None:
    """The CycloneDX document has each locked package with hashes and edges, and is the same every time."""
    command = [sys.executable, str(ROOT / "tools" / "sbom.py")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, cwd="/") for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    bom = json.loads(runs[0].stdout)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["purl"].startswith(f"pkg:pypi/{HUB}@")
    locked = lock.packages()
    needs = {package["name"]: package for package, _ in lock.closure(locked, lock.shipped(locked))}
    listed = {each["name"]: each for each in bom["components"]}
    assert listed.keys() | {HUB} == needs.keys()
    for name, component in listed.items():
        hashes = {each["hashes"][0]["content"] for each in component.get("externalReferences", ())}
        assert {f"sha256:{each}" for each in hashes} == {each["hash"] for each in lock.files(needs[name])}, name
    edges = {each["ref"]: set(each.get("dependsOn", ())) for each in bom["dependencies"]}
    [aiohttp] = [ref for ref in edges if ref.startswith("pkg:pypi/aiohttp@")]
    assert any(ref.startswith("pkg:pypi/multidict@") for ref in edges[aiohttp])


def test_dockerfile_and_make_image_have_one_list(lock: ModuleType) -> None:
    """The Dockerfile runs tools/image.py and nothing else, and make image installs with its ``install``."""
    import image
    import oci

    steps = re.findall(r"^RUN python (\S+) \S+$", dockerfile(), re.MULTILINE)
    assert steps == ["tools/image.py"]
    assert dockerfile().count("RUN ") == 1
    assert oci.image is image
    assert "image.install" in inspect.getsource(oci.hub_layer)
    assert set(re.findall(r"^FROM (\S+)", dockerfile(), re.MULTILINE)) == {"${BASE}@${BASE_DIGEST}"}
    assert re.search(r"^ARG BASE_DIGEST=sha256:0{64}$", dockerfile(), re.MULTILINE)
    assert re.findall(r"^USER (\S+)$", dockerfile(), re.MULTILINE) == ["65532:65532"] == [oci.USER]


def test_layers_of_equal_files_are_equal(lock: ModuleType, tmp_path: Path) -> None:
    """A layer does not depend on the times, owners, umask or order of creation of its files."""
    import oci

    layers = []
    for number, names in enumerate((["a", "b", "c"], ["c", "b", "a"])):
        root = tmp_path / str(number)
        for name in names:
            (root / name).mkdir(parents=True, mode=0o700 if number else 0o755)
            (root / name / "file.py").write_text("answer = 42\n")
            (root / name / "file.py").chmod(0o600 if number else 0o664)
            (root / name / "link").symlink_to("file.py")
            os.utime(root / name / "file.py", (number, number))
        oci.compile_folder(root, root)
        oci.write_layer(tmp_path / f"{number}.tar", oci.entries(root), epoch=1)
        layers.append((tmp_path / f"{number}.tar").read_bytes())
    assert layers[0] == layers[1]
    with tarfile.open(tmp_path / "0.tar") as layer:
        assert len(layer.getnames()) == 3 * 5
        assert {entry.mode for entry in layer if entry.isfile()} == {0o644}


def test_ci_checks_and_then_tests() -> None:
    """.ci/run runs `make check` without the unit tests, then `make test`."""
    script = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^(?:exec )?(make (?:check|test))$", script, re.MULTILINE) == ["make check", "make test"]
    for environment, unit_tests in ({"CI": "true"}, 0), ({"CI": ""}, 1):
        command = ["make", "--dry-run", "check", "PYTHON=true"]
        printed = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        ).stdout
        assert printed.count("-m pytest") == unit_tests
        for step in ("ruff format --check", "ruff check", "mypy", "pyright", "lint-imports", "tools/docs_site.py"):
            assert step in printed


def test_image_is_of_the_python_the_tests_run_on(lock: ModuleType) -> None:
    """Both images have the oldest supported Python, which make_venv also uses."""
    import oci

    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert re.findall(r"python:(\d+\.\d+)", dockerfile()) == [oldest]
    assert f"usr/bin/python{oldest}" == oci.PYTHON


def test_versions_agree() -> None:
    """Hub, providers, test kit, image and chart have one version, whose slices are kept for later versions to adopt."""
    testkit = tomllib.loads((ROOT / "testkit" / "pyproject.toml").read_text())["project"]
    projects = [ROOT / "pyproject.toml", *sorted(ROOT.glob("providers/*/pyproject.toml"))]
    found = {tomllib.loads(project.read_text())["project"]["version"] for project in projects}
    found |= {testkit["version"]}
    assert f"{HUB}=={hub.__version__}" in testkit["dependencies"]
    found |= set(re.findall(r"^ARG VERSION=(\S+)$", dockerfile(), re.MULTILINE))
    chart = (ROOT / "helm" / "endpointslice-hub" / "Chart.yaml").read_text()
    found |= set(re.findall(r'^appVersion: "?([0-9.]+)"?$', chart, re.MULTILINE))
    assert found == {hub.__version__}
    minor = ".".join(hub.__version__.split(".")[:2])
    assert (ROOT / "tests" / "data" / f"slices-{minor}.json").exists()


def test_build_context_is_complete_and_minimal(tmp_path: Path) -> None:
    """The files that .dockerignore admits build a complete hub wheel and contain no secrets."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    allowed = [ROOT / line[1:] for line in patterns if line.startswith("!")]
    context = tmp_path / "context"
    for each in allowed:
        for file in [each] if each.is_file() else each.rglob("*"):
            if file.is_file() and not {"__pycache__", "tests"} & set(file.relative_to(ROOT).parts):
                copy = context / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
    assert not {".git", ".venv", "tests", "docs", "build"} & {each.name for each in context.iterdir()}
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "wheels")]
    subprocess.run(build, cwd=context, check=True, capture_output=True)
    [wheel] = (tmp_path / "wheels").iterdir()
    listing = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True)
    packed = set(re.findall(r"^(hub/\S+\.py) ", listing.stdout, re.MULTILINE))
    assert packed == {str(file.relative_to(ROOT)) for file in (ROOT / "hub").rglob("*.py")}
    assert (context / "tools" / "lock.py").exists()
    assert (context / "uv.lock").exists()


@pytest.mark.parametrize(
    ("project", "sources"),
    [
        (".", "hub"),
        *((f"providers/{name}", f"providers/{name}/src") for name in PROVIDERS),
        ("testkit", "testkit/src"),
    ],
)
def test_dependencies_match_imports(project: str, sources: str) -> None:
    """Each distribution depends on exactly the third-party packages that its modules import."""
    imported = {
        name
        for path in (ROOT / sources).rglob("*.py")
        if "testing" not in path.parts  # fakes for tests, which need what the tests need
        for statement in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(statement)
    }
    owners = packages_distributions()
    used = {
        canonicalize_name(distribution_of(name, owners))
        for name in imported
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names and top.partition("_")[0] != "hub"
    }
    declared = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonicalize_name(Requirement(line).name) for line in declared}
    assert used == {name for name in names if not name.startswith(HUB)}


def distribution_of(module: str, owners: Mapping[str, list[str]]) -> str:
    """The distribution that a module is in; those of a namespace package such as ``azure`` share its first name."""
    names = set(owners[module.partition(".")[0]])
    folder = "/".join(module.split(".")[:2]) + "/"
    of_folder = (name for name in names if any(str(file).startswith(folder) for file in distribution(name).files or ()))
    return next(of_folder) if len(names) > 1 else names.pop()


def imported_names(statement: ast.AST) -> list[str]:
    """The modules that a statement imports; empty for other statements."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []


def test_image_holds_no_test_kit(lock: ModuleType, tmp_path: Path) -> None:
    """The image has no simulator, private key or demo provider, and `hub demo` says what to install."""
    import image

    installed_here = tmp_path / "installed"
    for member in image.member_folders():
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
        subprocess.run(command, cwd=member, check=True, capture_output=True)
    wheels = sorted(tmp_path.glob("*.whl"))
    assert len(wheels) == len(lock.shipped(lock.packages()))
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(installed_here)
    files = [path for path in installed_here.rglob("*") if path.is_file()]
    assert installed_here / "hub" / "cli" / "demo.py" in files
    names = [str(path.relative_to(installed_here)) for path in files]
    assert [name for name in names if re.search(r"(testkit|testing|simulat|fake|demo/).*\.py$|\.pem$", name)] == []
    assert [path for path in files if re.search(rb"BEGIN [A-Z ]*PRIVATE KEY-+\s", path.read_bytes())] == []
    registered = "".join(path.read_text() for path in files if path.name == "entry_points.txt")
    assert sorted(re.findall(r"^(\S+) = hub_provider_", registered, re.MULTILINE)) == PROVIDERS
    assert "demo" not in registered
    # Without the .pth files of site-packages (-S) the test kit of this environment is not found.
    path = os.pathsep.join([str(installed_here), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hub", "demo"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == Exit.ERROR
    assert (
        done.stderr == "Error: the demo is in the test kit; in a clone of the hub's repository: pip install ./testkit\n"
    )


def test_bandit_finds_nothing() -> None:
    """Every finding of bandit of at least medium severity has a reason in its line."""
    sources = ["hub", *map(str, sorted(ROOT.glob("providers/*/src"))), "testkit/src", "tools"]
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "--severity-level", "medium", *sources]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def dockerfile() -> str:
    """The text of the Dockerfile."""
    return (ROOT / "Dockerfile").read_text()
