"""Handles the configuration models of providers, which are pydantic models or msgspec structs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pydantic import BaseModel


def is_model(model: object) -> bool:
    """Whether ``model`` can be a ``ProviderType.config``; does not import pydantic for a struct."""
    if not isinstance(model, type):
        return False
    if issubclass(model, msgspec.Struct):
        return True
    from pydantic import BaseModel

    return issubclass(model, BaseModel)


def validate(model: type[BaseModel | msgspec.Struct], values: Mapping[str, Any]) -> Any:
    """Return an instance of the model with these values.

    Raises:
        pydantic.ValidationError, msgspec.ValidationError: the values do not fit the model.
    """
    if issubclass(model, msgspec.Struct):
        return msgspec.convert(dict(values), model)
    return model.model_validate(dict(values))


def schema(model: type[BaseModel | msgspec.Struct]) -> dict[str, Any]:
    """The model's JSON Schema."""
    if issubclass(model, msgspec.Struct):
        _, parts = msgspec.json.schema_components((model,))
        whole: dict[str, Any] = parts.pop(model.__name__)
        return {**whole, "$defs": parts} if parts else whole
    return model.model_json_schema()
