"""The grammar of durations, which is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hub import durations
from hub.plugin.fields import parse_duration
from hub.registry import values

PLACES = pytest.mark.parametrize(
    "parse", [durations.parse, values.duration, parse_duration], ids=["grammar", "registry", "plugins"]
)


@PLACES
@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("0h0m", 0.0),
        ("300ms", 0.3),
        ("2us", 2e-6),
        ("2µs", 2e-6),
        ("1.5m", 90.0),
        (".5s", 0.5),
        ("1.h", 3600.0),
        ("1h30m", 5400.0),
        ("1s1s", 2.0),
        ("1ns", 1e-9),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1ms", 1e-3),
        ("1m", 60.0),
        ("1h", 3600.0),
        ("0" * 62 + "s", 0.0),
        ("9223372036854775807ns", 9223372036.854776),
    ],
)
def test_a_duration_is_seconds_in_every_place(parse: Callable[[str], float], written: str, seconds: float) -> None:
    """Every place reads a duration as Go does; zero needs no unit."""
    assert parse(written) == seconds


@PLACES
@pytest.mark.parametrize(
    "written",
    [
        "",
        "5",
        "00",
        "0.0",
        "1.5",
        "s",
        "-1s",
        "-0",
        "+1s",
        "1d",
        "1 s",
        "1s ",
        "1e3s",
        "٣s",
        "999999999h",
        "1s" * 40,
        "0" * 63 + "s",
        "9223372036854775808ns",
    ],
)
def test_no_place_takes_anything_else(parse: Callable[[str], float], written: str) -> None:
    """No place accepts a number without a unit, a sign, a day, or more than Go can hold."""
    with pytest.raises(ValueError, match=r"duration|negative|text"):
        parse(written)


@pytest.mark.parametrize(
    ("written", "says"),
    [("-1s", "must not be negative"), ("5", "is not a duration"), ("2562048h", "is too long a duration")],
)
def test_duration_error_does_not_quote_the_text(written: str, says: str) -> None:
    """Errors say what is wrong and do not quote the text."""
    with pytest.raises(ValueError, match=f"^{says}$"):
        durations.parse(written)


@pytest.mark.parametrize("number", [0, 0.0, 5, True, None])
@pytest.mark.parametrize("parse", [values.duration, parse_duration], ids=["registry", "plugins"])
def test_a_number_is_no_duration(parse: Callable[[object], float], number: object) -> None:
    """A YAML number is not a duration, not even 0; the string "0" is one."""
    with pytest.raises(ValueError, match="must be"):
        parse(number)
