"""The fake beside blocking code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from hub_testkit.ionos.fake import FakeIonos

T = TypeVar("T")


class FakeIonosThread:
    """A :class:`FakeIonos` in a thread with a loop of its own, for blocking tests; a context manager.

    :meth:`do` changes it there: ``fake.do(lambda ionos: ionos.fail_next(503))``.
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
        """``apiUrl``."""
        return self._serving().url

    @property
    def host(self) -> str:
        """For ``--allow-api-host``."""
        return self._serving().host

    def do(self, change: Callable[[FakeIonos], T]) -> T:
        """Call it with the fake, in the fake's thread."""
        ionos = self._serving()

        async def call() -> T:
            return change(ionos)

        assert self._loop is not None  # noqa: S101 - it serves
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _serving(self) -> FakeIonos:
        if self._ionos is None:
            raise RuntimeError("it does not serve")
        return self._ionos

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._given or FakeIonos() as self._ionos:
            self._ready.set()
            await self._stop.wait()
