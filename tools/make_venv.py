"""Makes ``.venv`` with the hub, its providers and the development tools: with uv if it is installed, else with pip.

The Makefile calls it. It uses only the standard library. Both ways install the versions of uv.lock.
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
        # An editable package is installed without bytecode, and some environments (PYTHONDONTWRITEBYTECODE) never
        # write it. Then every start would spend 0.2 s on compiling.
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
    """Run ``uv sync`` for ``.venv``, whatever other environment is active or configured."""
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    run([uv, "sync", "--all-packages", "--frozen", "--quiet"], {**environment, "UV_PROJECT_ENVIRONMENT": str(VENV)})


def with_pip() -> None:
    """Make a venv, and install the workspace members (editable) and the group ``dev`` with its pip."""
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
    """Whether ``.venv`` can be updated in place: it does not exist yet, or belongs to this version of Python."""
    configuration = VENV / "pyvenv.cfg"
    if not configuration.exists():
        return True
    match = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", configuration.read_text(), re.MULTILINE)
    return match is not None and (int(match[1]), int(match[2])) == sys.version_info[:2]


def need_ensurepip() -> None:
    """Install Debian's package of ensurepip if it is missing; without permission for that, exit with the command."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "python3-venv"]
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit(f"{sys.executable} cannot make environments; run: {' '.join(install)}")
        run(["apt-get", "update"])
        run(install)


def dev_requirements() -> list[str]:
    """The group ``dev`` of pyproject.toml, without the workspace's own members, which no index has."""
    group = toml("pyproject.toml")["dependency-groups"]["dev"]
    return [line for line in group if not normal(re.split(r"[^\w.-]", line)[0]).startswith("endpointslice-hub")]


def locked_versions() -> list[str]:
    """``name==version`` for each package from an index that uv.lock has in exactly one version."""
    versions = defaultdict(set)
    for package in toml("uv.lock")["package"]:
        if "registry" in package["source"]:
            versions[package["name"]].add(package["version"])
    return [f"{name}=={found.pop()}" for name, found in versions.items() if len(found) == 1]


def toml(name: str) -> dict[str, Any]:
    """A TOML file of the repository."""
    import tomllib  # imported here, so that Python before 3.11 can print a clear message

    return tomllib.loads(Path(name).read_text(encoding="utf-8"))


def normal(name: str) -> str:
    """A distribution's name in the normal form of indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(argv: list[str], environment: dict[str, str] | None = None) -> None:
    """Print a command, then run it."""
    print("+", *argv, file=sys.stderr, flush=True)  # noqa: T201
    subprocess.run(argv, check=True, env=environment)  # noqa: S603


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
