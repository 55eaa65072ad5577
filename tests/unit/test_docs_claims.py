"""Claims of the documentation that can be checked: commands, registries and tests."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression
from click.testing import CliRunner

from hub.cli import cli
from tests.conftest import COLLECTED
from tests.support.page import is_values

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^ *(?:\$ +|kubectl .* -- )?(hub [a-z].*?)(?: +#.*| *[|>].*| *\\)?$", re.MULTILINE)
FENCED = re.compile(r"^( *)```(?:sh|console)?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^ *```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4,}\S.*\n)+", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """Page and line of each `hub` command in a code block."""
    for page in PAGES:
        text = page.read_text()
        blocks = [match[2] for match in FENCED.finditer(text)] + INDENTED.findall(text)
        for line in dict.fromkeys(line for block in blocks for line in COMMAND.findall(block)):
            if "[OPTIONS]" not in line and not page.is_relative_to(ROOT / "docs" / "reference"):
                yield str(page.relative_to(ROOT)), line


LINES = [pytest.param(line, id=f"{page}: {line}") for page, line in commands()]


@pytest.mark.parametrize("line", LINES)
def test_command_of_a_page_exists(line: str) -> None:
    """Every command and option in a code block exists in the command line."""
    words = shlex.split(line)[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used - known - {"--help"} == set()


def test_pages_have_commands() -> None:
    """There are commands for the test above."""
    assert len(LINES) > 30


def registries() -> Iterator[tuple[str, str]]:
    """Page and text of each clusters.yaml, including those in ConfigMaps."""
    for page in PAGES:
        for number, match in enumerate(YAML.finditer(page.read_text())):
            name, text = f"{page.relative_to(ROOT)}-{number}", textwrap.dedent(match[1])
            if is_values(text):
                continue  # tests/integration/test_moving.py renders them
            if not text.startswith("apiVersion:"):
                yield name, text
            elif "clusters.yaml: |" in text:
                yield name, yaml.safe_load(text)["data"]["clusters.yaml"]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in registries()])
def test_registry_of_a_page_passes_hub_check(tmp_path: Path, text: str) -> None:
    """`hub check` finds no problem in any registry, including the providers' configurations."""
    file = tmp_path / "clusters.yaml"
    file.write_text(text)
    done = CliRunner().invoke(cli, ["check", str(file)])
    assert done.exit_code == 0, done.output


def test_registry_in_a_config_map_is_found() -> None:
    """The registry in the ConfigMap of docs/how-to/gitops.md is found."""
    assert "docs/how-to/gitops.md-0" in dict(registries())


def test_security_names_tests_there_are() -> None:
    """Each case of docs/security.md names at least one test, and all named tests exist."""
    defined = {
        name
        for folder in ("tests", "providers")
        for file in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("## Each case")[2].partition("\nNot covered")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "**" not in line][1:]
    assert len(rows) > 30
    assert [row for row in rows if "`test_" not in row] == []
    assert set(re.findall(r"`(test_\w+)`", page)) - defined == set()


def test_release_page_names_existing_things() -> None:
    """All make targets, modules and files that docs/release.md names exist."""
    page = (ROOT / "docs" / "release.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", page)) <= targets
    for module in re.findall(r"python -m ([\w.]+)", page):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
    for file in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / file).exists()


TESTED = re.compile(r"make (test|test-nightly) ARGS=(?:\"([^\"]+)\"|(\S+?))[`\s]")


def test_each_command_of_a_page_selects_tests(request: pytest.FixtureRequest) -> None:
    """The arguments of ``make test`` in the pages name files that exist, and ``-k`` selects at least one test."""
    collected = request.config.stash[COLLECTED]
    if len({item.path for item, _ in collected}) < 300:
        pytest.skip("a part of the tests was collected; a run of all of them checks this")
    commands = [(page, match) for page in PAGES for match in TESTED.finditer(page.read_text())]
    assert len(commands) > 40
    for page, (target, quoted, bare) in ((page, match.groups()) for page, match in commands):
        words = shlex.split(quoted or bare)
        nightly = target == "test-nightly" or "--nightly" in words
        paths = [
            ROOT / word.partition("::")[0] for word in words if word.startswith(("tests/", "testkit/", "providers/"))
        ]
        chosen = [item for item, late in collected if nightly or not late]
        chosen = [item for item in chosen if not paths or any(item.path.is_relative_to(path) for path in paths)]
        if "-k" in words:
            expression = Expression.compile(words[words.index("-k") + 1])
            chosen = [item for item in chosen if expression.evaluate(KeywordMatcher.from_item(item))]
        assert chosen, f"{page.name}: {quoted or bare}"
