"""TLS contexts of https checks: one for each way of trusting, read again when its file changes."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from hub.aio.threads import NoAnswer, Reader
from hub.errors import HubError
from hub.health.spec import Check

log = logging.getLogger(__name__)

MAX_BYTES: Final = 1_048_576
"""A file of certificates; the system's own bundle has 220 KB."""

LOOK_AGAIN: Final = 10.0
"""Seconds between looks at the files."""

READ_TIMEOUT: Final = 5.0
"""Seconds for a file: longer, and the mount it lies on does not answer."""


class TrustError(HubError):
    """A check's certificates cannot be used; the message names the file."""


class Trust(msgspec.Struct, frozen=True):
    """What decides about a certificate.

    Attributes:
        ca: path of a file; "" = the system's.
    """

    ca: str = ""
    insecure: bool = False


def trust_of(check: Check) -> Trust:
    """What a check trusts."""
    return Trust("" if check.insecure else check.ca, check.insecure)


class Trusted:
    """The context of some checks, once there is one.

    Attributes:
        problem: why it could not be made, or made anew; "" where it could.
        stamp: of the file it is made of; None where that is to be read.
    """

    __slots__ = ("__weakref__", "context", "problem", "reader", "stamp")

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.problem = ""
        self.stamp: tuple[int, ...] | None = None
        self.reader = Reader(READ_TIMEOUT)


class Trusts:
    """All contexts in use: each goes with the last check that has it.

    Args:
        folder: ``--credentials-dir``.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: WeakValueDictionary[Trust, Trusted] = WeakValueDictionary()
        self._looked_at = float("-inf")

    def get(self, trust: Trust) -> Trusted:
        """What is known, now or later, of one way of trusting."""
        known = self._known.get(trust)
        if known is None:
            known = self._known[trust] = Trusted()
            self._looked_at = float("-inf")
        return known

    def problem(self, trust: Trust) -> str:
        """What is wrong with one that is in use; "" where nothing is."""
        known = self._known.get(trust)
        return known.problem if known is not None else ""

    async def refresh(self, now: float) -> None:
        """Make what is missing; read again what has changed. An unusable file leaves the last context in force."""
        if now - self._looked_at < LOOK_AGAIN or not self._known:
            return
        self._looked_at = now
        await asyncio.gather(*(self._look(trust, trusted) for trust, trusted in list(self._known.items())))

    async def _look(self, trust: Trust, trusted: Trusted) -> None:
        try:
            found, made = await trusted.reader.call(_changed, trust, self._folder, trusted.stamp)
        except HubError as error:
            what = f"health.ca {trust.ca}" if trust.ca else "the system's certificates"
            problem = f"{what}: {error}" if isinstance(error, NoAnswer) else str(error)
            if problem != trusted.problem:
                log.warning("https checks: %s", problem)
            trusted.stamp, trusted.problem = None, problem
        else:
            trusted.stamp, trusted.problem = found, ""
            trusted.context = made or trusted.context


def _changed(
    trust: Trust, folder: str, before: tuple[int, ...] | None
) -> tuple[tuple[int, ...], ssl.SSLContext | None]:
    """The stamp now, and a context where it is another one than before."""
    found = stamp(trust)
    return found, context(trust, folder) if found != before else None


def stamp(trust: Trust) -> tuple[int, ...]:
    """Equal as long as the file is the same; () where there is none, or none to read."""
    if not trust.ca:
        return ()
    try:
        status = os.stat(trust.ca)  # noqa: PTH116 - follows symlinks, as mounted Secrets need
    except (OSError, ValueError):
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def context(trust: Trust, folder: str) -> ssl.SSLContext:
    """A client context; takes milliseconds, so not in the event loop.

    Args:
        trust: what to trust.
        folder: ``--credentials-dir``, which the file must lie in.

    Raises:
        TrustError: there is no such file inside, or no certificate in it.
    """
    if trust.insecure:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif trust.ca:
        made = ssl.create_default_context(cadata=_certificates(trust.ca, folder))
    else:
        made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    return made


def _certificates(path: str, folder: str) -> str:
    try:
        real, root = Path(path).resolve(), Path(folder).resolve()
        if not real.is_relative_to(root):
            raise TrustError(f"health.ca {path} lies outside {folder}; move it there or set --credentials-dir")
        if not real.is_file():
            raise TrustError(f"health.ca {path}: there is no such file")
        with real.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("ascii", "ignore")  # bundles name their certificates in comments
        if len(content) > MAX_BYTES:
            raise TrustError(f"health.ca {path} has more than {MAX_BYTES} bytes")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise TrustError(f"health.ca {path} holds no certificate in PEM") from None
    except RuntimeError:  # what resolve() raises for it
        raise TrustError(f"health.ca {path} is a symlink that leads to itself") from None
    except OSError as error:
        raise TrustError(f"health.ca {path}: {(error.strerror or 'unreadable').lower()}") from None
    return text
