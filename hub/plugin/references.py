"""The syntax of secret references, shared by configuration models, the hub and the test kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

FORMS: Final = "{env: NAME}, {file: PATH} or {secret: NAME, key: KEY}"


def source_of(ref: Mapping[str, object]) -> Literal["env", "file", "secret"]:
    """The kind of source that a reference names.

    Raises:
        ValueError: the reference does not have exactly one of :data:`FORMS`. The message does not quote the reference,
            since someone may have written the credential itself there.
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
