"""Build a SourceView from the snapshot of an EndpointProvider, such as an inventory or a copied Service.

The counterpart of :mod:`hub.decide.view` for sources without Nodes. Addresses that the policy rejects are left out and
reported. An incomplete snapshot adds and changes endpoints, but removes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hub.decide.addresses import Accepted, AddressPolicy, Rejected
from hub.decide.endpoints import EndpointSet
from hub.decide.shape import HOSTNAME
from hub.decide.view import FAMILIES, NodeReport, ViewResult, in_order, none_fits
from hub.decide.zones import in_hub_zone
from hub.model import Conditions, Endpoint, Finding, ObjectReference, Port, Snapshot, SnapshotEndpoint, SourceView


class SnapshotMemory:
    """Results for the endpoints of the last snapshot, reused for endpoints that are still the same object.

    The memory only saves work and never changes the result: if the rules change, it is emptied.
    """

    __slots__ = ("results", "rules")

    def __init__(self) -> None:
        self.rules: tuple[object, ...] = ()
        self.results: dict[str, _Result] = {}

    def valid_under(self, *rules: object) -> Mapping[str, _Result]:
        """The results that may be reused under these rules, by endpoint name."""
        if rules != self.rules:
            self.rules, self.results = rules, {}
        return self.results


class _Result(NamedTuple):
    """The result for an endpoint with a single address, which is published."""

    offered: SnapshotEndpoint
    family: str
    endpoint: Endpoint
    report: NodeReport


def view_of_snapshot(
    cluster: str,
    snapshot: Snapshot,
    previous: SourceView | None,
    address_policy: AddressPolicy,
    max_endpoints: int,
    *,
    same_cluster: bool = False,
    exclude_addresses: frozenset[str] = frozenset(),
    zones: tuple[tuple[str, str], ...] = (),
    memory: SnapshotMemory | None = None,
) -> ViewResult:
    """The view of one snapshot.

    If two endpoints have the same address, a ready one takes precedence, then the first by name; the others are
    reported as AddressConflict.

    Args:
        cluster: the source cluster's name.
        snapshot: the provider's snapshot.
        previous: the last view, whose equal endpoints and mappings are reused; None at first.
        address_policy: which addresses may be published.
        max_endpoints: a snapshot with more endpoints than this makes the view unknown.
        same_cluster: whether the endpoints are in the hub cluster itself. If so, nodeName, hints and any targetRef are
            kept. Otherwise only a targetRef to a Node is kept, and no nodeName, because kube-proxy would mistake it for
            a node of the hub cluster.
        exclude_addresses: addresses in ``nodes.exclude``, in normal form.
        zones: (zone of the source cluster, zone of the hub cluster).
        memory: of the last view; updated.
    """
    memory = memory or SnapshotMemory()
    known = memory.valid_under(address_policy, exclude_addresses, same_cluster, snapshot.copied, zones)
    gathered = _Gathered(
        address_policy,
        exclude_addresses,
        previous,
        known,
        dict(zones),
        same_cluster=same_cluster,
        copied=snapshot.copied,
    )
    for endpoint in sorted(snapshot.endpoints, key=lambda endpoint: (not endpoint.ready, endpoint.name)):
        gathered.add(endpoint)
    memory.results = gathered.results
    last = previous.endpoints if previous is not None else {}
    endpoints = {family: _reused(in_order(gathered.endpoints[family]), last.get(family)) for family in FAMILIES}
    total = sum(map(len, endpoints.values()))
    unknown = None
    if total > max_endpoints:
        unknown, endpoints = f"offers {total} endpoints, more than maxEndpoints ({max_endpoints})", {}
    view = SourceView(
        cluster,
        unknown,
        endpoints,
        gone_complete=frozenset(endpoint.name for endpoint in snapshot.endpoints),
        addresses_complete=frozenset(gathered.stated),
        complete=snapshot.complete,
        hostnames=gathered.hostnames,
        ports=snapshot.ports,
        port_sets=gathered.port_sets,
        copied=snapshot.copied,
    )
    if previous is not None and _same(view, previous):
        view = previous
    findings = _findings(cluster, gathered.rejected, sorted(gathered.conflicts))
    return ViewResult(view, gathered.reports, None, tuple(sorted(gathered.rejected)), findings)


class _Gathered:
    """Collects endpoints one by one, best first: the first endpoint that claims an address gets it."""

    def __init__(
        self,
        policy: AddressPolicy,
        excluded: frozenset[str],
        previous: SourceView | None,
        known: Mapping[str, _Result],
        zones: Mapping[str, str],
        *,
        same_cluster: bool,
        copied: bool,
    ) -> None:
        self._policy = policy
        self._excluded = excluded
        self._previous = previous.endpoints if previous is not None else {}
        self._known = known
        self._zones = zones
        self._same_cluster = same_cluster
        self._copied = copied
        self._holders: dict[str, str] = {}
        self.endpoints: dict[str, dict[str, Endpoint]] = {family: {} for family in FAMILIES}
        self.reports: dict[str, NodeReport] = {}
        self.rejected: list[tuple[str, str, str]] = []
        self.conflicts: set[str] = set()
        self.stated: set[str] = set()
        self.hostnames: dict[str, str] = {}
        self.port_sets: dict[str, tuple[Port, ...]] = {}
        self.results: dict[str, _Result] = {}

    def add(self, offered: SnapshotEndpoint) -> None:
        """Add one endpoint with at most one address per family, the first acceptable one."""
        known = self._known.get(offered.name)
        if known is not None and known.offered is offered and known.endpoint.address not in self._holders:
            self.stated.add(known.endpoint.address)
            self._enter(offered, known.family, known.endpoint)
            self.reports[offered.name] = known.report
            self.results[offered.name] = known
            return
        chosen: dict[str, str] = {}
        refused: list[tuple[str, str]] = []
        for text in offered.addresses:
            match self._policy.check(text):
                case Rejected(reason):
                    self.stated.add(text)
                    refused.append((text, reason))
                case Accepted(address, family):
                    self.stated.add(address)
                    chosen.setdefault(family, address)
        excluded = [(address, "named in nodes.exclude") for address in chosen.values() if address in self._excluded]
        published = [address for family, address in chosen.items() if self._claim(offered, family, address)]
        refused.extend(excluded)
        self.rejected.extend((offered.name, text, reason) for text, reason in refused)
        report = self._report(offered, chosen.values(), tuple(published), tuple(refused))
        self.reports[offered.name] = report
        if len(offered.addresses) == 1 and published:
            family, address = next(iter(chosen.items()))
            self.results[offered.name] = _Result(offered, family, self.endpoints[family][address], report)

    def _claim(self, offered: SnapshotEndpoint, family: str, address: str) -> bool:
        if address in self._excluded:
            return False
        if address in self._holders:
            self.conflicts.add(address)
            return False
        old = self._previous.get(family, {}).get(address)
        hostname = offered.hostname if self._copied and HOSTNAME.fullmatch(offered.hostname) else None
        new = in_hub_zone(_endpoint(offered, address, hostname, same_cluster=self._same_cluster), self._zones)
        self._enter(offered, family, old if old is not None and old == new else new)
        return True

    def _enter(self, offered: SnapshotEndpoint, family: str, endpoint: Endpoint) -> None:
        address = endpoint.address
        self._holders[address] = offered.name
        self.endpoints[family][address] = endpoint
        if offered.hostname and not self._copied:
            self.hostnames[address] = offered.hostname
        if offered.ports is not None:
            self.port_sets[address] = offered.ports

    def _report(
        self,
        offered: SnapshotEndpoint,
        chosen: Iterable[str],
        published: tuple[str, ...],
        refused: tuple[tuple[str, str], ...],
    ) -> NodeReport:
        reason, message = "", ""
        if not published:
            holder = next((self._holders[address] for address in chosen if address in self._holders), None)
            reason, message = (
                ("address", none_fits(refused)) if holder is None else ("conflict", f"published for {holder}")
            )
        return NodeReport(offered.name, True, reason, message, published, refused)  # noqa: FBT003 - eligible


def _endpoint(offered: SnapshotEndpoint, address: str, hostname: str | None, *, same_cluster: bool) -> Endpoint:
    reference = offered.target_ref
    if reference is not None and not same_cluster:
        reference = ObjectReference(kind="Node", name=reference.name) if reference.kind == "Node" else None
    return Endpoint(
        (address,),
        Conditions(offered.ready, offered.serving, offered.terminating),
        hostname=hostname,
        node_name=(offered.node_name or None) if same_cluster else None,
        target_ref=reference,
        zone=offered.zone or None,
        hints=offered.hints if same_cluster else None,
    )


def _reused(new: Mapping[str, Endpoint], old: Mapping[str, Endpoint] | None) -> Mapping[str, Endpoint]:
    return old if old is not None and old == new else EndpointSet(new)


def _same(new: SourceView, old: SourceView) -> bool:
    same = all(new.endpoints.get(family) is old.endpoints.get(family) for family in FAMILIES)
    return same and new == old


def _findings(cluster: str, rejected: Sequence[tuple[str, str, str]], conflicts: Sequence[str]) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if conflicts:
        found.append(
            Finding(
                "AddressConflict",
                f"{cluster}: {len(conflicts)} addresses appear in more than one record",
                tuple(conflicts),
            )
        )
    if rejected:
        name, text, reason = min(rejected)
        found.append(
            Finding(
                "InvalidAddressSkipped",
                f"{cluster}: {len(rejected)} addresses must not be published, "
                f"such as {text[:64]!r} of {name}: {reason}",
                tuple(sorted({name for name, _, _ in rejected})),
            )
        )
    return tuple(found)
