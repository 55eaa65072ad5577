"""The servers behind Nodes, for the cloud controller."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hub.plugin import HubContext, Node, together
from hub.plugin.clouds import Absent, CloudNode, Instance, InstanceAnswer, NodeAddress, Unknown
from hub_provider_ionos import match
from hub_provider_ionos.calls import Calls
from hub_provider_ionos.feed import Feed
from hub_provider_ionos.inventory import Fleet, Server
from hub_provider_ionos.reserved import STOPPED, region_of

PROVIDER_ID: Final = re.compile(r"ionos:/{2,3}(?P<id>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})")


class IonosInstances:
    """Implements :class:`hub.plugin.clouds.Instances`.

    Args:
        calls: Sends the requests about data centers.
        feeds: The list of servers of each data center, shared with the clusters of the hub.
        hub: The hub's services.
        private: Whether addresses on public LANs are left out.
    """

    def __init__(
        self,
        calls: Calls,
        feeds: Mapping[str, Callable[[], Feed[Fleet]]],
        hub: HubContext,
        *,
        private: bool = False,
    ) -> None:
        self._calls = calls
        self._feeds = feeds
        self._hub = hub
        self._private = private
        self._regions: dict[str, str] = {}

    async def instances(self, nodes: Sequence[CloudNode], /) -> Mapping[str, InstanceAnswer]:
        """Finds the servers in new lists of all data centers: a server that is in none of them is Absent."""
        asked = self._hub.clock.now()
        lists = await together(*(feed().since(asked) for feed in self._feeds.values()))
        fleets = dict(zip(self._feeds, (listing.value for listing in lists), strict=True))
        for datacenter in fleets:
            if datacenter not in self._regions:
                self._regions[datacenter] = region_of(await self._calls.location(datacenter))
        return {node.name: self._answer(node, fleets) for node in nodes}

    def _answer(self, node: CloudNode, fleets: Mapping[str, Fleet]) -> InstanceAnswer:
        known = Node(node.name, provider_id=node.provider_id, system_uuid=node.system_uuid)
        found = match.servers_of(known, tuple(fleets.values()))
        if not found:
            return Absent("no server of the data centers is this node")
        if len(found) > 1:
            return Unknown(f"ambiguous: servers {' and '.join(sorted(server.id for server in found)[:3])} match")
        server = found[0]
        if server.problem:
            return Unknown(f"server {server.id}: {server.problem}")
        datacenter = next(name for name, fleet in fleets.items() if server.id in fleet.servers)
        return Instance(
            node.provider_id or f"ionos://{server.id}",
            "stopped" if server.vm_state in STOPPED - {"CRASHED"} else "running",
            self._addresses(server, fleets[datacenter]),
            server.zone,
            self._regions[datacenter],
            server.instance_type,
        )

    def _addresses(self, server: Server, fleet: Fleet) -> tuple[NodeAddress, ...]:
        found = ((lan in fleet.public, ip) for lan, ip in own_addresses(server, fleet))
        return tuple(
            NodeAddress("ExternalIP" if public else "InternalIP", ip)
            for public, ip in found
            if not (public and self._private)
        )


def own_addresses(server: Server, fleet: Fleet) -> list[tuple[int, str]]:
    """LAN and address: those of failover groups belong to several servers and are left out; private LANs come first."""
    return [
        (nic.lan, ip)
        for nic in sorted(server.nics, key=lambda nic: nic.lan in fleet.public)
        for ip in nic.ips
        if (nic.lan, ip) not in fleet.failover and (nic.lan, ip) not in fleet.holders
    ]
