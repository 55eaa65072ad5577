"""From a registry entry's kubeconfig to a client, again whenever the kubeconfig changes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from hub.aio.clock import Clock
from hub.errors import KubeconfigError, NotFound
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import ClusterAccess, KubeconfigPolicy, load_kubeconfig, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.registry.spec import ClusterSpec, KubeconfigPath

ReadSecretData = Callable[[str], Awaitable[Mapping[str, str]]]
"""Name -> base64 values of a Secret in the hub's --secrets-namespace; raises NotFound and the like."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Loads kubeconfigs and makes clients, within what the hub's flags allow.

    Attributes:
        read_secret: None where the hub cluster cannot be asked (``hub check`` without --online).
    """

    clock: Clock
    pool: LookupPool
    allow_exec: frozenset[str] = frozenset()
    denied_servers: frozenset[tuple[str, int]] = frozenset()
    read_secret: ReadSecretData | None = None

    async def access(self, spec: ClusterSpec) -> ClusterAccess:
        """Read the entry's kubeconfig.

        Raises:
            KubeconfigError: it is missing, unusable, or asks for what is not allowed.
            ApiError, ClusterUnreachable: the Secret could not be read.
        """
        source = spec.kubeconfig
        if source is None:
            raise KubeconfigError(f"cluster {spec.name} has no kubeconfig")
        if isinstance(source, KubeconfigPath):
            policy = KubeconfigPolicy(
                allow_exec=self.allow_exec, allow_files=True, denied_servers=self.denied_servers
            )
            return await asyncio.to_thread(load_kubeconfig, source.path, policy=policy, context=source.context)
        if self.read_secret is None:
            raise KubeconfigError(f"cluster {spec.name}: its kubeconfig is in Secret {source.secret}, not read here")
        try:
            data = await self.read_secret(source.secret)
            encoded = data[source.key]
        except NotFound as error:
            raise KubeconfigError(f"cluster {spec.name}: Secret {source.secret} does not exist; create it") from error
        except KeyError:
            raise KubeconfigError(f"cluster {spec.name}: Secret {source.secret} has no key {source.key!r}") from None
        policy = KubeconfigPolicy(allow_exec=self.allow_exec, allow_files=False, denied_servers=self.denied_servers)
        return parse_kubeconfig(
            base64.b64decode(encoded), origin=f"Secret {source.secret}", policy=policy, context=source.context
        )

    def client(self, access: ClusterAccess) -> Client:
        """A client with its own session, credentials and resolver."""
        return Client(Credentials(access, self.clock), self.pool)
