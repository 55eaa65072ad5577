"""The API servers of one test session, which start in the background."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support.apiserver import binaries
from tests.support.apiserver.cleaning import clean
from tests.support.apiserver.server import ApiServer

QUIET: Final = 30.0
"""Seconds after its last use when a server is paused: an idle server and its etcd take 2 % of a core."""


class ServerFleet:
    """API servers by name, each started when it is first needed, and paused while no test needs it.

    A server from :meth:`get` is ready and has the namespace ``edge``. Only the fleet may stop it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(thread_name_prefix="start-apiserver")
        self._servers: dict[str, ApiServer] = {}
        self._starts: dict[str, Future[None]] = {}
        self._used: dict[str, float] = {}
        """Server -> when it was last in use."""
        self._in_use: Collection[str] = ()
        self._paused: set[str] = set()

    def begin(self, names: Sequence[str]) -> None:
        """Start those of the named servers that are not started yet, in the background.

        Raises:
            KitUnavailable: raised here, not in the background.
        """
        binaries.ensure("etcd", "kube-apiserver")
        for name in names:
            if name not in self._servers:
                self._servers[name] = ApiServer(name, self._folder / name)
                self._starts[name] = self._pool.submit(self._start, self._servers[name])

    def get(self, name: str) -> ApiServer:
        """The named server, once it is ready."""
        self.begin([name])
        self._starts[name].result()
        return self._servers[name]

    def use(self, names: Collection[str]) -> None:
        """The next test uses these servers: continue them, and pause others that were not used for a while."""
        now = time.monotonic()
        self._used |= dict.fromkeys(self._in_use, now)
        self._in_use = names
        for name in self._paused & set(names):
            self._paused.remove(name)
            self._servers[name].ensure_running()
        for name in self._used.keys() - self._paused - set(names):
            if now - self._used[name] >= QUIET:
                self._paused.add(name)
                self._servers[name].pause()
                self._servers[name].etcd.pause()

    def stop(self) -> None:
        """Stop all servers, also those that are still starting."""
        self._pool.shutdown(wait=True)
        for server in self._servers.values():
            server.stop()

    @staticmethod
    def _start(server: ApiServer) -> None:
        server.start()
        clean(server.api)
