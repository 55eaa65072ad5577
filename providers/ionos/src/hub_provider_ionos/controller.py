"""The capability of a cloud controller: the servers behind Nodes, and the load balancers of Services."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from hub.plugin.clouds import CloudContext, CloudType
from hub_provider_ionos.addresses import REFRESH
from hub_provider_ionos.balancers import ANNOTATIONS, PREFIX, IonosBalancers
from hub_provider_ionos.calls import Calls
from hub_provider_ionos.cloud import Cloud
from hub_provider_ionos.config import ControllerConfig
from hub_provider_ionos.feed import Feed
from hub_provider_ionos.instances import PROVIDER_ID, IonosInstances
from hub_provider_ionos.inventory import Fleet
from hub_provider_ionos.listing import Key
from hub_provider_ionos.provider import account_of

SETTLE: Final = (10.0, 30.0)
"""Seconds after the last change of nodes until balancers follow, and at most: each rule is a request of its own."""


@dataclass(frozen=True, slots=True)
class IonosController:
    """An open cloud."""

    instances: IonosInstances
    balancers: IonosBalancers


class _User:
    """Uses the lists: one for each time that a cloud is opened."""

    def __init__(self, context: CloudContext) -> None:
        self.changed = context.changed


@asynccontextmanager
async def open_controller(
    context: CloudContext, config: ControllerConfig, cloud: Cloud, /
) -> AsyncGenerator[IonosController, None]:
    """Opens the cloud. Sends no request yet.

    Raises:
        TerminalProviderError: As :func:`hub_provider_ionos.open_provider`.
    """
    login, user, hub = await account_of(context, config), _User(context), context.hub
    async with AsyncExitStack() as stack:
        feeds: dict[str, Callable[[], Feed[Fleet]]] = {}
        for datacenter in config.datacenters:
            key = Key(login, "datacenter", datacenter)
            feeds[datacenter] = await stack.enter_async_context(cloud.feed(user, key, REFRESH))
        api = cloud.api(login)
        yield IonosController(
            IonosInstances(Calls(hub, api), feeds, hub, private=config.private),
            IonosBalancers(api, feeds, hub, config),
        )


TYPE: Final = CloudType(
    open_controller, PROVIDER_ID, ControllerConfig, prefix=PREFIX, annotations=ANNOTATIONS, settle=SETTLE
)
