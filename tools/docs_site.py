"""Builds the documentation site, and fails if a link or an anchor is broken.

``python tools/docs_site.py FOLDER`` copies the pages, and all files that they link to, into FOLDER/pages, in the
repository's own layout: pages link to READMEs and sources outside of docs/, but the generator reads only one folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")


def main(arguments: Sequence[str]) -> int:
    """Build the site; the exit code is the generator's."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tools/docs_site.py FOLDER\n")
        return 2
    return build(Path(arguments[0]).resolve())


def build(into: Path, root: Path = ROOT) -> int:
    """Copy the pages and build the site; the generator prints to the output of this process."""
    shutil.rmtree(into, ignore_errors=True)
    for file in pages(root):
        copy = into / "pages" / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    config = into / "zensical.toml"
    shutil.copyfile(root / config.name, config)
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run(  # noqa: S603
        [str(program), "build", "--strict", "--config-file", str(config)], check=False, cwd=into
    ).returncode


def pages(root: Path) -> Iterator[Path]:
    """The README, all pages of docs/, and all files that one of these pages links to; each file once."""
    todo, seen = [root / "README.md", *sorted((root / "docs").rglob("*.md"))], set[Path]()
    while todo:
        file = todo.pop(0)
        if file not in seen and file.is_file():
            seen.add(file)
            yield file
            if file.suffix == ".md":
                todo += [(file.parent / link).resolve() for link in LINK.findall(file.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
