"""TLS contexts of https and grpcs checks: one per CA file or setting, replaced when its file changes."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Final, Literal
from weakref import WeakValueDictionary

import msgspec

from hub.decide.checks import Check
from hub.errors import HubError
from hub.runtime.files import ConfinedPath, OutsideFolders, signature
from hub.runtime.threads import NoAnswer, Reader

log = logging.getLogger(__name__)

MAX_BYTES: Final = 1_048_576
"""Maximum size of a file of certificates; the bundle of a Linux system has 220 KB."""

FILE_CHECK: Final = 10.0
"""Seconds between checks of the files."""

READ_TIMEOUT: Final = 5.0
"""Seconds to read a file. A longer read means that the file's mount hangs."""


class TrustError(HubError):
    """A check's certificates cannot be used; the message names the file."""


class Trust(msgspec.Struct, frozen=True):
    """How a check verifies certificates.

    Attributes:
        ca: path of a file with CA certificates; "" = the system's.
        insecure: whether certificates are not verified.
        protocol: the protocol inside TLS, for ALPN.
    """

    ca: str = ""
    insecure: bool = False
    protocol: Literal["http/1.1", "h2"] = "http/1.1"


def trust_of(check: Check) -> Trust:
    """How a check verifies certificates."""
    return Trust("" if check.insecure else check.ca, check.insecure, "h2" if check.mode == "grpcs" else "http/1.1")


class Trusted:
    """The TLS context of all checks with the same :class:`Trust`.

    Attributes:
        context: None until it could be made for the first time.
        problem: why it could not be made or replaced; "" if it could.
        stamp: the result of :func:`stamp` when the file was last read; None if the file must be read.
    """

    __slots__ = ("__weakref__", "context", "problem", "reader", "stamp")

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.problem = ""
        self.stamp: tuple[int, ...] | None = None
        self.reader = Reader(READ_TIMEOUT)


class Trusts:
    """All contexts in use; a context is dropped with the last check that uses it.

    Args:
        folder: the folder that the files must be in (``--credentials-dir``).
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: WeakValueDictionary[Trust, Trusted] = WeakValueDictionary()
        self._checked_at = float("-inf")

    def get(self, trust: Trust) -> Trusted:
        """The context for one way to verify; the next :meth:`refresh` makes it if it is new."""
        known = self._known.get(trust)
        if known is None:
            known = self._known[trust] = Trusted()
            self._checked_at = float("-inf")
        return known

    def problem(self, trust: Trust) -> str:
        """The problem of a context that is in use; "" if there is none."""
        known = self._known.get(trust)
        return known.problem if known is not None else ""

    async def refresh(self, now: float) -> None:
        """Make missing contexts and replace outdated ones. If a file is unusable, the last context stays in force."""
        if now - self._checked_at < FILE_CHECK or not self._known:
            return
        self._checked_at = now
        await asyncio.gather(*(self._refresh(trust, trusted) for trust, trusted in list(self._known.items())))

    async def _refresh(self, trust: Trust, trusted: Trusted) -> None:
        try:
            found, made = await trusted.reader.call(_changed, trust, self._folder, trusted.stamp)
        except HubError as error:
            what = f"health.ca {trust.ca}" if trust.ca else "the system's certificates"
            problem = f"{what}: {error}" if isinstance(error, NoAnswer) else str(error)
            if problem != trusted.problem:
                log.warning("health checks with TLS: %s", problem)
            trusted.stamp, trusted.problem = None, problem
        else:
            trusted.stamp, trusted.problem = found, ""
            trusted.context = made or trusted.context


def _changed(
    trust: Trust, folder: str, before: tuple[int, ...] | None
) -> tuple[tuple[int, ...], ssl.SSLContext | None]:
    """The present stamp, and a new context if the stamp has changed. Runs in a thread."""
    found = stamp(trust)
    return found, context(trust, folder) if found != before else None


def stamp(trust: Trust) -> tuple[int, ...]:
    """A value that changes when the CA file changes; () if there is no file, or it cannot be read."""
    if not trust.ca:
        return ()
    try:
        return signature(os.stat(trust.ca))  # noqa: PTH116 - follows symlinks, as mounted Secrets need
    except (OSError, ValueError):
        return ()


def context(trust: Trust, folder: str) -> ssl.SSLContext:
    """Make a client context. This takes milliseconds: do not call it in the event loop.

    Args:
        trust: what to trust.
        folder: the folder that the file must be in (``--credentials-dir``).

    Raises:
        TrustError: the file is outside the folder, unreadable, or holds no certificate.
    """
    if trust.insecure:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif trust.ca:
        made = ssl.create_default_context(cadata=_certificates(trust.ca, folder))
    else:
        made = ssl.create_default_context()
    made.set_alpn_protocols([trust.protocol])
    return made


def _certificates(path: str, folder: str) -> str:
    try:
        content = ConfinedPath(path, Path(folder)).read(MAX_BYTES).data
    except OutsideFolders as error:
        raise TrustError(f"health.ca {path} {error.strerror}") from None
    except OSError as error:
        raise TrustError(f"health.ca {path}: {(error.strerror or 'unreadable').lower()}") from None
    text = content.decode("ascii", "ignore")  # comments in a bundle may hold other characters
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise TrustError(
            f"health.ca {path}: contains no certificate in PEM format (-----BEGIN CERTIFICATE-----)"
        ) from None
    return text
