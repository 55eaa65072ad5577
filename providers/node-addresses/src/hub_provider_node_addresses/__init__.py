"""Addresses from the Node object itself: for networks where the hub cluster reaches node addresses directly.

The smallest complete provider: nothing is asked, so nothing can fail, and an answer depends on the Node's
addresses alone. A remote kubelet may report anything here; the hub checks every address against the
cluster's ``allowedCIDRs``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Annotated, Final, Literal

import msgspec

from hub.plugin import Absent, ClusterContext, Found, Node, NodeProviderType, ProviderType, Resolution, hookimpl

Family = Literal["IPv4", "IPv6"]

MAX_PER_FAMILY: Final = 50
"""Addresses of one family in an answer: the hub takes at most 100 for a node, and a kubelet may report any number."""


class NodeAddressesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``provider.config`` of node-addresses.

    Attributes:
        types: address types of the Node in order of preference.
        families: IP families to take, in order of preference.
    """

    types: Annotated[
        tuple[str, ...], msgspec.Meta(min_length=1, description="Address types in order of preference.")
    ] = ("InternalIP",)
    families: Annotated[tuple[Family, ...], msgspec.Meta(min_length=1, description="IP families to take.")] = (
        "IPv4",
        "IPv6",
    )


class NodeAddresses:
    """Resolves a Node to the addresses it reports.

    An answer has all addresses of the wanted types: the hub publishes the first of each family that the cluster allows.
    """

    def __init__(self, config: NodeAddressesConfig) -> None:
        self._types = config.types
        self._families = config.families
        self._reason = f"the Node has no {' or '.join(config.types)} address of {' or '.join(config.families)}"

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """One answer per node; never raises."""
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
        """What the Node reports where an address should be; host names and malformed ones."""
        texts = [repr(entry.address[:64]) for entry in node.addresses if entry.type in self._types and entry.address]
        return f", but {', '.join(texts[:3])}" if texts else ""


@asynccontextmanager
async def open_provider(
    _cluster: ClusterContext, config: NodeAddressesConfig, _shared: None, /
) -> AsyncGenerator[NodeAddresses, None]:
    """Open for one cluster; there is nothing to close."""
    yield NodeAddresses(config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the type."""
    yield NodeProviderType(
        name="node-addresses", open=open_provider, config=NodeAddressesConfig, reads=frozenset({"addresses"})
    )


def _family(address: str) -> Family | None:
    """The family of an address as reported; None for a host name or anything malformed."""
    try:
        return "IPv4" if ip_address(address).version == 4 else "IPv6"
    except ValueError:
        return None
