"""Field types for configurations."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from hub.plugin.fields import Duration, SecretRef, parse_duration


class Config(BaseModel):
    refresh: Duration = 30.0
    token: SecretRef | None = None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("15s", 15.0),
        ("1h30m", 5400.0),
        ("300ms", 0.3),
        ("1.5m", 90.0),
        (".5s", 0.5),
        ("0s", 0.0),
        ("0", 0.0),
        ("2us", 2e-6),
    ],
)
def test_durations_are_written_as_in_go(written: str, seconds: float) -> None:
    """A duration is a sum of numbers with units."""
    assert Config.model_validate({"refresh": written}).refresh == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", [15, 15.0, "15", "", "s", "-1s", "1d", "1 s", "1s ", None, True, ["1s"], "9" * 400 + "h"]
)
def test_other_text_is_not_a_duration(written: object) -> None:
    """Anything else is refused, including numbers without a unit."""
    with pytest.raises(ValidationError, match="must be a duration such as 15s, 300ms or 1h30m"):
        Config.model_validate({"refresh": written})


def test_a_duration_is_a_string_in_the_schema() -> None:
    """The JSON Schema describes a duration as a string."""
    assert Config.model_json_schema()["properties"]["refresh"]["type"] == "string"
    assert parse_duration("1m") == 60


@pytest.mark.parametrize(
    "ref", [{"env": "TOKEN"}, {"file": "token"}, {"secret": "ionos", "key": "token"}, {"env": "T"}, {"file": "t"},
            {"secret": "s", "key": "k"}]
)  # fmt: skip
def test_a_secret_reference_names_one_source(ref: dict[str, str]) -> None:
    """A reference has one source, and ``ref`` returns it unchanged."""
    token = Config.model_validate({"token": ref}).token
    assert token is not None
    assert token.ref() == ref
    with pytest.raises(ValidationError, match="frozen"):
        token.env = "OTHER"


@pytest.mark.parametrize(
    "ref", [{}, {"secret": "a"}, {"key": "a"}, {"env": "A", "file": "b"}, {"env": ""}, {"value": "x"}, "inline"]
)
def test_other_text_is_not_a_reference(ref: object) -> None:
    """Anything else is refused, above all an inline credential."""
    with pytest.raises(ValidationError) as raised:
        Config.model_validate({"token": ref})
    assert ("never the secret itself" in str(raised.value)) == isinstance(ref, str)
