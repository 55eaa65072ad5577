"""What the planner of one account is given, and what it returns. Times are Unix seconds that never go back."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Final, Literal, NamedTuple

import msgspec

from hub.allocations.spec import Allocation, Status, WorkloadRef
from hub.cloud.addresses import AddressState, InstanceState, Order
from hub.model import LOCAL, Finding, Node
from hub.registry.spec import AllocationLimits

Cause = Literal["Free", "Gone", "OutOfService", "NotReady", "Drained", "NodeRemoved", "Misplaced", "Release"]
CAUSES: Final[tuple[str, ...]] = (
    "Free",
    "Gone",
    "OutOfService",
    "NotReady",
    "Drained",
    "NodeRemoved",
    "Misplaced",
    "Release",
)
"""All causes in the order in which they are served."""
Phase = Literal["Detaching", "Attaching", "RollingBack", "Restoring", "Releasing"]
PHASES: Final = ("Detaching", "Attaching", "RollingBack", "Restoring", "Releasing")


class NodeKey(NamedTuple):
    """A node of a cluster."""

    cluster: str
    name: str

    def __str__(self) -> str:
        return self.name if self.cluster == LOCAL else f"{self.cluster}/{self.name}"


# --- what the hub has observed -----------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """The last complete answer about an address, and when the question was asked."""

    state: AddressState
    at: float


class Inspection(msgspec.Struct, frozen=True):
    """The last answer about an instance, and when the question was asked."""

    state: InstanceState
    at: float


class Machine(msgspec.Struct, frozen=True):
    """A Node with what the hub adds.

    Attributes:
        instance: the canonical id of its instance; None if the provider does not recognise the Node.
        ready_since: when the hub saw it become Ready; 0.0 if it is not Ready.
        unready_since: when the hub saw it become not Ready, while the cluster was synced; 0.0 if it is Ready.
    """

    node: Node
    instance: str | None = None
    ready_since: float = 0.0
    unready_since: float = 0.0


class Site(msgspec.Struct, frozen=True):
    """A cluster whose nodes may hold addresses of the account.

    Attributes:
        problem: why nothing is known about its nodes now; "" if the list of nodes is complete and current.
    """

    name: str
    machines: Mapping[str, Machine] = {}
    problem: str = ""


OutcomeError = Literal["", "conflict", "unsupported", "quota", "transient", "terminal", "timeout"]


class Outcome(msgspec.Struct, frozen=True):
    """How the last call of a step for an address ended.

    Attributes:
        step: detach, attach, restore or follow.
        token: the order's token; for follow, the operation.
        at: when it ended.
        first: when the first call with this token began; a followed operation belongs to the call that began it.
        error: "" = it succeeded.
        operation: set if the step was accepted and is to be followed.
        failures: failed calls in a row with this token.
        order: the order's token, also for follow; "" = the operation is one of an earlier process.
    """

    step: str
    token: str
    at: float
    first: float
    error: OutcomeError = ""
    message: str = ""
    operation: str = ""
    before: str = ""
    failures: int = 0
    order: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account of ``allocations.clouds``.

    Attributes:
        allowed: nothing outside of these networks may be claimed.
        interval: seconds between two descriptions.
        problem: why its provider cannot be used; "" if it can.
        frozen: why no act is possible until its configuration or credential changes; "" if acts are possible.
        quota_until: no act of the account before this time.
    """

    name: str
    provider: str
    clusters: tuple[str, ...]
    allowed: tuple[IPv4Network, ...]
    interval: float = 15.0
    cuts: frozenset[str] = frozenset()
    problem: str = ""
    frozen: str = ""
    quota_until: float = 0.0


class Memory(msgspec.Struct, frozen=True):
    """What the planner remembers of one address between two passes; lost at a restart.

    Attributes:
        claim: UID of the allocation that had the address in the last pass.
        instance: the holder at the last complete answer; "" = free, or nothing is known.
        placed: when that holder was first seen.
        free: when the first of the present complete answers that say Free was asked for; 0.0 = it was not free.
        cause: the cause that holds now, and since when.
        retry: no new move before this time.
        failures: failed moves in a row.
    """

    instance: str = ""
    placed: float = 0.0
    free: float = 0.0
    cause: str = ""
    cause_since: float = 0.0
    retry: float = 0.0
    failures: int = 0
    claim: str = ""


class Memories(msgspec.Struct, frozen=True):
    """What the planner remembers.

    Attributes:
        avoid: nodes that failed to take an address -> no attempt before this time.
        labels: nodes whose labels were changed -> (how often, not again before), since somebody may change them back.
        suspects: nodes with a label, but without an address that is known -> when that was first seen.
        stopped: instances that an inspection found not running -> when it was asked for.
        used: instances -> when they last had an address or a move.
    """

    addresses: Mapping[str, Memory] = {}
    avoid: Mapping[NodeKey, float] = {}
    labels: Mapping[NodeKey, tuple[int, float]] = {}
    suspects: Mapping[NodeKey, float] = {}
    stopped: Mapping[str, float] = {}
    used: Mapping[str, float] = {}


