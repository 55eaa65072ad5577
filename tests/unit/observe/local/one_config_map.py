"""An API server for tests of code that reads and writes one ConfigMap."""

from __future__ import annotations

import json
from typing import Any

from hub.errors import NotFound


class Api:
    """An API server with one ConfigMap, or none.

    Attributes:
        stored: the ConfigMap.
        writes: method and path of each write.
        errors: errors that the next writes fail with.
        away: the error of every request, if there is one.
    """

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        self.stored = stored
        self.writes: list[str] = []
        self.errors: list[Exception] = []
        self.away: Exception | None = None

    async def request(self, method: str, path: str, *, body: bytes = b"", admit: Any = None, **_: Any) -> bytes:
        if admit is not None:
            admit()
        if self.away is not None:
            raise self.away
        if method != "GET":
            self.writes.append(f"{method} {path}")
            if self.errors:
                raise self.errors.pop(0)
            self.stored = json.loads(body)
        if self.stored is None:
            raise NotFound(404)
        return json.dumps(self.stored).encode()
