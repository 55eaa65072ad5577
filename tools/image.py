"""The steps that make the image: wheels of the hub and its providers, installed with hashes into a clean environment.

The Dockerfile runs this, and so does ``tools/oci.py`` (``make image``). Standard library only; the interpreter needs
venv and ensurepip. Nothing is compiled: if the lock has no wheel for this platform, it fails. The environment contains
no pip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import lock

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD_BACKEND: Final = "hatchling"


def main(arguments: Sequence[str]) -> int:
    """Make the environment in the folder that is named; the exit code is that of the first command that fails."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tools/image.py FOLDER\n")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="image-") as folder:
            install(Path(folder), Path(arguments[0]).resolve())
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


def install(work: Path, into: Path) -> None:
    """Build in ``work``, install into ``into``, which is replaced if there is one."""
    locked = lock.packages()
    tools = work / "tools" / "bin" / "python"
    venv.create(tools.parents[1], with_pip=True)
    pip = [str(tools), "-m", "pip", "--disable-pip-version-check"]
    fetch = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:", "--requirement"]
    run([*pip, *fetch, write(work / "build.txt", lock.requirements(locked, [BUILD_BACKEND]))])
    wheels = work / "wheels"
    for member in member_folders():
        run([str(tools), "-m", BUILD_BACKEND, "build", "--target", "wheel", "--directory", str(wheels)], member)

    if into.exists():
        shutil.rmtree(into)
    venv.create(into, symlinks=True)  # links to the interpreter survive a copy between stages of one base
    pip += ["--python", str(into / "bin" / "python")]
    third_party = lock.requirements(locked, lock.shipped(locked))
    run([*pip, *fetch, write(work / "requirements.txt", third_party)])
    own = write(work / "members.txt", pinned(wheels.iterdir()))
    # By name from a folder: pip would note the paths of files in the image.
    local = ["--no-index", "--find-links", str(wheels), "--no-deps", "--require-hashes", "--requirement", own]
    run([*pip, "install", "--quiet", *local])
    run([*pip, "check"])
    # Whoever adds a provider to the image installs it under these, so that nothing of the hub's is replaced.
    write(into / "constraints.txt", constraints(locked))
    # The root file system is read-only where it runs: what is not compiled now is compiled at every start.
    run([str(into / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(into / "lib")])


def member_folders() -> list[Path]:
    """Where the packages of the image are, the hub first."""
    return [ROOT, *sorted(file.parent for file in ROOT.glob("providers/*/pyproject.toml"))]


def pinned(wheels: Iterable[Path]) -> str:
    """Requirements that name the distributions of wheel files by version and hash."""
    lines = []
    for wheel in sorted(wheels):
        name, version, *_ = wheel.name.split("-")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name.replace('_', '-')}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def constraints(locked: Sequence[lock.Package]) -> str:
    """``name==version`` of all that the image may hold."""
    needs = lock.closure(locked, lock.shipped(locked))
    return "".join(f"{package['name']}=={package['version']}\n" for package, _ in needs)


def write(path: Path, text: str) -> str:
    """Write a file; its path, for a command line."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(argv: Sequence[str], cwd: Path | None = None) -> None:
    """Run a command after showing it, without what the caller's environment would have it import."""
    sys.stderr.write(f"+ {' '.join(argv)}\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(argv, check=True, cwd=cwd, env=environment)  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
