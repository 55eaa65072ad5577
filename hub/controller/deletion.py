"""Which Nodes are deleted because their machine is gone. Every condition must hold; what is not known deletes nothing.

1. the registry allows it; 2. the Node is not Ready for ``deleteAfter``; 3. its provider ID is this cloud's; 4. it is
older than five minutes; 5. two answers in a row since it is not Ready say that the machine is gone, at least 20 s
apart, one of them about all Nodes; 6. that answer has another machine of the cluster; 7. not more than ``maxDelete`` of
the machines are gone within ``deleteWindow``; 8. the hub's own network is not the likelier cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from hub.approval import Issued, approval_hash, approved_of, issue
from hub.cloud.instances import Absent, Instance, InstanceAnswer
from hub.model import Node
from hub.registry.spec import CloudNodesSpec

YOUNG: Final = 300.0
"""Seconds after its creation in which a Node is not deleted."""
APART: Final = 20.0
"""Seconds between two answers that count as two."""


class Gone(msgspec.Struct, frozen=True):
    """The answers that say that a Node's machine is gone.

    Attributes:
        first: when the first of them ended.
        confirmed: whether a later one began ``APART`` after it.
        complete: whether one of them was about all Nodes of the cluster.
        alone: whether no complete one had another machine of the cluster.
    """

    first: float
    confirmed: bool = False
    complete: bool = False
    alone: bool = True


class Deletions(msgspec.Struct, frozen=True):
    """What is decided.

    Attributes:
        delete: Nodes to delete now.
        withheld: Nodes that wait for an approval.
        reason: of the finding about them, ``NodeDeletionWithheld`` or ``WrongAccount``; "" if none is withheld.
        message: why.
        digest: the hash that approves them.
        wake: when something may change by itself; None = never.
    """

    delete: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    digest: str = ""
    wake: float | None = None


class _Unready(msgspec.Struct, frozen=True):
    """A Node with a provider ID that is not Ready: its UID, and since when."""

    uid: str
    since: float


class Watch:
    """Remembers since when Nodes are not Ready, what was answered about them, and what was deleted."""

    def __init__(self) -> None:
        self._unready: dict[str, _Unready] = {}
        self._gone: dict[str, Gone] = {}
        self._absent: set[str] = set()
        """Nodes about which the last answer was Absent, Ready or not."""
        self._deleted: list[float] = []
        self._issued: Issued = ()

    def note_nodes(self, changed: Iterable[Node], gone: Iterable[str], now: float) -> None:
        """Note changed and deleted Nodes, at the time at which the hub saw the change."""
        for name in gone:
            self._unready.pop(name, None)
            self._gone.pop(name, None)
            self._absent.discard(name)
        for node in changed:
            if node.ready == "True" or not node.provider_id:
                self._unready.pop(node.name, None)
                self._gone.pop(node.name, None)
            elif (before := self._unready.get(node.name)) is None or before.uid != node.uid:
                self._unready[node.name] = _Unready(node.uid, now)
                self._gone.pop(node.name, None)

    def restart(self, now: float) -> None:
        """The Nodes were not current for some time: they count as not Ready from now on."""
        self._unready = {name: _Unready(node.uid, now) for name, node in self._unready.items()}

    def note_answers(
        self, answers: Mapping[str, InstanceAnswer], begun: float, ended: float, *, complete: bool
    ) -> None:
        """Note answers of the cloud to one question.

        Args:
            answers: Node name -> answer.
            begun: when the question was asked.
            ended: when it was answered.
            complete: whether it was about all Nodes of the cluster.
        """
        found = any(isinstance(answer, Instance) for answer in answers.values())
        for name, answer in answers.items():
            if not isinstance(answer, Absent):
                self._gone.pop(name, None)
                self._absent.discard(name)
                continue
            self._absent.add(name)
            if name not in self._unready:
                continue
            before = self._gone.get(name, Gone(ended))
            self._gone[name] = Gone(
                before.first,
                before.confirmed or begun - before.first >= APART,
                before.complete or complete,
                before.alone and not (complete and found),
            )

    def deleted(self, name: str, now: float) -> None:
        """Note a deletion; if the Node is still there, it needs new answers."""
        self._deleted.append(now)
        self._gone.pop(name, None)
        self._absent.discard(name)

    def ask_all_at(self) -> float:
        """When an answer about all Nodes would confirm that a machine is gone; infinity if none is missing."""
        return min(
            (gone.first + APART for gone in self._gone.values() if not gone.confirmed or not gone.complete),
            default=float("inf"),
        )

    def decide(
        self,
        cluster: str,
        nodes: Mapping[str, Node],
        spec: CloudNodesSpec,
        pattern: re.Pattern[str],
        approved: Callable[[str], bool],
        now: float,
        wall: float,
        *,
        suspect: bool,
    ) -> Deletions:
        """Which Nodes to delete.

        Args:
            cluster: the cluster's name, for the approval.
            nodes: all Nodes of the cluster; current.
            spec: the cluster's section.
            pattern: matches a whole provider ID of the cloud.
            approved: whether a hash is approved.
            now: the time.
            wall: Unix time.
            suspect: whether the hub's own network is the likelier cause.
        """
        if spec.delete != "guarded" or suspect:
            return Deletions()
        wake: float | None = None
        ripe: list[str] = []
        for name in sorted(self._gone.keys() & nodes.keys()):
            why, wait = self.unripe(nodes[name], spec, pattern, now, wall)
            if wait > 0:
                wake = now + wait if wake is None else min(wake, now + wait)
            elif not why:
                ripe.append(name)
        lost = {name for name in self._absent if name in nodes and _ours(nodes[name], pattern)}
        return msgspec.structs.replace(self._limited(cluster, nodes, spec, ripe, lost, approved, now), wake=wake)

    def unripe(
        self, node: Node, spec: CloudNodesSpec, pattern: re.Pattern[str], now: float, wall: float
    ) -> tuple[str, float]:
        """What is missing before a Node may be deleted, apart from limits, and the seconds until time alone brings it.

        Returns:
            ("", 0.0) if nothing is missing.
        """
        gone, unready = self._gone.get(node.name), self._unready.get(node.name)
        if not _ours(node, pattern):
            return "it has no provider ID of this cloud, or is being deleted", 0.0
        if unready is None or node.uid != unready.uid:
            return "it is Ready", 0.0
        if gone is None or not gone.confirmed or not gone.complete:
            text = (
                f"two answers, {APART:.0f} s apart and one of them about all Nodes, must say that its machine is gone"
            )
            return text, 0.0
        wait = max(unready.since + spec.delete_after - now, YOUNG - (wall - unix(node.created)))
        text = f"it must be not Ready for {spec.delete_after:.0f} s, and older than {YOUNG:.0f} s"
        return (text, wait) if wait > 0 else ("", 0.0)

    def _limited(
        self,
        cluster: str,
        nodes: Mapping[str, Node],
        spec: CloudNodesSpec,
        ripe: list[str],
        lost: set[str],
        approved: Callable[[str], bool],
        now: float,
    ) -> Deletions:
        """Which of the ripe Nodes go; ``lost`` are all Nodes whose machine the cloud does not have."""
        uids = {name: nodes[name].uid for name in ripe}
        free = approved_of(self._issued, [digest for digest, _ in self._issued if approved(digest)])
        go = tuple(name for name in ripe if uids[name] in free)
        rest = tuple(name for name in ripe if uids[name] not in free)
        if not rest:
            return Deletions(go)
        self._deleted = [at for at in self._deleted if now - at < spec.delete_window]
        total = len(nodes) + len(self._deleted)
        most = max(1, int(total * spec.max_delete + 1e-9))  # 0.29 * 100 is a little less than 29
        if any(self._gone[name].alone for name in rest):
            reason = "WrongAccount"
            text = f"the cloud has no other machine of cluster {cluster}: is it the right account?"
        elif len(lost.difference(go)) + len(self._deleted) > most:
            reason = "NodeDeletionWithheld"
            text = (
                f"the machines of {len(lost)} of {total} Nodes of cluster {cluster} are gone, and {len(self._deleted)} "
                f"Nodes were deleted within {spec.delete_window:.0f} s; at most {most} may go"
            )
        else:
            return Deletions(tuple(ripe))
        digest = approval_hash("cloud", cluster, sorted(uids[name] for name in rest))
        self._issued = issue(self._issued, digest, frozenset(uids[name] for name in rest))
        if approved(digest):  # in another replica, or before a restart
            return Deletions(tuple(ripe))
        return Deletions(go, rest, reason, text, digest)


def _ours(node: Node, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(node.provider_id) is not None and not node.deleting


def unix(created: str) -> float:
    """The Unix time of a creationTimestamp; infinity if it cannot be read, so that the Node counts as new."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return float("inf")
