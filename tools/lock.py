"""Prints requirements with hashes from uv.lock, for pip: the packages that the image installs and that are audited.

It uses only the standard library, since it runs before anything is installed. It prints the run-time closure of the
workspace members in the image, or of the named packages. The workspace members themselves are left out, because no
index has them::

    python tools/lock.py              # the packages in the image
    python tools/lock.py hatchling    # the packages that build its wheels
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

TESTKIT: Final = "endpointslice-hub-testkit"
"""The workspace member that is not in the image."""
LOCK: Final = Path(__file__).resolve().parents[1] / "uv.lock"

Package: TypeAlias = Mapping[str, Any]
"""A ``[[package]]`` of the lock."""
Need: TypeAlias = tuple[Package, str]
"""A package, and the marker under which it is needed; empty = always."""


def packages(path: Path = LOCK) -> list[Package]:
    """All packages of the lock, in the order of the file (by name)."""
    found: list[Package] = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
    return found


def members(locked: Iterable[Package]) -> list[str]:
    """Names of the workspace's own packages, the hub first."""
    names = [package["name"] for package in locked if "editable" in package["source"]]
    return sorted(names, key=lambda name: (name != "endpointslice-hub", name))


def shipped(locked: Iterable[Package]) -> list[str]:
    """Names of the workspace's packages in the image, the hub first."""
    return [name for name in members(locked) if name != TESTKIT]


def closure(locked: Sequence[Package], roots: Iterable[str]) -> list[Need]:
    """The packages that the roots need at run time, including the roots, sorted by name; without development groups.

    Raises:
        LookupError: the lock lacks a package, or has several versions of it and an edge names no version.
    """
    markers: dict[tuple[str, str], set[str]] = {}
    todo = [(find(locked, {"name": name}), "") for name in roots]
    while todo:
        package, marker = todo.pop()
        known = markers.setdefault((package["name"], package["version"]), set())
        if "" in known or marker in known:
            continue
        known.add(marker)
        todo += [(find(locked, edge), both(marker, edge.get("marker", ""))) for edge in edges(package)]
    return [(find(locked, {"name": name, "version": version}), either(found))
            for (name, version), found in sorted(markers.items())]  # fmt: skip


def edges(package: Package) -> Iterator[Package]:
    """The dependencies of a package, always with those of its extras: few edges need an extra, and extras are small."""
    yield from package.get("dependencies", ())
    for needs in package.get("optional-dependencies", {}).values():
        yield from needs


def find(locked: Iterable[Package], edge: Package) -> Package:
    """The package that an edge leads to."""
    found = [
        package for package in locked
        if package["name"] == edge["name"] and edge.get("version", package["version"]) == package["version"]
    ]  # fmt: skip
    if len(found) != 1:
        raise LookupError(f"uv.lock has {len(found)} packages {edge['name']}; run: uv lock")
    return found[0]


def both(one: str, other: str) -> str:
    """A marker that is true if both markers are true."""
    return " and ".join(f"({marker})" for marker in (one, other) if marker) if one and other else one or other


def either(markers: set[str]) -> str:
    """A marker that is true if at least one of the markers is true."""
    return "" if "" in markers else " or ".join(sorted(markers))


def files(package: Package) -> list[Package]:
    """The files of a package on an index: wheels, and the source distribution."""
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]


def requirements(locked: Sequence[Package], roots: Iterable[str]) -> str:
    """The lines of a requirements file for ``pip install --require-hashes``, without the workspace's own packages."""
    own = set(members(locked))
    lines = []
    for package, marker in closure(locked, roots):
        if package["name"] not in own:
            line = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
            lines.append(" \\\n    ".join([line, *sorted(f"--hash={file['hash']}" for file in files(package))]))
    return "".join(f"{line}\n" for line in lines)


def main(roots: Sequence[str]) -> int:
    """Print requirements for the roots; without roots, for the workspace members in the image."""
    locked = packages()
    sys.stdout.write(requirements(locked, roots or shipped(locked)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
