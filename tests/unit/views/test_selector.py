"""Selection of the Services that have views."""

from __future__ import annotations

import logging

import pytest

from hub.registry.spec import VIEW_ANNOTATION, ViewsSpec
from hub.views.selector import LOGGED, Selector
from tests.support import build


@pytest.mark.parametrize("value", ["true", "false", ""])
def test_the_annotation_counts_whatever_its_value(value: str) -> None:
    """A Service with the annotation has views, whatever the value, as in dcontroller."""
    selector = Selector(ViewsSpec())
    assert selector.selects("local", build.service(annotations={VIEW_ANNOTATION: value}))
    assert not selector.selects("local", build.service(annotations={"other": value}))


def test_an_expression_decides_instead_of_the_annotation() -> None:
    """An expression replaces the annotation, and may use the cluster."""
    selector = Selector(ViewsSpec(select="cluster == 'eu'"))
    assert selector.selects("eu", build.service())
    assert not selector.selects("local", build.service(annotations={VIEW_ANNOTATION: ""}))


def test_a_service_without_an_answer_is_not_chosen_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """A Service for which the expression fails is not chosen; each problem is logged once."""
    selector = Selector(ViewsSpec(select="service.metadata.labels.expose == 'yes'"))
    with caplog.at_level(logging.WARNING):
        assert [selector.selects("eu", build.service(name)) for name in ("a", "b")] == [False, False]
    assert [record.getMessage() for record in caplog.records] == [
        'views.select failed for Service edge/a of eu: NOT_FOUND: Key not found in map : "expose"'
    ]
    assert selector.selects("eu", build.service("a", labels={"expose": "yes"}))


def test_not_every_problem_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The number of logged problems is limited."""
    selector = Selector(ViewsSpec(select="service.metadata.labels[service.metadata.name] == 'yes'"))
    with caplog.at_level(logging.WARNING):
        for number in range(3 * LOGGED):
            selector.selects("eu", build.service(f"s{number}"))
    assert len(caplog.records) == LOGGED
