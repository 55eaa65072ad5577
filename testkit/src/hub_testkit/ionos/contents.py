"""The objects of the fake: data centers with servers and LANs, managed Kubernetes clusters with nodes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from hub_testkit.ionos import shapes
from hub_testkit.ionos.shapes import Object

BASE: Final = "/cloudapi/v6"


@dataclass(slots=True)
class Datacenter:
    """A data center with its servers and LANs by id, as the API returns them at full depth."""

    id: str
    name: str
    location: str
    servers: dict[str, Object] = field(default_factory=dict[str, Object])
    lans: dict[str, Object] = field(default_factory=dict[str, Object])


class Contents:
    """All objects of the fake, and the address that it serves them on.

    Attributes:
        datacenters: Data centers by id.
        k8s: Cluster id -> pool id -> node id -> node.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.datacenters: dict[str, Datacenter] = {}
        self.k8s: dict[str, dict[str, dict[str, Object]]] = {}
        self._tls = tls
        self._port = 0

    @property
    def url(self) -> str:
        """The value for ``apiUrl``."""
        return f"{'http' if self._tls is None else 'https'}://{self.host}{BASE}"

    @property
    def host(self) -> str:
        """The value for ``--allow-api-host``."""
        return f"127.0.0.1:{self._port}"

    def add_datacenter(self, name: str = "dc", location: str = "de/fra", identity: str = "") -> str:
        """Adds a data center without servers and returns its id."""
        identity = identity or str(uuid4())
        self.datacenters[identity] = Datacenter(identity, name, location)
        return identity

    def add_server(
        self,
        datacenter: str,
        name: str,
        *ips: str,
        lan: int = 2,
        identity: str = "",
        zone: str = "AUTO",
        ipv6: Sequence[str] = (),
        null_ips: bool = False,
    ) -> str:
        """Adds a running server with a NIC on one LAN and returns its id.

        Args:
            datacenter: The data center's id.
            name: The server's name.
            ips: IPv4 addresses of the NIC, also those of load balancers.
            lan: The LAN's number.
            identity: The server's id; "" = a random one.
            zone: The availability zone.
            ipv6: IPv6 addresses of the NIC.
            null_ips: The NIC has ``ips: null``, like one that waits for its address.
        """
        identity = identity or str(uuid4())
        href = f"{self.url}/datacenters/{datacenter}/servers/{identity}"
        self.datacenters[datacenter].servers[identity] = shapes.server(identity, name, zone, href)
        self.add_lan(datacenter, lan)
        self.add_nic(datacenter, identity, *ips, lan=lan, ipv6=ipv6, null_ips=null_ips)
        return identity

    def add_nic(
        self, datacenter: str, server: str, *ips: str, lan: int, ipv6: Sequence[str] = (), null_ips: bool = False
    ) -> str:
        """Adds a NIC to a server and returns its id."""
        items = self.server(datacenter, server)["entities"]["nics"]["items"]
        made = shapes.nic(len(items), lan, None if null_ips else ips, ipv6)
        items.append(made)
        return str(made["id"])

    def add_lan(self, datacenter: str, lan: int, *failover: str, public: bool = False) -> None:
        """Adds a LAN if it does not exist, and sets the addresses of its failover groups if there are any."""
        lans = self.datacenters[datacenter].lans
        made = lans.setdefault(str(lan), shapes.lan(lan, public=public))
        if failover:
            made["properties"]["ipFailover"] = [{"ip": ip, "nicUuid": str(uuid4())} for ip in failover]

    def add_pool_node(self, cluster: str, name: str, private: str = "", public: str = "", pool: str = "") -> str:
        """Adds a node to a managed Kubernetes cluster and returns its id; ``pool`` "" = the first pool."""
        identity = str(uuid4())
        pools = self.k8s.setdefault(cluster, {})
        pool = pool or next(iter(pools), str(uuid4()))
        pools.setdefault(pool, {})[identity] = shapes.pool_node(identity, name, private, public)
        return identity

    def server(self, datacenter: str, server: str) -> Object:
        """Returns a server; changes to it are visible in the API."""
        return self.datacenters[datacenter].servers[server]

    def set_state(self, datacenter: str, server: str, vm_state: str) -> None:
        """Sets a server's ``vmState``: ``RUNNING``, ``SHUTOFF``, …."""
        self.server(datacenter, server)["properties"]["vmState"] = vm_state

    def remove_server(self, datacenter: str, server: str) -> None:
        """Removes a server."""
        del self.datacenters[datacenter].servers[server]
