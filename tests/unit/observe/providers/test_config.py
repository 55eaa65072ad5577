"""Problems in a provider's configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, field_validator

from hub.observe.providers.config import ConfigInvalid, ConfigProblem, check_config, parse_config
from hub.plugin import NoConfig, ProviderType
from tests.unit.observe.providers.plugins import Scripted


class SecretFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    file: str


class SecretEnv(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env: str


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    datacenters: tuple[str, ...] = Field(min_length=1)
    lan: int = 1
    mode: Literal["fast", "slow"] = "fast"
    token: SecretFile | SecretEnv | None = None

    @field_validator("lan")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("must be a LAN id, from 1.")
        return value


class Lax(BaseModel):
    url: str = Field(default="", alias="apiUrl")


class Crashing(BaseModel):
    lan: int = 1

    @field_validator("lan")
    @classmethod
    def _crash(cls, value: int) -> int:
        raise RuntimeError(f"hunter{value}")


def type_of(config: type[BaseModel | NoConfig]) -> ProviderType:
    """A provider type with this configuration model."""
    return Scripted().type(config=config)


@pytest.mark.parametrize(
    ("config", "problems"),
    [
        ({}, ["provider.config.datacenters: required key is missing"]),
        (
            {"datacentres": [], "datacenters": ["x"]},
            ["provider.config.datacentres: unknown key (did you mean datacenters?)"],
        ),
        ({"datacenters": ["x", 7]}, ["provider.config.datacenters[1]: must be text"]),
        (
            {"datacenters": [], "lan": 0},
            [
                "provider.config.datacenters: must not be empty",
                "provider.config.lan: must be a LAN id, from 1",
            ],
        ),
        ({"datacenters": [7]}, ["provider.config.datacenters[0]: must be text"]),
        ({"datacenters": ["x"], "mode": "quick"}, ["provider.config.mode: must be 'fast' or 'slow'"]),
        (
            {"datacenters": ["x"], "token": {"file": 3}},
            [
                "provider.config.token.file: must be text",
                "provider.config.token.env: required key is missing",
                "provider.config.token.file: unknown key",
            ],
        ),
        ([], ["provider.config: must be a mapping"]),
        (None, ["provider.config: must be a mapping"]),
        ({1: 2}, ["provider.config: must be a mapping"]),
    ],
)
def test_findings_name_the_key(config: Any, problems: list[str]) -> None:
    """Each problem has the key's path, one sentence, and possibly a suggestion."""
    assert [str(problem) for problem in check_config(type_of(Config), config)] == problems


class Struct(msgspec.Struct, frozen=True):
    """A model of msgspec with one kind of limit per field."""

    name: Annotated[str, msgspec.Meta(pattern="^a+$", max_length=3)]
    modes: Annotated[tuple[Literal["fast", "slow", "off"], ...], msgspec.Meta(min_length=1)] = ("fast",)
    lan: Annotated[int, msgspec.Meta(ge=1)] | None = None
    on: bool = True

    def __post_init__(self) -> None:
        if self.lan == 4:
            raise ValueError("lan 4 is taken")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "c.name: required key is missing"),
        ({"name": 7}, "c.name: must be text"),
        ({"name": "aaaa"}, "c.name: must be text with a length of at most 3"),
        ({"name": "b"}, "c.name: must be text that matches the pattern '^a+$'"),
        ({"name": "a", "modes": "fast"}, "c.modes: must be a list"),
        ({"name": "a", "modes": []}, "c.modes: must not be empty"),
        ({"name": "a", "modes": ["fast", "Fast"]}, "c.modes[1]: must be fast, off or slow"),
        ({"name": "a", "lan": "2"}, "c.lan: must be a whole number"),
        ({"name": "a", "lan": 0}, "c.lan: must be a whole number of at least 1"),
        ({"name": "a", "lan": 4}, "c: lan 4 is taken"),
        ({"name": "a", "on": "yes"}, "c.on: must be true or false"),
    ],
)
def test_problems_of_a_struct_have_the_hubs_words(config: Any, problem: str) -> None:
    """What msgspec refuses is said as in the rest of clusters.yaml; a plugin's own words stay."""
    type_ = Scripted().type(config=Struct)
    assert [str(found) for found in check_config(type_, config, "c")] == [problem]


class Limited(BaseModel):
    number: int = Field(default=1, ge=1, strict=True)
    ratio: float = Field(default=0.5, lt=1)
    name: str = Field(default="a", max_length=3, pattern="^a+$")
    names: list[str] = Field(default=["a"], max_length=1)
    network: IPvAnyNetwork | None = None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"number": "2"}, "c.number: must be a whole number (remove the quotes)"),
        ({"number": "two"}, "c.number: must be a whole number"),
        ({"number": 0}, "c.number: must be at least 1"),
        ({"ratio": 1}, "c.ratio: must be less than 1"),
        ({"name": "b"}, "c.name: must match the pattern '^a+$'"),
        ({"name": "aaaa"}, "c.name: must have at most 3 characters"),
        ({"names": ["a", "b"]}, "c.names: must have at most 1 item"),
        ({"names": "a"}, "c.names: must be a list"),
        ({"network": "10.7."}, "c.network: must be a network such as 10.7.0.0/16"),
    ],
)
def test_problems_of_a_pydantic_model_have_the_hubs_words(config: Any, problem: str) -> None:
    """What pydantic refuses is said as in the rest of clusters.yaml."""
    assert [str(found) for found in check_config(type_of(Limited), config, "c")] == [problem]


def test_valid_configuration_becomes_the_plugins_model() -> None:
    """A valid configuration becomes an object of the plugin's model."""
    assert parse_config(type_of(Config), {"datacenters": ["x"]}) == Config(datacenters=["x"])


def test_values_are_never_quoted() -> None:
    """Messages never quote a value, which may be a credential."""
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(type_of(Config), {"datacenters": ["x"], "token": "hunter2", "lan": "hunter2", "mode": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_unknown_keys_are_refused_even_by_a_lax_model() -> None:
    """Unknown keys are a problem even if the model ignores them."""
    assert check_config(type_of(Lax), {"apiURL": "x"}) == (
        ConfigProblem("provider.config.apiURL", "unknown key", "did you mean apiUrl?"),
    )
    assert check_config(type_of(Lax), {"apiUrl": "x"}) == ()


def test_a_type_without_configuration_takes_none() -> None:
    """Every key is a problem for a plugin without configuration."""
    assert parse_config(type_of(NoConfig), {}) == NoConfig()
    problems = check_config(type_of(NoConfig), {"b": 1, "a": 2})
    assert [problem.path for problem in problems] == ["provider.config.a", "provider.config.b"]


def test_a_crashing_validator_is_the_plugins_fault() -> None:
    """If a validator crashes, the problem names the provider and the exception type only."""
    problems = check_config(type_of(Crashing), {"lan": 2}, "clusters[0].provider.config")
    assert [str(problem) for problem in problems] == [
        "clusters[0].provider.config: provider 'scripted' failed to check it: RuntimeError"
    ]
