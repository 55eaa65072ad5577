"""The rules for what a provider may do."""

from __future__ import annotations

import pytest

from hub.plugin.rules import MEASURES, check_measure
from hub.plugin.spec import TerminalProviderError


@pytest.mark.parametrize("name", ["", "Calls", "a__b", "x" * 41, "calls_total_count"])
def test_invalid_name_of_a_measure_is_refused(name: str) -> None:
    """A name that is no valid name of a metric, or that the hub or the format uses, is refused."""
    with pytest.raises(TerminalProviderError, match="is not a valid name of a measure"):
        check_measure(name, ())


def test_number_of_measures_is_bounded() -> None:
    """A provider may have 20 measures, and may add a known one again."""
    known = [f"m{number}" for number in range(20)]
    check_measure("m3", known)
    with pytest.raises(TerminalProviderError, match=f"one too many: a provider may have {MEASURES}"):
        check_measure("m20", known)
