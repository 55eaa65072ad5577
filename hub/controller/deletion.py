"""Which Nodes are deleted because their machine is gone. Every condition must hold; what is not known deletes nothing.

1. the registry allows it; 2. the Node is not Ready for ``deleteAfter``; 3. its provider ID is this cloud's; 4. it is
older than five minutes; 5. two answers say that the machine is gone, at least 20 s apart, one of them about all Nodes;
6. that answer has another machine of the cluster; 7. not more than ``maxDelete`` within ``deleteWindow``; 8. the hub's
own network is not the likelier cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from hub.approval import approval_hash
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


class Watch:
    """Remembers since when Nodes are not Ready, what was answered about them, and what was deleted."""

    def __init__(self) -> None:
        self._unready: dict[str, float] = {}
        self._gone: dict[str, Gone] = {}
        self._deleted: list[float] = []

    def note_nodes(self, changed: Iterable[Node], gone: Iterable[str], now: float) -> None:
        """Note changed and deleted Nodes, at the time at which the hub saw the change."""
        for name in gone:
            self._unready.pop(name, None)
            self._gone.pop(name, None)
        for node in changed:
            if node.ready == "True":
                self._unready.pop(node.name, None)
                self._gone.pop(node.name, None)
            else:
                self._unready.setdefault(node.name, now)

    def restart(self, now: float) -> None:
        """The Nodes were not current for some time: they count as not Ready from now on."""
        self._unready = dict.fromkeys(self._unready, now)

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
        found = {name for name, answer in answers.items() if isinstance(answer, Instance)}
        for name in found:
            self._gone.pop(name, None)
        for name, answer in answers.items():
            if not isinstance(answer, Absent):
                continue
            before = self._gone.get(name, Gone(ended))
            self._gone[name] = Gone(
                before.first,
                before.confirmed or begun - before.first >= APART,
                before.complete or complete,
                before.alone and not (complete and found),
            )

    def deleted(self, now: float) -> None:
        """Note a deletion."""
        self._deleted.append(now)

    def due(self, name: str, now: float) -> bool:
        """Whether another answer about a Node would confirm that its machine is gone."""
        gone = self._gone.get(name)
        return gone is not None and (not gone.confirmed or not gone.complete) and now - gone.first >= APART

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
        for name, gone in sorted(self._gone.items()):
            node, since = nodes.get(name), self._unready.get(name)
            if node is None or since is None or not gone.confirmed or not gone.complete:
                continue
            if pattern.fullmatch(node.provider_id) is None or node.deleting:
                continue
            wait = max(since + spec.delete_after - now, YOUNG - (wall - _unix(node.created)))
            if wait > 0:
                wake = now + wait if wake is None else min(wake, now + wait)
            else:
                ripe.append(name)
        return msgspec.structs.replace(self._limited(cluster, nodes, spec, ripe, approved, now), wake=wake)

    def _limited(
        self,
        cluster: str,
        nodes: Collection[str],
        spec: CloudNodesSpec,
        ripe: list[str],
        approved: Callable[[str], bool],
        now: float,
    ) -> Deletions:
        if not ripe:
            return Deletions()
        self._deleted = [at for at in self._deleted if now - at < spec.delete_window]
        most = max(1, int(len(nodes) * spec.max_delete))
        digest = approval_hash("cloud", cluster, ripe)
        if approved(digest):
            return Deletions(tuple(ripe))
        if any(self._gone[name].alone for name in ripe):
            text = f"the cloud knows none of the machines of cluster {cluster}: is it the right account?"
            return Deletions((), tuple(ripe), "WrongAccount", text, digest)
        if len(ripe) + len(self._deleted) > most:
            text = (
                f"{len(ripe)} of {len(nodes)} Nodes have no machine any more, and {len(self._deleted)} were deleted "
                f"within the window; at most {most} may go"
            )
            return Deletions((), tuple(ripe), "NodeDeletionWithheld", text, digest)
        return Deletions(tuple(ripe))


def _unix(created: str) -> float:
    """The Unix time of a creationTimestamp; infinity if it cannot be read, so that the Node counts as new."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return float("inf")
