"""Field types for a provider's configuration, so that all providers write alike.

from hub.plugin.fields import Duration, SecretRef

class MyConfig(BaseModel):
model_config = ConfigDict(extra="forbid")
refresh: Duration = 30.0
token: SecretRef
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

_UNITS: Final[Mapping[str, float]] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_MAX_LENGTH: Final = 32
_PLACES: Final = "must be {env: NAME}, {file: PATH} or {secret: NAME, key: KEY}"
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(value: object) -> float:
    """Seconds of a Go-style duration such as ``300ms`` or ``1h30m``; a bare number has no unit and is refused.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str) or len(value) > _MAX_LENGTH or not _WHOLE.fullmatch(value):
        raise ValueError("must be a duration such as 15s, 300ms or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^([0-9.]+(ns|us|µs|ms|s|m|h))+$", "examples": ["15s", "1h30m"]}),
]
"""Seconds, written as a Go-style string."""


class SecretRef(BaseModel):
    """Where a credential comes from: exactly one source, never the credential itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = Field(default=None, min_length=1, description="an environment variable of the hub")
    file: str | None = Field(default=None, min_length=1, description="a file under --credentials-dir")
    secret: str | None = Field(default=None, min_length=1, description="a Secret in --secrets-namespace")
    key: str | None = Field(default=None, min_length=1, description="the Secret's key")

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"{_PLACES}: where the secret is, never the secret itself")  # noqa: TRY004 - pydantic takes this one
        return value

    @model_validator(mode="after")
    def _one_source(self) -> SecretRef:
        if sorted(self.ref()) not in (["env"], ["file"], ["key", "secret"]):
            raise ValueError(_PLACES)
        return self

    def ref(self) -> dict[str, str]:
        """What :meth:`hub.plugin.HubContext.secret` takes."""
        values = {"env": self.env, "file": self.file, "secret": self.secret, "key": self.key}
        return {name: value for name, value in values.items() if value is not None}
