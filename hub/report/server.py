"""Binds the address of the status page, the API and ``/metrics`` (``--listen``), and starts the server when needed.

:mod:`hub.report.web` takes 20 MB and a third of a second to import. Therefore the sockets are bound at the start, when
an error can still be reported on stderr, and the server is imported, in a thread, at the first connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec

from hub.errors import HubError, UsageError
from hub.kube.hosts import DNS_NAME, is_address, same_host
from hub.report.listener import Address, bind, host_and_port, is_loopback

if TYPE_CHECKING:
    from hub.report.hub_state import HubState

log = logging.getLogger(__name__)

RETRY: Final = 5.0
"""Seconds until the server is started again after a failure; connections wait meanwhile."""


class Listen(msgspec.Struct, frozen=True):
    """Options of the listener.

    Attributes:
        address: the address to listen on; None = do not listen.
        cert_file, key_file: paths of PEM files, which are read again when they change; None = plain HTTP.
        authenticate: whether to check callers with the hub cluster's API.
        unauthenticated: whether an address beyond loopback is allowed without authentication.
        allowed_hosts: names and addresses that a Host header may have, in addition to this machine's own.
        by_default: whether the address is the default; if the default cannot be bound, the hub runs without the page.
    """

    address: Address | None
    cert_file: str | None = None
    key_file: str | None = None
    authenticate: bool = False
    unauthenticated: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    by_default: bool = False

    def check(self) -> None:
        """Check the combination of options.

        Raises:
            UsageError: an option is invalid or missing; the message names it.
        """
        if (self.cert_file is None) != (self.key_file is None):
            raise UsageError("--tls-cert-file and --tls-private-key-file go together")
        for host in sorted(self.allowed_hosts):
            if not DNS_NAME.fullmatch(spelled(host)) and not is_address(spelled(host)):
                raise UsageError(f"--allowed-host {host}: neither name nor address; give it without scheme and port")
        if self.address is None or self.authenticate or self.unauthenticated or is_loopback(self.address.host):
            return
        raise UsageError(
            f"--listen {self.address}: everyone who reaches this address could read the names of clusters and their "
            "addresses; give --listen-authenticate, or --listen-unauthenticated if something else restricts access"
        )


def spelled(host: str) -> str:
    """A host name or address in normalized spelling: without brackets, zone, final dot and capitals."""
    return same_host(host.strip("[]").partition("%")[0])


@asynccontextmanager
async def listening(listen: Listen, hub: HubState) -> AsyncIterator[tuple[str, ...]]:
    """Answer requests while the context is open; yields the URLs of the page.

    Raises:
        UsageError: as for :meth:`Listen.check`.
        HubError: the address cannot be listened on, or a certificate cannot be read.
    """
    listen.check()
    if listen.address is None:
        yield ()
        return
    tls = None
    if listen.cert_file is not None and listen.key_file is not None:
        from hub.report.certificate import Certificate

        tls = Certificate(listen.cert_file, listen.key_file)
    if listen.authenticate and tls is None and not is_loopback(listen.address.host):
        log.warning("tokens travel unencrypted to %s; give --tls-cert-file and --tls-private-key-file", listen.address)
    try:
        sockets = await bind(listen.address, flag="--listen", what="status page")
    except HubError as error:
        if not listen.by_default:
            raise
        log.warning("no status page: %s", error)
        yield ()
        return
    scheme = "https" if tls is not None else "http"
    urls = tuple(sorted(f"{scheme}://{host_and_port(socket_)}" for socket_ in sockets))
    log.info("status page, API and metrics on %s", ", ".join(urls))
    serving = asyncio.create_task(_wait_and_serve(sockets, listen, hub, tls), name="status page")
    if tls is not None:
        watching = asyncio.create_task(tls.follow(hub.clock), name="certificate of the status page")
    try:
        yield urls
    finally:
        for task in (serving, watching) if tls is not None else (serving,):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for socket_ in sockets:
            socket_.close()


async def _wait_and_serve(sockets: Sequence[socket.socket], listen: Listen, hub: HubState, tls: object) -> None:
    """Start the server at the first connection."""
    while True:
        await _first_connection(sockets)
        try:
            web = await asyncio.to_thread(import_module, "hub.report.web")
            await web.serve(sockets, listen, hub, tls)
        except Exception:
            log.exception("the status page cannot be served; tried again in %.0f s", RETRY)
            await asyncio.sleep(RETRY)


async def _first_connection(sockets: Sequence[socket.socket]) -> None:
    """Wait until a client connects, without accepting the connection."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    for bound in sockets:
        loop.add_reader(bound, connected.set)
    try:
        await connected.wait()
    finally:
        for bound in sockets:
            loop.remove_reader(bound)
