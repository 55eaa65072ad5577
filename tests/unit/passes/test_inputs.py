"""What the sources of one target say."""

from __future__ import annotations

from hub.model import SourceView
from hub.passes.inputs import _policy_stands
from hub.registry.spec import UnreachablePolicy
from tests.support import build

SOURCE = build.source("eu", unreachable=UnreachablePolicy(600.0, "remove"))
UNKNOWN = SourceView("eu", "503", {})
KNOWN = SourceView("eu", None, {})


def test_a_policy_that_took_effect_outlives_the_kind_of_the_failure() -> None:
    """Refused for ten minutes, then 503: what was taken out does not come back for that."""
    given_up: set[str] = set()
    assert _policy_stands(SOURCE, UNKNOWN, 600.0, given_up) == 600.0
    assert _policy_stands(SOURCE, UNKNOWN, None, given_up) == 600.0


def test_a_policy_that_took_no_effect_yet_does_not_begin_with_a_503() -> None:
    """Degraded always keeps."""
    given_up: set[str] = set()
    assert _policy_stands(SOURCE, UNKNOWN, 599.0, given_up) == 599.0
    assert _policy_stands(SOURCE, UNKNOWN, None, given_up) is None


def test_a_statement_ends_it() -> None:
    """Once the cluster answered, the time starts anew."""
    given_up = {"eu"}
    assert _policy_stands(SOURCE, KNOWN, None, given_up) is None
    assert _policy_stands(SOURCE, UNKNOWN, None, given_up) is None
