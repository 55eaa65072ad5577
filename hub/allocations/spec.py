"""An allocation (NetIPAllocation) as a value: what its object in the API says, with the hub's defaults applied.

The wire types decode the object; :func:`read` turns one into an :class:`Allocation`. What the old controller's schema
admits is never an error here: an entry that is not an IPv4 address becomes an invalid entry, and the others work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, Final, Literal

import msgspec

from hub import durations
from hub.errors import one_line
from hub.model import ANNOTATION_PAUSED, LOCAL

GROUP: Final = "netinfra.darkbrains.com"
VERSION: Final = "v1alpha1"
LABEL_READY: Final = "ip.ready"
"""Label of a node that was verified to hold an address of a live claim; its value is "true"."""
FINALIZER: Final = f"{GROUP}/release"
SHOWN: Final = 64
"""Most characters of an invalid entry that are shown."""
DAEMON_SET_HOLD: Final = 300.0
"""Default ``cordonedHold`` where the workload is a DaemonSet, whose Pods a drain leaves alone."""
NEVER: Final = float("inf")

Eviction = Literal["None", "Evict", "ForceDelete"]
EVICTIONS: Final[tuple[Eviction, ...]] = ("None", "Evict", "ForceDelete")


# --- the object in the API -----------------------------------------------------------------------------


class Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Base of the parts of the object; names as in the API, defaults are left out."""


class WorkloadRef(Wire, frozen=True):
    """``spec.workloadRef``, or ``spec.deploymentRef`` whose kind is Deployment."""

    name: str
    kind: str = "Deployment"
    namespace: str = "default"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Cloud(Wire, frozen=True):
    """``spec.cloud``."""

    provider: str = ""
    account: str = ""
    region: str = ""
    zones: tuple[str, ...] | None = None


class Spec(Wire, frozen=True):
    """``spec``."""

    cloud: Cloud = Cloud()
    reserved_ips: tuple[str, ...] | None = msgspec.field(name="reservedIPs", default=None)
    reconcile_interval: int | None = None
    workload_ref: WorkloadRef | None = None
    deployment_ref: WorkloadRef | None = None
    strategy: Any = None
    node_selector: dict[str, str] | None = None
    cluster: str = ""
    release_policy: str = ""
    eviction: str = ""
    min_attached: int | None = None
    address_label: str = ""
    cordoned_hold: str = ""
    not_ready_grace: str = ""


class Move(Wire, frozen=True):
    """``status.addresses[].move``: the record that is written before an act.

    Attributes:
        id: the same for all steps of one move.
        from_: the node that loses the address, "" if it was free; ``other-cluster/node`` if it is not of the pool.
        to: the node that gets it; "" while it is not chosen.
        tried: nodes that could not take it.
        before_to: what ``to`` had in the place of the address; in phase Restoring, what ``from_`` gets back.
        operation: an operation of the cloud that is not known to have ended.
        started: when the phase began.
    """

    id: str
    cause: str
    phase: str
    from_: str = msgspec.field(name="from", default="")
    to: str = ""
    attempts: int = 0
    tried: tuple[str, ...] = ()
    before_to: str = ""
    operation: str = ""
    started: str = ""


class Entry(Wire, frozen=True):
    """``status.addresses[]``: one address.

    Attributes:
        node: the node that was last known to hold it; "" if none.
        instance: the cloud's id of that node's instance, by which the address is recognised after the Node is gone.
        last_node: the node that held it before.
        since: when ``state`` was entered.
        before: what ``instance`` had in the place of the address; "" if nothing is known.
        moves: when its last moves began, for the budget; without attachments of free addresses.
    """

    address: str
    state: str = ""
    reason: str = ""
    message: str = ""
    node: str = ""
    instance: str = ""
    last_node: str = ""
    since: str = ""
    before: str = ""
    moves: tuple[str, ...] = ()
    move: Move | None = None


