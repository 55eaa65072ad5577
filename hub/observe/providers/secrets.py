"""Reads credentials by reference from an environment variable, a file or a Secret, and again when they change.

Files must be in one folder after all symlinks are resolved, since a mounted Secret consists of symlinks. A value is
kept only to detect a change and to remove it from error texts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from hub.errors import CredentialError, HubError
from hub.plugin.references import FORMS, source_of
from hub.plugin.spec import TerminalProviderError
from hub.runtime.clock import Clock
from hub.runtime.files import ConfinedPath, OutsideFolders, signature
from hub.runtime.threads import NoAnswer, Reader, call_briefly

MAX_BYTES: Final = 65_536
"""Maximum bytes of a credential; tokens have less than 16 KiB."""

READ_TIMEOUT: Final = 5.0
"""Seconds to read a file. A longer read means that the file's mount hangs."""

SECRET_TTL: Final = 30.0
"""Seconds after which the value of a Secret that is not watched is read again."""

SecretVersion = Callable[[str], Awaitable[str | None]]
"""``await version(name)``: changes when the Secret changes; None if the Secret is not watched."""

ReadSecret = Callable[[str, str], Awaitable[str | bytes]]
"""``await read(name, key)``: a decoded value of a Secret in ``--secrets-namespace``."""


class Credential(Protocol):
    """A SecretValue that detects changes of its source.

    Attributes:
        renewals: number of reads that returned another text than the read before.
    """

    renewals: int

    async def get(self, *, reload: bool = False) -> str:
        """See :class:`hub.plugin.SecretValue`."""
        ...

    async def changed(self) -> bool:
        """Whether a read would return another text now; False if it would fail."""
        ...

    def last(self) -> str | None:
        """The text that was last read, to remove it from error texts; None if none was read."""
        ...


async def no_version(_: str) -> str | None:
    """Default of ``secret_version``: no Secret is watched."""
    return None


def credential(
    ref: Mapping[str, str],
    folder: Path | None,
    read_secret: ReadSecret | None,
    clock: Clock,
    secret_version: SecretVersion = no_version,
) -> Credential:
    """Make the credential that ``ref`` names, without reading it.

    Raises:
        TerminalProviderError: the reference is invalid, or the hub's flags do not allow it.
    """
    try:
        source = source_of(ref)
    except ValueError:
        raise TerminalProviderError(f"a credential is {FORMS}") from None
    if source == "env":
        return _EnvCredential(ref["env"])
    if source == "file":
        if folder is None:
            raise TerminalProviderError("credential files need --credentials-dir")
        file = ConfinedPath(ref["file"], folder)
        try:
            # Reports a path outside the folder now, not at the first read, unless the mount hangs.
            call_briefly(file.real)
        except OSError as error:
            raise TerminalProviderError(f"file {file.path} {error.strerror}") from error
        return _FileCredential(file)
    if read_secret is None:
        raise TerminalProviderError("credentials from a Secret need a hub that can read Secrets")
    return _SecretCredential(ref["secret"], ref["key"], read_secret, clock, secret_version)


class _Remembered:
    """The last value read, and the number of its changes."""

    def __init__(self) -> None:
        self._value: str | None = None
        self.renewals = 0

    def last(self) -> str | None:
        return self._value

    def _remember(self, value: str) -> str:
        self.renewals += self._value not in (None, value)
        self._value = value
        return value


class _EnvCredential(_Remembered):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    async def get(self, *, reload: bool = False) -> str:  # noqa: ARG002 - always read again
        return self._remember(_clean(os.environ.get(self._name, ""), f"environment variable {self._name}"))

    async def changed(self) -> bool:
        return self._value is not None and os.environ.get(self._name, "").strip() != self._value


class _FileCredential(_Remembered):
    def __init__(self, file: ConfinedPath) -> None:
        super().__init__()
        self._file = file
        self._seen: tuple[int, ...] = ()
        self._what = f"credential file {file.path}"
        self._reader = Reader(READ_TIMEOUT)

    async def get(self, *, reload: bool = False) -> str:
        try:
            seen, value = await self._reader.call(self._read, reload)
        except NoAnswer as error:
            if self._value is None or reload:
                raise CredentialError(f"{self._what}: {error}") from error
            return self._value
        except OutsideFolders as error:
            raise TerminalProviderError(f"{self._what} {error.strerror}") from error
        except OSError as error:
            raise CredentialError(f"{self._what}: {error.strerror}") from error
        self._seen = seen
        return self._remember(value)

    def _read(self, reload: bool) -> tuple[tuple[int, ...], str]:
        """The present signature and value; runs in a thread."""
        known = self._value
        if known is not None and not reload and self._signature() == self._seen:
            return self._seen, known
        data, status = self._file.read(MAX_BYTES)
        return signature(status), _clean(data, self._what)

    def _signature(self) -> tuple[int, ...]:
        return signature(os.stat(self._file.real()))  # noqa: PTH116 - real() gives a string

    async def changed(self) -> bool:
        try:
            return await self._reader.call(self._signature) != self._seen
        except (OSError, HubError):
            return False


class _SecretCredential(_Remembered):
    def __init__(self, name: str, key: str, read: ReadSecret, clock: Clock, version: SecretVersion) -> None:
        super().__init__()
        self._version = version
        self._seen: str | None = None
        self._what = f"Secret {name}, key {key}"
        self._name, self._key, self._read, self._clock = name, key, read, clock
        self._fresh_until = float("-inf")

    async def get(self, *, reload: bool = False) -> str:
        version = await self._version(self._name)
        fresh = self._clock.now() < self._fresh_until if version is None else version == self._seen
        if self._value is not None and not reload and fresh:
            return self._value
        try:
            value = _clean(await self._read(self._name, self._key), self._what)
        except CredentialError:
            raise
        except HubError as error:
            if self._value is None or reload:
                raise CredentialError(f"{self._what}: {error}") from error
            return self._value  # the API server is not reachable; the last value is probably still valid
        self._fresh_until, self._seen = self._clock.now() + SECRET_TTL, version
        return self._remember(value)

    async def changed(self) -> bool:
        before = self._value
        try:
            return await self.get() != before
        except HubError:
            return False


def _clean(value: str | bytes, what: str) -> str:
    if len(value) > MAX_BYTES:
        raise CredentialError(f"{what} holds more than {MAX_BYTES} bytes")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise CredentialError(f"{what} is not UTF-8 text") from None
    value = value.strip("\ufeff \t\r\n")
    if not value:
        raise CredentialError(f"{what} is empty or missing")
    if "\0" in value:
        raise CredentialError(f"{what} holds a NUL character")
    return value
