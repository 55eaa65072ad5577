"""The node part of the cloud controller of one cluster: asks the cloud about Nodes, and writes what is decided.

One task asks, and deletes; a queue with a few workers looks at each Node that changed, or about which there is an
answer. A Node whose write fails, or takes long, does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from hub.cloud.instances import Absent, Instance, InstanceAnswer, Unknown
from hub.controller.asking import NEVER, Timetable
from hub.controller.deletion import Deletions, Watch, unix
from hub.controller.nodes import Change, Verdict, decide, foreign, question, uninitialized
from hub.controller.undone import REPEATS, WINDOW, Undone
from hub.controlling.node_writes import NO_RIGHT, NodeWrites
from hub.controlling.site import Site, Subject
from hub.errors import ApiError, Conflict, HubError, Invalid, NotFound, NotLeader
from hub.model import Finding, Node
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudNodesSpec
from hub.runtime.backoff import Backoff
from hub.runtime.queue import KeyedQueue
from hub.runtime.tally import Tally

log = logging.getLogger(__name__)

IN_FLIGHT: Final = 4
"""Most writes to Nodes of one cluster at a time."""
DELETE_PACE: Final = 5.0
"""Seconds between two deletions in one cluster."""
RETRY: Final = (1.0, 60.0)
"""Seconds until the cloud is asked again after an error: first, and at most."""
SETTLE: Final = 1.0
"""Seconds after a write until its Node is looked at again; the watch brings what was written in the meantime."""
INITIALIZED: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Upper bounds in seconds of the histograms of Kubernetes' node controller (k8s.io/cloud-provider 0.35)."""
DURATIONS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Failure(msgspec.Struct, frozen=True):
    """A write that failed.

    Attributes:
        node: the Node for which it was decided.
        finding: why; None if the Node had probably just changed.
    """

    node: Node
    finding: Finding | None


class Told(msgspec.Struct, frozen=True):
    """What is known about one Node.

    Attributes:
        state: ready, working, waiting, failing, withheld or foreign.
        since: Unix time since which it has this state.
        message: why it is not ready, or what is being changed.
        findings: what an operator should know.
    """

    state: str
    since: float
    message: str = ""
    findings: tuple[Finding, ...] = ()


