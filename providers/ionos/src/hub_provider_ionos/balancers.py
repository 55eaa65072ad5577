"""The load balancers of Services: one network load balancer and, if it is public, one IP block for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from hub.plugin import HubContext, TransientProviderError, together
from hub.plugin.clouds import (
    Annotation,
    Balancer,
    BalancerNode,
    CloudConflict,
    Done,
    Ingress,
    Planned,
    Record,
    Step,
)
from hub_provider_ionos import course, inventory, steps
from hub_provider_ionos.api import Api, Call
from hub_provider_ionos.calls import Calls, request_id
from hub_provider_ionos.config import ControllerConfig, as_uuid
from hub_provider_ionos.failures import Missing, RetryLater
from hub_provider_ionos.feed import Feed
from hub_provider_ionos.inventory import Fleet
from hub_provider_ionos.network import KINDS, TITLES, Asked, Block, Network, NetworkBalancer, name_of, read, state_of
from hub_provider_ionos.permit import Permit

PREFIX: Final = "endpointslice-hub/ionos-"
KEPT: Final = {"DONE": 40.0, "FAILED": 300.0}
"""Seconds for which an ended request counts: until lists show what it made, and until what has failed is made again.

The hub applies answers for 30 s; a request that it applies must still be known.
"""
SENDING: Final = 60.0
"""Seconds for which a change may be sent; the hub cancels it earlier."""
METHODS: Final = {
    "ip_block": ("IPBlocksApi", "ipblocks"),
    "load_balancer": ("NetworkLoadBalancersApi", "datacenters_networkloadbalancers"),
    "forwarding_rule": ("NetworkLoadBalancersApi", "datacenters_networkloadbalancers_forwardingrules"),
}
"""Kind of object -> the SDK's class, and what its methods begin with."""


class IonosBalancers:
    """Implements :class:`hub.plugin.clouds.Balancers`.

    Args:
        api: The account's client.
        feeds: The list of servers of each data center.
        hub: The hub's services.
        config: The data centers, and the LANs of Services that name none.
    """

    def __init__(
        self, api: Api, feeds: Mapping[str, Callable[[], Feed[Fleet]]], hub: HubContext, config: ControllerConfig
    ) -> None:
        self._api = api
        self._calls = Calls(hub, api)
        self._feeds = feeds
        self._hub = hub
        self._lans = (config.lans.listener, config.lans.target) if config.lans is not None else None
        self._locations: dict[str, str] = {}
        self._nodes: frozenset[BalancerNode] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._asked: dict[str, tuple[Asked, float]] = {}
        """The requests of this process that count, and when they ended or were made."""

    # --- reading ---------------------------------------------------------------------------------------

    async def observe(self, wanted: Collection[Balancer], /) -> Network:
        """The load balancers of all data centers, the IP blocks, the servers of nodes, and how far requests are.

        The servers are listed again if the nodes have changed; else their last list counts. Requests are asked for
        before the lists, so that a list shows what an ended request has made.
        """
        with _translated():
            await self._follow()
            datacenters = [*self._feeds]
            fleets = await self._fleets(frozenset(node for want in wanted for node in want.nodes))
            blocks = await self._list(Block, "the IP blocks", "ip_block", (), 1)
            found: dict[str, NetworkBalancer] = {}
            for datacenter in datacenters:
                if datacenter not in self._locations:
                    self._locations[datacenter] = await self._calls.location(datacenter)
                about = f"the network load balancers of data center {datacenter}"
                listed = await self._list(
                    NetworkBalancer, about, "load_balancer", (datacenter,), 5, datacenter=datacenter
                )
                found |= listed
        failed = frozenset(id_ for id_, each in found.items() if state_of(each) == "FAILED")
        before, self._failed = self._failed, failed
        return Network(
            found,
            blocks,
            {datacenter: self._locations[datacenter] for datacenter in datacenters},
            fleets,
            self._lans,
            {id_: asked for id_, (asked, _) in self._asked.items()},
            failed & before,
        )

    async def _follow(self) -> None:
        """Asks how far the requests are that have not ended, and forgets those that do not count any more."""
        for id_, (asked, _) in list(self._asked.items()):
            if asked.active:
                try:
                    status, message = await self._calls.progress(id_)
                except Missing:
                    status, message = "DONE", ""
                self._asked[id_] = Asked(asked.step, status, message), self._hub.clock.now()
        now = self._hub.clock.now()
        self._asked = {
            id_: (asked, at)
            for id_, (asked, at) in self._asked.items()
            if asked.active or now - at < KEPT[asked.status]
        }

    async def _fleets(self, nodes: frozenset[BalancerNode]) -> dict[str, Fleet]:
        asked, changed = self._hub.clock.now(), nodes != self._nodes
        feeds = {datacenter: feed() for datacenter, feed in self._feeds.items()}
        lists = await together(*(feed.since(asked) if changed else feed.current() for feed in feeds.values()))
        self._nodes = nodes
        return {datacenter: listing.value for datacenter, listing in zip(feeds, lists, strict=True)}

    async def _list(
        self, kind: type[Any], about: str, name: str, path: tuple[str, ...], depth: int, **more: str
    ) -> Any:
        sdk, method = METHODS[name]
        call = Call(about, sdk, f"{method}_get", path, {"depth": depth})
        listed = await self._api.whole_list(call, inventory.uuid_of, lambda id_, item: read(kind, id_, item, **more))
        return {each.id: each for each in listed}

    # --- pure ------------------------------------------------------------------------------------------

    def names(self, seen: Network, /) -> Mapping[str, tuple[str, ...]]:
        """See :class:`hub.plugin.clouds.Balancers`."""
        found: dict[str, tuple[str, ...]] = {}
        for kind in KINDS:
            for id_, each in sorted(seen.of(kind).items()):
                if name := name_of(each):
                    found[name] = (*found.get(name, ()), f"{TITLES[kind]} {id_}")
        return found

    def plan(self, want: Balancer | None, seen: Network, record: Record, /) -> Sequence[Planned]:
        """See :mod:`hub_provider_ionos.course`."""
        return course.plan(want, seen, record)

    def after(self, seen: Network, step: Step, done: Done, /) -> Network:
        """See :mod:`hub_provider_ionos.steps`."""
        return steps.after(seen, step, done)

    def found(self, seen: Network, record: Record, /) -> Mapping[str, str]:
        """See :mod:`hub_provider_ionos.course`."""
        return course.found(seen, record)

    def ingress(self, want: Balancer, seen: Network, record: Record, /) -> tuple[Ingress, ...]:
        """See :mod:`hub_provider_ionos.course`."""
        return course.ingress(want, seen, record)

    # --- writing ---------------------------------------------------------------------------------------

    async def perform(self, step: Step, /) -> Done:
        """Sends the step's request. Its answer only names the request, which :meth:`observe` follows."""
        request = step.request
        path = tuple(as_uuid(id_) for id_ in request["path"])
        if not all(path):
            raise CloudConflict(f"{step.summary}: an object that it needs does not exist yet")
        permit = Permit(self._hub.clock.now, SENDING)
        sdk, method = METHODS[request["kind"]]
        body = {"properties": request["body"]} if request["verb"] == "post" else request["body"]
        arguments = path if request["verb"] == "delete" else (*path, body)
        call = Call(
            step.summary, sdk, f"{method}_{request['verb']}", arguments, {}, write=True, permit=permit, cloud=True
        )
        try:
            with _translated():
                id_ = await self._api.ask(call, request_id)
        except asyncio.CancelledError:
            permit.withdraw()
            raise
        except Missing as error:
            if request["verb"] == "delete":
                return Done()
            raise CloudConflict(f"{error}: it has gone") from error
        self._asked[id_] = Asked(step), self._hub.clock.now()
        return Done({}, id_)


