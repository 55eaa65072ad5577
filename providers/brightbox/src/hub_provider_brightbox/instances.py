"""Machines behind Nodes. A machine is found by the id in the provider ID, else by the Node's name, which is its id."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final

from hub.plugin import HubContext, together
from hub.plugin.clouds import Absent, CloudNode, Instance, InstanceAnswer, NodeAddress, Unknown
from hub_provider_brightbox.client import Client
from hub_provider_brightbox.shapes import Object, as_object, as_objects

PROVIDER_ID: Final = re.compile(r"brightbox://(?P<id>srv-[0-9a-z]{5,32})")
SERVER: Final = re.compile(r"srv-[0-9a-z]{5,32}")
FEW: Final = 5
"""Up to so many machines are asked for singly."""
APART: Final = 1.0
"""Seconds from the beginning of a list to that of the next one, in which all clusters that ask wait for the next one.

Clusters of an account that connect at the same time ask at the same time ever after.
"""
PRIVATE: Final = ip_network("10.0.0.0/8")
_RUNNING: Final = {"active": "running", "creating": "starting", "inactive": "stopped", "unavailable": "stopped"}
_GONE: Final = ("deleted", "failed")


class BrightboxInstances:
    """Implements :class:`hub.plugin.clouds.Instances`.

    Args:
        client: The account.
        hub: The hub's services.
        internal: Whether private addresses are also stated as InternalIP.
    """

    def __init__(self, client: Client, hub: HubContext, *, internal: bool) -> None:
        self._client = client
        self._hub = hub
        self._internal = internal
        self._next: asyncio.Task[dict[str, Object]] | None = None
        """The list that has not begun."""
        self._waiting: dict[asyncio.Task[dict[str, Object]], int] = {}
        self._begin_at = -math.inf

    async def instances(self, nodes: Sequence[CloudNode], /) -> Mapping[str, InstanceAnswer]:
        """Asks for few machines singly, and lists all for many."""
        wanted = {node.name: found for node in nodes if (found := _id(node))}
        ids = sorted(set(wanted.values()))
        if len(ids) <= FEW:
            servers = dict(zip(ids, await together(*map(self._server, ids)), strict=True))
        else:
            listed = await self._listed()
            servers = {id_: listed.get(id_) for id_ in ids}
        return {
            node.name: self._answer(wanted[node.name], servers[wanted[node.name]])
            if node.name in wanted
            else Unknown("it has no provider ID, and its name is not the id of a server")
            for node in nodes
        }

    async def _listed(self) -> dict[str, Object]:
        """All servers by id, from a list that begins after the call; calls that wait for its beginning share it.

        A list that is under way is not shared: a server that was made in the meantime would seem to be absent.
        """
        if (task := self._next) is None:
            task = self._next = asyncio.create_task(self._list(), name="list of servers")
        self._waiting[task] = self._waiting.get(task, 0) + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                await self._end(task)

    async def _list(self) -> dict[str, Object]:
        clock = self._hub.clock
        await clock.sleep(max(0.0, self._begin_at - clock.now()))
        self._next, self._begin_at = None, clock.now() + APART
        return {str(server["id"]): server for server in await self._client.list("servers")}

    async def _end(self, task: asyncio.Task[dict[str, Object]]) -> None:
        """End a list that no call waits for."""
        del self._waiting[task]
        if self._next is task:
            self._next = None
        task.cancel()
        await asyncio.wait({task})

    async def _server(self, id_: str) -> Object | None:
        try:
            return await self._client.get(f"servers/{id_}")
        except KeyError:
            return None

    def _answer(self, id_: str, found: Object | None) -> InstanceAnswer:
        if found is None:
            return Absent(f"server {id_} does not exist")
        status = str(found.get("status"))
        if status in _GONE:
            return Absent(f"server {id_} is {status}")
        state: Any = _RUNNING.get(status, "leaving" if status == "deleting" else "")
        if not state:
            return Unknown(f"server {id_} has the unknown status {status[:40]}")
        zone = _handle(found.get("zone"))
        region = zone.rpartition("-")[0]
        addresses = tuple(self._addresses(found))
        return Instance(f"brightbox://{id_}", state, addresses, zone, region, _handle(found.get("server_type")))

    def _addresses(self, server: Object) -> list[NodeAddress]:
        found: list[NodeAddress] = []
        if hostname := _text(server.get("hostname")):
            found.append(NodeAddress("Hostname", hostname))
        if fqdn := _text(server.get("fqdn")):
            found.append(NodeAddress("ExternalDNS", fqdn))
        for interface in as_objects(server.get("interfaces")):
            for key in ("ipv4_address", "ipv6_address"):
                if address := _ip(interface.get(key)):
                    private = self._internal and ip_address(address) in PRIVATE
                    found.append(NodeAddress("InternalIP" if private else "ExternalIP", address))
        for cloud_ip in as_objects(server.get("cloud_ips")):
            if address := _ip(cloud_ip.get("public_ip") or cloud_ip.get("public_ipv4")):
                found.append(NodeAddress("ExternalIP", address))
            if fqdn := _text(cloud_ip.get("fqdn")):
                found.append(NodeAddress("ExternalDNS", fqdn))
        return found


def _id(node: CloudNode) -> str:
    found = PROVIDER_ID.fullmatch(node.provider_id)
    if found is not None:
        return found["id"]
    return node.name if not node.provider_id and SERVER.fullmatch(node.name) else ""


def _handle(value: object) -> str:
    return _text(as_object(value).get("handle"))


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 253 and value.isprintable() else ""


def _ip(value: object) -> str:
    try:
        return str(ip_address(value)) if isinstance(value, str) else ""
    except ValueError:
        return ""
