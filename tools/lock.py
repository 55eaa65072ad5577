"""Requirements with hashes out of uv.lock, for pip: what the image installs, and what is audited.

Standard library only, since it runs before anything is installed. Printed is the run-time closure of the workspace
members that the image holds (they themselves are built from here, no index has them), or of the packages named::

    python tools/lock.py              # what the image holds
    python tools/lock.py hatchling    # what its wheels are built with
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

TESTKIT: Final = "endpointslice-hub-testkit"
"""The workspace member that the image does not hold."""
LOCK: Final = Path(__file__).resolve().parents[1] / "uv.lock"

Package: TypeAlias = Mapping[str, Any]
"""A ``[[package]]`` of the lock."""
Need: TypeAlias = tuple[Package, str]
"""A package, and the marker under which it is needed; empty = always."""


def packages(path: Path = LOCK) -> list[Package]:
    """Every package of the lock, in its order (by name)."""
    found: list[Package] = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
    return found


def members(locked: Iterable[Package]) -> list[str]:
    """Names of the workspace's own packages, the hub first."""
    names = [each["name"] for each in locked if "editable" in each["source"]]
    return sorted(names, key=lambda name: (name != "endpointslice-hub", name))


def shipped(locked: Iterable[Package]) -> list[str]:
    """Names of the workspace's packages that the image holds, the hub first."""
    return [name for name in members(locked) if name != TESTKIT]


def closure(locked: Sequence[Package], roots: Iterable[str]) -> list[Need]:
    """What the roots need at run time, themselves included, sorted by name; development groups are left out.

    Raises:
        LookupError: the lock lacks a package, or has several versions where an edge names none.
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
    """What a package depends on, its extras' needs included: an edge that asks for an extra is rare and small."""
    yield from package.get("dependencies", ())
    for needs in package.get("optional-dependencies", {}).values():
        yield from needs


def find(locked: Iterable[Package], edge: Package) -> Package:
    """The package an edge leads to."""
    found = [
        each for each in locked
        if each["name"] == edge["name"] and edge.get("version", each["version"]) == each["version"]
    ]  # fmt: skip
    if len(found) != 1:
        raise LookupError(f"uv.lock has {len(found)} packages {edge['name']}; run: uv lock")
    return found[0]


def both(one: str, other: str) -> str:
    """A marker that holds where both do."""
    return " and ".join(f"({each})" for each in (one, other) if each) if one and other else one or other


def either(markers: set[str]) -> str:
    """A marker that holds where one of them does."""
    return "" if "" in markers else " or ".join(sorted(markers))


def files(package: Package) -> list[Package]:
    """What an index has of it: wheels, and the source distribution."""
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]


def requirements(locked: Sequence[Package], roots: Iterable[str]) -> str:
    """The lines of a requirements file for ``pip install --require-hashes``; without the workspace's own."""
    own = set(members(locked))
    lines = []
    for package, marker in closure(locked, roots):
        if package["name"] not in own:
            line = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
            lines.append(" \\\n    ".join([line, *sorted(f"--hash={file['hash']}" for file in files(package))]))
    return "".join(f"{line}\n" for line in lines)


def main(roots: Sequence[str]) -> int:
    """Print requirements for the roots; for the members that the image holds where there are none."""
    locked = packages()
    sys.stdout.write(requirements(locked, roots or shipped(locked)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
