"""Translates pydantic's validation errors into messages for users who edit clusters.yaml.

Each message has its place in the file, and a suggestion if the intended key or value can be guessed.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hub.errors import did_you_mean
from hub.registry.report import KeyPath, Report
from hub.registry.values import BadValue, kind, shown

M = TypeVar("M", bound=BaseModel)

_EXPECTED: Final[Mapping[str, str]] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_NUMBER_AS_TEXT = re.compile(r"[0-9]{1,18}")
_WORD = re.compile(r"[A-Za-z0-9./_-]{1,64}")


def validate(model: type[M], data: object, path: KeyPath, report: Report, known: Iterable[str] = ()) -> M | None:
    """Validate plain data; returns None, with every error in ``report``, if it is not valid.

    Args:
        model: the model that the data must match.
        data: plain YAML data.
        path: the place of the data in the file.
        report: receives the errors, except at places that have a problem already.
        known: further keys of the same mapping, for suggestions.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for found in error.errors():
            _explain(model, data, path, dict(found), report, known)
        return None


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model as users write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(
    model: type[BaseModel], data: object, base: KeyPath, error: dict[str, Any], report: Report, known: Iterable[str]
) -> None:
    code: str = error["type"]
    inside = _in_data(data, error["loc"], missing=code == "missing")
    path = base + inside
    if report.covers(path):
        return
    value = error.get("input")
    context: dict[str, Any] = error.get("ctx") or {}
    on_key = "[key]" in error["loc"]
    if code == "missing":
        report.add(path, "is required")
    elif code == "extra_forbidden":
        keys = [*keys_of(_model_at(model, inside[:-1]) or model), *(known if len(inside) == 1 else ())]
        hint = did_you_mean(inside[-1], keys, f"known: {', '.join(keys)}")
        report.add(path, "is not a known key here", hint, on_key=True)
    elif isinstance(bad := context.get("error"), BadValue):
        report.add(path, bad.message, bad.hint, on_key=on_key)
    elif code == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        message = f"must be {', '.join(options[:-1])} or {options[-1]}, not {kind(value)}"
        report.add(path, message, _literal_hint(value, options))
    elif code in _EXPECTED:
        hint = _type_hint(code, value) or _section_hint(_model_at(model, inside), value)
        report.add(path, f"must be {_EXPECTED[code]}, not {kind(value)}", hint)
    else:
        report.add(path, *_limit(code, value, context))


def _limit(code: str, value: object, context: Mapping[str, Any]) -> tuple[str, str]:
    """Message and hint for a value of the right type that violates a limit, and for unknown error codes."""
    match code:
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {shown(value)}", ""
        case "less_than_equal":
            return f"must be at most {context['le']}, not {shown(value)}", ""
        case "too_short":
            return "must not be empty", ""
        case "too_long":
            return f"must not have more than {context['max_length']} entries", ""
        case _:
            return f"is not valid ({code}): {shown(value)}", ""


def _literal_hint(value: object, options: list[str]) -> str:
    if isinstance(value, bool) and "off" in options:  # YAML 1.1 tools turn off into false
        return 'write "off" in quotes'
    return did_you_mean(value, options) if isinstance(value, str) else ""


def _type_hint(code: str, value: object) -> str:
    if code == "int_type" and isinstance(value, str) and _NUMBER_AS_TEXT.fullmatch(value):
        return "remove the quotes"
    if code == "bool_type" and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return f"write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'}"
    if code == "list_type" and isinstance(value, (str, int, dict)):
        return "start each entry with a dash, or write [ ] around it"
    return ""


def _section_hint(model: type[BaseModel] | None, value: object) -> str:
    key = getattr(model, "usual_key", "")
    return f"write {{{key}: {value}}}" if key and isinstance(value, str) and _WORD.fullmatch(value) else ""


def _in_data(data: object, loc: tuple[str | int, ...], *, missing: bool) -> KeyPath:
    """The parts of pydantic's location that exist in the data; pydantic inserts names of its own.

    With ``missing`` the last part is kept, although the data lacks this key.
    """
    path: list[str | int] = []
    for number, part in enumerate(loc):
        inside = (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
        if inside:
            data = data[part]  # type: ignore[index]
        elif not (missing and number == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at ``path``."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, str):
            fields = {field.alias or name: field for name, field in getattr(current, "model_fields", {}).items()}
            current = _model_in(fields[part].annotation) if part in fields else None
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, Union, types.UnionType):
        return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
    return None
