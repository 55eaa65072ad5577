"""Modules with ``VIRTUAL_TIME = True`` run on an event loop whose time jumps."""

from tests.unit.events.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
