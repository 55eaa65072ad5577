"""The hub cluster's Service CIDRs, which no remote cluster may publish addresses of.

An endpoint inside them would send a Service's traffic to another Service. Read from the API where it has
ServiceCIDR objects (networking.k8s.io/v1, Kubernetes 1.33) and the hub may list them; without, the hub
goes on and relies on allowedCIDRs and deniedCIDRs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_network

import msgspec

from hub.aio.backoff import Backoff
from hub.aio.clock import Clock
from hub.errors import Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.registry.spec import Network

log = logging.getLogger(__name__)

PATH = "/apis/networking.k8s.io/v1/servicecidrs"
PERIOD = 600.0
"""Seconds between looks: Service CIDRs are added by hand, once in a cluster's life."""
TIMEOUT = 5.0


class _Spec(msgspec.Struct):
    cidrs: tuple[str, ...] | None = None


class _Item(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _List(msgspec.Struct):
    items: tuple[_Item, ...] | None = None


_decode = msgspec.json.Decoder(_List).decode


class ServiceCidrs:
    """Learns them.

    Args:
        on_change: called when ``networks`` changed.

    Attributes:
        networks: what is known; kept through every failure.
        asked: set once the API has given an answer, be it that there is none.
    """

    def __init__(self, client: Client, clock: Clock, on_change: Callable[[], None]) -> None:
        self.networks: tuple[Network, ...] = ()
        self.asked = asyncio.Event()
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._refused = ""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        backoff = Backoff(cap=PERIOD)
        while True:
            answered = await self.look()
            await self._clock.sleep(PERIOD if answered else backoff.next(self._clock.now()))

    async def look(self) -> bool:
        """Look once; False = there was no answer."""
        try:
            found = _networks(await self._client.request("GET", PATH, timeout=TIMEOUT))
        except (Forbidden, NotFound) as error:
            reason = (
                "the API has none" if isinstance(error, NotFound) else "the hub's account may not list servicecidrs"
            )
            if reason != self._refused:
                log.info("hub cluster: its Service CIDRs are not known: %s", reason)
            self._refused = reason
        except (HubError, msgspec.DecodeError, ValueError) as error:
            log.debug("hub cluster: its Service CIDRs are not known: %s", error)
            return False
        else:
            self._refused = ""
            if found != self.networks:
                self.networks = found
                log.info("hub cluster: its Service CIDRs are %s", ", ".join(map(str, found)))
                self._on_change()
        self.asked.set()
        return True


def _networks(body: bytes) -> tuple[Network, ...]:
    texts = {text for item in _decode(body).items or () for text in item.spec.cidrs or ()}
    return tuple(sorted((ip_network(text) for text in texts), key=lambda each: (each.version, each)))
