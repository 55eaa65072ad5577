"""The generated schema and reference are current and agree with the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub.model import TargetKey
from hub.registry import models, reference, schema, spec
from hub.registry.load import load, loads
from tests.support.registry import strict

ROOT = Path(__file__).parents[3]
HINT = "regenerate: python -m hub.registry.reference"


def test_schema_file_is_current() -> None:
    """docs/schema/clusters.schema.json is generated from the current models."""
    assert (ROOT / "docs/schema/clusters.schema.json").read_text() == schema.text(), HINT


def test_reference_page_is_current() -> None:
    """docs/reference/clusters-yaml.md is generated from the current models."""
    assert (ROOT / "docs/reference/clusters-yaml.md").read_text() == reference.text(), HINT


def test_example_is_clean() -> None:
    """clusters.example.yaml loads without a problem."""
    strict(load(ROOT / "clusters.example.yaml"))


def test_example_names_the_schema_for_editors() -> None:
    """The first line of clusters.example.yaml tells editors where the schema is."""
    first = (ROOT / "clusters.example.yaml").read_text().splitlines()[0]

    assert first.startswith("# yaml-language-server: $schema=")
    assert (ROOT / first.partition("=")[2]).is_file()


def test_example_shows_every_key() -> None:
    """clusters.example.yaml has each key of the schema."""
    text = (ROOT / "clusters.example.yaml").read_text()
    made = schema.schema()
    keys = {key for node in (made, *made["$defs"].values()) for key in node["properties"]}

    assert {key for key in keys if f"{key}:" not in text} == set()


def objects(node: Any) -> list[dict[str, Any]]:
    """All mappings in a node."""
    if isinstance(node, list):
        return [found for item in node for found in objects(item)]
    if isinstance(node, dict):
        return [node, *(found for item in node.values() for found in objects(item))]
    return []


def test_every_key_is_described() -> None:
    """Each key of the schema has a description, which editors show."""
    made = schema.schema()

    for node in (made, *made["$defs"].values()):
        assert node["additionalProperties"] is False
        assert all(value.get("description") for value in node["properties"].values())


def test_schema_refuses_null() -> None:
    """The schema does not allow ``null``, which the loader refuses."""
    assert not [node for node in objects(schema.schema()) if node.get("type") == "null"]


def documented_defaults(model: type[models.Section]) -> dict[str, Any]:
    """Key -> its default in the schema, for the keys of a section that have one."""
    return {
        field.alias or name: field.json_schema_extra["default"]
        for name, field in model.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and "default" in field.json_schema_extra
    }


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        (models.Nodes, spec.NodePolicy()),
        (models.Guard, spec.GuardPolicy()),
        (models.Unreachable, spec.UnreachablePolicy()),
        (models.Failover, spec.FailoverPolicy()),
    ],
)
def test_documented_defaults_are_the_real_ones(model: type[models.Section], policy: Any) -> None:
    """A default in the schema is the value that applies if the key is missing."""
    read = model.model_validate(documented_defaults(model))

    assert {name: getattr(read, name) for name in read.model_fields_set} == {
        name: value
        for name, value in msgspec.structs.asdict(policy).items()
        if not name.startswith("exclude_") and name != "zones"
    }


@pytest.mark.parametrize(
    ("mode", "foreign"), [("https", {"grpcService"}), ("grpcs", {"path", "method", "headers", "status"})]
)
def test_documented_health_defaults_are_the_real_ones(mode: str, foreign: set[str]) -> None:
    """A health check with every documented default of its mode written equals one with only its mode."""

    def check(keys: dict[str, Any]) -> spec.HealthPolicy:
        sources = [{"cluster": "local", "provider": {"name": "p"}, "health": {**keys, "mode": mode}}]
        service = {"name": "s", "namespace": "n", "sources": sources}
        read = strict(loads(json.dumps({"version": 1, "clusters": [], "services": [service]}).encode(), "f"))
        return read.targets[TargetKey("n", "s")].sources[0].health

    documented = documented_defaults(models.Health)
    assert documented["interval"] == "5s"
    assert check({key: value for key, value in documented.items() if key not in foreign}) == check({})


def test_documented_defaults_of_entries_are_the_real_ones() -> None:
    """Entries with every documented default written equal entries with the required keys only."""

    def read(cluster: dict[str, Any], service: dict[str, Any], views: dict[str, Any]) -> spec.Registry:
        kubeconfig = documented_defaults(models.Kubeconfig) if cluster else {}
        entry = {"name": "a", "allowedCIDRs": ["10.0.0.0/8"], "kubeconfig": {"secret": "s", **kubeconfig}, **cluster}
        target = {"name": "s", "namespace": "n", "sources": [{"cluster": "a", "provider": {"name": "p"}}], **service}
        file = {"version": 1, "clusters": [entry], "services": [target], "views": views}
        return strict(loads(json.dumps(file).encode(), "f"))

    sections = [documented_defaults(model) for model in (models.Cluster, models.Service, models.Views)]
    assert ["maxEndpoints" in sections[0], "endpointsPerSlice" in sections[1], "clusters" in sections[2]] == [True] * 3
    written, plain = read(*sections), read({}, {}, {})
    assert (written.clusters, written.targets, written.views) == (plain.clusters, plain.targets, plain.views)


def test_documented_defaults_of_the_file_are_the_real_ones() -> None:
    """A file with every documented default written equals one with the version only."""
    written = {"version": 1, **documented_defaults(models.File), "annotations": documented_defaults(models.Annotations)}
    read, plain = (strict(loads(json.dumps(file).encode(), "f")) for file in (written, {"version": 1}))

    assert msgspec.structs.replace(read, digest="") == msgspec.structs.replace(plain, digest="")
