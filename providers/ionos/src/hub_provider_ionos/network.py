"""What an account has for load balancers: network load balancers with their rules, IP blocks, and running requests.

The structs are the parts of the API's objects that the hub reads, under the API's names; their values are plain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from hub.plugin.clouds import Step
from hub_provider_ionos.inventory import Fleet, Malformed

Kind = Literal["ip_block", "load_balancer"]
KINDS: Final[tuple[Kind, ...]] = ("load_balancer", "ip_block")
TITLES: Final[Mapping[str, str]] = {
    "load_balancer": "network load balancer",
    "ip_block": "IP block",
    "forwarding_rule": "forwarding rule",
}
OURS: Final = re.compile(r"tcp-(?P<port>[0-9]{1,5})")
"""Names of the rules that the hub makes; rules with other names are left alone."""
UUID: Final = r"\A[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z"
T = TypeVar("T")
_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an object of the API."""


class Meta(_Part, frozen=True):
    """``metadata``."""

    state: _Text = ""
    created_date: _Text = ""


class RuleFields(_Part, frozen=True):
    """``properties`` of a forwarding rule; the hub compares the plain values of all but the address."""

    name: _Text | None = None
    algorithm: _Text = ""
    protocol: _Text = ""
    listener_ip: _Text = ""
    listener_port: int = 0
    health_check: dict[str, Any] | None = None
    targets: tuple[dict[str, Any], ...] | None = None


class Rule(_Part, frozen=True):
    """A forwarding rule."""

    id: Annotated[str, msgspec.Meta(pattern=UUID)]
    properties: RuleFields
    metadata: Meta | None = None

    @property
    def port(self) -> int:
        """The port in the name of a rule of the hub; 0 for any other rule."""
        found = OURS.fullmatch(self.properties.name or "")
        return int(found["port"]) if found else 0


class _Rules(_Part, frozen=True):
    items: tuple[Rule, ...]


class _Entities(_Part, frozen=True):
    forwardingrules: _Rules


class BalancerFields(_Part, frozen=True):
    """``properties`` of a network load balancer."""

    listener_lan: int
    target_lan: int
    name: _Text | None = None
    ips: tuple[_Text, ...] | None = None


class NetworkBalancer(_Part, frozen=True):
    """A network load balancer.

    Attributes:
        datacenter: its data center; the answer does not have it.
    """

    id: _Text
    properties: BalancerFields
    entities: _Entities
    metadata: Meta | None = None
    datacenter: str = ""

    @property
    def ips(self) -> tuple[str, ...]:
        """Its addresses on the listener LAN."""
        return self.properties.ips or ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its forwarding rules."""
        return self.entities.forwardingrules.items

    def with_rules(self, rules: Iterable[Rule]) -> NetworkBalancer:
        """It with other rules."""
        return msgspec.structs.replace(self, entities=_Entities(_Rules(tuple(rules))))

    @property
    def busy(self) -> str:
        """What of it is being changed; "" if nothing is."""
        if state_of(self) == "BUSY":
            return f"network load balancer {self.id}"
        return next((f"forwarding rule {rule.id}" for rule in self.rules if state_of(rule) == "BUSY"), "")


class Consumer(_Part, frozen=True):
    """What has an address of a block."""

    ip: _Text = ""
    nic_id: _Text | None = None
    server_id: _Text | None = None
    k8s_node_pool_uuid: _Text | None = None

    def __str__(self) -> str:
        pool, server, nic = self.k8s_node_pool_uuid, self.server_id, self.nic_id
        return f"node pool {pool}" if pool else f"server {server}" if server else f"NIC {nic or 'without an id'}"


class BlockFields(_Part, frozen=True):
    """``properties`` of an IP block."""

    location: _Text
    size: int
    name: _Text | None = None
    ips: tuple[_Text, ...] | None = None
    ip_consumers: tuple[Consumer, ...] | None = None


class Block(_Part, frozen=True):
    """An IP block."""

    id: _Text
    properties: BlockFields
    metadata: Meta | None = None

    @property
    def ips(self) -> tuple[str, ...]:
        """Its addresses."""
        return self.properties.ips or ()

    @property
    def busy(self) -> str:
        """As :attr:`NetworkBalancer.busy`."""
        return f"IP block {self.id}" if state_of(self) == "BUSY" else ""


Object = NetworkBalancer | Block


class Asked(msgspec.Struct, frozen=True):
    """A request that the API has accepted.

    Attributes:
        step: what was asked for.
        status: QUEUED, RUNNING, DONE or FAILED.
        message: why it has failed.
    """

    step: Step
    status: str = "QUEUED"
    message: str = ""

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ("DONE", "FAILED")


class Network(msgspec.Struct, frozen=True):
    """One observation.

    Attributes:
        balancers: id -> network load balancer, of all data centers.
        blocks: id -> IP block, of the whole account.
        locations: data center -> its location; the first data center is the default one.
        fleets: data center -> its servers.
        lans: the LANs of load balancers that name none: listener and target; None = none is configured.
        requests: id -> request, for the hub's own requests of the last minutes, oldest first.
        failed: ids of load balancers that were FAILED in the observation before, too.
    """

    balancers: Mapping[str, NetworkBalancer] = {}
    blocks: Mapping[str, Block] = {}
    locations: Mapping[str, str] = {}
    fleets: Mapping[str, Fleet] = {}
    lans: tuple[int, int] | None = None
    requests: Mapping[str, Asked] = {}
    failed: frozenset[str] = frozenset()

    def of(self, kind: Kind) -> Mapping[str, Object]:
        """The objects of a kind by id."""
        return self.balancers if kind == "load_balancer" else self.blocks

    def asked(self, names: Collection[str]) -> list[tuple[str, Asked]]:
        """The requests for balancers of some names, with their ids, oldest first."""
        return [(id_, asked) for id_, asked in self.requests.items() if asked.step.request["of"] in names]


def state_of(each: Object | Rule) -> str:
    """The state of an object; "" if the API does not give one."""
    return each.metadata.state if each.metadata is not None else ""


def name_of(each: Object) -> str:
    """The name of an object without outer blanks."""
    return (each.properties.name or "").strip()


def created(each: Object) -> str:
    """When an object was created, for ordering."""
    return each.metadata.created_date if each.metadata is not None else ""


def read(kind: type[T], identity: str, item: object, **more: object) -> T:
    """Reads an object of a list.

    Args:
        kind: The struct.
        identity: Its id, checked and in lower case.
        item: The answer's item.
        more: Fields that the item does not have.

    Raises:
        Malformed: The item is not such an object, or was not expanded.
    """
    try:
        found = msgspec.convert({**item, "id": identity, **more}, kind)  # type: ignore[dict-item]
    except (msgspec.ValidationError, TypeError) as error:
        raise Malformed(f"{identity}: {error}"[:200]) from error
    return found
