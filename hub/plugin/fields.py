"""Field types for configurations, so that durations and secrets are written alike for all providers.

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
    """The seconds of a duration such as ``300ms``, ``1h30m`` or ``0``, written as everywhere in clusters.yaml.

    Raises:
        ValueError: the value is not a duration. Numbers without a unit and negative durations are refused, too. The
            message does not quote the value.
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
"""A field in seconds, written as a string in Go's syntax."""


class SecretRef(BaseModel):
    """A reference to a credential: exactly one source, never the credential itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = Field(default=None, min_length=1, description="an environment variable of the hub")
    file: str | None = Field(default=None, min_length=1, description="a file under --credentials-dir")
    secret: str | None = Field(default=None, min_length=1, description="a Secret in --secrets-namespace")
    key: str | None = Field(default=None, min_length=1, description="the Secret's key")

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"must be {FORMS}: where the secret is, never the secret itself")  # noqa: TRY004 - pydantic reports only ValueErrors
        return value

    @model_validator(mode="after")
    def _one_source(self) -> SecretRef:
        source_of(self.ref())
        return self

    def ref(self) -> dict[str, str]:
        """The reference as the argument of :meth:`hub.plugin.HubContext.secret`."""
        values = {"env": self.env, "file": self.file, "secret": self.secret, "key": self.key}
        return {name: value for name, value in values.items() if value is not None}
