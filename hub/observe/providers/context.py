"""The contexts that the hub gives to a provider: clock, threads, HTTP, credentials, and limits set by the hub's flags.

There is one :class:`ProviderHub` per event loop of a provider type, and one :class:`ProviderCluster` per (cluster,
configuration); both are used only in that loop. More people edit the registry than the Deployment, so :class:`Limits`
restricts which files, programs and hosts a configuration can name.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from hub.errors import ProviderError
from hub.kube.proxy import Proxies, host_and_port
from hub.model import Service, Slice
from hub.observe.providers.faults import describe, places
from hub.observe.providers.secrets import Credential, ReadSecret, SecretVersion, credential, no_version
from hub.plugin import rules
from hub.plugin.http import SharedHttp
from hub.plugin.spec import (
    Completed,
    HubContext,
    ReadOnlyCluster,
    SecretValue,
    TerminalProviderError,
    TransientProviderError,
)
from hub.runtime import process
from hub.runtime.clock import Clock
from hub.runtime.files import ConfinedPath, OutsideFolders

if TYPE_CHECKING:
    from aiohttp import ClientSession

T = TypeVar("T")

THREADS: Final = 4
"""Maximum concurrent blocking calls of one provider type: providers make few SDK calls, and share them between
clusters."""

PATHS: Final = 16
"""Maximum file paths cached for a cluster: files are read every few seconds, and a new Path interns its parts."""
MAX_SCOPE: Final = 128
"""Maximum characters of a scope, which is a metric label."""
MAX_SCOPES: Final = 1000
"""Maximum scopes of one measure: one data center for each of 1,000 clusters."""


def label(scope: str) -> str:
    """A scope as a metric label: cut to :data:`MAX_SCOPE` characters, and valid UTF-8."""
    return scope[:MAX_SCOPE].encode("utf-8", "replace").decode()


class Limits(msgspec.Struct, frozen=True):
    """The programs, hosts and files that a registry may name in a provider's configuration.

    Attributes:
        allow_exec: programs of ``--allow-exec``, absolute paths.
        allow_api_hosts: ``host`` or ``host:port`` of ``--allow-api-host``, in addition to each plugin's default.
        credentials_dir: folder of ``{file: …}`` credentials, absolute; None = files are not allowed.
        proxies: lead to the APIs of providers; None = these are contacted directly.
    """

    allow_exec: frozenset[str] = frozenset()
    allow_api_hosts: frozenset[str] = frozenset()
    credentials_dir: str | None = None
    proxies: Proxies | None = None


class ProviderHub:
    """The HubContext of one provider type in one event loop."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        limits: Limits | None = None,
        http: SharedHttp | None = None,
        read_secret: ReadSecret | None = None,
        secret_version: SecretVersion = no_version,
        threads: int = THREADS,
    ) -> None:
        self._name = name
        self._clock = clock
        self._limits = limits or Limits()
        self._http = http or SharedHttp(self.proxy)
        self._read_secret = read_secret
        self._secret_version = secret_version
        self._slots = asyncio.Semaphore(threads)
        self._logger = logging.getLogger(f"hub.provider.{name}")
        self._credentials: dict[tuple[tuple[str, str], ...], Credential] = {}
        self._measures: dict[str, Callable[[], Mapping[str, float]]] = {}

    @property
    def clock(self) -> Clock:
        """The hub's clock."""
        return self._clock

    @property
    def logger(self) -> logging.Logger:
        """The logger ``hub.provider.<name>``."""
        return self._logger

    @property
    def http(self) -> ClientSession:
        """The loop's session: uses :meth:`proxy`, keeps no cookies, raises ClientError on redirects."""
        return self._http.session()

    def proxy(self, url: str, /) -> str | None:
        """See :class:`hub.plugin.HubContext`."""
        proxies = self._limits.proxies
        if proxies is None or not url.startswith("https://"):
            return None
        host, port = host_and_port(url)
        proxy = proxies.proxy_for(host, port)
        if proxy is not None and proxy.scheme not in ("http", "https"):
            raise TerminalProviderError(
                f"providers cannot use a SOCKS proxy, and HTTPS_PROXY is {proxy}; give an http:// proxy, or add {host} "
                "to NO_PROXY"
            )
        return proxy.url.reveal() if proxy is not None else None

    async def close(self) -> None:
        """Close the session."""
        await self._http.close()

    async def run_sync(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a blocking call in a daemon thread, at most ``threads`` at a time.

        A cancelled caller stops waiting at once, but the call counts as running until its thread ends.

        Raises:
            Exception: the call's own exception; SystemExit and other BaseExceptions become ProviderError.
            TransientProviderError: the system cannot start another thread.
        """
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            self._slots.release()
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:
                done.set_exception(ProviderError(f"the call raised {type(error).__name__}"))

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as caught:  # noqa: BLE001 - handed to the caller
                error = caught
            try:
                loop.call_soon_threadsafe(finish, result, error)
            except RuntimeError:
                self._logger.debug("a blocking call outlived the hub")

        context = contextvars.copy_context()
        try:
            threading.Thread(target=work, name=f"provider {self._name}", daemon=True).start()
        except RuntimeError as error:
            self._slots.release()
            raise TransientProviderError(f"no thread for a blocking call: {error}") from error
        return await done

    def secret(self, ref: Mapping[str, str]) -> SecretValue:
        """See :class:`hub.plugin.HubContext`; equal references share one value."""
        key = tuple(sorted(ref.items()))
        if key not in self._credentials:
            folder = Path(self._limits.credentials_dir) if self._limits.credentials_dir else None
            self._credentials[key] = credential(ref, folder, self._read_secret, self._clock, self._secret_version)
        return self._credentials[key]

    @property
    def renewals(self) -> int:
        """Number of changes of this provider's credentials."""
        return sum(value.renewals for value in tuple(self._credentials.values()))  # a copy: the hub's loop reads it too

    async def credentials_changed(self, renewals: int) -> bool:
        """Whether a credential has changed since the property ``renewals`` had this value."""
        return any([await value.changed() for value in self._credentials.values()]) or self.renewals != renewals

    def redact(self, text: str) -> str:
        """See :class:`hub.plugin.HubContext`."""
        return process.redact(text.encode("utf-8", "replace"), self.secrets())

    def measure(self, name: str, read: Callable[[], Mapping[str, float]], /) -> None:
        """See :class:`hub.plugin.HubContext`."""
        rules.check_measure(name, self._measures)
        self._measures[name] = read

    def measures(self) -> Iterator[tuple[str, str, float]]:
        """The provider's present measures: (name, scope, number), without those that fail or are not numbers."""
        for name, read in tuple(self._measures.items()):
            try:
                found = [(label(str(scope)), float(number)) for scope, number in islice(read().items(), MAX_SCOPES)]
            except BaseException as error:  # noqa: BLE001 - plugin code
                text = describe(error, self.secrets())
                self._logger.debug("%s is not measured: %s\n%s", name, text, places(error))
                continue
            for scope, number in found:
                yield name, scope, number

    def check_api_host(self, host: str, default: str) -> None:
        """See :class:`hub.plugin.HubContext`."""
        rules.check_api_host(host, default, self._limits.allow_api_hosts)

    def check_program(self, program: str) -> str:
        """See :class:`hub.plugin.HubContext`."""
        return rules.check_program(program, self._limits.allow_exec)

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - ends a process group, see hub.runtime.process
        stdout_limit: int = 1 << 20,
        stderr_limit: int = 4096,
    ) -> Completed:
        """See :class:`hub.plugin.HubContext`."""
        return await rules.run_program(
            argv,
            self._limits.allow_exec,
            stdin=stdin,
            env=env,
            timeout=timeout,
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
        )

    def secrets(self) -> list[str]:
        """The credentials that the provider has read, to remove them from error texts, the longest first."""
        values = {value.last() for value in self._credentials.values()}
        if self._limits.proxies is not None:
            values.update(self._limits.proxies.proxy.secrets())
        # Shorter values may occur in any text: removing them would make errors unreadable.
        return sorted((value for value in values if value and len(value) >= 4), key=len, reverse=True)


