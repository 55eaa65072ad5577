"""The chart's generated parts are current, and its values, its schema and its examples fit together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.decide import addresses
from hub.registry import values
from tests.support.helm import CHART, EXAMPLES, ROOT
from tools import chart

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = (CHART / "values.yaml").read_text()
PATHS = {each.path for each in chart.values(VALUES)}


def test_generated_parts_are_current() -> None:
    """README.md and values.schema.json are as `python tools/chart.py` writes them."""
    assert chart.outdated() == [], "regenerate: python tools/chart.py"


def test_a_change_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another comment in values.yaml: both files are out of date until they are written again."""
    copy = tmp_path / "helm" / "endpointslice-hub"
    (copy / "files").mkdir(parents=True)
    for name in ("README.md", "values.schema.json", "files/netipallocation.yaml", "files/cloud-policies.yaml"):
        (copy / name).write_text((CHART / name).read_text())
    (copy / "values.yaml").write_text(VALUES.replace("# -- Number of Pods. One", "# -- Number of replicas. One"))
    for name, value in {"ROOT": tmp_path, "CHART": copy}.items():
        monkeypatch.setattr(chart, name, value)
    made = ["README.md", "values.schema.json"]
    assert chart.outdated() == [f"helm/endpointslice-hub/{name}" for name in made]
    assert chart.main(["--check"]) == 1
    assert chart.main([]) == 0
    assert chart.main(["--check"]) == 0
    assert "| `replicaCount` | `2` | Number of replicas. One Pod writes" in (copy / "README.md").read_text()


def test_a_value_without_a_comment_is_an_error() -> None:
    """It is named with its line."""
    with pytest.raises(SystemExit, match=r"values.yaml:4: a\.c has no comment"):
        chart.values("a:\n  # -- B.\n  b: 1\n  c: 1\n")


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, schema) of the values."""
    for name, each in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        if each.get("properties") and path not in PATHS:
            assert each["additionalProperties"] is False, path
            yield from leaves(each, f"{path}.")
        else:
            yield path, each


def test_schema_has_every_value_and_no_other() -> None:
    """Each value has a type of its own in the schema; a misspelt one is refused."""
    known = {path for path, _ in leaves(SCHEMA)} - {"enabled", "global"}  # which helm passes to a subchart
    assert known == PATHS
    assert SCHEMA["additionalProperties"] is False
    for path, each in leaves(SCHEMA):
        assert {"type", "enum", "$ref"} & each.keys(), path
        assert each["description"], path


def test_chart_schema_omits_version_and_owner() -> None:
    """registry.data has neither version nor owner, and refuses what clusters.yaml does not have."""
    registry = SCHEMA["$defs"]["Registry"]
    assert {"clusters", "services", "deniedCIDRs"} <= registry["properties"].keys()
    assert not {"version", "owner"} & registry["properties"].keys()
    assert registry["additionalProperties"] is False


def test_owner_is_one_that_clusters_yaml_takes() -> None:
    """The chart asks of an owner what the registry asks; of the owners before it, as little."""
    owner, old = (
        SCHEMA["properties"]["owner"],
        SCHEMA["properties"]["admission"]["properties"]["previousOwners"]["items"],
    )
    for text in ("default", "ops.rel", "a" * 63, "Edge", "a_b", "a..b", "a-.b", "a" * 64):
        allowed = len(text) <= owner["maxLength"] and bool(re.search(owner["pattern"], text))
        assert allowed == _taken(values.owner, text), text
        assert bool(re.search(old["pattern"], text)) == _taken(values.previous_owner, text), text


def _taken(read: Callable[[object], str], text: str) -> bool:
    try:
        read(text)
    except values.BadValue:
        return False
    return True


def property_of(path: str) -> Any:
    """The schema of a value or a section."""
    node = SCHEMA
    for name in path.split("."):
        node = node["properties"][name]
    return node


def test_no_section_can_be_null() -> None:
    """Of null helm makes a key that is missing, and templates look into sections."""
    tops = {each.path.partition(".")[0] for each in chart.values(VALUES) if "." in each.path}
    assert set(SCHEMA["required"]) == tops
    assert property_of("registry")["required"] == ["data", "key"]
    assert property_of("providers")["required"] == ["wheels"]
    assert property_of("metrics")["required"] == [
        "dashboard",
        "podMonitor",
        "prometheusRule",
        "service",
        "serviceMonitor",
    ]
    assert property_of("page")["required"] == ["service"]


@pytest.mark.parametrize("path", ["admission.cidrs", "admission.deniedCIDRs", "networkPolicy.probeCIDRs"])
def test_chart_schema_refuses_invalid_cidrs(path: str) -> None:
    """The API server would refuse the whole object, without the value's name."""
    pattern = property_of(path)["items"]["pattern"]
    good = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "255.255.255.255/32",
        "::/0",
        "fd00::/8",
        "2001:db8:0:1::5/128",
        "1::2:3:4:5:6:7/9",
    ]
    assert [each for each in good if not re.search(pattern, each)] == []
    bad = ["10.0.0.0", "10.0.0/8", "256.0.0.0/8", "10.0.0.0/33", "010.0.0.0/8", "10.0.0.0/08", "fd00::/129", "fd00/8"]
    assert [each for each in [*bad, "../8", ":/8", "12345::/8"] if re.search(pattern, each)] == []


