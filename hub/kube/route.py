"""Opens connections to one API server, directly or through its proxy: resolves the name and tries the addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from contextlib import suppress

from hub.errors import KubeconfigError
from hub.kube.dial import connect
from hub.kube.hosts import address_refusal
from hub.kube.http1 import Connection
from hub.kube.proxy import Proxy
from hub.kube.resolver import Address, ClusterResolver, LookupPool
from hub.kube.tunnel import Passage, before_tunnel


class Route:
    """The way to one API server.

    Args:
        server: the URL of the server, for errors.
        host: the server's name or address.
        port: the server's port.
        proxy: the proxy that leads to it; None = it is contacted directly.
        pool: the threads for name look-ups.
    """

    def __init__(self, server: str, host: str, port: int, proxy: Proxy | None, pool: LookupPool) -> None:
        self._server = server
        self._host = host
        self._port = port
        self._proxy = proxy
        self._resolver = ClusterResolver(pool)
        self._answered: Address | None = None
        """The address that the last new connection was made to."""
        self._failures = 0
        """Failed connections through a SOCKS5 proxy; each one leads to the next of the server's addresses."""

    async def close(self) -> None:
        """Stop waiting for name look-ups."""
        await self._resolver.close()

    async def open(
        self, context: ssl.SSLContext, server_hostname: str, proxy_context: ssl.SSLContext | None, within: float
    ) -> Connection:
        """Open a connection.

        Args:
            context: the TLS context for the server.
            server_hostname: the name to verify in the server's certificate.
            proxy_context: the TLS context for an ``https`` proxy.
            within: seconds for name look-ups, TCP, proxy and TLS together.

        Raises:
            OSError, ssl.SSLError: there is no connection; a :class:`~hub.kube.tunnel.TunnelError` if that is because of
                the proxy.
            KubeconfigError: a name leads to an address that the hub never contacts.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        async with asyncio.timeout(within):
            passage = None
            if self._proxy is None:
                addresses = await self._addresses(self._host, self._port)
            else:
                addresses = await self._proxy_addresses(self._proxy)
                passage = Passage(self._proxy, await self._destination(self._proxy), self._port, proxy_context)
        # The address that answered last comes first. A call with a timeout of 3 s would never reach it behind an
        # address that does not answer.
        addresses = sorted(addresses, key=lambda address: address != self._answered)
        try:
            connection, self._answered = await connect(
                addresses, context, server_hostname, end - loop.time(), passage=passage
            )
        except OSError:
            self._failures += 1
            raise
        return connection

    async def _destination(self, proxy: Proxy) -> str:
        """The host that the proxy is asked for."""
        if proxy.scheme != "socks5":
            return self._host
        found = await self._addresses(self._host, self._port)
        return found[self._failures % len(found)][1]

    async def _proxy_addresses(self, proxy: Proxy) -> list[Address]:
        try:
            return await self._addresses(proxy.host, proxy.port, "the proxy's name")
        except OSError as error:
            raise before_tunnel(error, proxy) from None

    async def _addresses(self, host: str, port: int, whose: str = "the name") -> list[Address]:
        with suppress(ValueError):
            version = ipaddress.ip_address(host).version
            return [(socket.AF_INET6 if version == 6 else socket.AF_INET, host, port)]
        found = await self._resolver.resolve(host, port)
        for _, address, _ in found:
            refusal = address_refusal(address)
            if refusal is not None:
                raise KubeconfigError(f"{self._server}: {whose} leads to {address}, {refusal}")
        return found
