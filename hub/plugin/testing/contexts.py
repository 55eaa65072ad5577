"""HubContext and ClusterContext for tests of a provider: the same rules, without a hub.

Secrets come from a dict, programs and API hosts from sets; everything else is real.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hub.aio import process
from hub.aio.clock import Clock, SystemClock
from hub.errors import CredentialError
from hub.model import Service, Slice
from hub.plugin.spec import (
    Completed,
    HubContext,
    ReadOnlyCluster,
    SecretValue,
    TerminalProviderError,
    TransientProviderError,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession

T = TypeVar("T")


class LocalHub:
    """A HubContext; an async context manager, since it may hold an HTTP session.

    Args:
        secrets: text by what a reference names: the variable, the path, or ``name/key`` of a Secret.
            Change it to rotate a credential.
        allow_exec: programs that may run, absolute.
        allow_api_hosts: hosts beside the provider's default.
        clock: where time comes from.
    """

    def __init__(
        self,
        *,
        secrets: dict[str, str] | None = None,
        allow_exec: frozenset[str] = frozenset(),
        allow_api_hosts: frozenset[str] = frozenset(),
        clock: Clock | None = None,
    ) -> None:
        self.secrets = secrets if secrets is not None else {}
        self._allow_exec = allow_exec
        self._allow_api_hosts = allow_api_hosts
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def clock(self) -> Clock:
        """The clock given, or the machine's."""
        return self._clock

    @property
    def logger(self) -> logging.Logger:
        """``hub.provider.test``."""
        return logging.getLogger("hub.provider.test")

    @property
    def http(self) -> ClientSession:
        """A session without cookies or proxy."""
        if self._session is None:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=25.0)
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout)
            self._stack.push_async_callback(self._session.close)
        return self._session

    async def run_sync(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run in a thread."""
        return await asyncio.to_thread(function, *args)

    def secret(self, ref: Mapping[str, str]) -> SecretValue:
        """From :attr:`secrets`."""
        keys = sorted(ref)
        if keys not in (["env"], ["file"], ["key", "secret"]):
            raise TerminalProviderError("a credential is {env: NAME}, {file: PATH} or {secret: NAME, key: KEY}")
        name = f"{ref['secret']}/{ref['key']}" if "secret" in ref else ref[keys[0]]
        return _LocalSecret(self.secrets, name)

    def redact(self, text: str) -> str:
        """Without any of :attr:`secrets`."""
        return process.redact(text.encode(), self.secrets.values())

    def check_api_host(self, host: str, default: str) -> None:
        """Allow the default and the hosts given."""
        if host.lower() != default.lower() and host not in self._allow_api_hosts:
            raise TerminalProviderError(f"the hub may not contact {host!r}; start it with --allow-api-host {host}")

    def check_program(self, program: str) -> str:
        """Allow the programs given."""
        for path in sorted(self._allow_exec):
            if program == path or ("/" not in program and path.endswith(f"/{program}")):
                return path
        raise TerminalProviderError(f"the hub may not run {program!r}; start it with --allow-exec and its full path")

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - as in HubContext
        stdout_limit: int = 1 << 20,
        stderr_limit: int = 4096,
    ) -> Completed:
        """Run it for real."""
        command = [self.check_program(argv[0] if argv else ""), *argv[1:]]
        try:
            return await process.run_program(
                command,
                stdin=stdin,
                env=env or {},
                timeout=timeout,
                stdout_limit=stdout_limit,
                stderr_limit=stderr_limit,
            )
        except process.ProcessError as error:
            raise TransientProviderError(str(error)) from error


class LocalCluster:
    """A ClusterContext; ``changes`` counts calls of ``changed()``."""

    def __init__(
        self, hub: HubContext, *, name: str = "test", folder: str = "/", api: ReadOnlyCluster | None = None
    ) -> None:
        self._hub = hub
        self._name = name
        self._folder = folder
        self._api = api or _NoApi()
        self.changes = 0

    @property
    def hub(self) -> HubContext:
        """The hub's context."""
        return self._hub

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._name

    @property
    def folder(self) -> str:
        """The registry's folder."""
        return self._folder

    @property
    def api(self) -> ReadOnlyCluster:
        """What was given, else an API that answers nothing."""
        return self._api

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """A file in the folder."""
        return await asyncio.to_thread(_read, Path(self._folder), path, limit)

    def changed(self) -> None:
        """Count."""
        self.changes += 1


def _read(folder: Path, path: str, limit: int) -> bytes:
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise TerminalProviderError(f"file {path} lies outside {folder}")
    try:
        data = place.read_bytes()
    except OSError as error:
        raise TransientProviderError(f"file {path}: {error.strerror}") from error
    if len(data) > limit:
        raise TransientProviderError(f"file {path}: larger than {limit} bytes")
    return data


class _LocalSecret:
    def __init__(self, secrets: Mapping[str, str], name: str) -> None:
        self._secrets = secrets
        self._name = name

    async def get(self, *, reload: bool = False) -> str:  # noqa: ARG002 - always as it is now
        try:
            return self._secrets[self._name]
        except KeyError:
            raise CredentialError(f"credential {self._name} is missing") from None


class _NoApi:
    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        raise TerminalProviderError(f"this cluster has no API to read Service {namespace}/{name}")

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        raise TerminalProviderError(f"this cluster has no API to read slices of {namespace}/{service}")
