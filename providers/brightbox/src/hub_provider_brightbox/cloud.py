"""The declaration of the cloud, and its load balancers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from hub.plugin import TransientProviderError, together
from hub.plugin.clouds import (
    Annotation,
    Balancer,
    CloudConflict,
    CloudContext,
    CloudType,
    Done,
    Ingress,
    Planned,
    Record,
    Setting,
    Step,
    Uncertain,
)
from hub_provider_brightbox import plan as planning
from hub_provider_brightbox.client import DEFAULT_URL, Client
from hub_provider_brightbox.instances import PROVIDER_ID, BrightboxInstances
from hub_provider_brightbox.inventory import KINDS, PATHS, Inventory, certified, clean, inventory, is_secure
from hub_provider_brightbox.shapes import Object
from hub_provider_brightbox.steps import TITLES, after

DNS: Final = 5.0
"""Seconds that DNS may take to answer about a domain."""
PREFIX: Final = "service.beta.kubernetes.io/brightbox-load-balancer-"


class BrightboxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """``cloud.provider.config``.

    Attributes:
        client: Reference to the id of the API client, ``cli-…``.
        secret: Reference to its secret.
        url: The API's address; another one than Brightbox' own needs ``--allow-api-host``.
        internal_ips: Whether addresses in 10.0.0.0/8 are stated as InternalIP; the original states them as ExternalIP.
    """

    client: dict[str, str]
    secret: dict[str, str]
    url: str = DEFAULT_URL
    internal_ips: bool = msgspec.field(name="internalIPs", default=False)


class BrightboxBalancers:
    """Implements :class:`hub.plugin.clouds.Balancers`.

    Args:
        client: The account.
        context: The hub's services, for DNS.
    """

    def __init__(self, client: Client, context: CloudContext) -> None:
        self._client = client
        self._context = context
        self._before: Inventory | None = None

    async def observe(self, wanted: Collection[Balancer], /) -> Inventory:
        """Four lists at once; the details of wanted balancers with TLS; the names that their certificates shall have.

        Lists of another account than before are an error: an API client belongs to one account for ever.
        """
        lists = await together(*(self._client.list(PATHS[kind]) for kind in KINDS))
        found = inventory(dict(zip(KINDS, lists, strict=True)), self._before)
        before = self._before.account if self._before is not None else ""
        if before and found.account not in ("", before):
            text = f"{self._client.url}: WrongAccount: the lists are of account {found.account}, not of {before}"
            raise TransientProviderError(f"{text}; check the API client")
        self._before = found
        named = {name: want for want in wanted for name in (want.name, *want.former_names)}
        balancers = [each for each in found.of("load_balancer").values() if clean(each.get("name")) in named]
        details = await together(*(self._detail(each) for each in balancers if is_secure(each)))
        found = found.changed("load_balancer", lambda objects: objects.update({each["id"]: each for each in details}))
        known = {name for each in details for name in certified(each) or ()}
        asked = {str(name) for want in wanted for name in _list(want.settings.get("ssl-domains"))} - known
        return msgspec.structs.replace(found, names=await self._lead(sorted(asked)))

    async def _detail(self, each: Object) -> Object:
        try:
            return await self._client.get(f"load_balancers/{each['id']}")
        except KeyError:
            return each  # it has gone since

    async def _lead(self, domains: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Domain -> the addresses it leads to; one that DNS says nothing about is left out, and waits."""

        async def look(name: str) -> tuple[str, ...]:
            try:
                async with asyncio.timeout(DNS):
                    return await self._context.lookup(name)
            except (TransientProviderError, TimeoutError):
                return ()

        return dict(zip(domains, await together(*map(look, domains)), strict=True))

    def names(self, seen: Inventory, /) -> Mapping[str, tuple[str, ...]]:
        """See :class:`hub.plugin.clouds.Balancers`."""
        found: dict[str, tuple[str, ...]] = {}
        for kind in KINDS:
            for id_, each in sorted(seen.of(kind).items()):
                if not each.get("default") and (name := clean(each.get("name"))):
                    found[name] = (*found.get(name, ()), f"{TITLES[kind]} {id_}")
        return found

    def plan(self, want: Balancer | None, seen: Inventory, record: Record, /) -> Sequence[Planned]:
        """See :mod:`hub_provider_brightbox.plan`."""
        return planning.plan(want, seen, record)

    async def perform(self, step: Step, /) -> Done:
        """Sends the step's request."""
        request, body = step.request, step.request.get("body")
        try:
            answer = await self._client.write(request["method"], request["path"], body or None)
        except KeyError as error:
            if request["method"] == "DELETE":
                return Done()
            raise CloudConflict(f"{error.args[0]}: it has gone") from error
        if step.creates and not answer.get("id"):
            raise Uncertain(f"{self._client.url}: {step.summary}: the answer does not name what was made")
        return Done({step.creates: str(answer["id"])} if step.creates else {}, answer)

    def after(self, seen: Inventory, step: Step, done: Done, /) -> Inventory:
        """See :mod:`hub_provider_brightbox.steps`."""
        return after(seen, step, done)

    def found(self, seen: Inventory, record: Record, /) -> Mapping[str, str]:
        """See :mod:`hub_provider_brightbox.plan`."""
        return planning.found(seen, record)

    def ingress(self, want: Balancer, seen: Inventory, record: Record, /) -> tuple[Ingress, ...]:
        """See :mod:`hub_provider_brightbox.plan`."""
        del want
        return planning.ingress(seen, record)


