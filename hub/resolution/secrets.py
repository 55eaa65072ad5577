"""Credentials by reference: environment variable, file or Secret, read again when they change.

Files lie under one folder; a mounted Secret is a chain of symlinks inside it, so what counts is where a
path ends, not how it gets there. A value that was read is remembered only to notice a change and to keep
it out of error texts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from hub.aio.clock import Clock
from hub.aio.threads import NoAnswer, Reader, glance
from hub.errors import CredentialError, HubError
from hub.files import read_regular
from hub.plugin.spec import TerminalProviderError

MAX_BYTES: Final = 65_536
"""A credential is small: the largest Secret a mounted file can hold is 1 MiB, tokens stay under 16 KiB."""

READ_TIMEOUT: Final = 5.0
"""Seconds for a file: longer, and the mount it lies on does not answer."""

SECRET_TTL: Final = 30.0
"""Seconds a Secret's value is used before it is read again, where nobody watches it."""

SecretVersion = Callable[[str], str | None]
"""Of a Secret by name: differs once that does; None where only reading it tells."""

ReadSecret = Callable[[str, str], Awaitable[str | bytes]]
"""``await read(name, key)``: the decoded value in the hub's ``--secrets-namespace``."""


class Credential(Protocol):
    """What this module makes; a SecretValue that can tell whether its source changed.

    Attributes:
        renewals: times that what was read was another text than before.
    """

    renewals: int

    async def get(self, *, reload: bool = False) -> str:
        """See :class:`hub.plugin.SecretValue`."""
        ...

    async def changed(self) -> bool:
        """Whether reading it now would give something else; False where it cannot be read."""
        ...

    def last(self) -> str | None:
        """The last text read, to keep it out of error texts."""
        ...


def untold(_: str) -> str | None:
    """Nobody watches Secrets."""
    return None


def credential(
    ref: Mapping[str, str],
    folder: Path | None,
    read_secret: ReadSecret | None,
    clock: Clock,
    secret_version: SecretVersion = untold,
) -> Credential:
    """The credential ``ref`` names; reads nothing yet.

    Raises:
        TerminalProviderError: it names none or several, or one the hub's flags do not allow.
    """
    keys = sorted(ref)
    if keys == ["env"]:
        return _EnvCredential(ref["env"])
    if keys == ["file"]:
        if folder is None:
            raise TerminalProviderError("credential files need --credentials-dir")
        place = Place(ref["file"], folder)
        glance(place.real)  # refused now rather than at the first use, if its mount answers
        return _FileCredential(place)
    if keys == ["key", "secret"]:
        if read_secret is None:
            raise TerminalProviderError("credentials from a Secret need a hub that can read Secrets")
        return _SecretCredential(ref["secret"], ref["key"], read_secret, clock, secret_version)
    raise TerminalProviderError("a credential is {env: NAME}, {file: PATH} or {secret: NAME, key: KEY}")


class Place:
    """A path that must end inside one of some folders whenever it is used: symlinks may flip at any time.

    Args:
        path: absolute, or relative to the first folder.
    """

    def __init__(self, path: str, *folders: Path) -> None:
        self._folders = folders
        self.path = folders[0] / path

    def real(self) -> str:
        """Where the path ends now.

        Raises:
            TerminalProviderError: outside.
        """
        if "\0" in str(self.path):
            raise TerminalProviderError("a file's path holds a NUL character")
        real = os.path.realpath(self.path)
        for folder in map(os.path.realpath, self._folders):
            if real != folder and os.path.commonpath((real, folder)) == folder:
                return real
        inside = " and ".join(str(folder) for folder in dict.fromkeys(self._folders))
        raise TerminalProviderError(f"file {self.path} lies outside {inside}; move it there or set --credentials-dir")

    def read(self, limit: int) -> tuple[tuple[int, ...], bytes]:
        """Its signature and content.

        Raises:
            OSError: it cannot be read, is no regular file (EINVAL) or has more than ``limit`` bytes (EFBIG).
            TerminalProviderError: outside.
        """
        data, status = read_regular(self.real(), limit, follow=False)
        return (status.st_ino, status.st_mtime_ns, status.st_size), data


class _Remembered:
    """The last value read, and how many times it was another one than before."""

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
    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._seen: tuple[int, ...] = ()
        self._what = f"credential file {place.path}"
        self._reader = Reader(READ_TIMEOUT)

    async def get(self, *, reload: bool = False) -> str:
        try:
            seen, value = await self._reader.call(self._read, reload)
        except NoAnswer as error:
            if self._value is None or reload:
                raise CredentialError(f"{self._what}: {error}") from error
            return self._value
        except OSError as error:
            raise CredentialError(f"{self._what}: {error.strerror}") from error
        self._seen = seen
        return self._remember(value)

    def _read(self, reload: bool) -> tuple[tuple[int, ...], str]:
        """Signature and value as of now; in a thread."""
        known = self._value
        if known is not None and not reload and _signature(self._place.real()) == self._seen:
            return self._seen, known
        seen, data = self._place.read(MAX_BYTES)
        return seen, _clean(data, self._what)

    async def changed(self) -> bool:
        try:
            return await self._reader.call(lambda: _signature(self._place.real())) != self._seen
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
        version = self._version(self._name)
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
            return self._value  # the API server is away; what was read before may well be good
        self._fresh_until, self._seen = self._clock.now() + SECRET_TTL, version
        return self._remember(value)

    async def changed(self) -> bool:
        before = self._value
        try:
            return await self.get() != before
        except HubError:
            return False


def _signature(real: str) -> tuple[int, ...]:
    status = os.stat(real)  # noqa: PTH116 - os.path.realpath gave a string
    return status.st_ino, status.st_mtime_ns, status.st_size


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
