"""Hot reload: notices that clusters.yaml changed, reads it, says what became of it.

Polls, since inotify knows neither NFS nor the symlink of a ConfigMap that flips. Decides nothing: a file
that cannot be used is handed on as its error, and the caller keeps the last good registry running.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Final

from hub.aio.clock import Clock
from hub.errors import RegistryError
from hub.registry import isolated
from hub.registry.file import Loaded, read

INTERVAL: Final = 1.0
"""Seconds between looks: a change is picked up within 2 s, reading included."""

CHECK_AGAIN: Final = 60.0
"""Seconds until a file is checked again that could not be: the machine was too busy, or out of processes or memory."""

Signature = tuple[object, ...]


class RegistryWatcher:
    """Follows one registry file.

    Args:
        path: as the user gave it; may be a symlink, and its folder too.
        clock: paces the polling.
        on_change: called on the event loop with each newly accepted file, or with the reasons why a
            changed file was rejected. Not called for a file whose bytes are as last seen.
        check: checks the bytes; in a process of its own where nothing is given.
        seen: digest of what the caller has loaded already ("" = nothing: the first look reports).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        on_change: Callable[[Loaded | RegistryError], None],
        seen: str = "",
        check: Callable[[bytes, str], Loaded] | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._clock = clock
        self._on_change = on_change
        self._seen = seen
        self._check = check or isolated.loads
        self._signature: Signature | None = None
        self._settled = False
        self._again_at: float | None = None

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            await self.look()
            await self._clock.sleep(INTERVAL)

    async def look(self) -> None:
        """Look once, and report what is new. Reading and checking happen in a thread."""
        before = self._seen, self._again_at
        try:
            outcome = await asyncio.to_thread(self._outcome)
            if outcome is not None:
                self._on_change(outcome)
        except Exception:
            (self._seen, self._again_at), self._signature = before, None  # nobody knows of it: the next look finds it
            raise

    def _outcome(self) -> Loaded | RegistryError | None:
        """What the file is now, where that may differ from the last look.

        A file is read once more at the look after the one that saw it change: a second write within one
        tick of the file system's clock leaves the same signature.
        """
        signature = _signature(self._path)
        again = self._again_at is not None and self._clock.now() >= self._again_at
        if signature == self._signature and self._settled and not again:
            return None
        self._settled = signature == self._signature
        self._signature = signature
        try:
            content = read(self._path)
        except RegistryError as error:
            return self._unless_seen(str(error), error)
        digest = hashlib.sha256(content).hexdigest()
        if digest == self._seen and not again:
            return None
        first = digest != self._seen
        self._seen = digest
        self._again_at = None
        try:
            return self._check(content, self._path)
        except isolated.Unchecked as error:
            self._again_at = self._clock.now() + CHECK_AGAIN
            return error if first else None
        except RegistryError as error:
            return error

    def _unless_seen(self, digest: str, error: RegistryError) -> RegistryError | None:
        if digest == self._seen:
            return None
        self._seen = digest
        return error


def _signature(path: str) -> Signature:
    """Changes whenever the file, its content, or what its path leads to changes."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path's parts are interned, anew with each look
    except OSError as error:
        return (error.errno,)
    return (
        os.path.realpath(path),
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )
