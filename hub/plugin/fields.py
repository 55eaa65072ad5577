"""Field types for a provider's configuration, so that all providers write alike.

from hub.plugin.fields import Duration, SecretRef

class MyConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    refresh: Duration = 30.0
    token: SecretRef
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from hub import durations
from hub.plugin.references import FORMS, source_of


def parse_duration(value: object) -> float:
    """Seconds of a duration such as ``300ms``, ``1h30m`` or ``0``, as everywhere in clusters.yaml.

    A number has no unit and is refused, and so is a negative duration. What was written is never quoted.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, str):
        with suppress(ValueError):
            return durations.parse(value)
    raise ValueError("must be a duration such as 15s, 300ms or 1h30m")


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": f"^({durations.PATTERN})$", "examples": ["15s", "1h30m"]}),
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
            raise ValueError(f"must be {FORMS}: where the secret is, never the secret itself")  # noqa: TRY004 - pydantic takes this one
        return value

    @model_validator(mode="after")
    def _one_source(self) -> SecretRef:
        source_of(self.ref())
        return self

    def ref(self) -> dict[str, str]:
        """What :meth:`hub.plugin.HubContext.secret` takes."""
        values = {"env": self.env, "file": self.file, "secret": self.secret, "key": self.key}
        return {name: value for name, value in values.items() if value is not None}
