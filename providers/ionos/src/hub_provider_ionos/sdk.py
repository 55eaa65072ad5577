"""The SDK, imported when it is first needed and kept from what it does to the process around it."""

from __future__ import annotations

import base64
import http.client
import importlib
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from hub_provider_ionos.account import Account, Login


class Sdk:
    """The SDK's package, and what clients of one account share."""

    def __init__(self, package: Any, account: Account, transport: Any) -> None:
        self.package = package
        self._url = account.url
        self._transport = transport

    def client(self, login: Login) -> Any:
        """A client for one request: what carries the credential is not shared between threads."""
        with _levels_kept():
            configuration = self.package.Configuration(
                host=self._url,
                token=login.token or None,
                username=login.username or None,
                password=login.password or None,
            )
            configuration.max_retries = 1  # its waiting times are meant to be seconds, and are 100 of them
            if login.username:  # the SDK's own writes Latin-1, and fails on what that lacks
                basic = base64.b64encode(f"{login.username}:{login.password}".encode()).decode("ascii")
                configuration.get_basic_auth_token = lambda: f"Basic {basic}"
            configuration.proxy = None  # as everywhere in the hub: none from the environment
            client = self.package.ApiClient(configuration)
        client.rest_client = self._transport
        return client

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()


def open_sdk(account: Account, connections: int) -> Sdk:
    """Import it, in a thread.

    Args:
        account: whose requests it makes.
        connections: kept open, at most.
    """
    with _levels_kept():
        package = importlib.import_module("ionoscloud")
        transport = importlib.import_module("hub_provider_ionos.transport")
    return Sdk(package, account, transport.Transport(account.ca, connections))


_levels = threading.Lock()


@contextmanager
def _levels_kept() -> Generator[None, None, None]:
    """The SDK's configuration sets levels of other people's loggers, and http.client's, for the whole process."""
    with _levels:
        loggers = [logging.getLogger(name) for name in ("urllib3", "ionoscloud")]
        before = [(logger, logger.level) for logger in loggers]
        debug = http.client.HTTPConnection.debuglevel
        try:
            yield
        finally:
            http.client.HTTPConnection.debuglevel = debug
            for logger, level in before:
                logger.setLevel(level)
