"""What there is in the fake: data centers with servers and LANs, managed Kubernetes clusters with nodes."""

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
    """Its servers and LANs by id, as the API shows them at full depth."""

    id: str
    name: str
    location: str
    servers: dict[str, Object] = field(default_factory=dict[str, Object])
    lans: dict[str, Object] = field(default_factory=dict[str, Object])


class Contents:
    """All objects of the fake, and where they are served.

    Attributes:
        k8s: cluster -> pool -> node id -> node.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.datacenters: dict[str, Datacenter] = {}
        self.k8s: dict[str, dict[str, dict[str, Object]]] = {}
        self._tls = tls
        self._port = 0

    @property
    def url(self) -> str:
        """``apiUrl``."""
        return f"{'http' if self._tls is None else 'https'}://{self.host}{BASE}"

    @property
    def host(self) -> str:
        """For ``--allow-api-host``."""
        return f"127.0.0.1:{self._port}"

    def add_datacenter(self, name: str = "dc", location: str = "de/fra", identity: str = "") -> str:
        """A data center with no servers; its id."""
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
        """A running server with a NIC on one LAN; its id.

        ``ips`` are the NIC's; a load balancer's secondary address is one more of them. With ``null_ips`` the NIC says
        ``ips: null``, as one does that waits for its address.
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
        """One more NIC; its id."""
        items = self.server(datacenter, server)["entities"]["nics"]["items"]
        made = shapes.nic(len(items), lan, None if null_ips else ips, ipv6)
        items.append(made)
        return str(made["id"])

    def add_lan(self, datacenter: str, lan: int, *failover: str, public: bool = False) -> None:
        """A LAN, with the addresses of its failover groups."""
        lans = self.datacenters[datacenter].lans
        made = lans.setdefault(str(lan), shapes.lan(lan, public=public))
        if failover:
            made["properties"]["ipFailover"] = [{"ip": ip, "nicUuid": str(uuid4())} for ip in failover]

    def add_pool_node(self, cluster: str, name: str, private: str = "", public: str = "", pool: str = "") -> str:
        """A node of a managed Kubernetes cluster; its id."""
        identity = str(uuid4())
        pools = self.k8s.setdefault(cluster, {})
        pool = pool or next(iter(pools), str(uuid4()))
        pools.setdefault(pool, {})[identity] = shapes.pool_node(identity, name, private, public)
        return identity

    def server(self, datacenter: str, server: str) -> Object:
        """A server as it is kept; may be changed."""
        return self.datacenters[datacenter].servers[server]

    def set_state(self, datacenter: str, server: str, vm_state: str) -> None:
        """``RUNNING``, ``SHUTOFF``, …."""
        self.server(datacenter, server)["properties"]["vmState"] = vm_state

    def remove_server(self, datacenter: str, server: str) -> None:
        """It is gone."""
        del self.datacenters[datacenter].servers[server]
