"""Configuration models of both kinds."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from hub.plugin.config import is_model, schema, validate


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    """A struct without parts."""

    size: int = 1


class Nested(msgspec.Struct):
    """A struct with a part."""

    part: Struct


class Model(pydantic.BaseModel):
    """A pydantic model."""

    size: int = 1


@pytest.mark.parametrize(
    ("model", "usable"),
    [(Struct, True), (Model, True), (dict, False), (Struct(), False), (Model(), False), (None, False)],
)
def test_structs_and_pydantic_models_are_models(model: object, usable: bool) -> None:
    """Classes of both kinds are models; their instances and other classes are not."""
    assert is_model(model) is usable


@pytest.mark.parametrize("model", [Struct, Model])
def test_values_become_an_instance(model: Any) -> None:
    """Values that fit give an instance; others raise the library's error."""
    assert validate(model, {"size": 2}) == model(size=2)
    with pytest.raises((msgspec.ValidationError, pydantic.ValidationError)):
        validate(model, {"size": "big"})


def test_schema_has_the_models_properties() -> None:
    """The schema of both kinds has the properties at the top, and the schemas of parts below ``$defs``."""
    plain = schema(Struct)
    assert (plain["title"], plain["properties"]) == ("Struct", {"size": {"type": "integer", "default": 1}})
    assert "$defs" not in plain
    assert schema(Nested)["properties"] == {"part": {"$ref": "#/$defs/Struct"}}
    assert schema(Nested)["$defs"] == {"Struct": plain}
    assert schema(Model)["properties"]["size"] == {"type": "integer", "default": 1, "title": "Size"}
