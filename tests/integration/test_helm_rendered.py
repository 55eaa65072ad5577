"""What the real helm renders of values that are odd, and still right; no API server is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.api import Object
from tests.support.helm import CHART, Helm, find

EU: Object = {"name": "eu", "allowedCIDRs": ["10.7.0.0/16"], "provider": {"name": "node-addresses"}}
WEB: Object = {"name": "web", "namespace": "edge", "sources": [{"cluster": "eu"}]}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """The program, without a cluster."""
    return Helm(tmp_path)


def registry(cluster: Object | None = None, service: Object | None = None, **more: object) -> Object:
    """Values with a registry of one cluster and one Service, each with more keys."""
    return {"registry": {"data": {"clusters": [EU | (cluster or {})], "services": [WEB | (service or {})], **more}}}


def probed(objects: list[Object]) -> list[str]:
    """The CIDRs that any TCP port of may be reached."""
    rules = find(objects, "NetworkPolicy")["spec"]["egress"]
    return [to["ipBlock"]["cidr"] for rule in rules for to in rule.get("to", ())]


@pytest.mark.parametrize(
    "given",
    [
        registry(service={"health": {"mode": "tcp"}}),
        registry(defaults={"unreachable": {"after": "1m", "probe": "tcp"}}),
        registry({"unreachable": {"after": "1m", "probe": "tcp"}}),
    ],
)
def test_probed_nodes_can_be_reached(helm: Helm, given: Object) -> None:
    """By health checks, and by the probe of a cluster that is unreachable."""
    assert probed(helm.template(given)) == ["10.7.0.0/16"]


def test_nodes_that_nobody_probes_are_not_reached(helm: Helm) -> None:
    """Nor is something called health a health check."""
    assert probed(helm.template(registry(service={"name": "health"}))) == []


@pytest.mark.parametrize("given", [{"fullnameOverride": "f" * 63}, {"nameOverride": "n" * 63}])
def test_names_of_services_fit(helm: Helm, given: Object) -> None:
    """63 characters, with what follows the release's name."""
    objects = helm.template({**given, "page": {"expose": True}})
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert [name.rpartition("-")[2] for name in names] == ["metrics", "page"]
    assert max(map(len, names)) <= 63


NUMBERS: Object = {
    "nameOverride": "1",
    "fullnameOverride": "2",
    "serviceAccount": {"name": "3"},
    "registry": {"existingConfigMap": "4", "key": "5"},
    "page": {"expose": True, "tlsSecret": "6"},
    "priorityClassName": "7",
    "rbac": {"scope": "namespaced", "namespaces": ["8"]},
    "secrets": {"namespace": "9"},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}


@pytest.mark.parametrize("more", [{}, {"registry": {"existingConfigMap": "", "key": "5"}}, {"rbac": {}}])
def test_names_like_numbers_are_text(helm: Helm, tmp_path: Path, more: Object) -> None:
    """What is called 123 is so by name, and not by number."""
    values = tmp_path / "values.json"
    values.write_text(json.dumps(NUMBERS | more))
    text = helm.run("template", "10", str(CHART), "-n", "11", "--values", str(values))
    objects = [each for each in yaml.safe_load_all(text) if each]
    assert len(objects) > 10
    for each in objects:
        assert {key for key in each.get("data", {}) if not isinstance(key, str)} == set()
        for where, value in leaves(each):
            if where[-1] in TEXTS or where[-2:-1] in (("labels",), ("matchLabels",), ("resourceNames",)):
                assert isinstance(value, str), where


TEXTS = {"name", "namespace", "key", "secretName", "serviceAccountName", "priorityClassName", "policyName"}


def leaves(node: object, *where: str) -> list[tuple[tuple[str, ...], object]]:
    """(path, value) of everything that is neither a map nor a list."""
    if isinstance(node, dict):
        return [leaf for key, each in node.items() for leaf in leaves(each, *where, str(key))]
    if isinstance(node, list):
        return [leaf for n, each in enumerate(node) for leaf in leaves(each, *where, str(n))]
    return [(where, node)]
