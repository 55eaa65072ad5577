"""Imports the SDK when it is first needed, and undoes its changes to the process's logging."""

from __future__ import annotations

import base64
import http.client
import importlib
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from hub_provider_ionos.account import Account, Login


class Sdk:
    """The SDK's package, with the settings and the transport that all clients of one account share."""

    def __init__(self, package: Any, account: Account, transport: Any) -> None:
        self.package = package
        self._url = account.url
        self._transport = transport

    def client(self, login: Login, admit: Callable[[], None] | None = None) -> Any:
        """Makes a client for one request. It carries the credential, so it is not shared between threads.

        Args:
            login: The credential.
            admit: Called immediately before the request is sent; what it raises prevents that.
        """
        with _levels_kept():
            configuration = self.package.Configuration(
                host=self._url,
                token=login.token or None,
                username=login.username or None,
                password=login.password or None,
            )
            configuration.max_retries = 1  # the SDK sleeps for 100 s before a retry
            if login.username:  # the SDK encodes the password as Latin-1, and fails on characters outside it
                basic = base64.b64encode(f"{login.username}:{login.password}".encode()).decode("ascii")
                configuration.get_basic_auth_token = lambda: f"Basic {basic}"
            configuration.proxy = None  # the transport uses the hub's, and nothing else from the environment
            client = self.package.ApiClient(configuration)
        client.rest_client = self._transport.admitting(admit)
        return client

    def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()


def open_sdk(account: Account, connections: int, proxy: str | None) -> Sdk:
    """Imports the SDK, which blocks: call it in a thread.

    Args:
        account: The account that requests are sent for.
        connections: The most connections that are kept open.
        proxy: The URL of the proxy that leads to the API; None = no proxy.
    """
    with _levels_kept():
        package = importlib.import_module("ionoscloud")
        transport = importlib.import_module("hub_provider_ionos.transport")
    return Sdk(package, account, transport.Transport(account.ca, connections, proxy))


_levels = threading.Lock()


@contextmanager
def _levels_kept() -> Generator[None, None, None]:
    """Restores the log levels of urllib3, ionoscloud and http.client, which the SDK sets for the whole process."""
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