class ProviderCluster:
    """The ClusterContext of one (cluster, configuration)."""

    def __init__(
        self,
        hub: HubContext,
        name: str,
        folder: str,
        changed: Callable[[], None],
        api: ReadOnlyCluster | None = None,
        credentials_dir: str | None = None,
    ) -> None:
        self._hub = hub
        self._name = name
        self._folder = folder
        self._changed = changed
        folders = tuple(Path(item) for item in (folder, credentials_dir) if item)
        self._file = lru_cache(PATHS)(lambda path: ConfinedPath(path, *folders))
        self._api = api or NoApi(name)

    @property
    def hub(self) -> HubContext:
        """The context of the whole hub."""
        return self._hub

    @property
    def name(self) -> str:
        """The cluster's name in the registry."""
        return self._name

    @property
    def folder(self) -> str:
        """The registry's folder."""
        return self._folder

    @property
    def api(self) -> ReadOnlyCluster:
        """Read access to the cluster's API."""
        return self._api

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """See :class:`hub.plugin.ClusterContext`."""
        file = self._file(path)
        try:
            return (await self._hub.run_sync(file.read, limit)).data
        except OutsideFolders as error:
            raise TerminalProviderError(f"file {file.path} {error.strerror}") from error
        except OSError as error:
            raise TransientProviderError(f"file {file.path}: {error.strerror}") from error

    def changed(self) -> None:
        """Request a new pass."""
        self._changed()


class CloudAccount(ProviderCluster):
    """The CloudContext of one configuration."""

    async def lookup(self, host: str, /) -> tuple[str, ...]:
        """See :class:`hub.plugin.clouds.CloudContext`."""
        try:
            found = await self.hub.run_sync(socket.getaddrinfo, host, None, 0, socket.SOCK_STREAM)
        except UnicodeError:  # an empty label, or one of more than 63 characters
            return ()
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return ()
            raise TransientProviderError(f"DNS gives no answer for {host}: {error.strerror}") from error
        return tuple(sorted({str(entry[4][0]) for entry in found}))


class NoApi:
    """The API of a cluster without a kubeconfig: every read fails."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        """Raise TerminalProviderError."""
        raise TerminalProviderError(f"cluster {self._cluster!r} has no kubeconfig to read Service {namespace}/{name}")

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        """Raise TerminalProviderError."""
        raise TerminalProviderError(
            f"cluster {self._cluster!r} has no kubeconfig to read slices of {namespace}/{service}"
        )