class Pod(msgspec.Struct, frozen=True):
    """A Pod of a workload on a node, for an eviction."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    created: str = ""


class Pods(msgspec.Struct, frozen=True):
    """The Pods on a node: those of a workload, and the number of others without mirror Pods and DaemonSets' Pods."""

    workload: tuple[Pod, ...] = ()
    others: int = 0


class View(msgspec.Struct, frozen=True):
    """Everything that the plan of one account depends on, besides the time.

    Attributes:
        allocations: those of this account.
        holders: address -> UID of the allocation that may have it now; "" = nobody until an older claim has ended.
        conflicts: the claims that lose: (UID, address) -> name of the allocation that has it.
        answers, inspections: the provider's last answers.
        outcomes: the last call of a step for an address.
        running: addresses, nodes and workloads (as text) with an act under way.
        pods: a workload's Pods on a node; a missing key = unknown, which counts as present.
        evict_after: workloads (as text) and clusters -> no eviction before this time.
        foreign_labels: nodes that another account's address keeps labelled.
        label_keys: the hub's labels: ``ip.ready`` and the address labels of all allocations.
        own: this process's node and those of its replicas that may not be cut off.
        halted: why no act may start at all (observe, another controller, ...): (reason, message); None = acts start.
        approvals: hashes that are approved.
        identity: this process, as it signs a status; records of another process are signed anew before they are
            followed.
        approving: the options that ``hub approve`` needs for this hub, each with a leading space.
        settled: no new move before this time, because another process may still be acting.
    """

    account: Account
    limits: AllocationLimits = AllocationLimits()
    sites: Mapping[str, Site] = {}
    allocations: tuple[Allocation, ...] = ()
    holders: Mapping[str, str] = {}
    conflicts: Mapping[tuple[str, str], str] = {}
    answers: Mapping[str, Answer] = {}
    inspections: Mapping[str, Inspection] = {}
    outcomes: Mapping[str, Outcome] = {}
    running: frozenset[str | NodeKey] = frozenset()
    pods: Mapping[tuple[NodeKey, WorkloadRef], Pods] = {}
    evict_after: Mapping[str, float] = {}
    foreign_labels: frozenset[NodeKey] = frozenset()
    label_keys: frozenset[str] = frozenset()
    own: NodeKey | None = None
    halted: tuple[str, str] | None = None
    approvals: frozenset[str] = frozenset()
    identity: str = ""
    approving: str = ""
    settled: float = 0.0
    memory: Memories = Memories()


# --- what the planner decides --------------------------------------------------------------------------


class Detach(msgspec.Struct, frozen=True, tag=True):
    """Call ``detach``."""

    address: str
    order: Order


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Call ``attach``."""

    address: str
    order: Order


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Call ``restore``."""

    address: str
    order: Order


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Follow an operation to its end."""

    address: str
    operation: str


class Label(msgspec.Struct, frozen=True, tag=True):
    """Change labels of a node: (key, value) pairs; None = remove the key."""

    node: NodeKey
    changes: tuple[tuple[str, str | None], ...]


class Evict(msgspec.Struct, frozen=True, tag=True):
    """Evict a Pod, or delete it with ``force``."""

    node: NodeKey
    workload: WorkloadRef
    pod: Pod
    force: bool = False


class Finalize(msgspec.Struct, frozen=True, tag=True):
    """Add or remove the finalizer of an allocation."""

    allocation: str
    present: bool


Act = Detach | Attach | Restore | Follow | Label | Evict | Finalize


class Questions(msgspec.Struct, frozen=True):
    """What the planner needs to know.

    Attributes:
        describe: whether all addresses are to be described now.
        inspect: instances to be inspected now.
        pods: nodes and workloads whose Pods are to be watched, as long as they are listed here.
    """

    describe: bool = False
    inspect: frozenset[str] = frozenset()
    pods: frozenset[tuple[NodeKey, WorkloadRef]] = frozenset()


class Verdict(msgspec.Struct, frozen=True):
    """The decision about one address, for an operator.

    Attributes:
        holder: the node that holds it, or other words for what has it; "" if nothing has it.
        cause: why it leaves, or "".
        wait: until when it waits; 0.0 = no such time.
        to: the node that it goes to, or would go to; "" if none.
        why_not: nodes that cannot take it -> the reason.
        hash: approves a withheld move.
    """

    address: str
    allocation: str
    state: str
    reason: str = ""
    message: str = ""
    holder: str = ""
    cause: str = ""
    wait: float = 0.0
    to: str = ""
    why_not: Mapping[str, str] = {}
    hash: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The decisions of one pass.

    Attributes:
        statuses: the wanted status of each allocation, by name.
        acts: what to start now; those that need a record come in the pass after the record was stored.
        halted: changes of labels, evictions and finalizers that would start now if ``View.halted`` did not forbid them.
        findings: (allocation, finding) pairs.
        wake: the next time at which the plan may change by itself.
        verdicts: by address.
        labelled: nodes that must have the label because of this account.
    """

    statuses: Mapping[str, Status] = {}
    acts: tuple[Act, ...] = ()
    halted: tuple[Label | Evict | Finalize, ...] = ()
    questions: Questions = Questions()
    findings: tuple[tuple[str, Finding], ...] = ()
    wake: float | None = None
    verdicts: Mapping[str, Verdict] = {}
    memory: Memories = Memories()
    labelled: frozenset[NodeKey] = frozenset()
