"""Resolves the nodes of one cluster from the lists that all clusters share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache

from hub.plugin import (
    Absent,
    ClusterContext,
    Found,
    Node,
    Resolution,
    TerminalProviderError,
    TransientProviderError,
    Unknown,
)
from hub_provider_ionos.account import Account
from hub_provider_ionos.cloud import Cloud
from hub_provider_ionos.config import DEFAULT_HOST, AccountConfig, IonosConfig
from hub_provider_ionos.feed import Feed
from hub_provider_ionos.inventory import Fleet, PoolNode
from hub_provider_ionos.listing import Key, Listing
from hub_provider_ionos.match import MISSING, Rules, resolve, resolve_pool_node

if TYPE_CHECKING:
    from hub.plugin.addresses import AccountContext
    from hub.plugin.clouds import CloudContext

PATIENCE: Final = 28.0
"""Seconds to wait for lists: less than the 30 s after which the hub times out with a less specific error."""

MAX_CA: Final = 1 << 20
"""The largest CA file that is read, in bytes."""

MAX_MISSING: Final = 20_000
"""The most nodes remembered that one list lacked: more than a registry lets a cluster have."""

_Identity = tuple[str, str, str]
"""Name, provider ID and system UUID of a node."""


class Ionos:
    """Resolves the nodes of one cluster.

    Args:
        feeds: The lists of the data centers.
        pools: The list of the managed Kubernetes cluster's nodes, started when it is first needed; None without one.
        rules: Selects and orders the addresses.
        now: The hub's clock.
    """

    def __init__(
        self,
        feeds: Sequence[Callable[[], Feed[Fleet]]],
        pools: Callable[[], Feed[tuple[PoolNode, ...]]] | None,
        rules: Rules,
        now: Callable[[], float],
    ) -> None:
        self._feeds = feeds
        self._pools = pools
        self._rules = rules
        self._now = now
        self._missing_since: LRUCache[_Identity, tuple[int, ...]] = LRUCache(MAX_MISSING)
        """Node -> number of each list when the node was first not found in them."""

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """Returns one answer per node, by the node's name.

        A node is ``Absent`` only after two lists in a row agree, and ``Unknown`` before. If a node is in no list, the
        lists are requested early.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: A list cannot be read.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._resolve(nodes)
        except TimeoutError as error:
            raise TransientProviderError(f"the first list did not come within {PATIENCE:g} s") from error

    async def _resolve(self, nodes: Sequence[Node]) -> Mapping[str, Resolution]:
        asked_at = self._now()
        feeds: list[Feed[Any]] = [feed() for feed in self._feeds]
        first: dict[str, Resolution | str] = {}
        lists: list[Listing[Any]] = [await feed.current() for feed in feeds]
        for node in nodes:
            first[node.name] = resolve(node, [listing.value for listing in lists], self._rules)
        if self._pools is not None and MISSING in first.values():
            feeds.append(self._pools())
            lists.append(await feeds[-1].current())
            self._look_in_pools(nodes, first, lists[-1].value)
        numbers = tuple(listing.number for listing in lists)
        old = all(listing.started < asked_at for listing in lists)
        if old and any(first[node.name] == MISSING and not self._confirmed(node, numbers) for node in nodes):
            due = [feed for feed in feeds if feed.request_early()]
            if due:
                for feed in due:
                    await feed.next_list()
                self._remember_missing(nodes, first, numbers)
                return await self._resolve(nodes)
        self._remember_missing(nodes, first, numbers)
        return {node.name: self._resolution(node, first[node.name], numbers) for node in nodes}

    def _look_in_pools(
        self, nodes: Sequence[Node], first: dict[str, Resolution | str], pool_nodes: tuple[PoolNode, ...]
    ) -> None:
        for node in nodes:
            if first[node.name] == MISSING:
                first[node.name] = resolve_pool_node(node, pool_nodes, self._rules)

    # --- two lists that agree --------------------------------------------------------------------------

    def _remember_missing(
        self, nodes: Sequence[Node], first: Mapping[str, Resolution | str], numbers: tuple[int, ...]
    ) -> None:
        for node in nodes:
            said = first[node.name]
            if isinstance(said, Found):
                self._missing_since.pop(_identity(node), None)
            elif not isinstance(said, Unknown):
                since = self._missing_since.get(_identity(node))
                if since is None or len(since) != len(numbers):
                    self._missing_since[_identity(node)] = numbers

    def _confirmed(self, node: Node, numbers: tuple[int, ...]) -> bool:
        since = self._missing_since.get(_identity(node), numbers)
        return len(since) == len(numbers) and all(then < now for then, now in zip(since, numbers, strict=True))

    def _resolution(self, node: Node, first: Resolution | str, numbers: tuple[int, ...]) -> Resolution:
        if isinstance(first, Found | Unknown):
            return first
        reason = first.reason if isinstance(first, Absent) else "no server of the data centers is this node"
        return Absent(reason) if self._confirmed(node, numbers) else Unknown(f"{reason}; waiting for a second list")


@asynccontextmanager
async def open_provider(cluster: ClusterContext, config: IonosConfig, cloud: Cloud, /) -> AsyncGenerator[Ionos, None]:
    """Opens the provider for one cluster. Sends no request yet.

    Raises:
        TerminalProviderError: The hub is not allowed to contact the API's host or to read the credential, or caFile has
            no PEM certificate.
    """
    account = await account_of(cluster, config)
    rules = Rules(config.wanted_lans, config.families, config.cidrs)
    async with AsyncExitStack() as stack:
        feeds = [
            await stack.enter_async_context(cloud.feed(cluster, Key(account, "datacenter", datacenter), config.refresh))
            for datacenter in config.datacenters
        ]
        pools = None
        if config.k8s_cluster_id is not None:
            key = Key(account, "k8s", config.k8s_cluster_id)
            pools = await stack.enter_async_context(cloud.feed(cluster, key, config.refresh))
        yield Ionos(feeds, pools, rules, cluster.hub.clock.now)


async def account_of(cluster: ClusterContext | AccountContext | CloudContext, config: AccountConfig) -> Account:
    """Returns the account of a configuration.

    Raises:
        TerminalProviderError: As :func:`open_provider`.
    """
    cluster.hub.check_api_host(config.api_host, DEFAULT_HOST)
    ca = ""
    if config.ca_file is not None:
        content = await cluster.read_file(config.ca_file, limit=MAX_CA)
        ca = content.decode("ascii", "ignore")  # bundles name their certificates in comments, also with other letters
        await cluster.hub.run_sync(_check_ca, config.ca_file, ca)
    secret = config.token or config.password
    assert secret is not None  # noqa: S101 - the configuration has one of them
    cluster.hub.secret(secret.ref())  # a reference that is not allowed fails now rather than at the first request
    return Account(
        url=config.api_url,
        secret=tuple(sorted(secret.ref().items())),
        username=config.username or "",
        contract=config.contract_number,
        ca=ca,
    )


def _check_ca(path: str, pem: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)  # raises for an empty text too
    except (ssl.SSLError, ValueError) as error:
        raise TerminalProviderError(
            f"caFile {path}: contains no certificate in PEM format (-----BEGIN CERTIFICATE-----)"
        ) from error


def _identity(node: Node) -> _Identity:
    return node.name, node.provider_id, node.system_uuid
