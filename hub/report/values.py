"""The vocabulary of reports: what ``/api/v1`` returns and ``hub status -o json`` prints.

Scripts rely on these names. Times are RFC 3339 in whole seconds; "" where there is none to tell. A value is
a moment: nothing in it changes afterwards.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

API_VERSION: Final = "endpointslice-hub/v1"
"""``apiVersion`` of every document."""

NOT_PROBED: Final = "not probed"
"""The verdict on an address where nobody probes, or not here: its slice is believed."""

Role = Literal["leader", "standby", "starting", "stopping", "observer"]
"""Of a replica: who writes, who waits for the Lease, and who only looked once (``hub status``)."""


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Replica(_Value, frozen=True):
    """The process that answers.

    Attributes:
        identity: as on the Lease.
        leader: identity of who writes, as far as known here; "" = nobody. With several shards, of who writes the first.
        shards: those whose Services this process writes; with one shard, 0 is all of them.
        shard_count: how many there are (``--shards``).
        synced: the hub cluster's Services and slices are known.
        error: why what is known of the hub cluster is not current, and what else this process may not do there.
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
        rejected: why the file as it is now is not in force; "" where it is.
        problems: entries that are broken and therefore frozen.
    """

    withheld: RegistryWithheld | None = None
    rejected: str = ""
    problems: tuple[str, ...] = ()


class Cluster(_Value, frozen=True):
    """How a cluster is doing.

    Attributes:
        mode: the registry's ``state``, or ``broken``.
        state: of the connection; "" where there is none to follow, or other replicas follow it.
        since: of ``state``.
        nodes: None where none are followed.
        error: what is wrong, in plain words.
    """

    name: str
    mode: str = "active"
    state: str = ""
    since: str | None = None
    nodes: int | None = None
    error: str = ""


class Source(_Value, frozen=True):
    """What one cluster contributes to a Service; ``unknown`` says why it makes no statement."""

    cluster: str
    ready: int = 0
    total: int = 0
    unknown: str | None = None


class Held(_Value, frozen=True):
    """What the guard holds back of one source and family.

    Attributes:
        reason: the kind; also the Event's reason.
        approve: the command that lets it go.
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
    """Something an operator may want to know."""

    reason: str
    message: str


class Checked(_Value, frozen=True):
    """A health check.

    Attributes:
        verdict: whether the hub that answers probes it; what came of that is the condition of each address.
    """

    check: str
    verdict: Literal["probed", "not probed"]


class Service(_Value, frozen=True):
    """How a Service is doing.

    Attributes:
        name: ``namespace/name``.
        status: why nothing is decided; "" in the ordinary case.
        ready: published and ready.
        total: published.
        unhealthy: published although the probe says no; not ready.
        draining: published as terminating.
        changed: when its slices were last written by this process; None = not since it started.
        problem: why the last write did not succeed.
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


class Status(_Value, frozen=True):
    """A whole hub at one moment; what ``GET /api/v1/status`` returns."""

    hub: Replica = Replica()
    registry: RegistryState = RegistryState()
    clusters: tuple[Cluster, ...] = ()
    services: tuple[Service, ...] = ()
    api_version: str = API_VERSION
    kind: str = "Status"


class Step(_Value, frozen=True):
    """One decision; the same as ``hub why`` prints."""

    stage: str
    where: str
    outcome: str
    why: str = ""


class Address(_Value, frozen=True):
    """An address of a Service with the decisions behind it.

    Attributes:
        state: ``ready``, ``not ready``, ``unhealthy``, ``draining``, or ``not published``.
        cluster: that has it.
    """

    address: str
    state: str
    cluster: str
    steps: tuple[Step, ...] = ()


class ServiceDetail(_Value, frozen=True):
    """One Service with everything behind it; what ``GET /api/v1/services/{namespace}/{name}`` returns.

    Attributes:
        steps: about the Service itself.
        addresses: a part of all, those that need somebody first.
        offset: of that part.
        number: of all addresses, published or offered.
    """

    service: Service
    steps: tuple[Step, ...] = ()
    addresses: tuple[Address, ...] = ()
    offset: int = 0
    number: int = 0
    api_version: str = API_VERSION
    kind: str = "ServiceDetail"


class Resolved(_Value, frozen=True):
    """What the provider said of a node.

    Attributes:
        reason: why there is no address.
    """

    state: Literal["found", "absent", "unknown"]
    addresses: tuple[str, ...] = ()
    reason: str = ""

    @property
    def text(self) -> str:
        """The same on one line."""
        if self.state == "found":
            return ", ".join(self.addresses) or "found, no address"
        return f"{self.state}: {self.reason}"


class Refused(_Value, frozen=True):
    """An address of a node that may not be published."""

    address: str
    reason: str


class NodeState(_Value, frozen=True):
    """What became of a node.

    Attributes:
        reason: "" where published, else one word.
        message: the same in words.
        resolution: what the provider said; null where it was not asked, or did not answer yet.
        verdict: of the probes: healthy, unhealthy, not known yet, or several; "not probed" where nobody probes here.
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
    """A cluster's nodes through one provider under one node policy."""

    cluster: str
    provider: str
    services: tuple[str, ...] = ()
    unknown: str | None = None
    nodes: tuple[NodeState, ...] = ()


class ClusterDetail(_Value, frozen=True):
    """One cluster with its nodes; what ``GET /api/v1/clusters/{name}`` returns."""

    cluster: Cluster
    sources: tuple[SourceDetail, ...] = ()
    api_version: str = API_VERSION
    kind: str = "ClusterDetail"


class Why(_Value, frozen=True):
    """The chain of decisions behind something; what ``GET /api/v1/why?subject=…`` returns.

    Attributes:
        subject: as asked for: an address, the name of a node, or ``namespace/name`` of a Service.
        is_: address, node or Service.
        known: a cluster or a slice has it.
        steps: the decisions, in the order of the stages.
        unknown: sources that make no statement, as far as they matter.
        hint: what may have been meant; "" where nothing is close.
    """

    subject: str
    is_: Literal["address", "node", "Service"] = msgspec.field(name="is")
    known: bool = True
    steps: tuple[Step, ...] = ()
    unknown: tuple[str, ...] = ()
    hint: str = ""
    api_version: str = API_VERSION
    kind: str = "Why"


class Problem(_Value, frozen=True):
    """An error, as RFC 9457 describes them."""

    status: int
    title: str
    detail: str = ""
