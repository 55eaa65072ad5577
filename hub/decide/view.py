"""From one cluster's nodes and the provider's answers to what this source offers: a SourceView.

One :class:`ViewBuilder` per (cluster, node policy) remembers what it made of each node, by identity, so
that one changed node among a thousand costs one node's work. The result is a function of the arguments
alone: the memory only makes it cheap. Endpoints that stay equal stay the same objects, and where nothing
changed the same view comes back, which is what makes every later comparison one of identities.
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

from hub.decide.addresses import Accepted, AddressPolicy, Rejected, parse
from hub.decide.eligibility import NOT_READY, Eligible, Excluded, eligibility
from hub.decide.endpoints import EndpointSet
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
    few,
)
from hub.registry.spec import NodePolicy

T = TypeVar("T")

FAMILIES: Final = ("IPv4", "IPv6")
LISTED: Final = 20
"""Objects named in one finding; more would not fit an Event."""

KEPT_IN_GRACE: Final = "not Ready: stays where it is published until nodes.notReadyGrace is over, is not added"
KEPT_DISRUPTED: Final = "not Ready, as too many are: stays where it is published, is not added"

_MISSING: Final = Unknown("not resolved yet")
_NO_ADDRESS: Final = Unknown("found, but without an address")


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """What became of one node, for ``hub nodes`` and ``hub why``.

    Attributes:
        node: its name.
        eligible: by the node rules. A node that is not Ready is, for as long as ``notReadyGrace`` or ``maxNotReady``
            keep what is published of it.
        reason: "" where published, else one word of a fixed set: what eligibility said, ``absent``,
            ``unknown``, ``address`` (none may be published) or ``conflict``.
        message: the same in words; of a published one, why it only stays where it is published, or "".
        addresses: those published for it.
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
    """A view and how it came about.

    Attributes:
        view: the same object as before where nothing changed in it.
        reports: by node name.
        wake_at: wall time at which the next grace period ends and ``build`` should be called again.
        rejected: (node, address, reason), sorted by node.
        findings: sorted by reason.
    """

    view: SourceView
    reports: Mapping[str, NodeReport]
    wake_at: float | None = None
    rejected: tuple[tuple[str, str, str], ...] = ()
    findings: tuple[Finding, ...] = ()


class _Judged(msgspec.Struct, frozen=True, gc=False):
    """What one node amounts to, but for what depends on the other nodes.

    Attributes:
        endpoints: at most one per family; what would be published for it.
        counted: eligible as far as readiness does not matter.
        not_ready: its Ready condition is not True.
        left: out for nothing but not being Ready.
        until: when its grace ends; None where none is running.
        unknown: nothing is known of its address.
    """

    node: Node
    endpoints: tuple[Endpoint, ...] = ()
    counted: bool = False
    not_ready: bool = False
    left: bool = False
    until: float | None = None
    unknown: bool = False
    reason: str = ""
    message: str = ""
    rejected: tuple[tuple[str, str], ...] = ()


