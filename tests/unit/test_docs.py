"""The documentation is correct: examples load, links lead to files, and lists are complete."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import report
from hub.events.recorder import RULE as RULE_FOR_EVENTS
from hub.kube.wire import CONFIG_MAPS, NODES, SERVICES, SLICES
from hub.observe.local import history
from hub.observe.local.accepted import config_map
from hub.observe.remote.identity import RULE
from hub.observe.remote.reading import SLICES_RULE
from hub.registry.load import load
from tests.support.page import is_values
from tests.support.registry import strict

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
ADRS = sorted((DOCS / "adr").glob("[0-9]*.md"))
RUNBOOKS = set((DOCS / "runbooks").glob("*.md")) - {DOCS / "runbooks" / "index.md"}
BLOCK = re.compile(r"^ *```yaml\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")


def blocks() -> Iterator[tuple[str, str]]:
    """Name and text of every yaml block."""
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            yield f"{page.relative_to(ROOT)}-{number}", textwrap.dedent(match["text"])


def is_manifest(text: str) -> bool:
    """Whether a block is a Kubernetes manifest; every other block is a registry, or values for the chart."""
    return text.startswith("apiVersion:")


REGISTRIES = [pytest.param(text, id=name) for name, text in blocks() if not (is_manifest(text) or is_values(text))]
MANIFESTS = [pytest.param(text, id=name) for name, text in blocks() if is_manifest(text)]


@pytest.mark.parametrize("text", REGISTRIES)
def test_registry_example_loads(tmp_path: Path, text: str) -> None:
    """Every registry in the documentation is complete and loads without a problem."""
    file = tmp_path / "clusters.yaml"
    file.write_text(text)
    registry = strict(load(file))
    clouds = [cluster.cloud for cluster in registry.clusters.values() if cluster.cloud is not None]
    assert registry.targets or registry.views or registry.allocations or clouds


@pytest.mark.parametrize("text", MANIFESTS)
def test_manifest_example_parses(text: str) -> None:
    """Every manifest in the documentation consists of Kubernetes objects with names."""
    for document in yaml.safe_load_all(text):
        assert document["kind"]
        assert document["metadata"]["name"]


def test_readme_shows_a_registry_of_ten_lines() -> None:
    """The README shows a registry of ten lines."""
    readme = [text for name, text in blocks() if name.startswith("README.md")]
    registries = [text for text in readme if not is_manifest(text)]
    assert [len(text.strip().splitlines()) for text in registries] == [10]


@pytest.mark.parametrize(
    ("role", "rule"),
    [
        ("endpointslice-hub-remote", NODES.rule),
        ("endpointslice-hub-remote", RULE),
        ("endpointslice-hub-remote-services", SLICES_RULE),
        ("endpointslice-hub-remote-services", SERVICES.rule),
        ("endpointslice-hub-remote-views", SERVICES.rule),
        ("endpointslice-hub-remote-views", SLICES_RULE),
        ("endpointslice-hub", SERVICES.rule),
        ("endpointslice-hub", SLICES.rule),
        ("endpointslice-hub", "leases.coordination.k8s.io: get, watch, create, update"),
        ("endpointslice-hub", "servicecidrs.networking.k8s.io: list"),
        ("endpointslice-hub", CONFIG_MAPS.rule),
        ("endpointslice-hub", "configmaps: create"),
        ("endpointslice-hub", f"configmaps {config_map('default')}: update"),
        ("endpointslice-hub", f"configmaps {history.config_map('default')}: update"),
        ("endpointslice-hub", RULE_FOR_EVENTS),
    ],
)
def test_documented_roles_grant_what_errors_ask_for(role: str, rule: str) -> None:
    """The roles of docs/reference/permissions.md have exactly the rules that the hub's errors name."""
    resource, _, verbs = rule.partition(": ")
    kind, _, name = resource.partition(" ")
    kind, _, group = kind.partition(".")
    assert verbs.split(", ") in granted(role).get((group, f"{kind} {name}".strip()), [])


def granted(role: str) -> dict[tuple[str, str], list[list[str]]]:
    """(API group, resource and its name) -> verbs, from the rules of the documented roles of that name."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for _, text in (
        each for each in blocks() if each[0].startswith("docs/reference/permissions.md") and is_manifest(each[1])
    ):
        for document in yaml.safe_load_all(text):
            if document["metadata"]["name"] == role:
                for rule in document.get("rules", ()):
                    name = " ".join(rule.get("resourceNames", ()))
                    for group, kind in [(group, kind) for group in rule["apiGroups"] for kind in rule["resources"]]:
                        found.setdefault((group, f"{kind} {name}".strip()), []).append(rule["verbs"])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page leads to a file in the repository."""
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_index_lists_every_page() -> None:
    """docs/index.md links every page except decisions and runbooks, which have their own index."""
    listed = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "index.md").read_text())}
    pages = {page for page in DOCS.rglob("*.md") if page not in {*ADRS, *RUNBOOKS, DOCS / "index.md"}}
    assert pages - listed == set()


def test_bad_input_names_tests_there_are() -> None:
    """Every test in the table of docs/bad-input.md exists."""
    defined = {
        name
        for folder in ("tests", "providers")
        for file in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "bad-input.md").read_text()))
    assert len(named) > 30
    assert named - defined == set()


def test_decisions_are_listed() -> None:
    """The index of decisions lists all of them with their numbers, and no others."""
    listed = [link for link in LINK.findall((DOCS / "adr" / "README.md").read_text()) if link[0].isdigit()]
    assert listed == [page.name for page in ADRS]


@pytest.mark.parametrize("page", ADRS, ids=lambda page: page.stem)
def test_decision_has_its_three_parts(page: Path) -> None:
    """A decision has its number in the title, a context, a decision and consequences, on one page."""
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert text.startswith(f"# {page.name[:4]} ")
    assert len(text.splitlines()) <= 70


def test_every_dependency_has_its_reason() -> None:
    """The decision on dependencies has one line for each dependency in pyproject.toml, and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = names(project["project"]["dependencies"]) + names(project["dependency-groups"]["dev"])
    rows = re.findall(
        r"^\| ([a-z][a-z0-9-]*) \| (.+) \|$", (DOCS / "adr" / "0001-dependencies.md").read_text(), re.MULTILINE
    )
    assert sorted(name for name, reason in rows if name != "dependency") == sorted(wanted)


def names(requirements: list[Any]) -> list[str]:
    """The distributions' names."""
    return [re.split(r"[^\w.-]", each)[0] for each in requirements]


def test_performance_has_a_place_for_results() -> None:
    """bench.py --write-docs finds the marks between which it replaces text."""
    page = (DOCS / "performance.md").read_text()
    once = report.replace_block(page, "one", report.BEGIN, report.END)
    assert report.replace_block(once, "two", report.BEGIN, report.END).count("two") == page.count("two") + 1


def test_performance_states_the_goals_that_are_checked() -> None:
    """The goals in docs/performance.md are those of the benchmark."""
    page = (DOCS / "performance.md").read_text()
    for row, goals in report.GOALS.items():
        [line] = [each for each in page.splitlines() if each.startswith(f"| {row} |")]
        written = [float(number) for number in re.findall(r"≤ ([0-9.]+)", line)]
        in_order = ("converge_s", "all_p50_ms", "all_p99_ms", "rss_end_mb", "cpu_per_heartbeat_ms", "rolling_writes")
        assert written == [goals[key] for key in in_order if key in goals]
        assert goals.get("rss_end_mb") == goals.get("rss_peak_mb")
        assert f"equal ({row.services})" in line or "all_p50_ms" not in goals
