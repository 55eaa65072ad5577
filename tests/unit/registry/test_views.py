"""``views:`` in clusters.yaml: its meaning, and mistakes with their places."""

from __future__ import annotations

import pytest

from hub.errors import RegistryError
from hub.model import LOCAL
from hub.registry.load import loads
from hub.registry.spec import VIEW_ANNOTATION, Registry, ViewsSpec
from tests.support.registry import strict

CLUSTERS = "clusters: [{name: eu, kubeconfig: {path: k}, allowedCIDRs: [10.0.0.0/8], provider: {name: p}}]\n"


def read(views: str) -> Registry:
    """A registry with this ``views:`` line."""
    return strict(loads(f"version: 1\n{CLUSTERS}{views}\n".encode(), "f"))


def problems(views: str) -> list[str]:
    """The problems of a rejected ``views:`` line."""
    with pytest.raises(RegistryError) as caught:
        read(views)
    return [str(problem) for problem in caught.value.problems]


def test_views_are_off_without_the_key() -> None:
    """Without the key there are no endpoint views."""
    assert read("").views is None


def test_views_key_selects_annotated_services() -> None:
    """The key without options selects the annotated Services of the hub cluster."""
    assert read("views: {}").views == ViewsSpec((LOCAL,), VIEW_ANNOTATION, "", ())


def test_clusters_and_hooks_are_named_once() -> None:
    """Repeated clusters and hooks are dropped, and the order is kept."""
    found = read("views: {clusters: [eu, local, eu], hooks: [b, a, b], annotation: x/y}").views
    assert found == ViewsSpec(("eu", LOCAL), "x/y", "", ("b", "a"))


def test_an_expression_is_kept_as_it_is_written() -> None:
    """Registries with the same expression are equal."""
    text = "'expose' in service.metadata.labels"
    assert read(f'views: {{select: "{text}"}}').views == ViewsSpec(select=text)


@pytest.mark.parametrize(
    ("views", "problem"),
    [
        ("views: {clusters: [ue]}", 'f:3:20: views.clusters[0]: no cluster is named "ue"'),
        ("views: {clusters: []}", "f:3:19: views.clusters: must not be empty"),
        ("views: {select: 5}", "f:3:17: views.select: must be a CEL expression as text, not the number 5"),
        ("views: {select: '1 + 1'}", "f:3:17: views.select: the expression returns int, not a bool"),
        (
            "views: {select: 'cluster =='}",
            "f:3:17: views.select: the expression does not parse: column 11: Syntax error",
        ),
        ("views: {select: 'nope'}", "f:3:17: views.select: the expression does not parse: column 1: undeclared"),
        ("views: {select: 'true', annotation: a}", "f:3:25: views.annotation: cannot be combined with select"),
        ("views: {hook: [a]}", "f:3:9: views.hook: is not a known key here (did you mean hooks?)"),
        ("views: [a]", "f:3:8: views: must be a mapping"),
        ("views:", "f:3:1: views: has no value"),
    ],
)
def test_a_mistake_is_refused_with_its_place(views: str, problem: str) -> None:
    """A mistake is reported with line, column, key and problem."""
    [found] = problems(views)
    assert found.startswith(problem)


def test_an_expression_that_loops_over_everything_is_refused() -> None:
    """An expression that is too expensive is refused when the file is loaded."""
    loop = "true"
    for name in "abcdef":
        loop = f"[1,2,3,4,5,6,7,8].all({name}, {loop})"
    [found] = problems(f"views: {{select: '{loop}'}}")
    assert "it loops over too much: its budget of 10,000 steps is exceeded" in found
