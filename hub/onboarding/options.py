"""The arguments of ``hub cluster add`` and ``remove``, and access to the two clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from hub.errors import ApiError, ClusterUnreachable, Forbidden, HubError, NotFound
from hub.kube.admin import Admin, administer
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.kubeconfig import KubeconfigPolicy, load_kubeconfig
from hub.kube.resolver import LookupPool
from hub.onboarding.credential import secret
from hub.onboarding.manifests import Access, Manifest, cluster_of, is_ours
from hub.onboarding.remote import Refused
from hub.registry.spec import Network
from hub.runtime.clock import Clock

MONTH: Final = 30 * 86_400
"""Default life of a token in seconds. It is renewed at half of its life, so a hub may be down for two weeks."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of the command line.

    Attributes:
        access: the cluster's name, and its account and permissions.
        kubeconfig: path of a kubeconfig of the remote cluster: an administrator's, or the one that the cluster's owners
            sent back; None = the user gave none.
        context: the context in that file; None = its current one.
        hub_kubeconfig: path of a kubeconfig of the hub cluster; None = in-cluster, then KUBECONFIG.
        secrets_namespace: the namespace in which the hub reads Secrets.
        registry: path of clusters.yaml; None = do not read or change it.
        apply: write to the hub cluster and the registry; False = ``add`` prints what to write, ``remove`` what it
            would delete.
        rotate: request a new token even if the current one works.
        lifetime: seconds for which a token is requested.
        networks: value of ``allowedCIDRs``; empty = propose networks from the nodes' addresses.
        provider: name of the provider in the registry entry.
    """

    access: Access
    kubeconfig: str | None = None
    context: str | None = None
    hub_kubeconfig: str | None = None
    secrets_namespace: str = "default"
    registry: str | None = None
    apply: bool = False
    rotate: bool = False
    lifetime: int = MONTH
    networks: tuple[Network, ...] = ()
    provider: str = "node-addresses"

    @property
    def name(self) -> str:
        """The name of the cluster in the registry, and of its Secret."""
        return self.access.cluster


async def remote_access(options: ClusterOptions, path: str) -> ClusterAccess:
    """Access to the remote cluster, from the kubeconfig file that the user gave.

    Raises:
        KubeconfigError: the file cannot be used.
    """
    policy = KubeconfigPolicy(trusted=True)
    return await asyncio.to_thread(load_kubeconfig, path, policy=policy, context=options.context)


@asynccontextmanager
async def connected(access: ClusterAccess, clock: Clock) -> AsyncIterator[Client]:
    """A client with this access."""
    pool = LookupPool()
    try:
        async with Client(Credentials(access, clock), pool) as client:
            yield client
    finally:
        pool.close()


class ClusterSecret:
    """Reads and writes a cluster's Secret in the hub cluster; made by :func:`open_cluster_secret`.

    Attributes:
        server: URL of the hub cluster's API server.
        where: the Secret's place, for messages.
    """

    def __init__(self, admin: Admin, options: ClusterOptions) -> None:
        self.server = admin.server
        self._admin = admin
        self._options = options
        self.where = f"Secret {options.secrets_namespace}/{options.name} of the hub cluster"

    async def find(self) -> Manifest | None:
        """The cluster's Secret; None if it does not exist.

        Raises:
            Refused: ``hub cluster add`` did not make the Secret, or made it for another cluster.
            HubError: the Secret cannot be read.
        """
        try:
            found = await self._admin.find("Secret", self._options.name, self._options.secrets_namespace)
        except HubError as error:
            raise self._explained(error) from error
        if found is not None and not (is_ours(found) and cluster_of(found) == self._options.name):
            raise Refused(
                f"{self.where} exists and was not made by 'hub cluster add'; "
                "delete it, or choose another NAME or --secrets-namespace"
            )
        return found

    async def check_namespace(self) -> None:
        """Check that the Secret's namespace exists; an account that may not read it learns that from :meth:`write`.

        Raises:
            Refused: the namespace does not exist.
            HubError: it cannot be read.
        """
        name = self._options.secrets_namespace
        try:
            found = await self._admin.find("Namespace", name)
        except Forbidden:
            return
        except HubError as error:
            raise self._explained(error) from error
        if found is None:
            raise Refused(
                f"{self.where}: the hub cluster has no namespace {name}; create it: kubectl create namespace {name}, "
                "or give the one where the hub reads Secrets: --secrets-namespace"
            )

    async def write(self, content: str, found: Manifest | None) -> str:
        """Create the Secret, or replace the one that :meth:`find` returned; returns what was done.

        Raises:
            HubError: the Secret cannot be written, or has changed since it was found.
        """
        manifest = secret(self._options.name, self._options.secrets_namespace, content)
        try:
            if found is None:
                await self._admin.create(manifest)
                return "created"
            manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            await self._admin.replace(manifest)
        except HubError as error:
            raise self._explained(error) from error
        return "updated"

    async def delete(self) -> str:
        """Delete the Secret; returns what was done.

        Raises:
            HubError: the Secret cannot be deleted.
        """
        try:
            gone = await self._admin.delete("Secret", self._options.name, self._options.secrets_namespace)
        except HubError as error:
            raise self._explained(error) from error
        return "deleted" if gone else "absent"

    def _explained(self, error: HubError) -> HubError:
        """The error with the Secret's place and a hint."""
        namespace = self._options.secrets_namespace
        match error:
            case Forbidden():
                hint = f"your account needs secrets: get, create, update, delete in namespace {namespace}"
            case NotFound():
                hint = f"create namespace {namespace}, or give the one where the hub reads Secrets: --secrets-namespace"
            case ApiError(status=409):
                hint = "it changed meanwhile: run the command again"
            case ClusterUnreachable():
                hint = "check that --kubeconfig is that of the hub cluster, and that it can be reached from here"
            case _:
                hint = "give --kubeconfig of the hub cluster"
        return HubError(f"{self.where}: {error}; {hint}")


@asynccontextmanager
async def open_cluster_secret(options: ClusterOptions, clock: Clock) -> AsyncIterator[ClusterSecret]:
    """Connects to the hub cluster for the Secret of ``options.name``.

    Raises:
        KubeconfigError: there is no usable kubeconfig of the hub cluster.
    """
    access = await asyncio.to_thread(load_hub_access, options.hub_kubeconfig)
    async with administer(Credentials(access, clock)) as admin:
        yield ClusterSecret(admin, options)
