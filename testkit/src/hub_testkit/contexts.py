"""Contexts of a hub, a cluster, an account and a cloud for tests of a provider. They apply the hub's rules without one.

Secrets come from a dict, allowed programs and API hosts from sets; everything else is real.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hub.errors import CredentialError
from hub.model import Service, Slice
from hub.plugin import rules
from hub.plugin.http import SharedHttp
from hub.plugin.references import FORMS, source_of
from hub.plugin.spec import (
    Completed,
    HubContext,
    ReadOnlyCluster,
    SecretValue,
    TerminalProviderError,
    TransientProviderError,
)
from hub.runtime import process
from hub.runtime.clock import Clock, SystemClock
from hub.runtime.files import read_regular

if TYPE_CHECKING:
    from aiohttp import ClientSession

T = TypeVar("T")


class LocalHub:
    """A HubContext. It is an async context manager, because it may hold an HTTP session.

    Args:
        secrets: Credentials by what a reference names: the variable, the path, or ``name/key`` of a Secret.
            Change it to rotate a credential.
        allow_exec: Absolute paths of the programs that may run.
        allow_api_hosts: Hosts that may be contacted besides the provider's default.
        clock: The clock; None = the system's.
        proxy: The URL of the proxy that leads to every https:// address; None = no proxy.

    Attributes:
        measures: The functions that the provider passed to ``measure``, by name.
    """

    def __init__(
        self,
        *,
        secrets: dict[str, str] | None = None,
        allow_exec: frozenset[str] = frozenset(),
        allow_api_hosts: frozenset[str] = frozenset(),
        clock: Clock | None = None,
        proxy: str | None = None,
    ) -> None:
        self.secrets = secrets if secrets is not None else {}
        self.measures: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._allow_exec = allow_exec
        self._allow_api_hosts = allow_api_hosts
        self._clock = clock or SystemClock()
        self._proxy = proxy
        self._http = SharedHttp(self.proxy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    @property
    def clock(self) -> Clock:
        """The given clock, or the system's."""
        return self._clock

    @property
    def logger(self) -> logging.Logger:
        """The logger ``hub.provider.test``."""
        return logging.getLogger("hub.provider.test")

    @property
    def http(self) -> ClientSession:
        """A session without cookies or redirects, like the hub's."""
        return self._http.session()

    def proxy(self, url: str, /) -> str | None:
        """Returns the given proxy for https:// URLs."""
        return self._proxy if url.startswith("https://") else None

    async def run_sync(self, function: Callable[..., T], /, *args: Any) -> T:
        """Runs a blocking function in a thread."""
        return await asyncio.to_thread(function, *args)

    def secret(self, ref: Mapping[str, str]) -> SecretValue:
        """Returns a value that reads from :attr:`secrets`.

        Raises:
            TerminalProviderError: The reference is malformed.
        """
        try:
            source = source_of(ref)
        except ValueError:
            raise TerminalProviderError(f"a credential is {FORMS}") from None
        name = f"{ref['secret']}/{ref['key']}" if source == "secret" else ref[source]
        return _LocalSecret(self.secrets, name)

    def redact(self, text: str) -> str:
        """Replaces all values of :attr:`secrets` in a text."""
        return process.redact(text.encode(), self.secrets.values())

    def measure(self, name: str, read: Callable[[], Mapping[str, float]], /) -> None:
        """Stores the function in :attr:`measures`, after the hub's checks of the name."""
        rules.check_measure(name, self.measures)
        self.measures[name] = read

    def check_api_host(self, host: str, default: str) -> None:
        """Raises TerminalProviderError for a host that is neither the default nor allowed."""
        rules.check_api_host(host, default, self._allow_api_hosts)

    def check_program(self, program: str) -> str:
        """Returns the path of an allowed program; raises TerminalProviderError for any other."""
        return rules.check_program(program, self._allow_exec)

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
        """Runs an allowed program, with the hub's limits."""
        return await rules.run_program(
            argv,
            self._allow_exec,
            stdin=stdin,
            env=env,
            timeout=timeout,
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
        )


