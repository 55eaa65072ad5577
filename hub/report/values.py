"""The documents that ``/api/v1`` returns and ``hub status -o json`` prints.

Scripts depend on these names. Times are RFC 3339 in whole seconds, or "". All values are immutable.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

API_VERSION: Final = "endpointslice-hub/v1"
"""``apiVersion`` of every document."""

NOT_PROBED: Final = "not probed"
"""The verdict on an address that this process does not probe."""

Role = Literal["leader", "standby", "starting", "stopping", "observer"]
"""Role of a replica: ``leader`` writes, ``standby`` waits for the Lease, ``observer`` is ``hub status`` without a
running hub."""


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Replica(_Value, frozen=True):
    """The process that answers.

    Attributes:
        identity: identity of this process, as in its Lease.
        leader: identity of the replica that writes, if known; "" = none. With several shards, that of the first one.
        shards: shards whose Services this process writes; with one shard, 0 is all of them.
        shard_count: number of shards (``--shards``).
        synced: whether the hub cluster's Services and slices are known.
        error: why the Services and slices are not current, or which permissions this process lacks in the hub cluster.
    """

    version: str = ""
    owner: str = ""
    identity: str = ""
    role: Role = "observer"
    leader: str = ""
    dry_run: bool = False
    synced: bool = True
    error: str = ""
    shards: tuple[int, ...] = ()
    shard_count: int = 1


class RegistryWithheld(_Value, frozen=True):
    """A mass removal from the registry that waits for an approval."""

    reason: str
    hash: str
    entries: tuple[str, ...]
    endpoints: int
    total: int
    message: str
    approve: str


class RegistryState(_Value, frozen=True):
    """The registry.

    Attributes:
        rejected: why the present file is rejected and the last good one stays in force; "" if the file is in force.
        problems: mistakes in entries; these entries are frozen.
    """

    withheld: RegistryWithheld | None = None
    rejected: str = ""
    problems: tuple[str, ...] = ()


class Cluster(_Value, frozen=True):
    """State of a cluster.

    Attributes:
        mode: the registry's ``state``, or ``broken``.
        state: state of the connection; "" if this process does not follow the cluster.
        since: when ``state`` last changed.
        nodes: number of Nodes; null if this process does not follow them.
        error: the last error; "" if there is none.
    """

    name: str
    mode: str = "active"
    state: str = ""
    since: str | None = None
    nodes: int | None = None
    error: str = ""


class Source(_Value, frozen=True):
    """Published endpoints of one cluster in a Service; ``unknown`` says why the source is unknown."""

    cluster: str
    ready: int = 0
    total: int = 0
    unknown: str | None = None


class Held(_Value, frozen=True):
    """A removal that the guard withholds, of one source and family.

    Attributes:
        reason: the kind of the removal, which is also the Event's reason.
        approve: the command that approves the removal.
    """

    cluster: str
    family: str
    reason: str
    hash: str
    addresses: tuple[str, ...]
    since: str
    message: str
    approve: str


class Noted(_Value, frozen=True):
    """A finding."""

    reason: str
    message: str


class Checked(_Value, frozen=True):
    """A health check.

    Attributes:
        verdict: whether this process probes the addresses; the results are the conditions of the addresses.
    """

    check: str
    verdict: Literal["probed", "not probed"]


class Service(_Value, frozen=True):
    """State of a Service.

    Attributes:
        name: ``namespace/name``.
        status: why the hub does not decide about the Service; "" if it does.
        ready: number of ready endpoints.
        total: number of published endpoints.
        unhealthy: number of endpoints published as not ready because their probe fails.
        draining: number of endpoints published as terminating.
        changed: when this process last wrote the Service's slices; null = not since the start of the process.
        problem: why the last write failed; "" if it succeeded.
    """

    name: str
    status: str = ""
    paused: bool = False
    ready: int = 0
    total: int = 0
    unhealthy: int = 0
    draining: int = 0
    changed: str | None = None
    problem: str = ""
    sources: tuple[Source, ...] = ()
    withheld: tuple[Held, ...] = ()
    findings: tuple[Noted, ...] = ()
    checks: tuple[Checked, ...] = ()


class ReservedAddress(_Value, frozen=True):
    """A reserved address of an allocation.

    Attributes:
        node: the node that has it, or had it at the last answer; "" if none.
        since: when the state was entered.
        cause: why it leaves its node, or "".
        to: the node that it goes to, or would go to; "" if none.
        waits_until: until when it waits; "" if time alone does not end the wait.
        hash: identifies the withheld moves that this one is part of; "" if it is not withheld.
        approve: the command that approves them.
        why_not: node -> why it cannot take the address.
    """

    address: str
    state: str
    reason: str = ""
    message: str = ""
    node: str = ""
    last_node: str = ""
    since: str = ""
    cause: str = ""
    to: str = ""
    waits_until: str = ""
    hash: str = ""
    approve: str = ""
    why_not: dict[str, str] = {}


class Allocation(_Value, frozen=True):
    """A NetIPAllocation.

    Attributes:
        ready: status of the condition Ready: True, False or Unknown; "" before the first status.
    """

    name: str
    cluster: str
    account: str = ""
    provider: str = ""
    ready: str = ""
    reason: str = ""
    message: str = ""
    reserved: int = 0
    attached: int = 0
    paused: bool = False
    addresses: tuple[ReservedAddress, ...] = ()


class CloudAccount(_Value, frozen=True):
    """An account of ``allocations.clouds``.

    Attributes:
        state: pending, ready, degraded, or broken if its entry in the registry is.
        error: the last error; "" if there is none.
        frozen: whether nothing is tried until its configuration or its credential changes.
        described: when the last complete answer about its addresses was asked for; "" = never, and in a Status.
        calls: number of calls of the cloud's API since the start; 0 in a Status.
    """

    name: str
    provider: str
    clusters: tuple[str, ...]
    state: str = "pending"
    error: str = ""
    frozen: bool = False
    described: str = ""
    calls: int = 0


class Allocations(_Value, frozen=True):
    """All allocations; the answer to ``GET /api/v1/allocations``.

    Attributes:
        mode: observe, enforce, or off if the registry has no ``allocations:``.
        trouble: why no allocation is served; "" if they are.
    """

    mode: str = "off"
    trouble: str = ""
    accounts: tuple[CloudAccount, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    api_version: str = API_VERSION
    kind: str = "Allocations"


class CloudFinding(_Value, frozen=True):
    """What an operator should know about a Node or a balancer."""

    reason: str
    message: str


class CloudNode(_Value, frozen=True):
    """A Node of a cluster whose cloud controller the hub is.

    Attributes:
        state: ready, working, waiting, failing, withheld or foreign.
        since: since when, RFC 3339.
        message: why it is not ready, or what is being changed.
        instance: its machine: running, starting, stopped, leaving, absent or unknown; "" before the first answer.
        changes: the writes that come next, in order.
    """

    name: str
    state: str
    since: str = ""
    message: str = ""
    provider_id: str = ""
    instance: str = ""
    changes: tuple[str, ...] = ()
    findings: tuple[CloudFinding, ...] = ()


class CloudBalancer(_Value, frozen=True):
    """A Service of type LoadBalancer, and what the cloud has for it.

    Attributes:
        service: ``namespace/name``.
        state: ready, working, waiting, failing, withheld or foreign.
        since: since when, RFC 3339.
        message: why it is not ready.
        ids: kind -> id of the objects in the cloud.
        ingress: where it can be reached.
        steps: what comes next, in order.
    """

    service: str
    state: str
    since: str = ""
    message: str = ""
    ids: dict[str, str] = {}
    ingress: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    findings: tuple[CloudFinding, ...] = ()


class ClusterCloud(_Value, frozen=True):
    """A cluster whose cloud controller the hub is.

    Attributes:
        mode: manage or observe.
        duty: held, elsewhere (another cloud controller has the Lease), or waiting.
        reason: why nothing is written now, such as OtherCloudController or ClusterNotReady; "" if something may be.
        message: the same in words.
        problem: why its Nodes or Services are not current; "" if they are.
        error: the last error of the cloud; "" if there is none.
        since: since when the duty is as it is, RFC 3339.
        node_states: state -> number of Nodes.
        node_since: state -> since when the first of its Nodes has it, RFC 3339.
        nodes: in a Status only the first 20 that are neither ready nor foreign.
        leftovers: objects in the cloud that no Service needs.
        approve: the command that approves withheld deletions of Nodes; "" if none is withheld.
    """

    cluster: str
    provider: str
    cluster_name: str
    mode: str
    duty: str
    holder: str = ""
    reason: str = ""
    message: str = ""
    problem: str = ""
    error: str = ""
    since: str = ""
    node_states: dict[str, int] = {}
    node_since: dict[str, str] = {}
    nodes: tuple[CloudNode, ...] = ()
    balancers: tuple[CloudBalancer, ...] = ()
    leftovers: tuple[str, ...] = ()
    approve: str = ""


class Clouds(_Value, frozen=True):
    """All clusters with a cloud controller; the answer to ``GET /api/v1/clouds``."""

    clusters: tuple[ClusterCloud, ...] = ()
    api_version: str = API_VERSION
    kind: str = "Clouds"


class Status(_Value, frozen=True):
    """The state of the hub at one moment; the answer to ``GET /api/v1/status``.

    Attributes:
        allocations: without ``whyNot``, ``described`` and ``calls``; null if the registry has no ``allocations:``.
        clouds: with only the first ``nodes`` that are not ready; null if no cluster has ``cloud:``.
    """

    hub: Replica = Replica()
    registry: RegistryState = RegistryState()
    clusters: tuple[Cluster, ...] = ()
    services: tuple[Service, ...] = ()
    allocations: Allocations | None = None
    clouds: tuple[ClusterCloud, ...] | None = None
    api_version: str = API_VERSION
    kind: str = "Status"


class Step(_Value, frozen=True):
    """One step of an explanation, as ``hub why`` prints it."""

    stage: str
    where: str
    outcome: str
    why: str = ""


class Address(_Value, frozen=True):
    """An address of a Service with its explanation.

    Attributes:
        state: ``ready``, ``not ready``, ``unhealthy``, ``draining``, or ``not published``.
        cluster: the source cluster.
    """

    address: str
    state: str
    cluster: str
    steps: tuple[Step, ...] = ()


class ServiceDetail(_Value, frozen=True):
    """One Service with explanations; the answer to ``GET /api/v1/services/{namespace}/{name}``.

    Attributes:
        steps: the explanation of the Service itself.
        addresses: a part of all addresses; in the whole list, addresses that need attention come first.
        offset: index of the first of these addresses.
        number: number of all addresses, published or desired.
    """

    service: Service
    steps: tuple[Step, ...] = ()
    addresses: tuple[Address, ...] = ()
    offset: int = 0
    number: int = 0
    api_version: str = API_VERSION
    kind: str = "ServiceDetail"


class Resolved(_Value, frozen=True):
    """A provider's answer about a node.

    Attributes:
        reason: why there is no address.
    """

    state: Literal["found", "absent", "unknown"]
    addresses: tuple[str, ...] = ()
    reason: str = ""

    @property
    def text(self) -> str:
        """The answer on one line."""
        if self.state == "found":
            return ", ".join(self.addresses) or "found, no address"
        return f"{self.state}: {self.reason}"


class Refused(_Value, frozen=True):
    """An address of a node that may not be published."""

    address: str
    reason: str


class NodeState(_Value, frozen=True):
    """State of a node.

    Attributes:
        reason: why the node is not published, in one word; "" if it is published.
        message: the reason as a sentence.
        resolution: the provider's answer; null if there is none (yet).
        verdict: healthy, unhealthy, not known yet, or several of them; "not probed" if this process does not probe.
    """

    name: str
    eligible: bool
    reason: str = ""
    message: str = ""
    resolution: Resolved | None = None
    addresses: tuple[str, ...] = ()
    rejected: tuple[Refused, ...] = ()
    verdict: str = NOT_PROBED


class SourceDetail(_Value, frozen=True):
    """A cluster's nodes with one provider and one node policy."""

    cluster: str
    provider: str
    services: tuple[str, ...] = ()
    unknown: str | None = None
    nodes: tuple[NodeState, ...] = ()


