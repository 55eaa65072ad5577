"""Resolves host names in such a way that one cluster's DNS does not slow down other clusters.

The event loop's default pool has six threads on two cores: 30 clusters with dead DNS delayed a healthy one by 25 s
(measured). Here look-ups run in a separate pool, each cluster has at most one look-up under way for a name, and the
last good answer is used while look-ups fail.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

Address = tuple[socket.AddressFamily, str, int]

LOOKUP_TIMEOUT = 5.0
"""Seconds that a caller waits for a look-up; the thread that performs it may take longer."""
PATIENCE = 1.0
"""Seconds that a caller waits for a look-up if there is an older answer to use: a Lease must be renewed within 3 s."""
FRESH_FOR = 30.0
"""Seconds that an answer is used without another look-up."""


class LookupPool:
    """Threads for look-ups, shared by all clusters. If all threads hang, further look-ups wait."""

    def __init__(self, threads: int = 32) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="dns")

    async def lookup(self, host: str, port: int) -> list[Address]:
        """Look a name up in a thread.

        Raises:
            OSError: the name does not resolve.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._executor, lambda: socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
            )
        except UnicodeError as error:  # an empty label, or one of more than 63 characters
            raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
        return [(family, str(sockaddr[0]), int(sockaddr[1])) for family, _, _, _, sockaddr in found]

    def close(self) -> None:
        """Cancel waiting look-ups. Those under way are not waited for, since they may hang."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class ClusterResolver:
    """Look-ups of one cluster: one at a time per name, with the last good answer as fallback."""

    def __init__(self, pool: LookupPool) -> None:
        self._pool = pool
        self._answers: dict[tuple[str, int], tuple[float, list[Address]]] = {}
        self._pending: dict[tuple[str, int], asyncio.Task[list[Address]]] = {}

    async def resolve(self, host: str, port: int) -> list[Address]:
        """The addresses of ``host``. A fresh answer is reused; if the look-up fails, the last good answer is used.

        Raises:
            OSError: the look-up failed or took too long, and there is no earlier answer.
        """
        loop = asyncio.get_running_loop()
        key = (host, port)
        known = self._answers.get(key)
        if known and loop.time() - known[0] < FRESH_FOR:
            return known[1]
        task = self._pending.get(key)
        if task is None:
            task = loop.create_task(self._pool.lookup(host, port), name=f"dns {host}")
            self._pending[key] = task
            task.add_done_callback(lambda done: self._finish(key, done))
        # wait_for may swallow a cancellation, and shield would pass a cancellation of the task on to the caller.
        await asyncio.wait({task}, timeout=PATIENCE if known else LOOKUP_TIMEOUT)
        error: BaseException | None = socket.gaierror(socket.EAI_AGAIN, f"no answer within {LOOKUP_TIMEOUT:.0f} s")
        try:
            if task.done() and not task.cancelled():
                error = task.exception()
            if error is None:
                return task.result()
            if known:
                return known[1]
            raise error
        finally:
            del task, error  # breaks the cycle of the error's traceback -> this frame -> error

    def _finish(self, key: tuple[str, int], task: asyncio.Task[list[Address]]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled() and task.exception() is None:
            self._answers[key] = (asyncio.get_running_loop().time(), task.result())

    async def close(self) -> None:
        """Stop waiting for pending look-ups."""
        for task in self._pending.values():
            task.cancel()