class LocalAccount:
    """An AccountContext.

    Args:
        hub: The hub's context.
        name: The account's name.
        folder: The registry's folder, from which files are read.

    Attributes:
        changes: The number of calls of ``changed()``.
    """

    def __init__(self, hub: HubContext, *, name: str = "test", folder: str = "/") -> None:
        self._hub = hub
        self._name = name
        self._folder = folder
        self.changes = 0

    @property
    def hub(self) -> HubContext:
        """The hub's context."""
        return self._hub

    @property
    def name(self) -> str:
        """The account's or cluster's name in the registry."""
        return self._name

    @property
    def folder(self) -> str:
        """The registry's folder."""
        return self._folder

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """Reads a file in the folder.

        Raises:
            TerminalProviderError: The path leads out of the folder.
            TransientProviderError: The file cannot be read, or is larger than ``limit`` bytes.
        """
        return await asyncio.to_thread(_read, Path(self._folder), path, limit)

    def changed(self) -> None:
        """Counts the call in :attr:`changes`."""
        self.changes += 1


class LocalCloud(LocalAccount):
    """A CloudContext: the context of an account, and DNS.

    Args:
        hub: The hub's context.
        dns: Host name -> its addresses, or the error of the look-up; change it at any time.

    Attributes:
        asked: The host names that were looked up.
    """

    def __init__(self, hub: HubContext, *, dns: Mapping[str, tuple[str, ...] | Exception] | None = None) -> None:
        super().__init__(hub)
        self.dns = dict(dns or {})
        self.asked: list[str] = []

    async def lookup(self, host: str, /) -> tuple[str, ...]:
        """The addresses in :attr:`dns`; () for any other name."""
        self.asked.append(host)
        found = self.dns.get(host, ())
        if isinstance(found, Exception):
            raise found
        return found


class LocalCluster(LocalAccount):
    """A ClusterContext: the context of an account, and the API of a cluster.

    Args:
        hub: The hub's context.
        name: The cluster's name.
        folder: The registry's folder, from which files are read.
        api: The cluster's API; None = reading it raises TerminalProviderError.
    """

    def __init__(
        self, hub: HubContext, *, name: str = "test", folder: str = "/", api: ReadOnlyCluster | None = None
    ) -> None:
        super().__init__(hub, name=name, folder=folder)
        self._api = api or _NoApi()

    @property
    def api(self) -> ReadOnlyCluster:
        """The given API, or one that raises TerminalProviderError."""
        return self._api


class ClusterObjects:
    """A ReadOnlyCluster whose objects are set by a test. A follower gets the current state, then each change."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Any] = {}
        self._problems: dict[tuple[str, str, str], str] = {}
        self._changed: asyncio.Event | None = None

    def set_service(self, namespace: str, name: str, service: Service | None) -> None:
        """Sets a Service; None = it does not exist."""
        self._set(("service", namespace, name), service)

    def set_slices(self, namespace: str, service: str, *slices: Slice) -> None:
        """Sets all slices of a Service."""
        self._set(("slices", namespace, service), tuple(sorted(slices, key=lambda slice_: slice_.name)))

    def fail(self, namespace: str, name: str, problem: str = "the API is away") -> None:
        """Followers of this Service and of its slices get an error, until the Service or its slices are set again."""
        for kind in ("service", "slices"):
            self._problems[kind, namespace, name] = problem
        self._tell()

    async def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        """Follows a Service: yields it now and after each change; None while it does not exist."""
        async for found in self._follow(("service", namespace, name), None):
            yield found

    async def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        """Follows all slices of a Service: yields them, sorted by name, now and after each change."""
        async for found in self._follow(("slices", namespace, service), ()):
            yield found

    async def _follow(self, key: tuple[str, str, str], nothing: Any) -> AsyncIterator[Any]:
        last: Any = self
        while True:
            if key in self._problems:
                raise TransientProviderError(self._problems[key])
            now = self._objects.get(key, nothing)
            if now is not last:
                last = now
                yield now
                continue
            self._changed = self._changed or asyncio.Event()
            await self._changed.wait()

    def _set(self, key: tuple[str, str, str], value: Any) -> None:
        self._objects[key] = value
        self._problems.pop(key, None)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


def _read(folder: Path, path: str, limit: int) -> bytes:
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise TerminalProviderError(f"file {path} lies outside {folder}")
    try:
        return read_regular(place, limit, follow=False).data
    except OSError as error:
        raise TransientProviderError(f"file {path}: {error.strerror}") from error


class _LocalSecret:
    def __init__(self, secrets: Mapping[str, str], name: str) -> None:
        self._secrets = secrets
        self._name = name

    async def get(self, *, reload: bool = False) -> str:  # noqa: ARG002 - every read is fresh
        try:
            return self._secrets[self._name]
        except KeyError:
            raise CredentialError(f"credential {self._name} is missing") from None


class _NoApi:
    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        raise TerminalProviderError(f"this cluster has no API to read Service {namespace}/{name}")

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        raise TerminalProviderError(f"this cluster has no API to read slices of {namespace}/{service}")