def _list(value: Setting | None) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


@dataclass(frozen=True, slots=True)
class Brightbox:
    """An open account."""

    instances: BrightboxInstances
    balancers: BrightboxBalancers


@asynccontextmanager
async def open_cloud(context: CloudContext, config: BrightboxConfig, _: None, /) -> AsyncGenerator[Brightbox, None]:
    """Opens an account. Sends no request yet.

    Raises:
        TerminalProviderError: The hub's flags do not allow the host or a reference.
    """
    hub = context.hub
    client = Client(hub, config.url, hub.secret(config.client), hub.secret(config.secret))
    instances = BrightboxInstances(client, hub, internal=config.internal_ips)
    yield Brightbox(instances, BrightboxBalancers(client, context))


_AWS_INTERVAL: Final = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval"
ANNOTATIONS: Final = (
    Annotation(
        "policy", "choice", "How connections are spread.", ("least-connections", "round-robin", "source-address")
    ),
    Annotation("listener-protocol", "choice", "The protocol of all listeners.", ("tcp", "http", "https"), "http"),
    Annotation(
        "listener-proxy-protocol", "choice", "PROXY protocol to the nodes.", ("v1", "v2", "v2-ssl", "v2-ssl-cn"), "none"
    ),
    Annotation("listener-idle-timeout", "number", "Milliseconds until an idle connection is closed.", (), "50000"),
    Annotation("healthcheck-interval", "number", "Milliseconds between two checks.", (), "5000", "", (_AWS_INTERVAL,)),
    Annotation("healthcheck-timeout", "number", "Milliseconds that a check may take.", (), "5000"),
    Annotation("healthcheck-healthy-threshold", "number", "Good checks until a node gets traffic.", (), "3"),
    Annotation("healthcheck-unhealthy-threshold", "number", "Bad checks until a node gets none.", (), "3"),
    Annotation("healthcheck-protocol", "choice", "The protocol of the checks.", ("tcp", "http"), "as the listeners"),
    Annotation("healthcheck-request", "text", "The path of http checks.", ("/[^?%#\\s]*",), "/healthz"),
    Annotation("ssl-ports", "list", "Ports with TLS, by number or name; empty or * = 443.", (), "443", empty=True),
    Annotation("ssl-domains", "list", "Names of the certificate besides the Cloud IP's own.", (), "none", empty=True),
    Annotation("cloudip-allocations", "list", "The id of the Cloud IP.", (), "spec.loadBalancerIP, else a new one"),
)

TYPE: Final = CloudType(
    open_cloud,
    PROVIDER_ID,
    BrightboxConfig,
    prefix=PREFIX,
    annotations=ANNOTATIONS,
)
