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
"""Default life of a token, seconds: it is renewed at half of it, so that a hub may be down for two weeks."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    Attributes:
        access: the cluster's name, and what its account may do.
        kubeconfig: of the remote cluster: an administrator's, or the one that its owners sent back; None = none.
        context: the context in that file.
        hub_kubeconfig: of the hub cluster; None = in-cluster, then KUBECONFIG.
        secrets_namespace: where the hub reads Secrets.
        registry: path of clusters.yaml; None = it is not read.
        apply: write into the hub cluster and the registry; otherwise print what to write.
        rotate: request a new token even if the present one works.
        lifetime: seconds of a token.
        networks: for ``allowedCIDRs``; none = those of the nodes.
        provider: of the registry entry.
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
        """The cluster's name in the registry, and its Secret's."""
        return self.access.cluster


async def remote_access(wish: Wish, path: str) -> ClusterAccess:
    """Access to the remote cluster by the kubeconfig that the user gives.

    Raises:
        KubeconfigError: it cannot be used.
    """
    policy = KubeconfigPolicy(trusted=True)
    return await asyncio.to_thread(load_kubeconfig, path, policy=policy, context=wish.context)


@asynccontextmanager
async def connected(access: ClusterAccess, clock: Clock) -> AsyncIterator[Client]:
    """A client with this access."""
    pool = LookupPool()
    try:
        async with Client(Credentials(access, clock), pool) as client:
            yield client
    finally:
        pool.close()


class HubSide:
    """The Secret of a cluster in the hub cluster; made by :func:`hub_side`."""

    def __init__(self, admin: Admin, wish: Wish) -> None:
        self.server = admin.server
        self._admin = admin
        self._wish = wish
        self.where = f"Secret {wish.secrets_namespace}/{wish.name} of the hub cluster"

    async def find(self) -> Manifest | None:
        """The cluster's Secret.

        Raises:
            Refused: it belongs to another tool.
            HubError: it cannot be read.
        """
        try:
            found = await self._admin.find("Secret", self._wish.name, self._wish.secrets_namespace)
        except HubError as error:
            raise self._explained(error) from error
        if found is not None and not (is_ours(found) and cluster_of(found) == self._wish.name):
            raise Refused(
                f"{self.where} exists and is not of 'hub cluster add'; "
                "delete it, or choose another NAME or --secrets-namespace"
            )
        return found

    async def write(self, content: str, found: Manifest | None) -> str:
        """Create the Secret, or replace exactly the state that was found; returns what was done.

        Raises:
            HubError: it cannot be written.
        """
        manifest = secret(self._wish.name, self._wish.secrets_namespace, content)
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
            HubError: it cannot be deleted.
        """
        try:
            gone = await self._admin.delete("Secret", self._wish.name, self._wish.secrets_namespace)
        except HubError as error:
            raise self._explained(error) from error
        return "deleted" if gone else "absent"

    def _explained(self, error: HubError) -> HubError:
        namespace = self._wish.secrets_namespace
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
async def hub_side(wish: Wish, clock: Clock) -> AsyncIterator[HubSide]:
    """The hub cluster's side of a cluster.

    Raises:
        KubeconfigError: there is no access to the hub cluster.
    """
    access = await asyncio.to_thread(load_hub_access, wish.hub_kubeconfig)
    async with administer(Credentials(access, clock)) as admin:
        yield HubSide(admin, wish)
