"""Make ``.venv`` with the hub, its providers and the development tools: by uv if there is one, else by venv and pip.

Called by the Makefile; standard library only. Both ways give the versions of uv.lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
OLDEST = (3, 11)


def main() -> int:
    """Make or update the environment; the exit code is that of the first command that fails."""
    try:
        if uv := shutil.which("uv"):
            with_uv(uv)
        else:
            with_pip()
        # An installed package brings its bytecode, an editable one does not, and some environments
        # (PYTHONDONTWRITEBYTECODE) never write any: then every start would compile 0.2 s of source.
        run(
            [
                str(VENV / "bin" / "python"),
                "-m",
                "compileall",
                "-q",
                "-j",
                "0",
                str(VENV / "lib"),
                "hub",
                "providers",
                "testkit",
            ]
        )
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


def with_uv(uv: str) -> None:
    """``uv sync``; an environment the user has active, or named elsewhere, stays as it is."""
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    run([uv, "sync", "--all-packages", "--frozen", "--quiet"], {**environment, "UV_PROJECT_ENVIRONMENT": str(VENV)})


def with_pip() -> None:
    """A plain venv, filled by its pip with the workspace members (editable) and the group ``dev``."""
    if sys.version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        sys.exit(f"Python {needed} or newer is needed, this is {sys.version.split()[0]}; try make PYTHON=…")
    need_ensurepip()
    run([sys.executable, "-m", "venv", *([] if is_ours() else ["--clear"]), str(VENV)])
    members = [".", *sorted(str(file.parent) for file in Path().glob("providers/*/pyproject.toml")), "testkit"]
    editables = [argument for member in members for argument in ("--editable", f"./{member}")]
    with tempfile.NamedTemporaryFile("w", prefix="constraints-", suffix=".txt") as constraints:
        constraints.write("\n".join(locked_versions()))
        constraints.flush()
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--constraint", constraints.name, *editables, *dev_requirements()])


def is_ours() -> bool:
    """Whether the present environment, if any, is of this Python and can be updated in place."""
    configuration = VENV / "pyvenv.cfg"
    if not configuration.exists():
        return True
    match = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", configuration.read_text(), re.MULTILINE)
    return match is not None and (int(match[1]), int(match[2])) == sys.version_info[:2]


def need_ensurepip() -> None:
    """Debian keeps it in a package of its own: install that where we may, else say so."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "python3-venv"]
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit(f"{sys.executable} cannot make environments; run: {' '.join(install)}")
        run(["apt-get", "update"])
        run(install)


def dev_requirements() -> list[str]:
    """The group ``dev`` of pyproject.toml without the workspace's own members, which no index has."""
    group = toml("pyproject.toml")["dependency-groups"]["dev"]
    return [line for line in group if not normal(re.split(r"[^\w.-]", line)[0]).startswith("endpointslice-hub")]


def locked_versions() -> list[str]:
    """``name==version`` for each package that uv.lock has in exactly one version, from an index."""
    versions = defaultdict(set)
    for package in toml("uv.lock")["package"]:
        if "registry" in package["source"]:
            versions[package["name"]].add(package["version"])
    return [f"{name}=={found.pop()}" for name, found in versions.items() if len(found) == 1]


def toml(name: str) -> dict[str, Any]:
    """A TOML file of the repository."""
    import tomllib  # here: Python before 3.11 gets as far as a clear message

    return tomllib.loads(Path(name).read_text(encoding="utf-8"))


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(argv: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command after showing it."""
    print("+", *argv, file=sys.stderr, flush=True)  # noqa: T201
    subprocess.run(argv, check=True, env=environment)  # noqa: S603


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
