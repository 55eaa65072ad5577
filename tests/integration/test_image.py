"""The image of ``make image``: its content, and the hub that runs from its files with the chart's security settings.

bubblewrap takes the place of a container engine: a read-only root, user 65532 without capabilities, its own process
tree, an empty /tmp. The network is this machine's loopback, where the API servers are.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from packaging.utils import canonicalize_name

import hub
from tests.support.apiserver.server import ApiServer
from tests.support.hub import World, add_node
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "build" / "endpointslice-hub.oci.tar"
LARGEST = 120_000_000
"""Bytes of all compressed layers."""
TESTKIT = (
    "endpointslice-hub-testkit",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
)
"""The distributions of the test kit that the image lacks."""
MOUNT = Path("/tmp/mount")
WITH_TESTKIT = f"import sys; sys.path.append('{MOUNT}'); from hub.cli import main; sys.exit(main())"


class Image:
    """An unpacked image.

    Attributes:
        root: the folder with its root file system.
        config: the ``config`` of the image: user, entry point, environment, labels.
        layers: sizes of the compressed layers in bytes.
    """

    def __init__(self, folder: Path) -> None:
        layout, bundle = folder / "layout", folder / "bundle"
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(layout, filter="data")
        [described] = json.loads((layout / "index.json").read_text())["manifests"]
        manifest = self._blob(layout, described)
        self.config: dict[str, Any] = self._blob(layout, manifest["config"])["config"]
        self.layers = [layer["size"] for layer in manifest["layers"]]
        tag = described["annotations"]["org.opencontainers.image.ref.name"]
        rootless = [] if os.getuid() == 0 else ["--rootless"]
        command = ["umoci", "--log=error", "unpack", *rootless, "--image", f"{layout}:{tag}", str(bundle)]
        subprocess.run(command, check=True, timeout=120)
        self.root = bundle / "rootfs"

    @staticmethod
    def _blob(layout: Path, descriptor: dict[str, Any]) -> Any:
        return json.loads((layout / "blobs" / descriptor["digest"].replace(":", "/")).read_text())

    def files(self) -> Iterator[str]:
        """The paths of all files and links, from the root."""
        return (
            str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_symlink() or path.is_file()
        )

    def command(self, *arguments: str, mount: Path | None = None, entrypoint: str | None = None) -> list[str]:
        """A command in the sandbox: the entry point with arguments, and a folder at ``MOUNT``, read-only."""
        user, _, group = self.config["User"].partition(":")
        environment = [word for line in self.config["Env"] for word in ("--setenv", *line.split("=", 1))]
        mounts = ["--ro-bind", str(mount), str(MOUNT)] if mount is not None else []
        return [
            *("bwrap", "--die-with-parent", "--new-session", "--clearenv"),
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"),
            *("--uid", user, "--gid", group, *environment),
            *("--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *mounts),
            *(entrypoint or self.config["Entrypoint"][0], *arguments),
        ]

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the sandbox to its end, in 60 s at most."""
        return subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image that ``make image`` has built from this tree."""
    missing = [name for name in ("umoci", "bwrap") if shutil.which(name) is None]
    problem = f"{' and '.join(missing)} not found: make deps" if missing else ""
    if not ARCHIVE.exists():
        problem = f"no {ARCHIVE.relative_to(ROOT)}: make image"
    if problem and os.environ.get("CI"):
        pytest.fail(problem, pytrace=False)
    if problem:
        pytest.skip(problem)
    return Image(tmp_path_factory.mktemp("image"))


def test_image_holds_this_tree_and_nothing_to_work_with(image: Image) -> None:
    """The image holds the hub of this tree; no shell, pip, compiler, package manager, test kit, nor a setuid file."""
    [site] = image.root.glob("opt/hub/lib/python*/site-packages")
    for file in (ROOT / "hub").rglob("*.py"):
        assert (site / file.relative_to(ROOT)).read_bytes() == file.read_bytes(), "the image is old: make image"
    found = set(image.files())
    assert len(found) > 1000
    assert {part for path in found for part in Path(path).parts} & {"pip", "ensurepip", "hub_testkit"} == set()
    assert {Path(path).name for path in found} & {"sh", "bash", "dash", "gcc", "cc", "ld", "apt-get", "perl"} == set()
    assert [path for path in image.root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000] == []
    programs = {path for path in found if path.startswith(("usr/bin/", "usr/sbin/", "opt/hub/bin/"))}
    assert programs == {
        "usr/bin/python3.11",
        *(f"opt/hub/bin/{name}" for name in ("python", "python3", "hub", "endpointslice-hub")),
    }


def test_image_is_small_and_runs_as_the_chart_asks(image: Image) -> None:
    """The layers have at most 120 MB; the user, the entry point and the version are those of Dockerfile and chart."""
    assert sum(image.layers) <= LARGEST
    assert (image.config["User"], image.config["Entrypoint"], image.config["Cmd"]) == (
        "65532:65532",
        ["hub"],
        ["--help"],
    )
    assert image.config["Labels"]["org.opencontainers.image.version"] == hub.__version__
    values = yaml.safe_load((ROOT / "helm/endpointslice-hub/values.yaml").read_text())
    assert values["podSecurityContext"]["runAsUser"] == 65532


def test_bill_of_materials_of_the_archive_lists_its_packages(image: Image) -> None:
    """``sbom.py ARCHIVE`` lists each Debian and Python package of the image by name and version."""
    command = [sys.executable, str(ROOT / "tools" / "sbom.py"), str(ARCHIVE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listed = {component["purl"].partition("?")[0] for component in json.loads(done.stdout)["components"]}
    fields = [
        dict(line.split(": ", 1) for line in file.read_text().splitlines() if ": " in line and line[0] != " ")
        for file in (image.root / "var/lib/dpkg/status.d").iterdir()
    ]
    debian = {f"pkg:deb/debian/{package['Package']}@{package['Version']}" for package in fields}
    assert len(debian) > 15
    assert {unquote(purl) for purl in listed if purl.startswith("pkg:deb/")} == debian
    [site] = image.root.glob("opt/hub/lib/python*/site-packages")
    installed = importlib.metadata.distributions(path=[str(site)])
    python = {f"pkg:pypi/{canonicalize_name(each.metadata['Name'])}@{each.version}" for each in installed}
    assert len(python) > 30
    assert python - listed == {f"pkg:pypi/endpointslice-hub@{hub.__version__}"}


def test_commands_run_from_a_read_only_root(image: Image, tmp_path: Path) -> None:
    """``hub --version``, ``hub check`` and ``hub providers`` work; nothing can be written beside /tmp."""
    assert image.run("--version").stdout.strip().endswith(hub.__version__)
    shutil.copy(ROOT / "clusters.example.yaml", tmp_path)
    checked = image.run("check", str(MOUNT / "clusters.example.yaml"), mount=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout + checked.stderr
    provided = image.run("providers").stdout
    assert all(name in provided for name in ("inventory", "ionos", "node-addresses", "service-copy"))
    libraries = "import ctypes, pathlib; [ctypes.CDLL(str(path)) for path in pathlib.Path('/opt/hub').rglob('*.so')]"
    loaded = image.run("-c", libraries, entrypoint="python")
    assert (loaded.returncode, loaded.stderr) == (0, "")
    attempt = image.run("-c", "open('/opt/hub/new', 'w')", entrypoint="python")
    assert "Read-only file system" in attempt.stderr
    privileges = image.run("-c", "import os; print(os.getuid(), open('/proc/self/status').read())", entrypoint="python")
    assert privileges.stdout.startswith("65532 ")
    assert "CapEff:\t0000000000000000" in privileges.stdout


def test_demo_runs_in_the_image(image: Image, tmp_path: Path) -> None:
    """``hub demo`` runs with the image's Python and packages; only the test kit is added, behind them on the path."""
    for name in TESTKIT:
        distribution = importlib.metadata.distribution(name)
        editable = name == "endpointslice-hub-testkit"
        for file in () if editable else distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), tmp_path / file
            if source.is_file() and tmp_path in target.resolve().parents:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        if editable:
            shutil.copytree(ROOT / "testkit" / "src", tmp_path, dirs_exist_ok=True)
            info = tmp_path / f"endpointslice_hub_testkit-{distribution.version}.dist-info"
            info.mkdir()
            for part in ("METADATA", "entry_points.txt"):
                (info / part).write_text(distribution.read_text(part) or "")
    done = image.run("-c", WITH_TESTKIT, "demo", "--for", "10s", mount=tmp_path, entrypoint="python")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(", 0 endpoints lost; published = expected")


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended by SIGTERM, or killed after 15 s."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def test_hub_in_the_image_publishes_nodes_of_two_clusters(
    image: Image, tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]
) -> None:
    """``hub run`` from the image follows the nodes of two real API servers, and publishes them on a third."""
    folder = tmp_path / "registry"
    folder.mkdir()
    world = World(folder, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    world.add_service()
    world.write(services=[world.service("payments", "eu", "us")])
    add_node(world.remotes["eu"], "n1", "10.1.0.1")
    add_node(world.remotes["us"], "n2", "10.2.0.1")
    for file in folder.iterdir():
        file.chmod(0o644)  # the sandbox has another user
    folder.chmod(0o755)
    arguments = ["run", "--registry", str(MOUNT / world.path.name), "--kubeconfig", str(MOUNT / world.kubeconfig.name)]
    arguments += ["--health-probe-bind-address", "0", "--listen", "0", "--lease-namespace", "edge"]
    log = tmp_path / "log"
    with running(image.command(*arguments, mount=folder), log) as process:
        eventually(lambda: world.published() == ["10.1.0.1", "10.2.0.1"] or process.poll() is not None, 30)
        assert process.poll() is None, log.read_text()
        add_node(world.remotes["us"], "n3", "10.2.0.2")
        world.awaits("10.1.0.1", "10.2.0.1", "10.2.0.2")
        process.terminate()
        started = time.monotonic()
        process.wait(15)
        assert time.monotonic() - started < 10, log.read_text()
