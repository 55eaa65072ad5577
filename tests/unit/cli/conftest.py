"""Fixtures of the command line's tests."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands set up logging for their process; here that is everybody's."""
    root, ours = logging.getLogger(), logging.getLogger("hub")
    before = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    provider = logging.getLogger("hub.resolution").level
    yield
    root.handlers[:], root.level, ours.level, logging.raiseExceptions = before
    logging.getLogger("hub.resolution").setLevel(provider)
    logging.captureWarnings(capture=False)
