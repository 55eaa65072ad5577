"""The provider on its fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.support.brightbox_driver import Scene, scene


@pytest.fixture
async def it() -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with two servers."""
    async with scene() as opened:
        yield opened
