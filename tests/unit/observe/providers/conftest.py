"""Fixtures of provider tests; modules with ``VIRTUAL_TIME = True`` run on an event loop whose time jumps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.virtual import VirtualLoop
from tests.unit.observe.providers.plugins import GOOD, Install, distribution


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of the tests in a module."""
    if getattr(getattr(item, "module", None), "VIRTUAL_TIME", False):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution on ``sys.path`` with ``install(name, source)``."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def put(name: str, source: str = GOOD, **fields: str) -> None:
        distribution(tmp_path, name, source, **fields)

    yield put
    for module in set(sys.modules) - before:
        if module.startswith("plugin_"):
            del sys.modules[module]
