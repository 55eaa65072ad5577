"""Rules for the tests themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("providers/*/tests/**/*.py")])
SUITES = [path for path in FILES if path.name.startswith("test_")]

FAILING = frozenset({"raises", "warns", "fail", "timeout", "wait_for"})
"""Calls that fail a test: of pytest, and waits that end."""

NOTHING_IS_RAISED = frozenset({
    "test_any_json_is_a_page_or_malformed",
    "test_any_json_is_an_object_or_malformed",
    "test_no_bytes_do_more_than_be_refused",
    "test_loopback_needs_no_authentication",
    "test_every_name_makes_a_package_that_compiles",
    "test_example_is_clean",
    "test_suggested_value_is_accepted",
    "test_a_reference_names_one_place",
})  # fmt: skip
"""Tests whose whole claim is that code raises nothing, or nothing but one error."""

ASSERTS_UNDER_ANOTHER_NAME = frozenset({
    "test_wrong_token_is_unauthorized",
    "test_user_without_bindings_is_forbidden",
    "test_stale_resource_version_conflicts",
    "test_judge_allows_a_policy_between_two_observations",
    "test_judge_does_not_report_an_unchanged_hub",
    "test_no_key_is_lost_or_doubled_by_cancellation",
    "test_handover_waits_for_writes_of_moved_targets",
    "test_a_new_package_is_formatted_and_linted",
    "test_the_longest_name_fits_into_the_lines",
    "test_new_packages_are_typed",
})  # fmt: skip
"""Tests whose helper asserts, but is called like a function of the hub: `run`, `watch`, `do`, `refusal`."""

EXCEPTIONS = NOTHING_IS_RAISED | ASSERTS_UNDER_ANOTHER_NAME

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a test file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions() -> dict[str, list[Function]]:
    """Functions and methods of the test tree by name."""
    found: dict[str, list[Function]] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def asserts(function: ast.AST) -> bool:
    """Whether a function itself has an assertion."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node))
        or (isinstance(node, ast.Call) and called(node) in FAILING)
        for node in ast.walk(function)
    )


def called(call: ast.Call) -> str:
    """The name of a called function, without the object it is called on."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@cache
def calls(function: ast.AST) -> set[str]:
    """The names of all functions that a function calls."""
    return {called(node) for node in ast.walk(function) if isinstance(node, ast.Call)}


@cache
def asserting() -> frozenset[str]:
    """Names of helpers that assert something, themselves or in a helper that they call.

    Names that a function of the hub also has do not count, because the test may call that function.
    """
    found: set[str] = set()
    while (
        more := {
            name
            for name, same in functions().items()
            if name not in found and any(asserts(each) or calls(each) & found for each in same)
        }
        - of_the_hub()
    ):
        found |= more
    return frozenset(found)


@cache
def of_the_hub() -> frozenset[str]:
    """Names of all functions of the hub."""
    pattern = re.compile(r"^ *(?:async )?def (\w+)", re.MULTILINE)
    return frozenset(name for path in (ROOT / "hub").rglob("*.py") for name in pattern.findall(path.read_text()))


def can_fail(test: ast.AST) -> bool:
    """Whether a test asserts something, itself or in a helper."""
    return asserts(test) or bool(calls(test) & asserting())


def toothless(path: Path) -> Iterator[str]:
    """The tests of a file that cannot fail."""
    for node in ast.walk(tree(path)):
        test = isinstance(node, Function) and node.name.startswith("test_") and node.name not in EXCEPTIONS
        if test and not can_fail(node):
            yield f"{path.relative_to(ROOT)}: {node.name}"


def test_every_test_can_fail() -> None:
    """Every test asserts something, itself or in a helper, or waits for something with a timeout."""
    assert [test for path in SUITES for test in toothless(path)] == []


def test_the_exceptions_exist() -> None:
    """Every exception names an existing test."""
    assert EXCEPTIONS - functions().keys() == set()


@pytest.mark.parametrize(
    "body", ["pass", "serving()", "hub.start()", "async with serving(None): pass", "raise ValueError", "x = 1 == 2"]
)
def test_a_test_without_a_claim_is_found(body: str) -> None:
    """Calls of the functions under test are not assertions."""
    assert not can_fail(ast.parse(f"async def test_it():\n    {body}"))
