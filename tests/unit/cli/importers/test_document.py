"""Rendered registries read back as the same data, and problems name the origin of a value."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from hub.cli.importers.document import Noted, render
from hub.errors import Problem
from hub.registry.positions import parse
from hub.registry.report import Report

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12)
SCALARS = st.one_of(
    TEXTS,
    st.integers(-5, 70000),
    st.booleans(),
    st.sampled_from(["off", "5s", "1e3", "0x1", "0xa", "10.0.0.0/8", "~", "- a"]),
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=12
)
NOTES = st.sampled_from(["", "one line", "two\nparagraphs", "a long one " * 20])


def noted(tree: Any, note: str) -> Any:
    """The same tree with a comment at every value."""
    if isinstance(tree, dict):
        return Noted({key: noted(value, note) for key, value in tree.items()}, note)
    if isinstance(tree, list):
        return Noted([noted(value, note) for value in tree], note)
    return Noted(tree, note)


@given(st.dictionaries(TEXTS, TREES, max_size=4), NOTES, st.booleans())
def test_rendered_document_reads_back_unchanged(tree: dict[str, Any], note: str, everywhere: bool) -> None:
    """Both the registry's parser and PyYAML read the rendered data unchanged, with or without comments."""
    given_tree = {key: noted(value, note) for key, value in tree.items()} if everywhere else tree
    text = render(given_tree, note).text
    report = Report("f")

    found = parse(text, report)

    assert report.problems == ()
    assert (found or {}) == tree
    assert (yaml.safe_load(text) or {}) == tree


def test_comments_stand_above_their_keys() -> None:
    """A comment is above its key, with the same indentation, also for the first key of a list's entry."""
    tree = {"a": [{"b": Noted(1, "about b"), "c": {"d": Noted("x", "about d")}}]}

    assert render(tree, "heading").text == (
        "# heading\n\na:\n  # about b\n  - b: 1\n    c:\n      # about d\n      d: x\n"
    )


def test_problems_name_the_origin_of_the_nearest_value() -> None:
    """A problem names the origin of its value, else of the nearest enclosing one, instead of a line."""
    tree = {"a": [{"b": Noted(1, "", "VAR_B"), "c": Noted({"d": 2}, "", "VAR_C")}]}
    problems = [
        Problem("f", 1, 1, "a[0].b", "is wrong", "try 2"),
        Problem("f", 2, 1, "a[0].c.d", "too"),
        Problem("f", 3, 1, "z", "odd"),
    ]

    error = render(tree).error(problems)

    assert str(error) == "VAR_B: is wrong (try 2); VAR_C: too; environment: odd"
