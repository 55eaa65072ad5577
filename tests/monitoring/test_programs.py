"""Tests that need Debian's programs are never skipped in CI."""

from __future__ import annotations

import pytest

from tests.support.prometheus import program


def test_missing_program_skips_locally_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CI the test is skipped with the reason; in CI it fails."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO NO-SUCH-PROGRAM, NOT TESTED: make deps"):
        program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI has no no-such-program: run make deps"):
        program("no-such-program")
