"""Where a credential comes from: the one grammar of secret references, for configurations, the hub and the test kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

FORMS: Final = "{env: NAME}, {file: PATH} or {secret: NAME, key: KEY}"


def source_of(ref: Mapping[str, object]) -> Literal["env", "file", "secret"]:
    """The kind of place that a reference names.

    Raises:
        ValueError: it names no place, several, or half of one. The message quotes nothing: it may be a credential.
    """
    if all(isinstance(value, str) and value for value in ref.values()):
        match sorted(ref):
            case ["env"]:
                return "env"
            case ["file"]:
                return "file"
            case ["key", "secret"]:
                return "secret"
            case _:
                pass
    raise ValueError(f"must be {FORMS}")
