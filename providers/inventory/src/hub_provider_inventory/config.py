"""``provider.config`` of the provider ``inventory``."""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hub.plugin.fields import Duration


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


Text = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]
Interval = Annotated[Duration, Field(ge=1.0, le=86_400.0)]
Timeout = Annotated[Duration, Field(gt=0.0, le=25.0)]
"""At most 25 s, because the hub expects the first snapshot within 30 s."""


class InventoryConfig(BaseModel):
    """The source of the records and how it is polled. Exactly one of ``static``, ``file`` and ``command`` is set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    static: list[Any] | None = Field(default=None, description="The records, written in the registry.")
    file: Text | None = Field(
        default=None,
        description="A JSON file in the registry's folder or --credentials-dir; relative to the registry.",
    )
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        description="A program and its arguments. The program must be named by --allow-exec; no shell is involved.",
    )
    interval: Interval = Field(default=15.0, description="Time between polls.")
    timeout: Timeout = Field(default=10.0, description="How long the program may run.")
    environment: tuple[Text, ...] = Field(
        default=(),
        description="Names of the hub's environment variables that the program inherits; it always has PATH.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.static, self.file, self.command)) != 1:
            raise ValueError("must have exactly one of static, file and command")
        if self.command is None and (self.environment or not math.isclose(self.timeout, 10.0)):
            raise ValueError("environment and timeout belong to command")
        return self