class Condition(Wire, frozen=True, omit_defaults=False):
    """``status.conditions[]``."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Status(Wire, frozen=True):
    """``status``."""

    observed_generation: int = 0
    writer: str = ""
    cluster: str = ""
    account: str = ""
    reserved: int = msgspec.field(default=-1)
    attached: int = -1
    pending: int = -1
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Entry, ...] = ()


class Meta(Wire, frozen=True):
    """``metadata``, as far as it is used."""

    name: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None


class NetIPAllocation(Wire, frozen=True):
    """The object."""

    metadata: Meta
    spec: Spec = Spec()
    status: Status | None = None


# --- the value -----------------------------------------------------------------------------------------


class Bad(msgspec.Struct, frozen=True):
    """An entry of ``reservedIPs`` that cannot be used: its printable text, and why."""

    text: str
    why: str


class Defaults(msgspec.Struct, frozen=True):
    """What applies where an allocation says nothing, and the ceiling of its ``eviction``. Seconds."""

    not_ready_grace: float = 30.0
    cordoned_hold: float | None = None
    """None = never, but :data:`DAEMON_SET_HOLD` for DaemonSets."""
    eviction: Eviction = "Evict"


class Allocation(msgspec.Struct, frozen=True):
    """One allocation.

    Attributes:
        addresses: valid entries in list order, each once.
        bad: the other entries.
        twice: entries that are written more than once.
        order: (creationTimestamp, UID); the smallest has the oldest claim.
        interval: seconds after which its addresses are described again at the latest.
        selector: labels that a node must have; empty = all nodes but control plane.
        cordoned_hold: seconds that a cordoned node with the workload keeps an address; :data:`NEVER` = for ever.
        min_attached: how many addresses must be attached for Ready; by default all entries, so a bad one prevents it.
        entries: the stored status of each address, by address.
        strategy: whether ``spec.strategy`` is set, which has no effect.
    """

    name: str
    uid: str
    order: tuple[str, str]
    addresses: tuple[str, ...]
    bad: tuple[Bad, ...] = ()
    twice: tuple[str, ...] = ()
    cluster: str = LOCAL
    provider: str = ""
    account: str = ""
    region: str = ""
    zones: frozenset[str] = frozenset()
    selector: tuple[tuple[str, str], ...] = ()
    workload: WorkloadRef | None = None
    interval: float = 30.0
    release: bool = False
    eviction: Eviction = "Evict"
    min_attached: int = 0
    address_label: str = ""
    cordoned_hold: float = NEVER
    not_ready_grace: float = 30.0
    deleting: bool = False
    finalizer: bool = False
    paused: bool = False
    strategy: bool = False
    generation: int = 0
    resource_version: str = ""
    created: str = ""
    status: Status = Status()

    @property
    def entries(self) -> dict[str, Entry]:
        """The stored status of each address; nodes are named as ``cluster`` asks for, if that has changed since."""
        old = self.status.cluster
        if not old or old == self.cluster:
            return {entry.address: entry for entry in self.status.addresses}
        return {entry.address: _renamed(entry, old, self.cluster) for entry in self.status.addresses}


def read(found: NetIPAllocation, defaults: Defaults = Defaults()) -> Allocation:  # noqa: B008 - frozen
    """The value of an object."""
    spec, meta = found.spec, found.metadata
    good, bad, twice = _addresses(spec.reserved_ips or ())
    ref = spec.workload_ref or spec.deployment_ref
    if ref is not None and not ref.namespace:
        ref = msgspec.structs.replace(ref, namespace="default")
    every = len(good) + len(bad)
    ceiling = EVICTIONS.index(defaults.eviction)
    asked = EVICTIONS.index(spec.eviction) if spec.eviction in EVICTIONS else min(ceiling, 1)
    hold = _seconds(spec.cordoned_hold)
    if hold is None:
        hold = defaults.cordoned_hold
    if hold is None:
        hold = DAEMON_SET_HOLD if ref is not None and ref.kind == "DaemonSet" else NEVER
    grace = _seconds(spec.not_ready_grace)
    created = meta.creation_timestamp or ""
    return Allocation(
        name=meta.name,
        uid=meta.uid,
        order=(created, meta.uid),
        addresses=good,
        bad=bad,
        twice=twice,
        cluster=spec.cluster or LOCAL,
        provider=spec.cloud.provider,
        account=spec.cloud.account,
        region=spec.cloud.region,
        zones=frozenset(spec.cloud.zones or ()),
        selector=tuple(sorted((spec.node_selector or {}).items())),
        workload=ref,
        interval=float(spec.reconcile_interval or 30),
        release=spec.release_policy == "Detach",
        eviction=EVICTIONS[min(asked, ceiling)],
        min_attached=every if spec.min_attached is None else min(spec.min_attached, every),
        address_label=spec.address_label,
        cordoned_hold=hold,
        not_ready_grace=defaults.not_ready_grace if grace is None else grace,
        deleting=bool(meta.deletion_timestamp),
        finalizer=FINALIZER in (meta.finalizers or ()),
        paused=ANNOTATION_PAUSED in (meta.annotations or {}),
        strategy=spec.strategy is not None,
        generation=meta.generation,
        resource_version=meta.resource_version,
        created=created,
        status=found.status or Status(),
    )


def _renamed(entry: Entry, old: str, new: str) -> Entry:
    """An entry with the names of nodes that were written when its allocation asked for another cluster."""

    def name(node: str) -> str:
        cluster, slash, rest = node.partition("/")
        if not slash:
            return node and f"{old}/{node}"
        return rest if cluster == new else node

    move = entry.move
    if move is not None:
        tried = tuple(name(node) for node in move.tried)
        move = msgspec.structs.replace(move, from_=name(move.from_), to=name(move.to), tried=tried)
    return msgspec.structs.replace(entry, node=name(entry.node), last_node=name(entry.last_node), move=move)


def _addresses(texts: Sequence[str]) -> tuple[tuple[str, ...], tuple[Bad, ...], tuple[str, ...]]:
    good: dict[str, None] = {}
    bad: dict[str, Bad] = {}
    twice: dict[str, None] = {}
    for text in texts:
        why = _fault(text)
        if why:
            shown = one_line(text, SHOWN)
            bad.setdefault(shown, Bad(shown, why))
        elif text in good:
            twice[text] = None
        else:
            good[text] = None
    return tuple(good), tuple(bad.values()), tuple(twice)


def _fault(text: str) -> str:
    """Why an entry is not an IPv4 address in its usual form; "" if it is one."""
    if len(text) > SHOWN:
        return "is too long for an IPv4 address"
    try:
        return "" if str(IPv4Address(text)) == text else "is not written in the usual form"
    except ValueError:
        return "is not an IPv4 address such as 34.123.45.67"


def _seconds(text: str) -> float | None:
    """A duration of the spec; None if it is not set or not valid. ``never`` is :data:`NEVER`."""
    if not text:
        return None
    if text == "never":
        return NEVER
    try:
        return durations.parse(text)
    except ValueError:
        return None


def stamp(seconds: float) -> str:
    """Unix time as Kubernetes writes it."""
    return _written(int(seconds))


@lru_cache(256)
def _written(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(4096)
def moment(text: str) -> float:
    """The Unix time of a timestamp in a status; 0.0 if it is not one, as somebody may have edited it."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return found.timestamp() if found.tzinfo is not None else 0.0
