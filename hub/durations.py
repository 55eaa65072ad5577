"""Parse durations in Go's syntax: the same grammar for clusters.yaml, flags and providers' configurations.

The errors are fragments such as "must not be negative" and never quote the input, because a provider's configuration
must not be quoted. Callers turn them into full messages.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

PATTERN: Final = r"(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+|0"
"""Regular expression of a duration, also used in JSON Schemas. A zero needs no unit, as in Go."""
MAX_LENGTH: Final = 63
"""Maximum number of characters; the longest duration that Go prints has 25."""
MAX_NANOSECONDS: Final = 2**63 - 1
"""Maximum of Go's time.Duration (about 292 years)."""

_WHOLE: Final = re.compile(PATTERN)
_PART: Final = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


class Malformed(ValueError):
    """The text is not a duration at all."""


def parse(text: str) -> float:
    """Convert a duration such as ``300ms``, ``1h30m``, ``0s`` or ``0`` to seconds; the result is never negative.

    Raises:
        Malformed: the text is not a duration, for example a number without a unit.
        ValueError: the duration is negative, or longer than :data:`MAX_NANOSECONDS`.
    """
    if text.startswith("-"):
        raise ValueError("must not be negative")
    if len(text) > MAX_LENGTH or not _WHOLE.fullmatch(text):
        raise Malformed("is not a duration")
    nanoseconds = sum(int(Decimal(number) * _UNITS[unit]) for number, unit in _PART.findall(text))
    if nanoseconds > MAX_NANOSECONDS:
        raise ValueError("is too long a duration")
    return nanoseconds / 1e9
