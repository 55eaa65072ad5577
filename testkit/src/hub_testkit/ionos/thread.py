"""The fake for blocking code: it runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from hub_testkit.ionos.fake import FakeIonos

T = TypeVar("T")


class FakeIonosThread:
    """A context manager that serves a :class:`FakeIonos` in a thread with its own event loop, for blocking tests.

    Change the fake with :meth:`do`, which runs in that thread: ``fake.do(lambda ionos: ionos.fail_next(503))``.

    Args:
        ionos: The fake to serve; None = a new one.
    """

    def __init__(self, ionos: FakeIonos | None = None) -> None:
        self._given = ionos
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="fake IONOS API", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ionos: FakeIonos | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError("the fake did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The value for ``apiUrl``."""
        return self._serving().url

    @property
    def host(self) -> str:
        """The value for ``--allow-api-host``."""
        return self._serving().host

    def do(self, change: Callable[[FakeIonos], T]) -> T:
        """Calls ``change`` with the fake in the fake's thread, and returns its result."""
        ionos = self._serving()

        async def call() -> T:
            return change(ionos)

        assert self._loop is not None  # noqa: S101 - the fake is serving
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _serving(self) -> FakeIonos:
        if self._ionos is None:
            raise RuntimeError("the fake is not serving")
        return self._ionos

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._given or FakeIonos() as self._ionos:
            self._ready.set()
            await self._stop.wait()