class ClusterDetail(_Value, frozen=True):
    """One cluster with its nodes; the answer to ``GET /api/v1/clusters/{name}``."""

    cluster: Cluster
    sources: tuple[SourceDetail, ...] = ()
    api_version: str = API_VERSION
    kind: str = "ClusterDetail"


class HistoryEndpoint(_Value, frozen=True):
    """An endpoint in the history; ``node`` is "" if it has no node."""

    address: str
    node: str = ""


class HistoryEntry(_Value, frozen=True):
    """One event in the history of a Service.

    Attributes:
        at: when it happened.
        service: ``namespace/name``.
        what: added, removed, moved, draining, restored, withheld, returned, released, approved, failed over, …
        why: the reason in words.
        cluster: the source cluster; "" if the event is about the whole Service.
        endpoints: some of the endpoints.
        count: number of endpoints.
        hash: hash of the withheld removal.
    """

    at: str
    service: str
    what: str
    why: str
    cluster: str = ""
    family: str = ""
    endpoints: tuple[HistoryEndpoint, ...] = ()
    count: int = 0
    hash: str = ""


class History(_Value, frozen=True):
    """What happened to one Service or to all, newest last; the answer to ``GET /api/v1/history``.

    Attributes:
        entries: the newest events.
        number: number of all events that are kept.
        problem: why the history is not stored, so that it ends with the process; "" if it is.
    """

    entries: tuple[HistoryEntry, ...] = ()
    number: int = 0
    problem: str = ""
    api_version: str = API_VERSION
    kind: str = "History"


class Why(_Value, frozen=True):
    """The explanation of an address, a node or a Service; the answer to ``GET /api/v1/why?subject=…``.

    Attributes:
        subject: an address, the name of a node, or ``namespace/name`` of a Service, as in the request.
        is_: kind of the subject: address, node or Service.
        known: whether a cluster or a slice has the subject, or the history names it.
        steps: the decisions, in the order of the stages.
        unknown: unknown sources, as far as the subject may depend on them.
        hint: the known name closest to an unknown subject; "" if there is none.
        cluster: the cluster whose cloud controller explains the subject; "" if the whole hub does.
    """

    subject: str
    is_: Literal["address", "node", "Service"] = msgspec.field(name="is")
    known: bool = True
    steps: tuple[Step, ...] = ()
    unknown: tuple[str, ...] = ()
    hint: str = ""
    cluster: str = ""
    api_version: str = API_VERSION
    kind: str = "Why"


class Problem(_Value, frozen=True):
    """An error in the format of RFC 9457."""

    status: int
    title: str
    detail: str = ""
