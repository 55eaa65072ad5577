"""The API servers of one test session, which start in the background."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.support.apiserver import binaries
from tests.support.apiserver.cleaning import clean
from tests.support.apiserver.server import ApiServer


class ServerFleet:
    """API servers by name, each started when it is first needed.

    A server from :meth:`get` is ready and has the namespace ``edge``. Only the fleet may stop it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(thread_name_prefix="start-apiserver")
        self._servers: dict[str, ApiServer] = {}
        self._starts: dict[str, Future[None]] = {}

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

    def stop(self) -> None:
        """Stop all servers, also those that are still starting."""
        self._pool.shutdown(wait=True)
        for server in self._servers.values():
            server.stop()

    @staticmethod
    def _start(server: ApiServer) -> None:
        server.start()
        clean(server.api)
