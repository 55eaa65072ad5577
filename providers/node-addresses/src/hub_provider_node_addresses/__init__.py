"""Takes addresses from the Node object, for networks where the hub cluster reaches node addresses directly.

This is the smallest complete provider: it sends no requests, so it cannot fail, and an answer depends only on the
Node's addresses. A remote kubelet may report any address; the hub checks every address against the cluster's
``allowedCIDRs``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Annotated, Final, Literal

import msgspec

from hub.plugin import Absent, ClusterContext, Found, Node, NodeProviderType, ProviderType, Resolution, hookimpl

AddressType = Literal["InternalIP", "ExternalIP", "Hostname"]
"""Kubernetes' address types that can be IP addresses: some kubelets report one as the host name."""
Family = Literal["IPv4", "IPv6"]

MAX_PER_FAMILY: Final = 50
"""The most addresses of one family in an answer: the hub accepts 100 per node, a kubelet may report any number."""


class NodeAddressesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``provider.config`` of the provider ``node-addresses``.

    Attributes:
        types: Address types of the Node, in order of preference.
        families: IP families to take, in order of preference.
    """

    types: Annotated[
        tuple[AddressType, ...], msgspec.Meta(min_length=1, description="Address types in order of preference.")
    ] = ("InternalIP",)
    families: Annotated[tuple[Family, ...], msgspec.Meta(min_length=1, description="IP families to take.")] = (
        "IPv4",
        "IPv6",
    )


class NodeAddresses:
    """Resolves a Node to the addresses it reports.

    An answer has all addresses of the configured types. For each family, the hub publishes the first one inside the
    cluster's ``allowedCIDRs``.
    """

    def __init__(self, config: NodeAddressesConfig) -> None:
        self._types = config.types
        self._families = config.families
        self._reason = f"the Node has no {' or '.join(config.types)} address of {' or '.join(config.families)}"

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """Returns one answer per node, by the node's name. Never raises."""
        return {node.name: self._resolve(node) for node in nodes}

    def _resolve(self, node: Node) -> Resolution:
        found: dict[Family, dict[str, None]] = {family: {} for family in self._families}
        for wanted in self._types:
            for entry in node.addresses:
                family = _family(entry.address) if entry.type == wanted else None
                if family in found and len(found[family]) < MAX_PER_FAMILY:
                    found[family][entry.address] = None
        addresses = tuple(address for family in self._families for address in found[family])
        return Found(addresses) if addresses else Absent(self._reason + self._instead(node))

    def _instead(self, node: Node) -> str:
        """Returns ", but " and up to three reported entries, all host names or malformed; "" if there are none."""
        texts = [repr(entry.address[:64]) for entry in node.addresses if entry.type in self._types and entry.address]
        return f", but {', '.join(texts[:3])}" if texts else ""


@asynccontextmanager
async def open_provider(
    _cluster: ClusterContext, config: NodeAddressesConfig, _shared: None, /
) -> AsyncGenerator[NodeAddresses, None]:
    """Opens the provider for one cluster; there is nothing to close."""
    yield NodeAddresses(config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield NodeProviderType(
        name="node-addresses", open=open_provider, config=NodeAddressesConfig, reads=frozenset({"addresses"})
    )


def _family(address: str) -> Family | None:
    """Returns the family of a reported address; None for a host name or anything malformed."""
    try:
        return "IPv4" if ip_address(address).version == 4 else "IPv6"
    except ValueError:
        return None
