"""Logged defects of plugins show the place in the code, but never a secret."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hub.cli.logs import JsonFormatter, TextFormatter
from hub.model import Node, Resolution
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.resolver import Resolver
from hub.plugin import NoConfig, NodeProviderType
from hub.registry.spec import ProviderRef
from hub.runtime.clock import SystemClock
from tests.support.virtual import within
from tests.unit.observe.providers.plugins import catalog_of, found, node

TOKEN = "s3cr3t-canary-token"


async def ask(provider: Any) -> Resolver:
    """Let the provider resolve one node, and stop."""

    @asynccontextmanager
    async def enter(cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        provider.token = cluster.hub.secret({"env": "CLOUD_TOKEN"})
        yield provider

    host = ProviderHost(catalog_of(NodeProviderType("cloud", enter, NoConfig)), clock=SystemClock(), folder="/nowhere")
    host.catalog.load("cloud")
    resolver = Resolver("eu", ProviderRef("cloud"), host, lambda: None)
    task = asyncio.create_task(resolver.run())
    resolver.update([node("a")])
    await within(5, resolver.settled())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait({task})
    await host.close()
    return resolver


def log_of(caplog: pytest.LogCaptureFixture) -> str:
    """The complete log, in both formats."""
    return "\n".join(
        formatter.format(record) for record in caplog.records for formatter in (TextFormatter(), JsonFormatter())
    )


async def test_the_traceback_of_a_defect_shows_places_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback of a defect is logged without the text of the error."""

    class Broken:
        token: Any

        async def resolve(self, _nodes: Sequence[Node], /) -> dict[str, Resolution]:
            raise ValueError(f"GET /servers?token={await self.token.get()}")

    monkeypatch.setenv("CLOUD_TOKEN", TOKEN)
    with caplog.at_level(logging.DEBUG):
        resolver = await ask(Broken())
    assert resolver.status.error == "ValueError: GET /servers?token=***"
    log = log_of(caplog)
    assert f'{__file__}", line ' in log
    assert TOKEN not in log


@pytest.mark.parametrize("how", ["task", "callback"])
async def test_unhandled_plugin_error_is_logged_without_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """An unhandled error in a plugin's task or callback is logged without its text and arguments."""

    def fail(token: str) -> None:
        raise ValueError(f"GET /servers?token={token}\nforged")

    running: set[asyncio.Task[None]] = set()

    class Careless:
        token: Any

        async def refresh(self) -> None:
            fail(await self.token.get())

        async def resolve(self, nodes: Sequence[Node], /) -> dict[str, Resolution]:
            if how == "task":
                running.add(task := asyncio.create_task(self.refresh(), name="refresh"))
                task.add_done_callback(running.discard)
            else:
                asyncio.get_running_loop().call_soon(fail, await self.token.get())
            return found(nodes)

    monkeypatch.setenv("CLOUD_TOKEN", TOKEN)
    with caplog.at_level(logging.DEBUG):
        await ask(Careless())
        gc.collect()
    [text] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert text.startswith(
        "Task exception was never retrieved (refresh): ValueError\n" if how == "task" else "Exception"
    )
    assert f'{__file__}", line ' in text
    assert TOKEN not in log_of(caplog)
