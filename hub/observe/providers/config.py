"""Validates a provider's configuration with the plugin's own model, and reports problems by key path.

Messages never quote a value, since a user may have written a credential there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from hub.errors import ProviderError, did_you_mean
from hub.observe.providers.wording import msgspec_words, pydantic_words
from hub.plugin.spec import ProviderType

if TYPE_CHECKING:
    from pydantic import BaseModel


class ConfigProblem(msgspec.Struct, frozen=True):
    """One problem in a ``provider.config``; ``path`` as in ``provider.config.datacenters[0]``."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class ConfigInvalid(ProviderError):
    """A provider type does not accept its configuration; ``problems`` lists all problems."""

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def parse_config(
    type_: ProviderType,
    config: object,
    path: str = "provider.config",
    model: type[BaseModel | msgspec.Struct] | None = None,
) -> Any:
    """Parse ``config`` (plain JSON values) into the type's own model, or into ``model`` (of an account).

    Raises:
        ConfigInvalid: ``config`` does not fit the model; the problems are in the order of the model.
    """
    if not _is_mapping(config):
        raise ConfigInvalid((ConfigProblem(path, "must be a mapping"),))
    model = model or type_.config
    if issubclass(model, msgspec.Struct):
        return _parse_struct(model, config, path)
    return _parse_model(type_, model, config, path)


def _parse_struct(model: type[msgspec.Struct], config: Mapping[str, Any], path: str) -> msgspec.Struct:
    """Parse into a msgspec struct. Reports all unknown keys, but only the first wrong value: msgspec stops there."""
    known = {field.encode_name for field in msgspec.structs.fields(model)}
    problems = [_unknown_key(f"{path}.{key}", key, known) for key in sorted(set(config) - known)]
    try:
        parsed = msgspec.convert({key: config[key] for key in config if key in known}, model)
    except msgspec.ValidationError as error:
        place, message = msgspec_words(model, str(error))
        problems.append(ConfigProblem(path + place, message))
    if problems:
        raise ConfigInvalid(tuple(problems))
    return parsed


def _parse_model(type_: ProviderType, model: type[BaseModel], config: Mapping[str, Any], path: str) -> BaseModel:
    from pydantic import ValidationError

    known = {field.alias or name for name, field in model.model_fields.items()}
    by_name = known | set(model.model_fields)
    problems: list[ConfigProblem] = []
    if model.model_config.get("extra", "ignore") == "ignore":
        problems += [_unknown_key(f"{path}.{key}", key, known) for key in sorted(set(config) - by_name)]
    parsed: Any = None
    try:
        parsed = model.model_validate(dict(config))
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False)
        for finding in findings:
            if finding["type"] == "too_short" and any(_within(inner["loc"], finding["loc"]) for inner in findings):
                continue  # pydantic does not count invalid items, which are reported themselves
            place = _path(path, config, finding["loc"], finding["type"])
            if finding["type"] == "extra_forbidden":
                keys = known if len(finding["loc"]) == 1 else set[str]()
                problems.append(_unknown_key(place, str(finding["loc"][-1]), keys))
            else:
                quoted = finding["type"] == "int_type" and str(finding["input"]).isdecimal()
                hint = "remove the quotes" if quoted else ""
                problems.append(ConfigProblem(place, pydantic_words(finding["type"], finding["msg"]), hint))
    except Exception as error:  # noqa: BLE001 - a validator is plugin code
        problems.append(ConfigProblem(path, f"provider {type_.name!r} failed to check it: {type(error).__name__}"))
    if problems:
        raise ConfigInvalid(tuple(dict.fromkeys(problems)))
    return parsed  # type: ignore[no-any-return]


def check_config(
    type_: ProviderType,
    config: object,
    path: str = "provider.config",
    model: type[BaseModel | msgspec.Struct] | None = None,
) -> tuple[ConfigProblem, ...]:
    """The problems of ``config``; () if :func:`parse_config` accepts it."""
    try:
        parse_config(type_, config, path, model)
    except ConfigInvalid as error:
        return error.problems
    return ()


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _unknown_key(place: str, key: str, known: set[str]) -> ConfigProblem:
    return ConfigProblem(place, "unknown key", did_you_mean(key, known))


def _path(path: str, value: Any, location: Sequence[int | str], kind: str) -> str:
    """The key's path; pydantic's locations also name members of unions, which are not keys of the file."""
    for index, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, Mapping) and part in value:
            path += f".{part}"
            value = value[part]
        elif kind == "missing" and index == len(location) - 1:
            path += f".{part}"
    return path


def _within(location: Sequence[int | str], outer: Sequence[int | str]) -> bool:
    return len(location) > len(outer) and location[: len(outer)] == outer
