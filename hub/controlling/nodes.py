"""The node part of the cloud controller of one cluster: asks the cloud about Nodes, and writes what is decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from hub.cloud.instances import InstanceAnswer
from hub.controller.deletion import Deletions, Watch
from hub.controller.nodes import Change, Verdict, decide, foreign, question, uninitialized
from hub.controlling.rights import explained
from hub.controlling.site import Site, Subject
from hub.errors import ApiError, Conflict, Forbidden, HubError, Invalid, NotFound, NotLeader
from hub.kube.client import JSON_PATCH
from hub.model import Finding, Node
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudNodesSpec
from hub.runtime.backoff import Backoff
from hub.runtime.tally import Tally

log = logging.getLogger(__name__)

PATH: Final = "/api/v1/nodes"
IN_FLIGHT: Final = 4
"""Most writes to Nodes of one cluster at a time."""
RATE: Final = 20.0
BURST: Final = 30.0
"""Writes to Nodes of one cluster per second, and in a row."""
DELETE_PACE: Final = 5.0
"""Seconds between two deletions in one cluster."""
ASK_AGAIN: Final = (1.0, 60.0)
"""Seconds until the cloud is asked again about a new Node that it does not know: first, and at most."""
RETRY: Final = (1.0, 60.0)
"""Seconds until a failed pass is made again: first, and at most."""
DURATIONS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Bucket:
    """A token bucket."""

    def __init__(self, site: Site) -> None:
        self._clock = site.clock
        self._tokens, self._at = BURST, site.clock.now()

    async def take(self) -> None:
        """Wait for a token."""
        now = self._clock.now()
        self._tokens, self._at = min(BURST, self._tokens + (now - self._at) * RATE), now
        self._tokens -= 1.0
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / RATE)


class _Asked(msgspec.Struct):
    """When a new Node was asked about, and when it will be again."""

    again: float
    pause: float


class NodePart:
    """Initialises Nodes, keeps their addresses and taints, and deletes those whose machine is gone.

    Attributes:
        verdicts: Node name -> the last decision.
        deletions: the last decision about deletions.
        problem: why the cloud or the cluster cannot be used now; "" if they can.
        deleted: Nodes deleted since the start.
        untainted: seconds from a new Node's first sight until its taint was removed.
        syncs: seconds from a question to the last write that follows from it.
    """

    def __init__(self, site: Site) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.deletions = Deletions()
        self.problem = ""
        self.deleted = 0
        self.untainted = Tally(DURATIONS)
        self.syncs = Tally(DURATIONS)
        self._site = site
        self._bucket = _Bucket(site)
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._wake = asyncio.Event()
        self._answers: dict[str, InstanceAnswer] = {}
        self._watch = Watch()
        self._dirty: set[str] = set()
        self._new: dict[str, _Asked] = {}
        self._seen: dict[str, float] = {}
        """New Node -> when the hub first saw it."""
        self._failures: dict[str, Finding] = {}
        """Node -> why the last write to it failed."""
        self._all_at = self._monitored_at = float("-inf")
        self._retry_at = self._delete_at = float("-inf")
        self._backoff = Backoff(base=RETRY[0], cap=RETRY[1], jitter=0.2)
        self._synced = False
        self._current = False

    # --- what wakes it ----------------------------------------------------------------------------------

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Note changed and deleted Nodes."""
        now = self._site.clock.now()
        changed, gone = tuple(changed), tuple(gone)
        self._watch.note_nodes(changed, gone, now)
        for name in gone:
            for known in (self.verdicts, self._answers, self._new, self._seen, self._failures):
                known.pop(name, None)
            self._dirty.discard(name)
            self._site.reporter.ended(_subject(name))
        for node in changed:
            self._dirty.add(node.name)
            if uninitialized(node):
                self._seen.setdefault(node.name, now)
        self._wake.set()

    def state_changed(self) -> None:
        """The cluster, the duty or the account has changed."""
        current = not self._site.problem
        if current and not self._current:
            self._watch.restart(self._site.clock.now())
        self._current = current
        self._retry_at = float("-inf")
        self._dirty.update(self._site.nodes)
        self._wake.set()

    # --- passes -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make passes until cancelled."""
        clock = self._site.clock
        while True:
            self._wake.clear()
            due = await self._pass()
            wait = asyncio.create_task(self._wake.wait())
            try:
                await asyncio.wait({wait}, timeout=max(0.01, min(3600.0, due - clock.now())))
            finally:
                wait.cancel()

    async def _pass(self) -> float:
        """Make one pass; returns when the next one is due at the latest."""
        site, spec = self._site, self._site.spec.nodes
        if spec is None or site.problem or (site.halted or ("", ""))[0] == "Standby":
            self.problem = site.problem  # a replica that does not act asks no cloud
            return float("inf")
        now = site.clock.now()
        if now < self._retry_at:
            return self._retry_at
        if not self._synced:
            self.nodes_changed(site.nodes.values(), ())
            self._synced, self._current = True, True
        try:
            type_ = await site.account.opened()
            await self._ask(type_, spec, now)
            await self._work(type_, spec, now)
        except HubError as error:
            if str(error) != self.problem:
                log.warning("nodes of cluster %s: %s", site.name, error)
            self.problem = str(error)
            self._retry_at = site.clock.now() + self._backoff.next(site.clock.now())
            return self._retry_at
        self.problem = ""
        self._backoff.reset()
        return self._next(spec)

    def _next(self, spec: CloudNodesSpec) -> float:
        due = [self._all_at + spec.refresh, *(asked.again for asked in self._new.values())]
        if self._unready():
            due.append(self._monitored_at + spec.monitor)
        if self.deletions.wake is not None:
            due.append(self.deletions.wake)
        if self.deletions.delete:
            due.append(self._delete_at + DELETE_PACE)
        return min(due)

    def _unready(self) -> list[str]:
        return [name for name, node in self._site.nodes.items() if node.ready != "True" and not uninitialized(node)]

    async def _ask(self, type_: CloudType, spec: CloudNodesSpec, now: float) -> None:
        """Ask the cloud about the Nodes for which an answer is due."""
        site = self._site
        mine = {name: node for name, node in site.nodes.items() if not foreign(node, type_.provider_id)}
        names = {name for name, node in mine.items() if self._is_new(node, spec, now)}
        everything = now - self._all_at >= spec.refresh
        if now - self._monitored_at >= spec.monitor:
            unready = [name for name in self._unready() if name in mine]
            names.update(unready)
            # Only an answer about all Nodes shows that the account is the right one.
            everything = everything or any(self._watch.due(name, now) for name in unready)
            self._monitored_at = now
        if everything:
            names, self._all_at = set(mine), now
        if not names:
            return
        answers = await site.account.instances([question(mine[name]) for name in sorted(names)])
        ended = site.clock.now()
        self._answers.update(answers)
        self._watch.note_answers(answers, now, ended, complete=everything)
        self._dirty.update(answers)

    def _is_new(self, node: Node, spec: CloudNodesSpec, now: float) -> bool:
        """Whether an answer about an uninitialised Node is due; the pauses between two questions double."""
        if not spec.initialize or not uninitialized(node):
            self._new.pop(node.name, None)
            return False
        asked = self._new.get(node.name)
        if asked is None:
            self._new[node.name] = _Asked(now + ASK_AGAIN[0], ASK_AGAIN[0])
            return True
        if now < asked.again:
            return False
        asked.pause = min(asked.pause * 2, ASK_AGAIN[1])
        asked.again = now + asked.pause
        return True

    async def _work(self, type_: CloudType, spec: CloudNodesSpec, began: float) -> None:
        """Decide about every changed Node, write, and delete."""
        site = self._site
        names, self._dirty = self._dirty & site.nodes.keys(), set()
        writes: list[asyncio.Task[None]] = []
        for name in sorted(names):
            node = site.nodes[name]
            verdict = decide(node, self._answers.get(name), spec, type_.provider_id)
            self.verdicts[name] = verdict
            self._failures.pop(name, None)
            self._report(node)
            if verdict.changes and site.halted is None:
                writes.append(asyncio.create_task(self._write(node, verdict.changes)))
        if writes:
            done, _ = await asyncio.wait(writes)
            self.syncs.note(site.clock.now() - began)
            for task in done:
                task.result()
        await self._delete(type_, spec)

    async def _write(self, node: Node, changes: Iterable[Change]) -> None:
        """Make the changes of one Node in order. A failure concerns this Node only."""
        site = self._site
        try:
            for change in changes:
                await self._bucket.take()
                async with self._slots:
                    client = await site.client()
                    path = f"{PATH}/{node.name}" + ("/status" if change.status else "")
                    await client.request(
                        "PATCH",
                        path,
                        body=msgspec.json.encode(change.patch),
                        timeout=site.fence(),
                        content_type=JSON_PATCH,
                        admit=site.fence,
                    )
                if change.event is not None:
                    site.reporter.happened(_subject(node.name, node.uid), *change.event)
                    self.untainted.note(site.clock.now() - self._seen.pop(node.name, site.clock.now()))
                log.info("cluster %s: Node %s: %s", site.name, node.name, change.summary)
        except (NotLeader, NotFound):
            self._dirty.add(node.name)
        except (Invalid, Conflict) as error:  # it has changed: the watch brings the new state
            log.debug("cluster %s: Node %s: %s", site.name, node.name, error)
        except HubError as error:
            self._dirty.add(node.name)
            self._failed(node, explained(error, "nodes/status: patch" if change.status else "nodes: patch", site.name))

    def _failed(self, node: Node, error: HubError) -> None:
        text = f"Node {node.name} of cluster {self._site.name} was not changed: {error}"
        log.warning("%s", text)
        self._failures[node.name] = Finding("Forbidden" if isinstance(error, Forbidden) else "NodeNotChanged", text)
        self._report(node)
        now = self._site.clock.now()
        after = error.retry_after if isinstance(error, ApiError) else None
        self._retry_at = max(self._retry_at, now + max(after or 0.0, self._backoff.next(now)))

    # --- what is told -----------------------------------------------------------------------------------

    def state(self, name: str) -> tuple[str, str]:
        """State and message of a Node: ready, working, waiting, failing, withheld or foreign."""
        if (failure := self._failures.get(name)) is not None:
            return "failing", failure.message
        if name in self.deletions.withheld:
            return "withheld", self.deletions.message
        verdict = self.verdicts.get(name)
        return (verdict.state, verdict.message) if verdict is not None else ("working", "not looked at yet")

    def findings(self, name: str) -> tuple[Finding, ...]:
        """What an operator should know of a Node."""
        verdict, failure = self.verdicts.get(name), self._failures.get(name)
        found = [*(verdict.findings if verdict is not None else ()), *([failure] if failure is not None else ())]
        if name in self.deletions.withheld:
            deletions, cluster = self.deletions, self._site.name
            text = f"{deletions.message}; hub approve cloud/{cluster} {deletions.digest} lets them go"
            found.append(Finding(deletions.reason, text, deletions.withheld))
        return tuple(found)

    def _report(self, node: Node) -> None:
        self._site.reporter.found(_subject(node.name, node.uid), self.findings(node.name))

    # --- deletions --------------------------------------------------------------------------------------

    async def _delete(self, type_: CloudType, spec: CloudNodesSpec) -> None:
        """Delete at most one Node whose machine is gone."""
        site, now = self._site, self._site.clock.now()
        before = self.deletions
        found = self.deletions = self._watch.decide(
            site.name,
            site.nodes,
            spec,
            type_.provider_id,
            site.approved,
            now,
            site.clock.wall(),
            suspect=site.suspect,
        )
        for name in sorted({*before.withheld, *found.withheld} & site.nodes.keys()):
            self._report(site.nodes[name])
        if not found.delete or site.halted is not None or now - self._delete_at < DELETE_PACE:
            return
        self._delete_at = now
        await self._delete_one(site.nodes[found.delete[0]])

    async def _delete_one(self, node: Node) -> None:
        """Read the Node again, and delete it if it is still the one that was judged."""
        site, subject = self._site, _subject(node.name, node.uid)
        path = f"{PATH}/{node.name}"
        try:
            client = await site.client()
            read = msgspec.json.decode(await client.request("GET", path, timeout=site.fence()), type=_Read)
            if read.metadata.uid != node.uid or read.spec.provider_id != node.provider_id or read.ready:
                self._dirty.add(node.name)
                return
            site.reporter.happened(
                subject, "DeletingNode", f"Deleting node {node.name} because it does not exist in the cloud provider"
            )
            options = {"preconditions": {"uid": node.uid, "resourceVersion": read.metadata.resource_version}}
            body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
            log.warning("cluster %s: Node %s is deleted: its machine is gone", site.name, node.name)
            await client.request("DELETE", path, body=msgspec.json.encode(body), timeout=site.fence(), admit=site.fence)
        except (NotLeader, NotFound, Conflict):
            return
        except HubError as error:
            problem = explained(error, "nodes: delete", site.name)
            site.reporter.happened(subject, "DeletingNodeFailed", str(problem))
            self._failed(node, problem)
            return
        self.deleted += 1
        self._watch.deleted(site.clock.now())


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct):
    provider_id: str = msgspec.field(name="providerID", default="")


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: tuple[_Condition, ...] = ()


class _Read(msgspec.Struct):
    """A Node as read right before it is deleted."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ready(self) -> bool:
        """Whether it is Ready."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)


def _subject(name: str, uid: str = "") -> Subject:
    return Subject("Node", "", name, uid)
