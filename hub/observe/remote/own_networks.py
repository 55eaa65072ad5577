"""Reads the hub cluster's own networks, whose addresses are never published for a remote cluster.

An endpoint inside the Service CIDRs would send traffic to another Service of the hub cluster, and an endpoint with the
address of an API server or of the hub would send it there. The sources are ServiceCIDR objects (networking.k8s.io/v1,
Kubernetes 1.33) and the slices of the Service ``default/kubernetes``, which the API servers write. If the hub may not
list them, only allowedCIDRs and deniedCIDRs protect the hub cluster.

Pod CIDRs are not read: they are in Nodes, which the hub need not read in its own cluster, and many network plugins keep
them elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_network
from typing import NamedTuple

import msgspec

from hub.decide.addresses import OwnNetwork, Rejected, parse
from hub.errors import Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.wire import UNDECODABLE
from hub.model import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, MANAGED_BY
from hub.registry.spec import Network
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

PERIOD = 600.0
"""Seconds between reads: Service CIDRs and the addresses of API servers change rarely."""
TIMEOUT = 5.0
"""Seconds for one list."""


class _Spec(msgspec.Struct):
    cidrs: tuple[str, ...] | None = None


class _ServiceCidr(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _ServiceCidrs(msgspec.Struct):
    items: tuple[_ServiceCidr, ...] | None = None


class _Endpoint(msgspec.Struct):
    addresses: tuple[str, ...] | None = None


class _Slice(msgspec.Struct):
    endpoints: tuple[_Endpoint, ...] | None = None


class _Slices(msgspec.Struct):
    items: tuple[_Slice, ...] | None = None


_decode_cidrs = msgspec.json.Decoder(_ServiceCidrs).decode
_decode_slices = msgspec.json.Decoder(_Slices).decode


def _service_cidrs(body: bytes) -> set[Network]:
    return {ip_network(text) for item in _decode_cidrs(body).items or () for text in item.spec.cidrs or ()}


def _endpoints(body: bytes) -> set[Network]:
    endpoints = (endpoint for item in _decode_slices(body).items or () for endpoint in item.endpoints or ())
    return _hosts(text for endpoint in endpoints for text in endpoint.addresses or ())


def _hosts(texts: Iterable[str]) -> set[Network]:
    """Networks of one address each; texts that are not addresses are skipped."""
    return {ip_network(found) for found in map(parse, texts) if not isinstance(found, Rejected)}


class _List(NamedTuple):
    """An API list that networks are read from.

    Attributes:
        what: name of the networks, for messages.
        right: resources that the hub's account must be allowed to list, for messages.
        namespace: namespace of the objects; "" = they have none.
        reason: why an address in these networks is not published; see :class:`Rejected`.
        read: body of the answer -> networks.
    """

    what: str
    path: str
    params: Mapping[str, str]
    right: str
    namespace: str
    reason: str
    read: Callable[[bytes], set[Network]]


LISTS = (
    _List(
        "Service CIDRs",
        "/apis/networking.k8s.io/v1/servicecidrs",
        {},
        "servicecidrs",
        "",
        "in a Service CIDR of the hub cluster",
        _service_cidrs,
    ),
    _List(
        "API servers' addresses",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        # Without the hub's own slices: this Service may also be a target.
        {"labelSelector": f"{LABEL_SERVICE_NAME}=kubernetes,{LABEL_MANAGED_BY}!={MANAGED_BY}"},
        "endpointslices in the namespace default",
        "default",
        "the hub cluster's API server",
        _endpoints,
    ),
)


class OwnNetworks:
    """The hub cluster's own networks, read again periodically.

    Args:
        on_change: called when ``networks`` changed.
        pod_ips: the addresses of the hub's own Pod, separated by commas; "" = not known.
        namespaces: the only namespaces that the hub follows, so that it may read no others; empty = all.

    Attributes:
        networks: the known networks with the reason why their addresses are not published; kept if a read fails.
        answered: set once the API has answered every list, even with 403 or 404.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_change: Callable[[], None],
        pod_ips: str = "",
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self.answered = asyncio.Event()
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._namespaces = namespaces
        self._known: dict[str, set[Network]] = {"the hub's own Pod": _hosts(pod_ips.split(","))}
        """Reason why the addresses are not published -> networks."""
        self._refused: dict[str, str] = {}
        """Name of the networks -> why they cannot be read, as last logged."""
        self.networks = self._sorted()

    async def run(self) -> None:
        """Read the networks periodically until cancelled."""
        backoff = Backoff(cap=PERIOD)
        while True:
            answered = await self.read_all()
            await self._clock.sleep(PERIOD if answered else backoff.next(self._clock.now()))

    async def read_all(self) -> bool:
        """Read all lists once; returns False if the API did not answer one of them."""
        answered = all(await asyncio.gather(*map(self._read, LISTS)))
        found = self._sorted()
        if found != self.networks:
            self.networks = found
            self._on_change()
        if answered:
            self.answered.set()
        return answered

    async def _read(self, source: _List) -> bool:
        """Read one list; returns False if the API did not answer. 403 and 404 are answers."""
        what, found, reason = source.what, set[Network](), "the API has none"
        try:
            if source.namespace and self._namespaces and source.namespace not in self._namespaces:
                reason = f"namespace {source.namespace} is not a --target-namespace"
            else:
                body = await self._client.request("GET", source.path, params=source.params, timeout=TIMEOUT)
                found = source.read(body)
        except NotFound:
            pass
        except Forbidden:
            reason = f"the hub's account may not list {source.right}"
        except (HubError, *UNDECODABLE) as error:
            log.debug("hub cluster: its %s cannot be read: %s", what, error)
            return False
        if not found:  # every cluster has such networks, so an empty list does not replace known ones
            if reason != self._refused.get(what):
                log.info("hub cluster: its %s cannot be read: %s", what, reason)
            self._refused[what] = reason
            return True
        self._refused.pop(what, None)
        if found != self._known.get(source.reason, set()):
            self._known[source.reason] = found
            log.info("hub cluster: its %s are %s", what, ", ".join(map(_written, sorted(found, key=_order))))
        return True

    def _sorted(self) -> tuple[OwnNetwork, ...]:
        known = ((network, reason) for reason, networks in self._known.items() for network in networks)
        return tuple(sorted(known, key=lambda own: (_order(own[0]), own[1])))


def _order(network: Network) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _written(network: Network) -> str:
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)
