"""Hot reload: notices that clusters.yaml has changed, reads and checks it, and reports the outcome.

The watcher polls, since inotify misses changes on NFS and the symlink that a ConfigMap volume switches. For a file that
cannot be used it reports the error; the caller decides what to do (it keeps the last good registry in force).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Final

from hub.errors import RegistryError
from hub.registry import isolated
from hub.registry.file import Loaded, read
from hub.runtime.clock import Clock
from hub.runtime.files import signature

INTERVAL: Final = 1.0
"""Seconds between polls: a change takes effect within 2 s, including the time to read the file."""

CHECK_AGAIN: Final = 60.0
"""Seconds before the next check of a file that could not be checked for lack of time, processes or memory."""

Signature = tuple[object, ...]


class RegistryWatcher:
    """Watches one registry file.

    Args:
        path: as the user gave it; the file and its folder may be symlinks.
        clock: of the polling.
        on_change: called on the event loop with each newly accepted file, or with the error of a rejected one. Not
            called for a file whose bytes have not changed.
        seen: digest of the file that the caller has loaded already; "" = none, so the first poll reports the file.
        check: checks the bytes for a path; None = in another process.
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
        self._check_again_at: float | None = None

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await self._clock.sleep(INTERVAL)

    async def poll(self) -> None:
        """Poll once and report a change. Reading and checking happen in a thread."""
        before = self._seen, self._check_again_at
        try:
            outcome = await asyncio.to_thread(self._outcome)
            if outcome is not None:
                self._on_change(outcome)
        except Exception:
            # The change was not reported, so the next poll must find it again.
            (self._seen, self._check_again_at), self._signature = before, None
            raise

    def _outcome(self) -> Loaded | RegistryError | None:
        """The file's new content or error; None if it has not changed.

        After a change the file is read once more at the next poll, even if its signature is the same: a second write
        within one tick of the file system's clock leaves the signature unchanged.
        """
        now = _signature(self._path)
        again = self._check_again_at is not None and self._clock.now() >= self._check_again_at
        if now == self._signature and self._settled and not again:
            return None
        self._settled = now == self._signature
        self._signature = now
        try:
            content = read(self._path)
        except RegistryError as error:
            return self._unless_seen(str(error), error)
        digest = hashlib.sha256(content).hexdigest()
        if digest == self._seen and not again:
            return None
        first = digest != self._seen
        self._seen = digest
        self._check_again_at = None
        try:
            return self._check(content, self._path)
        except isolated.Unchecked as error:
            self._check_again_at = self._clock.now() + CHECK_AGAIN
            return error if first else None
        except RegistryError as error:
            return error

    def _unless_seen(self, digest: str, error: RegistryError) -> RegistryError | None:
        """The error of a file that cannot be read; None if it was reported already. ``digest`` is the error's text."""
        if digest == self._seen:
            return None
        self._seen = digest
        return error


def _signature(path: str) -> Signature:
    """A value that changes when the file, its content, or the file that the path leads to changes."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would intern its parts at each poll
    except OSError as error:
        return (error.errno,)
    return os.path.realpath(path), *signature(status)
