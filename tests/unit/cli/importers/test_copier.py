"""The import of Services that endpoint-copier copies to."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hub.cli.importers.copier import build, services
from hub.errors import HubError, RegistryError
from hub.model import TargetKey
from hub.registry import models
from hub.registry.copies.annotations import ENABLED, NAME, NAMESPACE
from hub.registry.load import loads

VIP, KUBERNETES = TargetKey("default", "kubernetes-vip"), TargetKey("default", "kubernetes")


def service(name: str, namespace: str = "", selector: bool = False, **annotations: Any) -> dict[str, Any]:
    """The manifest of a Service with these annotations."""
    keys = {"enabled": ENABLED, "source": NAME, "source_namespace": NAMESPACE}
    meta = {"name": name, "annotations": {keys[key]: value for key, value in annotations.items()}}
    spec = {"selector": {"app": "x"}} if selector else {}
    return {"kind": "Service", "metadata": meta | ({"namespace": namespace} if namespace else {}), "spec": spec}


def printed(*manifests: dict[str, Any]) -> tuple[str, Any]:
    """The printed registry as text and as data, checked against the registry's schema."""
    text = build(services(manifests), VIP, KUBERNETES).text
    data = yaml.safe_load(text)
    models.File.model_validate(data)
    problems: tuple[Any, ...]
    try:
        problems = loads(text.encode(), "f").problems
    except RegistryError as error:
        problems = error.problems
    assert [str(each) for each in problems] == []
    return text, data


def test_annotated_services_become_rules() -> None:
    """Annotated Services become sorted rules that allow each copy by name."""
    _, data = printed(
        service("b", "edge", enabled="true", source="api", source_namespace="team"),
        service("a", "edge", enabled="true", source="api", source_namespace="team"),
    )

    assert data["annotations"] == {
        "enabled": True,
        "allow": [{"from": "team/api", "to": ["edge/a"]}, {"from": "team/api", "to": ["edge/b"]}],
    }
    assert "services" not in data


def test_the_service_without_annotations_becomes_an_entry() -> None:
    """The Service that endpoint-copier manages by its flags becomes an entry."""
    _, data = printed(service("kubernetes-vip"), service("other"))

    (entry,) = data["services"]
    assert (entry["namespace"], entry["name"]) == ("default", "kubernetes-vip")
    assert entry["sources"] == [
        {
            "cluster": "local",
            "provider": {"name": "service-copy", "config": {"namespace": "default", "name": "kubernetes"}},
        }
    ]
    assert entry["adopt"] == {"managedBy": "endpoint-copier"}
    assert "annotations" not in data


def test_only_the_text_true_enables_a_copy() -> None:
    """Only the text "true" enables a copy, as in endpoint-copier; a YAML boolean does not."""
    found = services([service("a", enabled=True, source="x"), service("b", enabled="True", source="x")])

    with pytest.raises(HubError, match='no Service has the annotation endpoint-copier/enabled: "true"'):
        build(found, VIP, KUBERNETES)


def test_settings_with_another_meaning_are_commented() -> None:
    """Comments name a missing source namespace, a missing source and a selector."""
    text, data = printed(
        service("a", "edge", enabled="true", source="api"),
        service("b", "edge", enabled="true"),
        service("c", "edge", enabled="true", source="api", source_namespace="team", selector=True),
    )
    words = " ".join(text.replace("# ", "").split())

    assert [rule["from"] for rule in data["annotations"]["allow"]] == ["edge/api", "team/api"]
    assert (
        "edge/a: endpoint-copier/default-service-namespace is missing: the hub copies from the Service's own" in words
    )
    assert "edge/b: endpoint-copier/default-service-name is missing, so nothing is copied" in words
    assert "edge/c: It has a selector" in words


@pytest.mark.parametrize("source", [{"source": "*"}, {"source": "a*"}, {"source": "api", "source_namespace": "*"}])
def test_source_with_asterisk_makes_no_rule(source: dict[str, str]) -> None:
    """A source with a * becomes no rule, since the rule would allow every source that matches."""
    text, data = printed(service("a", "edge", enabled="true", **source), service("b", enabled="true", source="api"))

    assert [rule["to"] for rule in data["annotations"]["allow"]] == [["default/b"]]
    assert "edge/a: its annotations contain a *" in " ".join(text.replace("# ", "").split())


@pytest.mark.parametrize("meta", [None, {}, {"name": 1}, {"name": "a", "annotations": [1]}])
def test_malformed_service_is_an_error(meta: Any) -> None:
    """A malformed Service is a one-line error."""
    with pytest.raises(HubError, match="a Service without a name, or with annotations that are not a mapping"):
        services([{"kind": "Service", "metadata": meta}])
