"""Durations as Go writes them: the one grammar of clusters.yaml, of flags and of providers' configurations.

Callers choose the words and whether to quote what was written: a provider's configuration is never quoted.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

PATTERN: Final = r"(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+|0"
"""For JSON Schemas. A zero needs no unit, as in Go."""
MAX_LENGTH: Final = 63
"""Characters; the longest that Go prints has 25."""
MAX_NANOSECONDS: Final = 2**63 - 1
"""Go's time.Duration ends here (about 292 years)."""

_WHOLE: Final = re.compile(PATTERN)
_PART: Final = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


class Malformed(ValueError):
    """The text is not a duration at all."""


def parse(text: str) -> float:
    """Seconds of a duration: ``300ms``, ``1h30m``, ``0s``, ``0``; never negative.

    Raises:
        Malformed: it is something else, such as a number without a unit.
        ValueError: it is negative or too long.
    """
    if text.startswith("-"):
        raise ValueError("must not be negative")
    if len(text) > MAX_LENGTH or not _WHOLE.fullmatch(text):
        raise Malformed("is not a duration")
    nanoseconds = sum(int(Decimal(number) * _UNITS[unit]) for number, unit in _PART.findall(text))
    if nanoseconds > MAX_NANOSECONDS:
        raise ValueError("is too long a duration")
    return nanoseconds / 1e9
