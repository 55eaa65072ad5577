"""Compares a recorded history of EndpointSlices with what the test did. Pure, and without any code of the hub.

A set of endpoints belongs to a Service, a source cluster and an address family. It may lose an address only after the
test has removed the address's node. It may never have an address that no node has, or one address twice. Each write
must change something that a consumer sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SERVICE_LABEL = "kubernetes.io/service-name"
CLUSTER_LABEL = "multicluster.kubernetes.io/source-cluster"
BOOKKEEPING = ("resourceVersion", "managedFields", "generation")
"""Fields of the metadata that change with every write."""


@dataclass(frozen=True, slots=True)
class Set:
    """Identifies a set of endpoints: a Service (``namespace/name``), a source cluster, a family."""

    service: str
    cluster: str
    family: str = "IPv4"


@dataclass(frozen=True, slots=True)
class Slice:
    """A committed slice.

    Attributes:
        addresses: all addresses, in order and with duplicates.
        conditions: conditions by address.
        content: the object without the fields in ``BOOKKEEPING``.
    """

    set: Set
    addresses: tuple[str, ...]
    conditions: Mapping[str, Any]
    content: Mapping[str, Any]

    @property
    def service(self) -> str:
        """``namespace/name``."""
        return self.set.service

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Slice:
        """Convert an EndpointSlice."""
        meta = body["metadata"]
        labels = meta.get("labels") or {}
        endpoints = body.get("endpoints") or []
        pairs = [(address, endpoint.get("conditions")) for endpoint in endpoints for address in endpoint["addresses"]]
        plain = {key: value for key, value in meta.items() if key not in BOOKKEEPING}
        return cls(
            Set(
                f"{meta['namespace']}/{labels.get(SERVICE_LABEL, '')}",
                labels.get(CLUSTER_LABEL, ""),
                body["addressType"],
            ),
            tuple(address for address, _ in pairs),
            dict(pairs),
            {**body, "metadata": plain},
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of one slice.

    Attributes:
        at: the recorder's time.monotonic().
        key: ``namespace/name`` of the slice.
        slice: None = deleted.
        first: whether the slice existed when the recording began.
    """

    at: float
    revision: int
    key: str
    slice: Slice | None
    first: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Commit:
        """Convert a line of the recording."""
        body = entry["slice"]
        found = Slice.of(body) if body is not None else None
        return cls(entry["at"], entry["revision"], entry["key"], found, bool(entry.get("first")))


@dataclass(frozen=True, slots=True)
class Offence:
    """A violation.

    Attributes:
        kind: lost, twice, stranger, rewrite or writes.
    """

    kind: str
    at: float
    set: Set
    text: str


@dataclass(slots=True)
class Life:
    """When a node existed. ``until`` is the time just before its removal was requested; None = it still exists."""

    since: float
    until: float | None = None


@dataclass(slots=True)
class Truth:
    """The test's own record: when each address existed, by set. Only these sets are judged."""

    lives: dict[Set, dict[str, Life]] = field(default_factory=dict)

    def node_added(self, at: float, address: str, *sets: Set) -> None:
        """Record that a node was added."""
        for one in sets:
            self.lives.setdefault(one, {})[address] = Life(at)

    def node_removed(self, at: float, address: str, *sets: Set) -> None:
        """Record that a node was removed."""
        for one in sets:
            self.lives[one][address].until = at

    def wanted(self, one: Set) -> frozenset[str]:
        """The addresses that must be published once the hub knows everything."""
        return frozenset(address for address, life in self.lives.get(one, {}).items() if life.until is None)

    def changes(self, one: Set) -> int:
        """The number of changes, which is the most writes that the hub may make."""
        return sum(1 + (life.until is not None) for life in self.lives.get(one, {}).values())


def judge(commits: Iterable[Commit], truth: Truth) -> list[Offence]:
    """All offences in a history, in order. Sets that the truth does not have are not judged."""
    slices: dict[str, Slice] = {}
    writes: Counter[Set] = Counter()
    found: list[Offence] = []
    for commit in commits:
        before = slices.get(commit.key)
        concerned = {slice_.set for slice_ in (before, commit.slice) if slice_ is not None} & truth.lives.keys()
        old = {one: _published(slices, one) for one in concerned}
        if commit.slice is None:
            slices.pop(commit.key, None)
        else:
            slices[commit.key] = commit.slice
        for one in concerned:
            writes[one] += not commit.first
            found += _compare(commit, one, old[one], _published(slices, one), truth)
        if before is not None and commit.slice is not None and before.content == commit.slice.content and concerned:
            found.append(Offence("rewrite", commit.at, before.set, f"{commit.key} was written without a change"))
        if concerned and before is not None and commit.slice is not None and not _shows(before, commit.slice):
            text = f"{commit.key} was written, and no consumer sees a difference"
            found.append(Offence("rewrite", commit.at, before.set, text))
    for one, count in writes.items():
        if count > truth.changes(one):
            text = f"{count} writes for {truth.changes(one)} changes"
            found.append(Offence("writes", 0.0, one, text))
    return found


def accepted(commits: Iterable[Commit], writes: Iterable[str]) -> list[str]:
    """Slices for which the API server's audit log has more accepted writes than there are commits.

    The recorder does not see a PUT that changes nothing, but the audit log does.
    """
    asked, done = Counter(writes), Counter(commit.key for commit in commits if not commit.first)
    return sorted(f"{key}: {count} writes, {done[key]} changes" for key, count in asked.items() if count > done[key])


def first_with(commits: Sequence[Commit], one: Set, wanted: frozenset[str]) -> float | None:
    """When the set had exactly these addresses for the first time; None = never."""
    slices: dict[str, Slice] = {}
    for commit in commits:
        if commit.slice is None:
            slices.pop(commit.key, None)
        else:
            slices[commit.key] = commit.slice
        if (commit.slice is None or commit.slice.set == one) and frozenset(_published(slices, one)) == wanted:
            return commit.at
    return None


def _published(slices: Mapping[str, Slice], one: Set) -> list[str]:
    return [address for slice_ in slices.values() if slice_.set == one for address in slice_.addresses]


def _compare(commit: Commit, one: Set, old: list[str], new: list[str], truth: Truth) -> list[Offence]:
    lives = truth.lives[one]
    found = []
    for address in sorted(set(old) - set(new)):
        life = lives.get(address)
        if life is not None and (life.until is None or commit.at < life.until):
            found.append(Offence("lost", commit.at, one, f"{address} went with {commit.key}, its node did not"))
    for address in sorted(set(new) - set(old)):
        life = lives.get(address)
        if life is None or commit.at < life.since:
            found.append(Offence("stranger", commit.at, one, f"{address} came with {commit.key} from nowhere"))
    twice = sorted(address for address, count in Counter(new).items() if count > 1)
    found += [Offence("twice", commit.at, one, f"{address} is there twice, with {commit.key}") for address in twice]
    return found


def _shows(before: Slice, after: Slice) -> bool:
    return (
        sorted(before.addresses) != sorted(after.addresses)
        or before.conditions != after.conditions
        or before.content.get("ports") != after.content.get("ports")
        or before.content["metadata"].get("labels") != after.content["metadata"].get("labels")
    )
