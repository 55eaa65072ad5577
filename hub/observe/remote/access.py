"""Loads the kubeconfig of a registry entry, detects its changes, and makes clients from it."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from hub.errors import Forbidden, HubError, KubeconfigError, NotFound
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_in_cluster
from hub.kube.kubeconfig import KubeconfigPolicy, load_kubeconfig, parse_kubeconfig
from hub.kube.proxy import Proxies, host_and_port
from hub.kube.resolver import LookupPool
from hub.registry.spec import ClusterSpec, KubeconfigInCluster, KubeconfigPath, KubeconfigSecret
from hub.runtime.clock import Clock
from hub.runtime.files import OutsideFolders, signature
from hub.runtime.threads import NoAnswer, Reader

T = TypeVar("T")

READ_TIMEOUT: Final = 10.0
"""Seconds to read a kubeconfig file. A longer read means that the file's mount hangs."""

ReadSecretData = Callable[[str], Awaitable[Mapping[str, str]]]
"""Name -> base64 values of a Secret in ``--secrets-namespace``; raises HubError, such as NotFound."""


def _no_version(_: str) -> None:
    """Default of ``secret_version``: no Secret is watched, so no version is known."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Loads kubeconfigs and makes clients, within the limits of the hub's flags.

    Attributes:
        clock: clock of the clients' credentials.
        pool: resolves the host names of API servers.
        allow_exec: programs that kubeconfigs may run.
        denied_servers: API servers, as (host, port), that no kubeconfig may name.
        secrets_namespace: the namespace that ``read_secret`` reads from, for messages.
        read_secret: None if the hub cluster is not contacted (``hub check`` without --online).
        secret_version: name -> resourceVersion of a watched Secret; None if the Secret is not watched.
        folders: a kubeconfig given by path, and the files that it names, must be in one of these folders.
        proxies: lead to the clusters whose kubeconfig has no ``proxy-url``; None = these are contacted directly.
    """

    clock: Clock
    pool: LookupPool
    allow_exec: frozenset[str] = frozenset()
    denied_servers: frozenset[tuple[str, int]] = frozenset()
    read_secret: ReadSecretData | None = None
    secrets_namespace: str = "default"
    secret_version: Callable[[str], str | None] = _no_version
    folders: tuple[Path, ...] = ()
    proxies: Proxies | None = None
    _readers: WeakValueDictionary[str, Reader] = field(
        default_factory=WeakValueDictionary, init=False, repr=False, compare=False
    )
    """Readers in use, by path. Calls for one path share a reader, so that a hanging file occupies only one thread."""

    async def access(self, spec: ClusterSpec) -> ClusterAccess:
        """Read the entry's kubeconfig; one without ``proxy-url`` gets the proxy of the environment, if that is allowed.

        Raises:
            KubeconfigError: the kubeconfig is missing, unreadable, invalid or not allowed.
        """
        access = await self._access(spec)
        if access.proxy is None and self.proxies is not None:
            return replace(access, proxy=self.proxies.proxy_for(*host_and_port(access.server)))
        return access

    async def _access(self, spec: ClusterSpec) -> ClusterAccess:
        source = spec.kubeconfig
        if source is None:
            raise KubeconfigError(f"cluster {spec.name} has no kubeconfig")
        if isinstance(source, KubeconfigInCluster):
            if (own := load_in_cluster()) is None:
                raise KubeconfigError(f"cluster {spec.name}: kubeconfig.inCluster, but this hub runs in no cluster")
            return own
        if isinstance(source, KubeconfigPath):
            policy = KubeconfigPolicy(self.allow_exec, self.folders, denied_servers=self.denied_servers)
            try:
                return await self._read(source.path, partial(load_kubeconfig, policy=policy, context=source.context))
            except OutsideFolders as error:
                raise KubeconfigError(f"{source.written or source.path} {error.strerror}") from error
        content = await self._secret(spec.name, source)
        policy = KubeconfigPolicy(self.allow_exec, denied_servers=self.denied_servers)
        return parse_kubeconfig(content, origin=self._where(source), policy=policy, context=source.context)

    async def _secret(self, cluster: str, source: KubeconfigSecret) -> bytes:
        """The content of a Secret's key.

        Raises:
            KubeconfigError: for every failure, since it says nothing about the remote cluster.
        """
        where = f"cluster {cluster}: {self._where(source)} of the hub cluster"
        if self.read_secret is None:
            raise KubeconfigError(f"{where} is not read here")
        try:
            return base64.b64decode((await self.read_secret(source.secret))[source.key])
        except NotFound as error:
            raise KubeconfigError(
                f"{where} does not exist; create it there, in the only namespace that the hub reads "
                "(--secrets-namespace)"
            ) from error
        except Forbidden as error:
            raise KubeconfigError(
                f"{where} may not be read: the hub's account lacks the rule «secrets {source.secret}: get»"
            ) from error
        except KeyError:
            raise KubeconfigError(f"{where} has no key {source.key!r}") from None
        except ValueError:
            raise KubeconfigError(f"{where}: key {source.key!r} is not base64") from None
        except HubError as error:
            raise KubeconfigError(f"{where} cannot be read: {error}") from error

    def _where(self, source: KubeconfigSecret) -> str:
        return f"Secret {self.secrets_namespace}/{source.secret}"

    async def stamp(self, spec: ClusterSpec) -> object:
        """A cheap value that changes when the entry's kubeconfig may have changed; None = unknown.

        Raises:
            KubeconfigError: the file's mount hangs.
        """
        if isinstance(spec.kubeconfig, KubeconfigSecret):
            return self.secret_version(spec.kubeconfig.secret)
        if spec.kubeconfig is None:
            return None
        if isinstance(spec.kubeconfig, KubeconfigInCluster):
            return ""
        return await self._read(spec.kubeconfig.path, _stamp)

    async def _read(self, path: str, function: Callable[[str], T]) -> T:
        """The result of ``function(path)``, called in a thread."""
        reader = self._readers.setdefault(path, Reader(READ_TIMEOUT))
        try:
            return await reader.call(function, path)
        except NoAnswer as error:
            raise KubeconfigError(f"kubeconfig {path}: {error}") from None

    def client(self, access: ClusterAccess) -> Client:
        """A client with its own session, credentials and resolver."""
        return Client(Credentials(access, self.clock), self.pool)


def _stamp(path: str) -> tuple[object, ...]:
    """Changes with the file's content, and when a symlink in the path changes, as in a mounted Secret."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called every 5 s for up to 500 clusters; Path is slower
    except OSError as error:
        return (error.errno,)
    return signature(found)
