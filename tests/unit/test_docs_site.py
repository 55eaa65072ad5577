"""The documentation site builds, and broken links fail the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "docs_site.py"


def test_site_builds_strictly(tmp_path: Path) -> None:
    """Every link and anchor of every page is valid, and the site has all pages of docs/."""
    done = subprocess.run([sys.executable, str(TOOL), str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {file.relative_to(ROOT).with_suffix("") for file in (ROOT / "docs").rglob("*.md")}
    built = {file.relative_to(tmp_path / "out" / "site").with_suffix("") for file in (tmp_path / "out").rglob("*.html")}
    # README.md is the index of its folder.
    assert {page.with_name("index") if page.name == "README" else page for page in pages} <= built


@pytest.mark.parametrize(
    ("link", "passes"),
    [("docs/page.md", True), ("docs/page.md#a-part", True), ("docs/none.md", False), ("docs/page.md#none", False)],
)
def test_broken_link_fails_the_build(tmp_path: Path, link: str, passes: bool) -> None:
    """A link to a missing page or anchor fails the build."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A page\n\n## A part\n\nText.\n")
    (tmp_path / "README.md").write_text(f"# Start\n\nA [link]({link}).\n")
    (tmp_path / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    code = "import sys, pathlib, docs_site; sys.exit(docs_site.build(*map(pathlib.Path, sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), str(tmp_path)],
        cwd=TOOL.parent,
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
