"""Plan the writes for a target: build complete slices, including metadata, and compare them with the observed ones.

If a slice equals the observed one, it is not written. This module does not talk to an API server.

Labels that others put on our slices are removed, because labels decide which consumers read a slice. Annotations that
this version does not write are kept, so that the hub fights neither with tools that annotate objects nor, after a
downgrade, with annotations of a later version of the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.pack import names, pack
from hub.decide.split import gaining_first, split
from hub.model import (
    ANNOTATION_CLUSTER_UID,
    ANNOTATION_LEASE,
    ANNOTATION_STATE,
    LABEL_HEADLESS,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    LABEL_SERVICE_NAME,
    LABEL_SOURCE_CLUSTER,
    MANAGED_BY,
    Endpoint,
    OwnerReference,
    Service,
    Slice,
)

RESERVED_PREFIXES: Final = ("kubernetes.io/", "multicluster.kubernetes.io/", "endpointslice-hub/", "endpoint-copier/")
"""Labels of a Service with these prefixes are not copied to its slices; ``app.kubernetes.io/`` and the like are."""

OUR_ANNOTATIONS: Final = frozenset({ANNOTATION_LEASE, ANNOTATION_STATE, ANNOTATION_CLUSTER_UID})
"""All annotations that the hub writes to slices."""


class Identity(msgspec.Struct, frozen=True):
    """Identity of the writer: the owner label, which all replicas share, and the Lease that allows the writes."""

    owner: str
    lease: str


class Plan(msgspec.Struct, frozen=True):
    """The writes that publish what is wanted; each kind in the order in which to do the writes.

    Attributes:
        creates: new slices, without uid and resourceVersion.
        updates: changed slices, with the uid and resourceVersion of the observed ones.
        deletes: slices to delete, as observed.
        unchanged: number of slices that need no write.
    """

    creates: tuple[Slice, ...] = ()
    updates: tuple[Slice, ...] = ()
    deletes: tuple[Slice, ...] = ()
    unchanged: int = 0

    @property
    def writes(self) -> int:
        """Number of API requests that this plan needs."""
        return len(self.creates) + len(self.updates) + len(self.deletes)


def plan(
    service: Service,
    groups: Iterable[EndpointGroup],
    identity: Identity,
    *,
    limit: int = 100,
    states: Mapping[GroupKey, str] | None = None,
    uids: Mapping[str, str] | None = None,
    taken: Iterable[str] = (),
) -> Plan:
    """Plan the writes for one target.

    Args:
        service: the hub Service that the slices belong to.
        groups: the wanted and published endpoints, after the guard.
        identity: the writer.
        limit: maximum number of endpoints per slice.
        states: group -> the guard's encoded record, stored on the group's lowest-numbered slice; "" or a missing entry
            means no record.
        uids: source cluster -> its UID, stored on every slice that is written. A slice without a UID is not written
            just to add it. If a cluster's UID is not known, its slices keep theirs.
        taken: names of slices that are in no group: foreign slices, ours under another Lease, frozen ones, and those
            that are being deleted.
    """
    groups = tuple(groups)
    metadata = _Metadata(service, identity, uids or {})
    used = {*taken, *(slice_.slice.name for group in groups for slice_ in group.slices)}
    creates: list[Slice] = []
    updates: list[Slice] = []
    deletes: list[Slice] = []
    unchanged = 0
    for whole in groups:
        record = (states or {}).get(whole.key, "")
        labels = metadata.labels(whole.key.cluster)
        before, parts = len(updates), split(whole)
        for group in parts:
            state = record
            dirty = metadata.misfits(group, labels, state)
            packed = pack(group, limit, dirty)
            for published, endpoints in packed.kept:
                old = published.slice
                # misfits() assumes the record on the part's first slice, but pack() may have deleted that one.
                as_assumed = bool(record) == (published is group.slices[0]) or not state
                fits = old.name not in dirty if as_assumed else metadata.fits(old, group, labels, record)
                if endpoints is None and fits:
                    unchanged += 1
                else:
                    content = published.endpoints if endpoints is None else endpoints
                    updates.append(metadata.refresh(old, group, labels, record, content))
                record = ""
            deletes.extend(slice_.slice for slice_ in packed.deleted)
            if packed.created:
                fresh = names(service.name, identity.owner, group.key, group.ports, used)
                for endpoints in packed.created:
                    name = next(fresh)
                    used.add(name)
                    creates.append(metadata.new(name, group, labels, record, endpoints))
                    record = ""
        if len(parts) > 1:
            updates[before:] = gaining_first(updates[before:], parts)
    return Plan(tuple(creates), tuple(updates), tuple(deletes), unchanged)


class _Metadata:
    """Builds and checks the parts that the slices of one target have in common: labels, annotations and owner."""

    def __init__(self, service: Service, identity: Identity, uids: Mapping[str, str]) -> None:
        self._uids = uids
        self._namespace = service.namespace
        self._annotations = {ANNOTATION_LEASE: identity.lease}
        self._owners = (OwnerReference("v1", "Service", service.name, service.uid),)
        self._labels = {key: value for key, value in service.labels.items() if not _reserved(key)}
        self._labels[LABEL_SERVICE_NAME] = service.name
        self._labels[LABEL_MANAGED_BY] = MANAGED_BY
        self._labels[LABEL_OWNER] = identity.owner
        if service.headless:
            self._labels[LABEL_HEADLESS] = ""

    def labels(self, cluster: str) -> dict[str, str]:
        """All labels of a slice of a source cluster."""
        return {**self._labels, LABEL_SOURCE_CLUSTER: cluster}

    def fits(self, old: Slice, group: EndpointGroup, labels: dict[str, str], state: str) -> bool:
        """Whether a slice needs no write, apart from its endpoints."""
        return (
            old.ports == group.ports
            and old.labels == labels
            and old.owners == self._owners
            and old.annotations == self.annotations(old, state, self._expected(old, group))
        )

    def misfits(self, group: EndpointGroup, labels: dict[str, str], state: str) -> frozenset[str]:
        """Names of slices that must be written even if their endpoints do not change."""
        wanted = (state, *("" for _ in group.slices[1:]))
        return frozenset(
            slice_.slice.name
            for slice_, record in zip(group.slices, wanted, strict=False)
            if not self.fits(slice_.slice, group, labels, record)
        )

    def _expected(self, old: Slice, group: EndpointGroup) -> str:
        """The cluster UID that a slice needs to stay unwritten; "" if it has none: a UID alone is not worth a write."""
        known = old.annotations.get(ANNOTATION_CLUSTER_UID, "")
        return (self._uids.get(group.key.cluster) or known) if known else ""

    def annotations(self, old: Slice | None, state: str, uid: str) -> dict[str, str]:
        """The annotations of a slice: ours, plus those that others added to the observed slice."""
        ours = self._annotations
        if state:
            ours = {**ours, ANNOTATION_STATE: state}
        if uid:
            ours = {**ours, ANNOTATION_CLUSTER_UID: uid}
        if old is None or old.annotations == ours:
            return ours
        others = {key: value for key, value in old.annotations.items() if key not in OUR_ANNOTATIONS}
        return {**others, **ours}

    def refresh(
        self, old: Slice, group: EndpointGroup, labels: dict[str, str], state: str, endpoints: tuple[Endpoint, ...]
    ) -> Slice:
        """The update of an observed slice."""
        uid = self._uids.get(group.key.cluster) or old.annotations.get(ANNOTATION_CLUSTER_UID, "")
        return Slice(
            old.namespace,
            old.name,
            old.address_type,
            endpoints,
            group.ports,
            labels,
            self.annotations(old, state, uid),
            self._owners,
            old.uid,
            old.resource_version,
        )

    def new(
        self, name: str, group: EndpointGroup, labels: dict[str, str], state: str, endpoints: tuple[Endpoint, ...]
    ) -> Slice:
        """A new slice, without uid and resourceVersion."""
        return Slice(
            self._namespace,
            name,
            group.key.family,
            endpoints,
            group.ports,
            labels,
            self.annotations(None, state, self._uids.get(group.key.cluster, "")),
            self._owners,
        )


def _reserved(label: str) -> bool:
    return label.startswith(RESERVED_PREFIXES) or label in (LABEL_MANAGED_BY, LABEL_HEADLESS)


def state_of(group: EndpointGroup) -> str:
    """The guard's encoded record from the lowest-numbered of the group's slices that has one; "" if none does."""
    for slice_ in group.slices:
        if state := slice_.slice.annotations.get(ANNOTATION_STATE):
            return state
    return ""


def apply_plan(observed: Iterable[Slice], planned: Plan) -> tuple[Slice, ...]:
    """The slices after a plan has been carried out, sorted by name."""
    by_name = {slice_.name: slice_ for slice_ in observed}
    by_name.update((slice_.name, slice_) for slice_ in (*planned.creates, *planned.updates))
    for slice_ in planned.deletes:
        del by_name[slice_.name]
    return tuple(by_name[name] for name in sorted(by_name))


# --- changes to endpoints ------------------------------------------------------------------------


ChangeKind = Literal["added", "changed", "removed"]


class EndpointChange(NamedTuple):
    """The change of one address of one source, for a line of ``hub plan``.

    ``before`` is None if the address is added, ``after`` is None if it is removed.
    """

    kind: ChangeKind
    cluster: str
    family: str
    address: str
    before: Endpoint | None
    after: Endpoint | None


def endpoint_changes(observed: Sequence[Slice], planned: Plan) -> tuple[EndpointChange, ...]:
    """All changes that a plan makes to endpoints, sorted by cluster, family and address."""
    before = _endpoints(observed)
    after = _endpoints(apply_plan(observed, planned))
    changes: list[EndpointChange] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            changes.append(EndpointChange(_kind(old, new), *key, old, new))
    return tuple(changes)


def _kind(old: Endpoint | None, new: Endpoint | None) -> ChangeKind:
    if old is None:
        return "added"
    return "removed" if new is None else "changed"


def _endpoints(slices: Iterable[Slice]) -> dict[tuple[str, str, str], Endpoint]:
    return {
        (slice_.cluster, slice_.address_type, address): endpoint
        for slice_ in slices
        for endpoint in slice_.endpoints
        for address in endpoint.addresses
    }
