"""A server's certificate and key, which are read again when their files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from hub.errors import HubError
from hub.runtime.clock import Clock
from hub.runtime.files import read_regular, signature

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 10.0
"""Seconds between checks of the files; the kubelet takes about a minute to update a mounted Secret."""
FLAGS: Final = ("--tls-cert-file", "--tls-private-key-file")
LIMIT: Final = 1 << 20
"""Most bytes of a file; a certificate chain has a few thousand."""


class Certificate:
    """A TLS context; new connections use the present content of the files.

    Args:
        cert_file: path of the certificate chain, PEM.
        key_file: path of the private key, PEM, not encrypted.

    Raises:
        HubError: the files cannot be used.
    """

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = (Path(cert_file), Path(key_file))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._used = self._stamp()
        self._last_problem = ""
        if problem := self._load():
            raise HubError(problem)

    async def follow(self, clock: Clock) -> None:
        """Read the files again when they change, until cancelled. If they are unusable, the old certificate stays."""
        while True:
            await clock.sleep(CHECK_INTERVAL)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Read the files if they changed. Unusable files are read every time, since permissions may have changed."""
        stamp = self._stamp()
        problem = "" if stamp == self._used else self._load()
        if problem and problem != self._last_problem:
            log.warning("the new certificate is not used: %s", problem)
        elif not problem and stamp != self._used:
            log.info("certificate read again from %s", self._files[0])
            self._used = stamp
        self._last_problem = problem

    def _load(self) -> str:
        for flag, file, part in zip(FLAGS, self._files, (b"CERTIFICATE-----", b"PRIVATE KEY-----"), strict=True):
            try:
                if part not in read_regular(file, LIMIT).data:
                    return f"{flag} {file}: contains no {part.decode().strip('-').lower()} in PEM format"
            except (OSError, ValueError) as error:
                return f"{flag} {file}: cannot be read: {getattr(error, 'strerror', error)}"
        try:
            # Try another context first: load_cert_chain may fail after it has set the chain, and would combine the new
            # chain with the old key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files, password=_no_password)
            self.context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            pair = ", ".join(f"{flag} {file}" for flag, file in zip(FLAGS, self._files, strict=True))
            return f"{pair}: {str(error) or type(error).__name__}"
        return ""

    def _stamp(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_stat, self._files))


def _no_password() -> str:
    """Raise: OpenSSL calls this for an encrypted key, and would otherwise read a password from the terminal."""
    raise ValueError("the key is encrypted")


def _stat(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return signature(found)
