"""The hub cluster's own networks, which no remote cluster may publish addresses of.

An endpoint inside its Service CIDRs would send a Service's traffic to another Service; one at an API server's or the
hub's own address, to those. Learned as far as the hub may list them: ServiceCIDR objects (networking.k8s.io/v1,
Kubernetes 1.33), and the slices of the Service ``default/kubernetes``, which API servers write themselves. Without, the
hub goes on and relies on allowedCIDRs and deniedCIDRs.

Not learned: Pod CIDRs. They stand in Nodes, which the hub has no right to read in its own cluster, and many network
plugins keep them elsewhere.
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
"""Seconds between looks: Service CIDRs are added by hand, once in a cluster's life, and API servers replaced rarely."""
TIMEOUT = 5.0


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
    """Networks of one address each; what is no address, such as a name, denies nothing."""
    return {ip_network(found) for found in map(parse, texts) if not isinstance(found, Rejected)}


class _Question(NamedTuple):
    """What is asked of the API.

    Attributes:
        what: is asked for, for messages.
        right: that a 403 says is missing, for messages.
        namespace: that it is read in; "" = of the whole cluster.
        reason: why an address inside is not published, as of :class:`Rejected`.
        read: body -> networks.
    """

    what: str
    path: str
    params: Mapping[str, str]
    right: str
    namespace: str
    reason: str
    read: Callable[[bytes], set[Network]]


QUESTIONS = (
    _Question(
        "Service CIDRs",
        "/apis/networking.k8s.io/v1/servicecidrs",
        {},
        "servicecidrs",
        "",
        "in a Service CIDR of the hub cluster",
        _service_cidrs,
    ),
    _Question(
        "API servers' addresses",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        # A registry may fill that Service as well: what the hub published is not what is asked for.
        {"labelSelector": f"{LABEL_SERVICE_NAME}=kubernetes,{LABEL_MANAGED_BY}!={MANAGED_BY}"},
        "endpointslices in the namespace default",
        "default",
        "the hub cluster's API server",
        _endpoints,
    ),
)


class OwnNetworks:
    """Learns them.

    Args:
        on_change: called when ``networks`` changed.
        pod_ips: the addresses of the hub's own Pod, separated by commas; "" = not known.
        namespaces: the only ones in which anything is read; empty = all.

    Attributes:
        networks: what is known, with the reason not to publish what is inside; kept through every failure.
        asked: set once the API has answered everything, be it that there is none.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_change: Callable[[], None],
        pod_ips: str = "",
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self.asked = asyncio.Event()
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._namespaces = namespaces
        self._known: dict[str, set[Network]] = {"the hub's own Pod": _hosts(pod_ips.split(","))}
        """By the reason not to publish them."""
        self._refused: dict[str, str] = {}
        self.networks = self._sorted()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        backoff = Backoff(cap=PERIOD)
        while True:
            answered = await self.look()
            await self._clock.sleep(PERIOD if answered else backoff.next(self._clock.now()))

    async def look(self) -> bool:
        """Ask everything once; False = something was not answered."""
        answered = all(await asyncio.gather(*map(self._ask, QUESTIONS)))
        found = self._sorted()
        if found != self.networks:
            self.networks = found
            self._on_change()
        if answered:
            self.asked.set()
        return answered

    async def _ask(self, question: _Question) -> bool:
        what, found, reason = question.what, set[Network](), "the API has none"
        try:
            if question.namespace and self._namespaces and question.namespace not in self._namespaces:
                reason = f"{question.namespace} is no --target-namespace"
            else:
                body = await self._client.request("GET", question.path, params=question.params, timeout=TIMEOUT)
                found = question.read(body)
        except NotFound:
            pass
        except Forbidden:
            reason = f"the hub's account may not list {question.right}"
        except (HubError, *UNDECODABLE) as error:
            log.debug("hub cluster: its %s cannot be learned: %s", what, error)
            return False
        if not found:  # a cluster has some of each: none is no reason to forget
            if reason != self._refused.get(what):
                log.info("hub cluster: its %s cannot be learned: %s", what, reason)
            self._refused[what] = reason
            return True
        self._refused.pop(what, None)
        if found != self._known.get(question.reason, set()):
            self._known[question.reason] = found
            log.info("hub cluster: its %s are %s", what, ", ".join(map(_written, sorted(found, key=_order))))
        return True

    def _sorted(self) -> tuple[OwnNetwork, ...]:
        known = ((network, reason) for reason, networks in self._known.items() for network in networks)
        return tuple(sorted(known, key=lambda each: (_order(each[0]), each[1])))


def _order(network: Network) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _written(network: Network) -> str:
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)