class NodePart:
    """Initialises Nodes, keeps their addresses and taints, and deletes those whose machine is gone.

    Attributes:
        told: Node name -> what is known about it.
        deletions: the last decision about deletions.
        deleted: Nodes deleted since the start.
        untainted: seconds from a new Node's first sight until its taint was removed.
        initialized: seconds from a Node's creation until its taint was removed, with the bounds of Kubernetes' own.
        syncs: seconds from a question to the last write to a Node that follows from it.
    """

    def __init__(self, site: Site) -> None:
        self.told: dict[str, Told] = {}
        self.deletions = Deletions()
        self.deleted = 0
        self.untainted = Tally(DURATIONS)
        self.initialized = Tally(INITIALIZED)
        self.syncs = Tally(DURATIONS)
        self._site = site
        self._writes = NodeWrites(site)
        self._queue = KeyedQueue[str](site.clock)
        self._wake = asyncio.Event()
        self._timetable = Timetable()
        self._watch = Watch()
        self._undone = Undone()
        self._unanswered = ""
        """Why the last question has no answer."""
        self._uids: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._answers: dict[str, InstanceAnswer] = {}
        self._asked_at: dict[str, float] = {}
        self._failures: dict[str, _Failure] = {}
        self._settled: dict[str, float] = {}
        """Node that was written -> when the watch has brought that."""
        self._seen: dict[str, float] = {}
        """New Node -> when the hub first saw it."""
        self._retry_at = self._delete_at = -NEVER
        self._backoff = Backoff(base=RETRY[0], cap=RETRY[1], jitter=0.2)
        self._current = False

    @property
    def problem(self) -> str:
        """Why the cloud cannot be asked, or Nodes not be written, now; "" if they can."""
        return "; ".join(filter(None, (self._unanswered, *self._writes.missing.values())))

    @property
    def settled(self) -> bool:
        """Whether all Nodes have been decided about, or the cloud gives no answer."""
        asked = self._timetable.complete or bool(self._unanswered)
        return asked and not len(self._queue) and not self._queue.working

    def machine(self, name: str) -> tuple[str, str]:
        """A Node's machine: running, starting, stopped, leaving, absent, unknown or "", and the answer in words."""
        answer = self._answers.get(name)
        if isinstance(answer, Instance):
            parts = [
                *(
                    f"{what} {value}"
                    for what, value in (("type", answer.instance_type), ("zone", answer.zone))
                    if value
                ),
                *(address.address for address in answer.addresses),
            ]
            return answer.status, ", ".join(parts)
        if answer is None:
            return "", ""
        return "absent" if isinstance(answer, Absent) else "unknown", answer.reason

    @property
    def uninitialized(self) -> int:
        """Number of Nodes that still have the taint of a new Node and belong to this cloud, or to none yet."""
        spec, type_ = self._site.spec.nodes, self._site.account.type
        if spec is None or not spec.initialize or type_ is None:
            return 0
        found = (self._site.nodes.get(name) for name in self._seen)
        return sum(node is not None and uninitialized(node) and not foreign(node, type_.provider_id) for node in found)

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """Node name -> the last decision."""
        return self._verdicts

    def why_not_deleted(self, name: str) -> tuple[str, str] | None:
        """Whether a Node goes whose machine is gone, and why not; None if its machine is not gone."""
        node, spec, type_ = self._site.nodes.get(name), self._site.spec.nodes, self._site.account.type
        if node is None or spec is None or type_ is None or not isinstance(self._answers.get(name), Absent):
            return None
        if spec.delete != "guarded":
            return "no", "cloud.nodes.delete is never"
        if self._site.suspect:
            return "no", "so many clusters are unreachable that the hub's own network is the likelier cause"
        if name in self.deletions.withheld:
            return "withheld", f"{self.deletions.message}; {self._approves}"
        clock = self._site.clock
        why, _ = self._watch.unripe(node, spec, type_.provider_id, clock.now(), clock.wall())
        return ("not yet", why) if why else ("comes next", "its machine is gone")

    @property
    def _approves(self) -> str:
        return f"hub approve cloud/{self._site.name} {self.deletions.digest} deletes these Nodes"

    # --- what wakes it ----------------------------------------------------------------------------------

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Note changed and deleted Nodes."""
        now = self._site.clock.now()
        changed, gone = tuple(changed), tuple(gone)
        self._watch.note_nodes(changed, gone, now)
        for name in gone:
            self._forget(name)
        for node in changed:
            if self._uids.get(node.name, node.uid) != node.uid:
                self._forget(node.name)
            self._uids[node.name] = node.uid
            if uninitialized(node):
                self._seen.setdefault(node.name, now)
            self._queue.add(node.name)
        self._timetable.note_nodes(changed, now)
        self._wake.set()

    def _forget(self, name: str) -> None:
        """The Node is gone, perhaps because another one has its name now."""
        for known in (
            self.told,
            self._uids,
            self._verdicts,
            self._answers,
            self._asked_at,
            self._failures,
            self._settled,
            self._seen,
        ):
            known.pop(name, None)
        self._timetable.forget(name)
        self._undone.forget(name)
        self._queue.discard(name)
        self._site.reporter.ended(_subject(name))

    def state_changed(self) -> None:
        """The cluster, the duty, the account, the section or an approval has changed."""
        current = not self._site.problem
        if current and not self._current:
            self._watch.restart(self._site.clock.now())
        self._current = current
        self._retry_at = -NEVER
        self._writes.missing.clear()
        self._all_again()
        self._wake.set()

    @property
    def _rests(self) -> str:
        """Why nothing is asked and decided now; "" if it is. Another replica, or controller, does it then."""
        halted = self._site.halted
        return self._site.problem or (halted[1] if halted is not None and halted[0] != "Observe" else "")

    # --- running ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask, decide and write until cancelled."""
        self.nodes_changed(self._site.nodes.values(), ())
        self._current = not self._site.problem
        async with asyncio.TaskGroup() as group:
            group.create_task(self._asking(), name=f"questions about nodes of {self._site.name}")
            for _ in range(IN_FLIGHT):
                group.create_task(self._working(), name=f"writes to nodes of {self._site.name}")

    async def _asking(self) -> None:
        while True:
            self._wake.clear()
            due = await self._round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(3600.0, due - self._site.clock.now()))):
                    await self._wake.wait()

    async def _working(self) -> None:
        while True:
            name = await self._queue.get()
            try:
                await self._look(name)
            finally:
                self._queue.done(name)

    # --- questions --------------------------------------------------------------------------------------

    async def _round(self) -> float:
        """Ask what is due, and delete at most one Node; returns when the next round is due at the latest."""
        spec = self._site.spec.nodes
        if spec is None or self._rests:
            return NEVER
        now = self._site.clock.now()
        if now < self._retry_at:
            return self._retry_at
        await self._ask(spec, now)
        if self._site.account.type is not None:
            await self._delete(self._site.account.type, spec)
        return max(self._next(spec), self._retry_at)

    def _next(self, spec: CloudNodesSpec) -> float:
        due = [self._timetable.next(spec, self._watch.ask_all_at()), self.deletions.wake or NEVER]
        if self.deletions.delete and self._site.halted is None:
            due.append(max(self._delete_at + DELETE_PACE, self._writes.held_until))
        return min(due)

    async def _ask(self, spec: CloudNodesSpec, now: float) -> None:
        """Ask the cloud about all Nodes for which an answer is due, in one question."""
        site, timetable = self._site, self._timetable
        due = timetable.due(spec, self._watch.ask_all_at(), now)
        if due is None:
            return
        names = set(due.names)
        try:
            first = site.account.type is None
            pattern = (await site.account.opened()).provider_id
            if first:
                self._all_again()
            nodes = dict(site.nodes)
            names = set(nodes) if due.everything else names & nodes.keys()
            names = {name for name in names if not foreign(nodes[name], pattern)}
            asked = [question(nodes[name]) for name in sorted(names)]
            answers: Mapping[str, InstanceAnswer] = {}
            if asked:
                answers = await site.account.instances(asked)
        except HubError as error:
            if str(error) != self._unanswered:
                log.warning("nodes of cluster %s: %s", site.name, error)
            self._unanswered = str(error)
            self._note(dict.fromkeys(names | timetable.down, Unknown(str(error))), now, complete=False)
            self._retry_at = site.clock.now() + self._backoff.next(site.clock.now())
            return
        self._unanswered = ""
        self._backoff.reset()
        timetable.answered(due, answers, now)
        self._note(answers, now, complete=due.everything)

    def _note(self, answers: Mapping[str, InstanceAnswer], begun: float, *, complete: bool) -> None:
        self._watch.note_answers(answers, begun, self._site.clock.now(), complete=complete)
        for name in answers.keys() & self._uids.keys():
            self._answers[name] = answers[name]
            self._asked_at[name] = begun
            self._queue.add(name)

    def _all_again(self) -> None:
        for name in self._site.nodes:
            self._queue.add(name)

    # --- writes -----------------------------------------------------------------------------------------

    async def _look(self, name: str) -> None:
        """Decide about one Node, and write."""
        site, spec, type_ = self._site, self._site.spec.nodes, self._site.account.type
        node = site.nodes.get(name)
        if node is None or spec is None or type_ is None or self._rests:
            return  # a change of any of these makes it look again
        now = site.clock.now()
        if not uninitialized(node):
            self._seen.pop(name, None)
        verdict = self._verdicts[name] = decide(node, self._answers.get(name), spec, type_.provider_id)
        if not verdict.changes:
            if self._timetable.useless(name, now):
                self._wake.set()
            self._failures.pop(name, None)
            self._queue.forget(name)
        self._tell(node, now)
        if not verdict.changes or site.halted is not None:
            return
        if (wait := max(self._writes.held_until, self._settled.get(name, now)) - now) > 0:
            self._queue.add_after(name, wait)
            return
        waits = [self._undone.wait(name, change, now) for change in verdict.changes]
        if any(waits):
            self._queue.add_after(name, max(waits))
        await self._write(node, [change for change, wait in zip(verdict.changes, waits, strict=True) if not wait])

    async def _write(self, node: Node, changes: Sequence[Change]) -> None:
        """Make the changes of one Node in order. A failure concerns this Node only."""
        name, clock = node.name, self._site.clock
        try:
            for change in changes:
                await self._writes.patch(name, change)
                self._wrote(node, change)
        except (NotLeader, NotFound):
            self._queue.retry(name)
            return
        except HubError as error:
            self._failed(node, error)
            return
        if changes:
            self._failures.pop(name, None)
            self._queue.forget(name)
            if name in self._verdicts:
                self._verdicts[name] = self._verdicts[name]._replace(changes=())
            self._tell(node, clock.now())
            self.syncs.note(clock.now() - self._asked_at.get(name, clock.now()))

    def _wrote(self, node: Node, change: Change) -> None:
        site, name, now = self._site, node.name, self._site.clock.now()
        self._undone.made(name, change, now)
        self._settled[name] = now + SETTLE
        if change.event is not None:
            site.reporter.happened(_subject(name, node.uid), *change.event)
        if change.aspect == "initialize":
            self.untainted.note(now - self._seen.pop(name, now))
            if (created := unix(node.created)) < float("inf"):
                self.initialized.note(max(0.0, site.clock.wall() - created))
        log.info("cluster %s: Node %s: %s", site.name, name, change.summary)

    def _failed(self, node: Node, error: HubError) -> None:
        """Try again later; a Node that changes in the meantime is tried at once."""
        name, before = node.name, self._failures.get(node.name)
        finding: Finding | None = None
        # A test of a patch fails if the Node has changed: the watch brings the new state.
        if not isinstance(error, Invalid | Conflict) or (before is not None and before.node is node):
            text = f"Node {name} of cluster {self._site.name} was not changed: {error}"
            finding = Finding("NodeNotChanged", text)
            if before is None or before.finding != finding:
                log.warning("%s", text)
        self._failures[name] = _Failure(node, finding)
        self._tell(node, self._site.clock.now())
        self._queue.retry(name)

    # --- what is told -----------------------------------------------------------------------------------

    def _tell(self, node: Node, now: float) -> None:
        """Update ``told``, and report the Node's findings."""
        name, verdict = node.name, self._verdicts.get(node.name)
        if verdict is None or self._uids.get(name) != node.uid:
            return
        state: str = verdict.state
        message, findings = verdict.message, list(verdict.findings)
        failure = self._failures.get(name)
        if (undone := self._undone_finding(name, verdict, now)) is not None:
            state, message = "withheld", undone.message
            findings.append(undone)
        if failure is not None and failure.finding is not None:
            state, message = "failing", failure.finding.message
            findings.append(failure.finding)
        if name in self.deletions.withheld:
            state, message = "withheld", self.deletions.message
            findings.append(Finding(self.deletions.reason, f"{message}; {self._approves}", self.deletions.withheld))
        before = self.told.get(name)
        since = before.since if before is not None and before.state == state else self._site.clock.wall()
        self.told[name] = Told(state, since, message, tuple(findings))
        self._site.reporter.found(_subject(name, node.uid), findings)

    def _undone_finding(self, name: str, verdict: Verdict, now: float) -> Finding | None:
        undone = [change.summary for change in verdict.changes if self._undone.wait(name, change, now)]
        if not undone:
            return None
        text = (
            f"Node {name} of cluster {self._site.name}: {'; '.join(undone)}: written {REPEATS} times within "
            f"{WINDOW / 60:.0f} minutes, and undone by another writer; stop that one"
        )
        return Finding("Contended", text)

    # --- deletions --------------------------------------------------------------------------------------

    def _decide_deletions(self, type_: CloudType, spec: CloudNodesSpec, nodes: dict[str, Node]) -> Deletions:
        site, clock = self._site, self._site.clock
        return self._watch.decide(
            site.name, nodes, spec, type_.provider_id, site.approved, clock.now(), clock.wall(), suspect=site.suspect
        )

    async def _delete(self, type_: CloudType, spec: CloudNodesSpec) -> None:
        """Delete at most one Node whose machine is gone."""
        site, now = self._site, self._site.clock.now()
        if site.problem:
            return
        before = self.deletions
        found = self.deletions = self._decide_deletions(type_, spec, {**site.nodes})
        for name in sorted({*before.withheld, *found.withheld} & site.nodes.keys()):
            self._tell(site.nodes[name], now)
        if (
            not found.delete
            or site.halted is not None
            or now < max(self._delete_at + DELETE_PACE, self._writes.held_until)
        ):
            return
        self._delete_at = now
        await self._delete_one(site.nodes[found.delete[0]], type_, spec)

    async def _delete_one(self, node: Node, type_: CloudType, spec: CloudNodesSpec) -> None:
        """Read the Node again, and delete it if everything still holds for what was read."""
        site, name, subject, begun = self._site, node.name, _subject(node.name, node.uid), False
        try:
            read, version = await self._writes.read(name)
            found = self._decide_deletions(type_, spec, {**site.nodes, name: read})
            if read.ready == "True" or name not in found.delete:
                return
            log.warning("cluster %s: Node %s is deleted: its machine is gone", site.name, name)
            text = f"Deleting node {name} because it does not exist in the cloud provider"
            site.reporter.happened(subject, "DeletingNode", text)
            begun = True
            await self._writes.delete(read, version)
        except (NotLeader, NotFound, Conflict):
            return
        except HubError as error:
            if begun and not isinstance(error, ApiError):
                self._watch.deleted(name, site.clock.now())  # it may have been
            site.reporter.happened(subject, "DeletingNodeFailed", str(error))
            log.warning("cluster %s: Node %s was not deleted: %s", site.name, name, error)
            self._delete_at = site.clock.now() + NO_RIGHT - DELETE_PACE
            return
        self.deleted += 1
        self._watch.deleted(name, site.clock.now())


def _subject(name: str, uid: str = "") -> Subject:
    return Subject("Node", "", name, uid)
