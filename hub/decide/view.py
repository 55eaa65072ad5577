"""Build a SourceView, the endpoints that a source offers, from a cluster's nodes and the provider's answers.

There is one :class:`ViewBuilder` per (cluster, node policy). It caches the result for each node object, so one changed
node among a thousand costs the work for one node. The cache only saves work: the result depends only on the arguments.
Equal endpoints stay the same objects, and if nothing changed the same view is returned, so later stages can compare by
identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from operator import is_not
from typing import Final, TypeVar

import msgspec

from hub.decide.addresses import OUTSIDE, Accepted, AddressPolicy, Rejected, parse
from hub.decide.eligibility import NOT_READY, Eligible, Excluded, eligibility
from hub.decide.endpoints import EndpointSet
from hub.decide.zones import in_hub_zone
from hub.model import (
    AMBIGUOUS,
    LABEL_ZONE,
    PUBLISHED,
    Absent,
    Conditions,
    Endpoint,
    Finding,
    Found,
    Node,
    ObjectReference,
    Resolution,
    SourceView,
    Unknown,
    join_first,
)
from hub.registry.spec import NodePolicy

T = TypeVar("T")

FAMILIES: Final = ("IPv4", "IPv6")
LISTED: Final = 20
"""Maximum number of objects in one finding; more would not fit into an Event."""

KEPT_IN_GRACE: Final = (
    "not Ready: its published endpoints stay until nodes.notReadyGrace is over, new ones are not added"
)
KEPT_DISRUPTED: Final = "not Ready, like too many nodes: its published endpoints stay, new ones are not added"

NONE_FITS: Final = "none of its addresses fits"

_MISSING: Final = Unknown("not resolved yet")
_NO_ADDRESS: Final = Unknown("found, but without an address")


def none_fits(rejected: Sequence[tuple[str, str]]) -> str:
    """Why a node or record has no address to publish, in words; names ``allowedCIDRs`` if they exclude an address."""
    outside = next((address for address, reason in rejected if reason == OUTSIDE), None)
    return NONE_FITS if outside is None else f"{NONE_FITS}: {outside[:64]} is {OUTSIDE}"


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """The result for one node, for ``hub nodes`` and ``hub why``.

    Attributes:
        node: the node's name.
        eligible: whether the node rules admit the node. A node that is not Ready stays eligible as long as
            ``notReadyGrace`` or ``maxNotReady`` keep its published endpoints.
        reason: "" if the node is published, else one word of a fixed set: an eligibility reason, ``absent``,
            ``unknown``, ``address`` (no address may be published) or ``conflict``.
        message: the reason in words. For a node that is published but not Ready, why it is kept; else "".
        addresses: the addresses that the source offers for the node.
        rejected: (address, reason) pairs.
    """

    node: str
    eligible: bool
    reason: str = ""
    message: str = ""
    addresses: tuple[str, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ViewResult:
    """A view, with the results for the nodes or records that it was built from.

    Attributes:
        view: the same object as before if nothing in it changed.
        reports: the report of each node or record, by name.
        wake_at: Unix time at which the next grace period ends and ``build`` should be called again; None if there is
            none.
        rejected: (node, address, reason), sorted by node.
        findings: sorted by reason.
    """

    view: SourceView
    reports: Mapping[str, NodeReport]
    wake_at: float | None = None
    rejected: tuple[tuple[str, str, str], ...] = ()
    findings: tuple[Finding, ...] = ()


class _Judged(msgspec.Struct, frozen=True, gc=False):
    """The part of a node's result that does not depend on other nodes.

    Attributes:
        node: the node.
        endpoints: the node's endpoints, at most one per family.
        counted: whether the node is eligible apart from readiness.
        not_ready: whether the Ready condition is not True.
        only_unready: whether the node is excluded only because it is not Ready.
        grace_end: Unix time at which the grace period ends or ended; None if the node is Ready, has no valid timestamp,
            or is excluded for another reason.
        unknown: whether the node's address is not known.
        reason, message, rejected: as in :class:`NodeReport`.
    """

    node: Node
    endpoints: tuple[Endpoint, ...] = ()
    counted: bool = False
    not_ready: bool = False
    only_unready: bool = False
    grace_end: float | None = None
    unknown: bool = False
    reason: str = ""
    message: str = ""
    rejected: tuple[tuple[str, str], ...] = ()


class ViewBuilder:
    """Builds the views of one source cluster under one node policy.

    Args:
        cluster: the source cluster's name.
        policy: which nodes are eligible.
        address_policy: which addresses may be published.
        max_endpoints: with more endpoints than this, the view is unknown.

    Attributes:
        disrupted: whether more nodes are not Ready than ``maxNotReady`` allows, so that no node leaves for that reason.
    """

    def __init__(self, cluster: str, policy: NodePolicy, address_policy: AddressPolicy, max_endpoints: int) -> None:
        self._cluster = cluster
        self._policy = policy
        self._addresses = address_policy
        self._max_endpoints = max_endpoints
        self._zones = dict(policy.zones)
        self._excluded = frozenset(_normal(text) for text in policy.exclude_addresses)
        self._nodes: dict[str, Node] = {}
        self._resolutions: dict[str, Resolution] = {}
        self._judged: dict[str, _Judged] = {}
        self._grace_ends: dict[str, float] = {}
        """Node that is not Ready -> end of its grace period, which may be in the past."""
        self._only_unready: set[str] = set()
        self._unknown: set[str] = set()
        self._with_rejected: set[str] = set()
        """Nodes with a rejected address."""
        self._counted = 0
        self._not_ready = 0
        self.disrupted = False
        self._claims: dict[str, tuple[str, ...]] = {}
        """Address -> names of the nodes that claim it, with the node that gets it first."""
        self._conflicts: set[str] = set()
        self._kept_only: set[str] = set()
        """Addresses whose first claimant is not Ready."""
        self._endpoints: dict[str, EndpointSet] = {family: EndpointSet() for family in FAMILIES}
        self._last_now = float("-inf")
        self._result: ViewResult | None = None

    def build(self, nodes: Mapping[str, Node], resolutions: Mapping[str, Resolution], now_wall: float) -> ViewResult:
        """Build the view of these nodes and answers at this moment.

        Args:
            nodes: all nodes of the complete list, by name. A changed node must be a different object.
            resolutions: the provider's answers, by node name; a missing node is unknown.
            now_wall: Unix time, compared with the nodes' own timestamps.
        """
        touched, removed = self._difference(nodes, resolutions)
        touched.update(self._due(now_wall))
        if not touched and not removed and self._result is not None:
            return self._result
        names_changed = bool(removed) or not touched <= self._judged.keys()
        before = {name: judged for name in (*touched, *removed) if (judged := self._judged.get(name)) is not None}
        for name in removed:
            self._forget(name)
        for name in touched:
            self._judge(name, now_wall)
        disrupted = self._not_ready > round(self._policy.max_not_ready * self._counted, 6)
        flipped = disrupted != self.disrupted
        contested = self._reclaim(before, touched, disrupted=disrupted)
        self._patch(contested)
        reported = touched | {name for address in contested for name in self._claims.get(address, ())}
        if flipped:
            reported |= self._only_unready
        self._result = self._assemble(
            reported, removed, names_changed=names_changed or self._result is None, now=now_wall
        )
        return self._result

    # --- what changed ------------------------------------------------------------------------

    def _difference(
        self, nodes: Mapping[str, Node], resolutions: Mapping[str, Resolution]
    ) -> tuple[set[str], tuple[str, ...]]:
        """The names of nodes to judge again and of nodes that are gone; stores copies of both mappings."""
        touched, removed = _copy_into(self._nodes, nodes)
        answered, unanswered = _copy_into(self._resolutions, resolutions)
        touched.update(name for name in answered if name in nodes)
        touched.update(name for name in unanswered if name in nodes)
        return touched, removed

    def _due(self, now: float) -> list[str]:
        """Nodes whose grace period ended since the last call, or runs again because the clock was set back."""
        last, self._last_now = self._last_now, now
        if not self._grace_ends or now == last:
            return []
        low, high = min(last, now), max(last, now)
        return [name for name, end in self._grace_ends.items() if low < end <= high and name in self._nodes]

    # --- one node ----------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        judged = self._judged.pop(name)
        self._counted -= judged.counted
        self._not_ready -= judged.counted and judged.not_ready
        self._grace_ends.pop(name, None)
        self._only_unready.discard(name)
        self._with_rejected.discard(name)

    def _judge(self, name: str, now: float) -> None:
        old = self._judged.get(name)
        if old is not None:
            self._forget(name)
        new = self._judgement(self._nodes[name], now, old.endpoints if old is not None else ())
        self._judged[name] = new
        self._counted += new.counted
        self._not_ready += new.counted and new.not_ready
        if new.grace_end is not None:
            self._grace_ends[name] = new.grace_end
        if new.only_unready:
            self._only_unready.add(name)
        if new.rejected:
            self._with_rejected.add(name)

    def _judgement(self, node: Node, now: float, old: tuple[Endpoint, ...]) -> _Judged:
        not_ready = node.ready != "True"
        since = _seconds(node.ready_since) if not_ready else None
        grace_end = None if since is None else since + self._policy.not_ready_grace
        not_ready_for: float | None = None
        if not_ready:
            # Without a valid timestamp, the node is kept. With a timestamp in the future, the grace starts then.
            over = grace_end is not None and now >= grace_end
            not_ready_for = self._policy.not_ready_grace if over else 0.0
        verdict = eligibility(node, self._policy, not_ready_for)
        only_unready = isinstance(verdict, Excluded) and verdict.reason == NOT_READY
        if isinstance(verdict, Excluded) and not only_unready:
            return _Judged(node, not_ready=not_ready, reason=verdict.reason, message=verdict.message)
        apart_from_readiness = eligibility(node, self._policy, None) if only_unready else verdict
        conditions = apart_from_readiness.conditions if isinstance(apart_from_readiness, Eligible) else PUBLISHED
        endpoints, reason, message, rejected = self._resolved(node, conditions)
        if isinstance(verdict, Excluded):
            reason, message = verdict.reason, verdict.message
        return _Judged(
            node=node,
            endpoints=tuple(_shared(endpoint, old) for endpoint in endpoints),
            counted=True,
            not_ready=not_ready,
            only_unready=only_unready,
            grace_end=grace_end,
            unknown=isinstance(self._answer(node.name), Unknown),
            reason=reason,
            message=message,
            rejected=rejected,
        )

    def _answer(self, name: str) -> Resolution:
        """The provider's answer for a node; unknown if it is missing or has no address."""
        answer = self._resolutions.get(name, _MISSING)
        # Found without an address doesn't mean that the node has none: that would be Absent.
        return _NO_ADDRESS if isinstance(answer, Found) and not answer.addresses else answer

    def _why(self, name: str) -> str:
        """Why a node's address is not known; "" if it is known or absent."""
        answer = self._answer(name)
        return answer.reason if isinstance(answer, Unknown) else ""

    def _resolved(
        self, node: Node, conditions: Conditions
    ) -> tuple[list[Endpoint], str, str, tuple[tuple[str, str], ...]]:
        """Resolve an eligible node.

        Returns:
            The endpoints; if there are none, the reason and the message; and the rejected (address, reason) pairs.
        """
        match self._answer(node.name):
            case Found(texts, zone):
                accepted, rejected = self._accept(texts)
                place = zone or node.labels.get(LABEL_ZONE) or None
                stands_for = ObjectReference(kind="Node", name=node.name)
                plain = (Endpoint((text,), conditions, target_ref=stands_for, zone=place) for text in accepted)
                made = [in_hub_zone(endpoint, self._zones) for endpoint in plain]
                return (made, "", "", rejected) if made else ([], "address", none_fits(rejected), rejected)
            case Absent(why):
                return [], "absent", f"the provider has no address: {why}", ()
            case Unknown(why):
                return [], "unknown", f"address not known: {why}", ()

    def _accept(self, texts: tuple[str, ...]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
        """The first acceptable address of each family, and the rejected ones before it.

        If that address is in ``nodes.exclude``, no other address of the family is used: an operator who excludes an
        address does not want another address of the node instead.
        """
        chosen: dict[str, str] = {}
        rejected: list[tuple[str, str]] = []
        for text in texts:
            if ("IPv6" if ":" in text else "IPv4") in chosen:
                continue  # don't report it as rejected: it is normal that a node has other addresses
            match self._addresses.check(text):
                case Accepted(address, family):
                    chosen[family] = address
                case Rejected(reason):
                    rejected.append((text, reason))
        accepted = []
        for family in FAMILIES:
            if family not in chosen:
                continue
            if chosen[family] in self._excluded:
                rejected.append((chosen[family], "named in nodes.exclude"))
            else:
                accepted.append(chosen[family])
        return accepted, tuple(rejected)

    # --- claims of nodes on addresses -----------------------------------------------------------

    def _reclaim(self, before: Mapping[str, _Judged], touched: set[str], *, disrupted: bool) -> set[str]:
        """Withdraw old claims and add new ones; returns the affected addresses."""
        was, self.disrupted = self.disrupted, disrupted
        if was != disrupted:
            # The nodes that are excluded only for not being Ready come back or leave: all their claims change.
            others = {name: self._judged[name] for name in self._only_unready - touched}
            before, touched = {**before, **others}, touched | others.keys()
        leaving: dict[str, set[str]] = {}
        entering: dict[str, list[str]] = {}
        for name, judged in before.items():
            self._unknown.discard(name)
            for endpoint in judged.endpoints if was or not judged.only_unready else ():
                leaving.setdefault(endpoint.address, set()).add(name)
        for name in touched:
            judged = self._judged[name]
            if judged.only_unready and not disrupted:
                continue
            if judged.unknown:
                self._unknown.add(name)
            for endpoint in judged.endpoints:
                entering.setdefault(endpoint.address, []).append(name)
        concerned = leaving.keys() | entering.keys()
        for address in concerned:
            self._claim(address, leaving.get(address, frozenset()), entering.get(address, ()))
        return concerned

    def _claim(self, address: str, leaving: AbstractSet[str], entering: Sequence[str]) -> None:
        """Update the nodes that claim an address; all changes at once, because they may be many."""
        names = [*(name for name in self._claims.get(address, ()) if name not in leaving), *entering]
        if len(names) > 1:
            self._claims[address] = self._ranked(names)
            self._conflicts.add(address)
            return
        self._conflicts.discard(address)
        if names:
            self._claims[address] = tuple(names)
        else:
            self._claims.pop(address, None)

    def _ranked(self, names: Iterable[str]) -> tuple[str, ...]:
        """Node names in order of precedence: Ready nodes first, then newer before older ones, then by name."""
        ordered = sorted(names)
        ordered.sort(key=lambda name: self._nodes[name].created, reverse=True)
        ordered.sort(key=lambda name: self._judged[name].not_ready)
        return tuple(ordered)

    def _patch(self, concerned: set[str]) -> None:
        """Update the endpoints of the affected addresses, in new mappings that are sorted by address."""
        for address in concerned:
            names = self._claims.get(address)
            if names and self._judged[names[0]].not_ready:
                self._kept_only.add(address)
            else:
                self._kept_only.discard(address)
        for family in FAMILIES:
            old = self._endpoints[family]
            of_family = [address for address in concerned if (":" in address) == (family == "IPv6")]
            changed = {
                address: endpoint
                for address in of_family
                if (endpoint := self._endpoint(address)) is not old.get(address)
            }
            if not changed:
                continue
            new = {**old, **{address: endpoint for address, endpoint in changed.items() if endpoint is not None}}
            for address in changed:
                if changed[address] is None:
                    del new[address]
            grown = not changed.keys() <= old.keys()
            self._endpoints[family] = EndpointSet(in_order(new) if grown else new, old, frozenset(changed))

    def _endpoint(self, address: str) -> Endpoint | None:
        names = self._claims.get(address)
        if names is None:
            return None
        return next(endpoint for endpoint in self._judged[names[0]].endpoints if endpoint.addresses[0] == address)

    # --- the result ----------------------------------------------------------------------------

    def _assemble(self, reported: set[str], removed: tuple[str, ...], *, names_changed: bool, now: float) -> ViewResult:
        last = self._result
        reports = {} if last is None else dict(last.reports)
        for name in removed:
            reports.pop(name, None)
        for name in reported:
            if (judged := self._judged.get(name)) is not None:
                reports[name] = self._report(judged)
        rejected = tuple(
            (name, text, why) for name in sorted(self._with_rejected) for text, why in self._judged[name].rejected
        )
        return ViewResult(
            view=self._view(None if last is None else last.view, names_changed=names_changed),
            reports=reports,
            wake_at=min((end for end in self._grace_ends.values() if end > now), default=None),
            rejected=rejected,
            findings=self._findings(rejected),
        )

    def _view(self, last: SourceView | None, *, names_changed: bool) -> SourceView:
        total = sum(map(len, self._endpoints.values()))
        unknown: str | None = None
        endpoints: Mapping[str, Mapping[str, Endpoint]] = self._endpoints
        if total > self._max_endpoints:
            unknown = f"offers {total} endpoints, more than maxEndpoints ({self._max_endpoints})"
            endpoints = {}
        names = frozenset(self._nodes) if last is None or names_changed else last.gone_complete
        pending, kept_only = frozenset(self._unknown), frozenset(self._kept_only)
        if last is not None:
            if last.gone_complete == names:
                names = last.gone_complete
            if (
                last.unknown == unknown
                and last.gone_complete is names
                and last.unknown_nodes == pending
                and last.kept_only == kept_only
                and last.endpoints.keys() == endpoints.keys()
                and all(last.endpoints[family] is endpoints[family] for family in endpoints)
            ):
                return last
        return SourceView(self._cluster, unknown, dict(endpoints), pending, names, kept_only=kept_only)

    def _report(self, judged: _Judged) -> NodeReport:
        name = judged.node.name
        reason, message = judged.reason, judged.message
        kept = judged.only_unready and self.disrupted
        if kept:
            # Readiness does not count during a disruption, but an unknown address does.
            reason, message = ("unknown", "address not known") if judged.unknown else ("", KEPT_DISRUPTED)
        elif judged.not_ready and not judged.only_unready and not reason:
            message = KEPT_IN_GRACE
        addresses: list[str] = []
        if not judged.only_unready or kept:
            for endpoint in judged.endpoints:
                address = endpoint.addresses[0]
                holder = self._claims[address][0]
                if holder == name:
                    addresses.append(address)
                else:
                    reason, message = "conflict", f"{address} is published for node {holder}"
        eligible = judged.counted and (not judged.only_unready or kept)
        return NodeReport(name, eligible, reason, message, tuple(addresses), judged.rejected)

    def _findings(self, rejected: tuple[tuple[str, str, str], ...]) -> tuple[Finding, ...]:
        found: list[Finding] = []
        if self._conflicts:
            addresses = sorted(self._conflicts)
            found.append(
                Finding(
                    "AddressConflict", f"{self._cluster}: nodes share {join_first(addresses, LISTED)}", tuple(addresses)
                )
            )
        if self.disrupted:
            found.append(
                Finding(
                    "ClusterDisrupted",
                    f"{self._cluster}: {self._not_ready} of {self._counted} nodes are not Ready; "
                    "none is removed for that until fewer are",
                )
            )
        if rejected:
            first = rejected[0]
            found.append(
                Finding(
                    "InvalidAddressSkipped",
                    f"{self._cluster}: {len(rejected)} addresses must not be published, "
                    f"such as {_quoted(first[1])} of {first[0]}: {first[2]}",
                    tuple(sorted({name for name, _, _ in rejected})),
                )
            )
        if self._unknown:
            names = sorted(self._unknown)
            ambiguous = [(name, why) for name in names if (why := self._why(name)).startswith(AMBIGUOUS)]
            if ambiguous:
                name, why = ambiguous[0]
                found.append(
                    Finding(
                        "NodeAmbiguous",
                        f"{self._cluster}: {len(ambiguous)} nodes have several candidates, such as {name}: {why}",
                        tuple(name for name, _ in ambiguous),
                    )
                )
            if rest := [name for name in names if name not in dict(ambiguous)] if ambiguous else names:
                message = f"{self._cluster}: address not known of {join_first(rest, LISTED)}"
                found.append(Finding("NodeUnresolved", message, tuple(rest)))
        return tuple(found)


def in_order(endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """The same mapping, sorted by address as text: any fixed order is good enough."""
    addresses = sorted(endpoints)
    return dict(zip(addresses, map(endpoints.__getitem__, addresses), strict=True))


def _copy_into(mine: dict[str, T], theirs: Mapping[str, T]) -> tuple[set[str], tuple[str, ...]]:
    """Make ``mine`` a copy of ``theirs``.

    The scan is one loop in C, 0.04 µs per key: with a thousand nodes, it is most of the cost of a build.

    Returns:
        The keys whose value is a different object now, and the sorted keys that were removed.
    """
    changed = set(compress(theirs, map(is_not, theirs.values(), map(mine.get, theirs))))
    if not changed and len(mine) == len(theirs):
        return changed, ()
    for name in changed:
        mine[name] = theirs[name]
    if len(mine) == len(theirs):
        return changed, ()
    lost = tuple(sorted(mine.keys() - theirs.keys()))
    for name in lost:
        del mine[name]
    return changed, lost


def _shared(endpoint: Endpoint, known: Iterable[Endpoint]) -> Endpoint:
    """An equal object from ``known`` if there is one, so that equal endpoints are identical; else the endpoint."""
    return next((old for old in known if old == endpoint), endpoint)


def _seconds(text: str) -> float | None:
    """Unix time of an RFC 3339 timestamp; None if the text is not one, or has no offset."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _normal(text: str) -> str:
    address = parse(text)
    return text if isinstance(address, Rejected) else str(address)


def _quoted(text: str) -> str:
    """Untrusted text from a remote cluster, cut to 64 characters and escaped to fit on one line."""
    return repr(text[:64])
