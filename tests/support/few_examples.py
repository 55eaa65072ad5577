"""pytest plugin for mutation runs (``make mutants``): few hypothesis examples, the same ones every time.

A surviving mutant costs a whole run of its tests, so what matters is speed, and nobody reads the examples of
those that are killed; and whether one survives must not depend on chance.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import Phase, settings

EXAMPLES: Final = 25
_SETTINGS: Final = "_hypothesis_internal_use_settings"
"""Where ``@settings`` keeps them; there is no public way to change what a decorator said."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cut down every property test."""
    for item in items:
        function: Any = getattr(item, "function", None)
        written: settings | None = getattr(function, _SETTINGS, None)
        if written is not None:
            examples = min(written.max_examples, EXAMPLES)
            phases = (Phase.explicit, Phase.generate)  # no shrinking
            few = settings(
                written, max_examples=examples, phases=phases, derandomize=True, database=None, deadline=None
            )
            setattr(function, _SETTINGS, few)
