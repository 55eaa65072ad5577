"""Modules with ``VIRTUAL_TIME = True`` run on an event loop whose time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.virtual import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a test in this folder: virtual or real."""
    if getattr(getattr(item, "module", None), "VIRTUAL_TIME", False):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