@contextmanager
def _translated() -> Generator[None, None, None]:
    """A rate limit concerns all requests of the account, not only one kind of object."""
    try:
        yield
    except RetryLater as error:
        raise TransientProviderError(str(error), error.retry_after) from error


ANNOTATIONS: Final = (
    Annotation(
        "algorithm",
        "choice",
        "How connections are spread.",
        ("ROUND_ROBIN", "LEAST_CONNECTION", "RANDOM", "SOURCE_IP"),
        "ROUND_ROBIN; SOURCE_IP with sessionAffinity ClientIP",
    ),
    Annotation("proxy-protocol", "choice", "PROXY protocol to the nodes.", ("none", "v1", "v2", "v2ssl"), "none"),
    Annotation("internal", "flag", "Whether it has no public address.", (), "false"),
    Annotation("datacenter", "text", "The data center's UUID.", (), "the first one of the configuration"),
    Annotation("listener-lan", "number", "The LAN that connections come from.", (), "lans.listener"),
    Annotation("target-lan", "number", "The LAN that the nodes are reached on.", (), "lans.target"),
    Annotation("check-interval", "number", "Milliseconds between two checks of a node.", (), "2000"),
    Annotation("client-timeout", "number", "Milliseconds that a client may be silent.", (), "50000"),
    Annotation("connect-timeout", "number", "Milliseconds until a node has accepted a connection.", (), "5000"),
    Annotation("target-timeout", "number", "Milliseconds that a node may be silent.", (), "50000"),
    Annotation("retries", "number", "Further tries to reach a node.", (), "3"),
    Annotation(
        "node-selector",
        "labels",
        "Only Nodes with all these labels, written KEY=VALUE, take the traffic.",
        default="every Node",
        key="cloud.ionos.com/node-selector",
    ),
)