class ViewBuilder:
    """Builds the views of one source cluster under one node policy.

    Args:
        cluster: the source cluster's name.
        policy: which nodes.
        address_policy: which addresses.
        max_endpoints: more than this is not believed.

    Attributes:
        disrupted: so many nodes are not Ready that none leaves for it.
    """

    def __init__(self, cluster: str, policy: NodePolicy, address_policy: AddressPolicy, max_endpoints: int) -> None:
        self._cluster = cluster
        self._policy = policy
        self._addresses = address_policy
        self._max_endpoints = max_endpoints
        self._excluded = frozenset(_normal(text) for text in policy.exclude_addresses)
        self._nodes: dict[str, Node] = {}
        self._resolutions: dict[str, Resolution] = {}
        self._judged: dict[str, _Judged] = {}
        self._until: dict[str, float] = {}
        """Nodes that are not Ready -> end of their grace, past ends included."""
        self._left: set[str] = set()
        self._unknown: set[str] = set()
        self._rejecting: set[str] = set()
        self._counted = 0
        self._not_ready = 0
        self.disrupted = False
        self._claims: dict[str, tuple[str, ...]] = {}
        """Address -> names of the nodes that claim it, the one that has it first."""
        self._conflicts: set[str] = set()
        self._kept_only: set[str] = set()
        """Addresses whose first claimant is not Ready."""
        self._endpoints: dict[str, EndpointSet] = {family: EndpointSet() for family in FAMILIES}
        self._last_now = float("-inf")
        self._result: ViewResult | None = None

    def build(self, nodes: Mapping[str, Node], resolutions: Mapping[str, Resolution], now_wall: float) -> ViewResult:
        """The view of these nodes and answers at this moment.

        Args:
            nodes: all nodes of the complete list, by name. A changed node is another object.
            resolutions: what the provider said, by node name; a node left out is unknown.
            now_wall: Unix time, compared with the nodes' own timestamps.
        """
        touched, removed = self._difference(nodes, resolutions)
        touched.update(self._due(now_wall))
        if not touched and not removed and self._result is not None:
            return self._result
        named = bool(removed) or not touched <= self._judged.keys()
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
            reported |= self._left
        self._result = self._assemble(reported, removed, named=named or self._result is None, now=now_wall)
        return self._result

    # --- what changed ------------------------------------------------------------------------

    def _difference(
        self, nodes: Mapping[str, Node], resolutions: Mapping[str, Resolution]
    ) -> tuple[set[str], tuple[str, ...]]:
        """Names to judge again, and names that are gone; adopts both mappings."""
        touched, removed = _adopt(self._nodes, nodes)
        answered, unanswered = _adopt(self._resolutions, resolutions)
        touched.update(name for name in answered if name in nodes)
        touched.update(name for name in unanswered if name in nodes)
        return touched, removed

    def _due(self, now: float) -> list[str]:
        """Nodes whose grace ended since the last time, or began again because the clock was set back."""
        last, self._last_now = self._last_now, now
        if not self._until or now == last:
            return []
        low, high = min(last, now), max(last, now)
        return [name for name, until in self._until.items() if low < until <= high and name in self._nodes]

    # --- one node ----------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        judged = self._judged.pop(name)
        self._counted -= judged.counted
        self._not_ready -= judged.counted and judged.not_ready
        self._until.pop(name, None)
        self._left.discard(name)
        self._rejecting.discard(name)

    def _judge(self, name: str, now: float) -> None:
        old = self._judged.get(name)
        if old is not None:
            self._forget(name)
        new = self._judgement(self._nodes[name], now, old.endpoints if old is not None else ())
        self._judged[name] = new
        self._counted += new.counted
        self._not_ready += new.counted and new.not_ready
        if new.until is not None:
            self._until[name] = new.until
        if new.left:
            self._left.add(name)
        if new.rejected:
            self._rejecting.add(name)

    def _judgement(self, node: Node, now: float, old: tuple[Endpoint, ...]) -> _Judged:
        not_ready = node.ready != "True"
        since = _seconds(node.ready_since) if not_ready else None
        until = None if since is None else since + self._policy.not_ready_grace
        not_ready_for: float | None = None
        if not_ready:
            # A timestamp that cannot be read keeps the node; one in the future counts from then on.
            over = until is not None and now >= until
            not_ready_for = self._policy.not_ready_grace if over else 0.0
        verdict = eligibility(node, self._policy, not_ready_for)
        left = isinstance(verdict, Excluded) and verdict.reason == NOT_READY
        if isinstance(verdict, Excluded) and not left:
            return _Judged(node, not_ready=not_ready, reason=verdict.reason, message=verdict.message)
        standing = eligibility(node, self._policy, None) if left else verdict
        conditions = standing.conditions if isinstance(standing, Eligible) else PUBLISHED
        endpoints, reason, message, rejected = self._resolved(node, conditions)
        if isinstance(verdict, Excluded):
            reason, message = verdict.reason, verdict.message
        return _Judged(
            node=node,
            endpoints=tuple(_shared(endpoint, old) for endpoint in endpoints),
            counted=True,
            not_ready=not_ready,
            left=left,
            until=until,
            unknown=isinstance(self._answer(node.name), Unknown),
            reason=reason,
            message=message,
            rejected=rejected,
        )

    def _answer(self, name: str) -> Resolution:
        """What the provider said of a node, in its strictest reading."""
        answer = self._resolutions.get(name, _MISSING)
        # A node found without any address is no statement that it has none: that would be Absent.
        return _NO_ADDRESS if isinstance(answer, Found) and not answer.addresses else answer

    def _why(self, name: str) -> str:
        """Why nothing is known of a node's address; "" where it is."""
        answer = self._answer(name)
        return answer.reason if isinstance(answer, Unknown) else ""

    def _resolved(
        self, node: Node, conditions: Conditions
    ) -> tuple[list[Endpoint], str, str, tuple[tuple[str, str], ...]]:
        """Endpoints of an eligible node, else the reason and message why there are none; rejected addresses."""
        match self._answer(node.name):
            case Found(texts, zone):
                accepted, rejected = self._accept(texts)
                place = zone or node.labels.get(LABEL_ZONE) or None
                stands_for = ObjectReference(kind="Node", name=node.name)
                made = [Endpoint((text,), conditions, target_ref=stands_for, zone=place) for text in accepted]
                return (made, "", "", rejected) if made else ([], "address", "none of its addresses fits", rejected)
            case Absent(why):
                return [], "absent", f"the provider has no address: {why}", ()
            case Unknown(why):
                return [], "unknown", f"address not known: {why}", ()

    def _accept(self, texts: tuple[str, ...]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
        """The first acceptable address of each family, and the rejected ones before it.

        An excluded address uses up its family: whoever broke the glass did not ask for another one.
        """
        chosen: dict[str, str] = {}
        rejected: list[tuple[str, str]] = []
        for text in texts:
            if ("IPv6" if ":" in text else "IPv4") in chosen:
                continue  # not needed: a node may well have addresses that the cluster does not allow
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

    # --- addresses that more than one node claims ----------------------------------------------

    def _reclaim(self, before: Mapping[str, _Judged], touched: set[str], *, disrupted: bool) -> set[str]:
        """Withdraw old claims, enter new ones; the addresses concerned."""
        was, self.disrupted = self.disrupted, disrupted
        if was != disrupted:
            # Those that left for not being Ready come back, or leave: all their claims change.
            others = {name: self._judged[name] for name in self._left - touched}
            before, touched = {**before, **others}, touched | others.keys()
        leaving: dict[str, set[str]] = {}
        entering: dict[str, list[str]] = {}
        for name, judged in before.items():
            self._unknown.discard(name)
            for endpoint in judged.endpoints if was or not judged.left else ():
                leaving.setdefault(endpoint.address, set()).add(name)
        for name in touched:
            judged = self._judged[name]
            if judged.left and not disrupted:
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
        """The nodes that claim an address from now on; all at once, for they may be many."""
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
        """Ready first, then the newest, then by name."""
        ordered = sorted(names)
        ordered.sort(key=lambda name: self._nodes[name].created, reverse=True)
        ordered.sort(key=lambda name: self._judged[name].not_ready)
        return tuple(ordered)

    def _patch(self, concerned: set[str]) -> None:
        """Bring the endpoints of the addresses concerned up to date, in fresh mappings, in order."""
        for address in concerned:
            names = self._claims.get(address)
            if names and self._judged[names[0]].not_ready:
                self._kept_only.add(address)
            else:
                self._kept_only.discard(address)
        for family in FAMILIES:
            old = self._endpoints[family]
            mine = [address for address in concerned if (":" in address) == (family == "IPv6")]
            changed = {
                address: endpoint for address in mine if (endpoint := self._endpoint(address)) is not old.get(address)
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

    def _assemble(self, reported: set[str], removed: tuple[str, ...], *, named: bool, now: float) -> ViewResult:
        last = self._result
        reports = {} if last is None else dict(last.reports)
        for name in removed:
            reports.pop(name, None)
        for name in reported:
            if (judged := self._judged.get(name)) is not None:
                reports[name] = self._report(judged)
        rejected = tuple(
            (name, text, why) for name in sorted(self._rejecting) for text, why in self._judged[name].rejected
        )
        return ViewResult(
            view=self._view(None if last is None else last.view, named=named),
            reports=reports,
            wake_at=min((until for until in self._until.values() if until > now), default=None),
            rejected=rejected,
            findings=self._findings(rejected),
        )

    def _view(self, last: SourceView | None, *, named: bool) -> SourceView:
        total = sum(map(len, self._endpoints.values()))
        unknown: str | None = None
        endpoints: Mapping[str, Mapping[str, Endpoint]] = self._endpoints
        if total > self._max_endpoints:
            unknown = f"offers {total} endpoints, more than maxEndpoints ({self._max_endpoints})"
            endpoints = {}
        names = frozenset(self._nodes) if last is None or named else last.gone_complete
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
        kept = judged.left and self.disrupted
        if kept:
            # What it left for does not count now; what else there is to say of it does.
            reason, message = ("unknown", "address not known") if judged.unknown else ("", KEPT_DISRUPTED)
        elif judged.not_ready and not judged.left and not reason:
            message = KEPT_IN_GRACE
        addresses: list[str] = []
        if not judged.left or kept:
            for endpoint in judged.endpoints:
                address = endpoint.addresses[0]
                holder = self._claims[address][0]
                if holder == name:
                    addresses.append(address)
                else:
                    reason, message = "conflict", f"{address} is published for node {holder}"
        eligible = judged.counted and (not judged.left or kept)
        return NodeReport(name, eligible, reason, message, tuple(addresses), judged.rejected)

    def _findings(self, rejected: tuple[tuple[str, str, str], ...]) -> tuple[Finding, ...]:
        found: list[Finding] = []
        if self._conflicts:
            addresses = sorted(self._conflicts)
            found.append(
                Finding("AddressConflict", f"{self._cluster}: nodes share {few(addresses, LISTED)}", tuple(addresses))
            )
        if self.disrupted:
            found.append(
                Finding(
                    "ClusterDisrupted",
                    f"{self._cluster}: {self._not_ready} of {self._counted} nodes are not Ready; "
                    "none leaves for that until fewer are",
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
                message = f"{self._cluster}: address not known of {few(rest, LISTED)}"
                found.append(Finding("NodeUnresolved", message, tuple(rest)))
        return tuple(found)


def in_order(endpoints: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """The same mapping, sorted by address (as text: any fixed order does)."""
    addresses = sorted(endpoints)
    return dict(zip(addresses, map(endpoints.__getitem__, addresses), strict=True))


def _adopt(mine: dict[str, T], theirs: Mapping[str, T]) -> tuple[set[str], tuple[str, ...]]:
    """Make ``mine`` a copy of ``theirs``; the keys whose value is another object now, and the lost keys.

    The scan is one C loop, 0.04 µs per key: with a thousand nodes it is most of what a build costs.
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
    """An equal object that is known already, so that identity says equality later."""
    return next((old for old in known if old == endpoint), endpoint)


def _seconds(text: str) -> float | None:
    """Unix time of an RFC 3339 timestamp; None where it is none (also without an offset)."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _normal(text: str) -> str:
    address = parse(text)
    return text if isinstance(address, Rejected) else str(address)


def _quoted(text: str) -> str:
    """What a remote cluster wrote, fit for one line."""
    return repr(text[:64])