@pytest.mark.parametrize("path", ["commonLabels", "podLabels"])
def test_labels_by_which_pods_are_selected_are_the_charts(path: str) -> None:
    """A Deployment whose Pods it does not select is refused."""
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    block = re.search(r'define "hub.selectorLabels" -}}\n(.*?){{- end', text, re.DOTALL)
    assert block is not None
    [(pattern, allowed)] = property_of(path)["patternProperties"].items()
    assert allowed is False
    names = re.findall(r"^(\S+):", block[1], re.MULTILINE)
    assert [name for name in names if re.search(pattern, name)] == names
    assert not re.search(pattern, "app.kubernetes.io/part-of")


ELSEWHERE = {
    "registry.existingConfigMap": "existing-configmap",
    "registry.existingSecret": "existing-secret",
    "rbac.namespaces": "namespaced",
    **{path: "podmonitor" for path in PATHS if path.startswith("metrics.podMonitor.")},
    "metrics.podMonitor.jobLabel": "allocations",
}
"""Value that everything.yaml cannot set -> the example that sets it."""


def test_examples_set_every_value() -> None:
    """everything.yaml sets every value, but those that exclude its own; other examples set these."""
    assert set_by("everything") == PATHS - ELSEWHERE.keys()
    assert [path for path, example in ELSEWHERE.items() if path not in set_by(example)] == []


def set_by(name: str) -> set[str]:
    """The paths of the values that an example sets."""
    [example] = [path for path in EXAMPLES if path.stem == name]
    given = yaml.safe_load(example.read_text())
    return {path for path in PATHS if _is_set(given, *path.split("."))}


def _is_set(given: Any, name: str, *deeper: str) -> bool:
    return name in given and (not deeper or _is_set(given[name], *deeper))


def test_ranges_of_the_policy_are_the_hubs() -> None:
    """The admission policy denies exactly what the hub never publishes, always and for remote clusters."""
    text = (CHART / "templates" / "_helpers.tpl").read_text()

    def listed(name: str) -> set[str]:
        block = re.search(rf'define "hub.{name}" -}}}}\n(.*?){{{{- end', text, re.DOTALL)
        assert block is not None
        return set(yaml.safe_load(block[1]))

    always = {str(network) for network, _ in addresses._DENIED_ALWAYS}
    remote = {str(network) for network, _ in addresses._DENIED_REMOTE}
    # Part of a larger range of the list, or refused by CEL's own parser before any range is asked.
    assert listed("deniedAlways") == always - {"169.254.169.254/32", "::ffff:0:0/96"}
    assert listed("deniedRemote") == remote - {"0.0.0.0/32", "255.255.255.255/32", "::/128"}


PAGE = (ROOT / "docs" / "reference" / "chart.md").read_text()


def test_comparison_with_other_charts_names_every_value() -> None:
    """docs/reference/chart.md has every top-level value, and only values that exist."""
    cells = re.findall(r"^\| (?:[^|]+ \| ){2}(?!no:)([^|;]+)", PAGE.partition("## Values")[2], re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    sections = {path.rpartition(".")[0] for path in PATHS}
    assert len(named) > 50
    assert named <= PATHS | sections | {section.partition(".")[0] for section in sections}
    assert {path.partition(".")[0] for path in PATHS} <= set(re.findall(r"`(\w+)[`.]", PAGE))


def test_documented_versions_of_kubernetes_are_true() -> None:
    """The tested version is that of the test's API server; the oldest one is that of Chart.yaml."""
    built = (ROOT / "tests/support/apiserver/kubernetes/go.mod").read_text()
    [tested] = re.findall(r"k8s.io/kubernetes v(\S+)", built)
    oldest = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert f"(kube-apiserver {tested})" in PAGE
    assert f"| {oldest.removeprefix('>=').removesuffix('.0-0')} | the oldest version" in PAGE


def test_no_volume_is_mounted_by_sub_path() -> None:
    """A file that is mounted by subPath never changes while the Pod runs."""
    for template in (CHART / "templates").iterdir():
        assert "subPath" not in template.read_text(), template.name
