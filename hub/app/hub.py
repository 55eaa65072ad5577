"""Builds the hub from its options and runs it.

Everything that lives as long as the hub starts here, as a named and supervised task of one TaskGroup. The tasks of
clusters and sources, which come and go with the registry, are started by :mod:`hub.observe.remote.fleet`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hub.app.affected import AffectedTargets
from hub.app.leading import Leading
from hub.app.settings import Health, Options, lease_name
from hub.decide.snapshot import HubIdentity
from hub.election.elector import Elector
from hub.election.lease import KubeLease, lease_of
from hub.errors import HubError, Problem, RegistryError
from hub.events.recorder import Recorder, hub_object
from hub.events.timeline import Timelines
from hub.events.watch import EventWatch
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import in_cluster_servers, load_hub_access
from hub.kube.resolver import LookupPool
from hub.model import LOCAL, MANAGED_BY, Finding, Node, TargetKey
from hub.observe.health.board import Board
from hub.observe.local import accepted
from hub.observe.local.accepted import Keeper, load_kept
from hub.observe.local.approvals import Approvals, flags
from hub.observe.local.cluster import LocalCluster
from hub.observe.local.history import History
from hub.observe.local.secrets import Secrets
from hub.observe.local.zones import HubZones
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.context import Limits
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.loop_pool import StartLoop
from hub.observe.providers.loops import LoopThread, unhandled
from hub.observe.remote.access import Connector
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.fleet import Fleet, SourceKey
from hub.observe.remote.identity import Identities
from hub.observe.remote.own_networks import OwnNetworks
from hub.onboarding.renewal import Renewal
from hub.reconcile.adopting import Adopting
from hub.reconcile.foreign import ForeignSlices
from hub.reconcile.gather import Gather
from hub.reconcile.history import Historian
from hub.reconcile.reconciler import Reconciler
from hub.reconcile.workers import WORKERS, Passes
from hub.reconcile.writer import Writer
from hub.registry import isolated
from hub.registry.copies.following import Copying
from hub.registry.diff import reuse
from hub.registry.file import Loaded
from hub.registry.spec import Registry, RegistryHeld
from hub.registry.watch import RegistryWatcher
from hub.runtime.clock import Clock, SystemClock
from hub.runtime.queue import KeyedQueue
from hub.runtime.supervise import spawn

if TYPE_CHECKING:
    from hub.allocating.run import Allocating
    from hub.controlling.run import Controlling
    from hub.views.service import EndpointViews

__all__ = ["Health", "Hub", "Options", "assemble", "lease_name"]

log = logging.getLogger(__name__)

RESTART = "restart the hub"
"""The hint for a reload that changes the owner."""
STOP_SECONDS = 1.8
"""Seconds that the writes in flight may take after SIGTERM. Releasing the Lease takes up to 3 more, and the process
must end within 5."""
OWN_NETWORKS_PATIENCE = 5.0
"""Maximum seconds that the first write waits for the hub cluster's own networks and zones."""


class Hub:
    """The running hub; :func:`assemble` builds it.

    Attributes:
        registry: the registry in force: the file's, with the copies that Services ask for by annotation.
        problems: problems of the last accepted file.
        rejected: why the present file is rejected; None if it is accepted.
        fallback_accepted_at: when the registry in force was accepted, if the file was rejected at start; else "". An
            earlier process may have accepted it.
        reloads: number of registry files accepted and rejected since the start.
        reloaded_at: Unix time at which the last file was accepted.
        allocating: the allocations; None until a registry has some.
        controlling: the cloud controller; None until a cluster has one.
        views: endpoint views; None until a registry asks for them.
        timelines: recent changes of Services and clusters.
    """

    def __init__(
        self,
        options: Options,
        loaded: Loaded,
        client: Client,
        clock: Clock,
        pool: LookupPool,
        start_loop: StartLoop = LoopThread,
    ) -> None:
        self.options = options
        self.registry = self._written = loaded.registry
        """``_written`` is the file's registry, without the copies that Services ask for."""
        self.problems = loaded.problems
        self.rejected: RegistryError | None = None
        self.fallback_accepted_at = ""
        self.reloads = {"accepted": 1, "rejected": 0}
        self.reloaded_at = clock.wall()
        self.clock = clock
        self.client = client
        self.health = Health(clock.now())
        self.queue: KeyedQueue[TargetKey] = KeyedQueue(clock)
        self.views: EndpointViews | None = None
        self.allocating: Allocating | None = None
        self.controlling: Controlling | None = None
        self._affected = AffectedTargets(self.registry)
        self._held: frozenset[int] = frozenset()
        """The shards that this process held at the last change."""
        self._refreshing = False
        """Whether a call of _refresh is scheduled."""
        self._running = False
        """Whether :meth:`run` was called; a single pass follows no allocations."""
        owner, namespace, writes_api = self.registry.owner, options.namespace, not options.dry_run
        # Not resolved: the symlinks of a mounted ConfigMap change while the hub runs.
        folder = str(Path(options.registry).absolute().parent)
        credentials_dir = options.credentials_dir or folder

        # The right to write.
        name = options.lease or lease_name(owner)
        self.lease = f"{namespace}/{name}"
        self.leading = Leading(
            lambda number: KubeLease(client, namespace, lease_of(name, number)),
            _identity(),
            clock,
            self.registry,
            self.queue.under_way,
            self._rights_changed,
            elects=options.leader_elect,
            count=options.shards,
            timing=options.timing,
            withheld=self._withheld,
        )

        # The hub cluster.
        self.local = LocalCluster(
            client,
            clock,
            self._owners(),
            self._target_changed,
            self.leading.check,
            options.target_namespaces,
            self.leading.writes if self.leading.count > 1 else None,
        )
        self.copying = Copying(self.local.slices.targets)
        self.secrets = Secrets(client, clock, options.secrets_namespace or namespace)
        self.approvals = Approvals(client, clock, namespace, owner, self._approvals_changed)
        self.keeper = Keeper(client, clock, namespace, owner, lambda: self.leads)
        self.history = History(client, clock, namespace, owner, lambda: self.writing)
        if options.content is None and writes_api:
            self.keeper.keep(loaded.content)
        self.adopting = Adopting(client, clock, self._target_changed, options.target_namespaces)
        self.adopting.follow(self.registry)
        self.own_networks = OwnNetworks(
            client, clock, self._own_networks_changed, os.environ.get("POD_IP", ""), options.target_namespaces
        )
        self.zones = HubZones(client, clock, self._zones_changed)
        self.zones.follow(needed=bool(self._maps_zones()))
        self.foreign = ForeignSlices(
            client,
            clock,
            self._owners,
            self.local.slices.targets,
            self._publishes,
            self._foreign_found,
            self._adopted_by,
        )

        # The remote clusters, their providers and the health checks.
        self.catalog = Catalog()
        self.host = ProviderHost(
            self.catalog,
            clock=clock,
            folder=folder,
            limits=Limits(
                allow_exec=options.allow_exec,
                allow_api_hosts=options.allow_api_hosts,
                credentials_dir=credentials_dir,
                proxies=options.proxies,
            ),
            read_secret=self.secrets.text,
            secret_version=self.secrets.version,
            start_loop=start_loop,
        )
        connector = Connector(
            clock,
            pool,
            options.allow_exec,
            in_cluster_servers(),
            self.secrets.read,
            self.secrets.namespace,
            self.secrets.version,
            options.kubeconfig_folders(),
            options.proxies,
        )
        approving = flags(owner, namespace)
        self.identities = Identities(lambda: self.registry, self.local.all_slices, self.approvals.valid, approving)
        self.fleet = Fleet(
            connector, self.host, clock, self._cluster_changed, client, self.identities.check, self._copy_changed
        )
        self.board = Board(clock, self._wake, credentials_dir)
        self.renewal = Renewal(
            self.secrets, client, self._clusters_to_renew, clock, lambda: self.writing and writes_api
        )

        # The passes, and the Events about them.
        self.recorder = Recorder(
            client, clock, lambda: self.writing, self.elector.identity, enabled=options.events and writes_api
        )
        self.events = EventWatch(self, self.recorder, hub_object(self.lease))
        self.timelines = Timelines(clock.wall)
        self.writer = Writer(self.local, self.leading)
        gather = Gather(
            HubIdentity(self.lease, options.removal_grace, approving, options.take_over),
            lambda: self.registry,
            self.fleet,
            self.local,
            self.adopting,
            self.board,
            clock,
            approvals=self.approvals.valid,
            warned=lambda: self.leading.shards.other_withholds,
            uid=self.identities.uid,
            hub_zones=lambda: self.zones.known,
        )
        historian = Historian(self.history, self.approvals.approvers)
        self.reconciler = Reconciler(gather, self.writer, clock, self.events, self.timelines, historian=historian)
        self.passes = Passes(self.reconciler, self.queue, clock, self.leading.writes, dry_run=options.dry_run)

    @property
    def writing(self) -> bool:
        """Whether this process writes any targets now."""
        return self.leading.writing

    def writes(self, key: TargetKey) -> bool:
        """Whether this process writes a target now."""
        return self.leading.writes(key)

    @property
    def leads(self) -> bool:
        """Whether this process does the work that only one replica may do for the whole hub, see :class:`Leading`."""
        return self.leading.holds_shard_0

    @property
    def elector(self) -> Elector:
        """The elector of the Lease; with shards, of the first Lease."""
        return self.leading.elector

    @property
    def trouble(self) -> str:
        """What this process cannot do in the hub cluster now, and why; "" if there is no such problem."""
        parts = {
            "": self.local.error,
            "lease: ": self.leading.problem,
            "approvals: ": self.approvals.problem,
            "last accepted registry: ": self.keeper.problem,
            "history: ": self.history.problem,
            "Events: ": self.recorder.problem,
            "allocations: ": self.allocating.trouble if self.allocating is not None else "",
        }
        return "; ".join(f"{name}{problem}" for name, problem in parts.items() if problem)

    def withheld(self) -> RegistryHeld | None:
        """The mass removal that is withheld under the registry in force; None if there is none."""
        return self.reconciler.withheld()

    def _withheld(self) -> str:
        """The hash of the mass removal that the last judgement withheld; "" if there was none."""
        found = self.reconciler.last_withheld()
        return found.hash if found is not None else ""

    # --- what wakes targets ------------------------------------------------------------------------

    def _owners(self) -> tuple[str, ...]:
        return (self.registry.owner, *self.registry.previous_owners)

    def _cluster_changed(self, name: str) -> None:
        self.timelines.cluster_changed(name, self.fleet.state(name))
        self._wake(self._affected.of_cluster(name))
        if self.allocating is not None:
            self.allocating.cluster_changed(name)
        if self.controlling is not None:
            self.controlling.cluster_changed(name)

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        for room in (self.allocating, self.controlling):
            if room is not None:
                room.nodes_changed(name, changed, gone)

    def _copy_changed(self, source: SourceKey) -> None:
        """Wake the targets of one source of the hub cluster; targets that copy other Services are not concerned."""
        self._wake(self._affected.of_copy(source.provider))

    def _target_changed(self, key: TargetKey) -> None:
        if self.copying.note(key, self.local.services.get(key)) and not self._refreshing:
            self._refreshing = True  # one refresh for all Services of a list
            asyncio.get_running_loop().call_soon(self._refresh)
        if self.leading.writes(key) and (key in self.registry.targets or self.local.slices.of(key)):
            self.queue.add(key)

    def _approvals_changed(self) -> None:
        self.fleet.check_identities()
        self._wake(self.all_targets())
        for room in (self.allocating, self.controlling):
            if room is not None:
                room.wake()

    def _own_networks_changed(self) -> None:
        self.fleet.update(self.leading.registry_part(), self.own_networks.networks)
        self._wake(self.all_targets())

    def _maps_zones(self) -> set[TargetKey]:
        """Targets whose endpoints get zone hints."""
        targets = self.registry.targets.items()
        return {key for key, target in targets if any(source.nodes.zones for source in target.sources)}

    def _zones_changed(self) -> None:
        self._wake(self._maps_zones())

    def _clusters_to_renew(self) -> dict[str, RemoteCluster]:
        """Clusters that this process acts for: it renews their tokens."""
        return {name: cluster for name, cluster in self.fleet.clusters.items() if self.leading.acts_for(name)}

    def _publishes(self, key: TargetKey) -> bool:
        """Whether this process writes a target of the registry now."""
        return key in self.registry.targets and self.leading.writes(key)

    def _adopted_by(self, key: TargetKey) -> str:
        target = self.registry.targets.get(key)
        return target.adopt if target is not None else ""

    def _foreign_found(self, key: TargetKey, findings: tuple[Finding, ...]) -> None:
        if self.reconciler.annotate(key, findings):
            for finding in findings:
                log.warning("%s: %s: %s", key, finding.reason, finding.message)
            self._wake([key])

    def _wake(self, keys: Iterable[TargetKey]) -> None:
        """Queue a pass over each of these targets that this process writes."""
        if self.writing:
            now = self.clock.now()
            for key in filter(self.leading.writes, keys):
                if not self.options.dry_run:
                    self.reconciler.latency.arrived(key, now)
                self.queue.add(key)

    def all_targets(self) -> list[TargetKey]:
        """The targets of the registry, those that it has notes about, and those with slices of ours; sorted."""
        return sorted({*self.registry.targets, *self.registry.notes, *self.local.slices.targets()})

    def _refresh(self) -> None:
        """Use the registry with the copies that Services ask for now."""
        self._refreshing = False
        self._put_in_force(self.copying.merged(self._written))

    def _load_registry(self, content: bytes, path: str) -> Loaded:
        """Check a changed file; called in a thread. Unchanged entries are the same objects as before.

        Raises:
            RegistryError: the file cannot be used at all.
        """
        loaded = isolated.loads(content, path)
        return replace(loaded, registry=reuse(self._written, loaded.registry))

    def _registry_changed(self, outcome: Loaded | RegistryError) -> None:
        if isinstance(outcome, RegistryError):
            self.rejected = outcome
            self.reloads["rejected"] += 1
            log.warning("the registry is rejected, the last good one stays in force:\n%s", outcome)
            return
        owner, old = outcome.registry.owner, self._written
        if owner != old.owner:  # another owner has another Lease and owns none of our slices, so the hub must restart
            problem = Problem(self.options.registry, 0, 0, "owner", f"changed from {old.owner!r} to {owner!r}", RESTART)
            self._registry_changed(RegistryError((problem,)))
            return
        self.rejected, self.fallback_accepted_at = None, ""
        self.reloads["accepted"] += 1
        if not self.options.dry_run:
            self.keeper.keep(outcome.content)
        self.reloaded_at = self.clock.wall()
        self.problems = outcome.problems
        for problem in outcome.problems:
            log.warning("registry: %s", problem)
        self._written = outcome.registry
        self._put_in_force(self.copying.merged(self._written))
        log.info("registry: %d clusters, %d services", len(self.registry.clusters) - 1, len(self.registry.targets))

    def _follow_views(self) -> None:
        """Build endpoint views for the registry in force; they are imported only when a registry asks for them."""
        if self.views is None and self.registry.views is not None:
            from hub.views.service import EndpointViews

            self.views = EndpointViews(self._connection, self.clock, namespaces=self.options.target_namespaces)
            self.views.set_leading(leading=self.leads and not self.options.dry_run)
        if self.views is not None:
            self.views.update(self.registry.views)

    def follow_allocations(self) -> None:
        """Build the allocations; they are imported only when a registry has ``allocations:``."""
        if self.allocating is None and self.registry.allocations is not None:
            from hub.allocating.run import Allocating, own_node
            from hub.events.allocations import EventReporter

            self.allocating = Allocating(
                self.client,
                self.fleet,
                self.host,
                self.clock,
                self.leading.check_duties,
                self.elector.identity,
                EventReporter(self.recorder),
                self.approvals.valid,
                own_node(os.environ),
                flags(self.registry.owner, self.options.namespace),
                act=not self.options.dry_run,
            )
            self.fleet.on_nodes = self._nodes_changed
            self._lead_allocations()
        if self.allocating is not None:
            self.allocating.update(self.registry.allocations)

    def follow_clouds(self) -> None:
        """Build the cloud controller; it is imported only when a cluster of a registry has ``cloud:``."""
        if self.controlling is None and any(spec.cloud is not None for spec in self.registry.clusters.values()):
            from hub.controlling.cluster import Rights
            from hub.controlling.run import Controlling
            from hub.events.cloud import reporter_of

            options, instance = self.options, self.elector.identity
            rights = Rights(
                f"{MANAGED_BY}/{self.registry.owner}",
                self.leading.acts_for,
                self.leading.check_cluster,
                lambda digest: digest in self.approvals.valid(),
                act=not options.dry_run,
            )
            events = options.events and not options.dry_run
            self.controlling = Controlling(
                self.fleet,
                self.host,
                self.clock,
                rights,
                lambda _, client, acts: reporter_of(self.clock, instance, client, acts, enabled=events),
            )
            self.fleet.on_nodes = self._nodes_changed
        if self.controlling is not None:
            self.controlling.update(self.registry.clusters)

    def _lead_allocations(self) -> None:
        if self.allocating is not None:
            settle = self.elector.duration if self.leading.elects and self.elector.took_expired else 0.0
            self.allocating.set_leading(leading=self.leads and not self.options.dry_run, settle=settle)

    async def _connection(self, cluster: str) -> Client:
        """A connected client of a cluster.

        Raises:
            HubError: the cluster cannot be contacted.
        """
        if cluster == LOCAL:
            return self.client
        unit = self.fleet.clusters.get(cluster)
        if unit is None:
            raise HubError(f"cluster {cluster} is not contacted: it is frozen, broken, or has no kubeconfig")
        return await unit.connection()

    def _put_in_force(self, registry: Registry) -> None:
        """Put a registry into force: the file's, with the copies that Services ask for."""
        old, self.registry = self.registry, registry
        if registry is old:
            return
        for key, note in sorted(registry.notes.items()):
            if old.notes.get(key) != note:
                log.warning("%s: %s: %s", key, note.reason, note.message)
        before, self._affected = self._affected, AffectedTargets(registry)
        self.local.follow_owners(self._owners())
        self.adopting.follow(self.registry)
        self.zones.follow(needed=bool(self._maps_zones()))
        self.identities.keep(self.registry.clusters.keys() | self.registry.broken_clusters.keys())
        self.leading.use_registry(registry)
        self._forget(self.leading.written_elsewhere(self.all_targets()))
        self.fleet.update(self.leading.registry_part(), self.own_networks.networks)
        self._record_states()
        self._follow_views()
        if self._running or self.allocating is not None:
            self.follow_allocations()
        if self._running or self.controlling is not None:
            self.follow_clouds()
        noted = {key for key, _ in old.notes.items() ^ registry.notes.items()}
        affected = self._affected.since(before)
        self._wake({*(self.all_targets() if affected is None else affected), *noted})

    # --- running -----------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the clusters, decide and write until ``stop`` is set; then let the writes in flight end."""
        self._running = True
        self.fleet.update(self.leading.registry_part(), self.own_networks.networks)
        self._record_states()
        self._follow_views()
        self.follow_allocations()
        self.follow_clouds()
        asyncio.get_running_loop().set_exception_handler(unhandled)
        async with asyncio.TaskGroup() as group:
            tasks = [
                spawn(group, "own networks of the hub cluster", self.own_networks.run, self.clock),
                spawn(group, "zones of the hub cluster", self.zones.run, self.clock),
                spawn(group, "foreign slices", self.foreign.run, self.clock),
                spawn(group, "slices to be adopted", self.adopting.run, self.clock),
                spawn(group, "approvals", self.approvals.run, self.clock),
                spawn(group, "services of the hub cluster", self.local.follow_services, self.clock),
                spawn(group, "slices of the hub cluster", self.local.follow_slices, self.clock),
                spawn(group, "health checks", self.board.run, self.clock),
                spawn(group, "heartbeat", self._heartbeat, self.clock),
                spawn(group, "event loops of providers", self.host.loops.watch, self.clock),
                spawn(group, "last accepted registry", self.keeper.run, self.clock),
                spawn(group, "history", self.history.run, self.clock),
                spawn(group, "Secrets", self.secrets.run, self.clock),
                spawn(group, "credentials", self.renewal.run, self.clock),
                spawn(group, "Events", self.recorder.run, self.clock),
                spawn(group, "Event watch", self.events.run, self.clock),
            ]
            if self.options.content is None:
                # A file that was rejected at start is read again: it may have been fixed, else the reason is logged.
                seen = self.registry.digest if self.rejected is None else ""
                watcher = RegistryWatcher(
                    self.options.registry, self.clock, self._registry_changed, seen, self._load_registry
                )
                tasks.append(spawn(group, "registry", watcher.run, self.clock))
            leading = group.create_task(self._lead(), name="leader")
            workers = [spawn(group, f"worker {n}", self.passes.work, self.clock) for n in range(WORKERS)]
            await stop.wait()
            self.health.stopping = True
            self.leading.end()
            self.writer.stop()
            for room in (self.allocating, self.controlling):
                if room is not None:
                    await room.close()
            log.info("stopping")
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    while self.queue.working:  # noqa: ASYNC110 - a state, not an event
                        await asyncio.sleep(0.01)
                    await self.history.flush()  # before the Lease is released: the next leader reads it
            if self.queue.working:
                # A write that is cut off may still reach the API server. Other replicas must not write before then, so
                # they have to wait until our Leases expire.
                self.leading.shards.keep_leases()
            for task in (leading, *workers, *tasks):
                task.cancel()
            if self.views is not None:
                group.create_task(self.views.close(), name="closing the endpoint views")
            group.create_task(self._close_sources(), name="closing the clusters and their providers")
        self.reconciler.journal.flush()

    async def _close_sources(self) -> None:
        await self.fleet.close()
        await self.host.close()

    async def _heartbeat(self) -> None:
        """Once a second, do what is due regularly: probes, the journal, and the note of a withheld removal."""
        while True:
            self.health.beat = self.clock.now()
            self.health.local_synced = self.local.synced
            self.reconciler.journal.flush()
            if self.leads:
                held = self.reconciler.withheld()
                self.keeper.note_withheld(held.hash if held is not None else "")
            await self.clock.sleep(1.0)

    async def _lead(self) -> None:
        """Take part in the election, or write without one, once everything is known that the first write needs."""
        await self.local.wait_synced()
        self.fleet.check_identities()
        with suppress(TimeoutError):
            async with asyncio.timeout(OWN_NETWORKS_PATIENCE):
                await self.own_networks.answered.wait()
                if self._maps_zones():
                    await self.zones.attempted.wait()
        await self.adopting.wait_synced()
        await self.restore()
        if not self.options.leader_elect:
            self.leading.begin()
            await asyncio.Event().wait()
        await self.leading.shards.run()

    async def restore(self) -> None:
        """Withhold a removal that the previous process withheld; it is noted in the hub cluster."""
        if await accepted.withheld(self.client, self.options.namespace, self.registry.owner):
            self.reconciler.reread(withheld=True)

    def _rights_changed(self) -> None:
        """Adapt to the shards that this process holds now: this process writes other targets than before."""
        before, self._held = self._held, self.leading.held
        self.history.rights_changed()
        gained = self._held - before
        if self.views is not None:
            self.views.set_leading(leading=self.leads and not self.options.dry_run)
        self._lead_allocations()
        if self.controlling is not None:
            self.controlling.wake()
        if self.leading.count > 1 and not self.health.stopping:
            self.fleet.update(self.leading.registry_part(), self.own_networks.networks)
            self._record_states()
        if before != self._held:
            written = set(filter(self.leading.writes, self.all_targets()))
            self.timelines.rights_changed(self._work(), written)
        if before - self._held:  # another replica writes these targets and remembers their state
            self._forget(self.leading.written_elsewhere(self.all_targets()))
        if not self._held:
            self.board.clear()
            self.reconciler.latency.clear()
            self.recorder.clear()
        if gained:
            if self.leading.count == 1 and not self.elector.continued:  # another process has written meanwhile
                self._forget((*self.all_targets(), *self.reconciler.remembered()))
            self.keeper.begin_leading()
            self.reconciler.reread(withheld=self.leading.shards.inherit())
            self.identities.reread()
            self.fleet.check_identities()
        only_gained = gained and self.leading.count > 1
        self._wake(key for key in self.all_targets() if not only_gained or self.leading.shard(key) in gained)

    def _work(self) -> str:
        """What this process writes, in words."""
        if self.leading.count == 1:
            return "this process leads" if self._held else "this process no longer leads"
        return f"this process writes {len(self._held)} of {self.leading.count} shards"

    def _record_states(self) -> None:
        """Record the states of the clusters of the registry, and forget what it no longer has."""
        states = {name: self.fleet.state(name) for name in self.registry.clusters}
        self.timelines.keep(set(self.all_targets()), states)

    def _forget(self, keys: Iterable[TargetKey]) -> None:
        """Forget the state of targets that another replica writes, or wrote until now."""
        for key in keys:
            self.reconciler.forget(key)
            self.recorder.set_findings(key, ())
        self.local.slices.thin_out()


def _identity() -> str:
    """The identity of this process in the election; unique, also among earlier processes."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


@asynccontextmanager
async def assemble(
    options: Options,
    clock: Clock | None = None,
    check: isolated.Check | None = None,
    start_loop: StartLoop = LoopThread,
) -> AsyncIterator[Hub]:
    """Load the registry, connect to the hub cluster and build a hub; close the connections afterwards.

    Args:
        options: the options of the command line.
        clock: where time comes from; the system's clock by default.
        check: a check of the registry that is under way; by default it is started here.
        start_loop: starts the event loop of a provider type; in a thread of its own by default.

    Raises:
        RegistryError: the registry cannot be used at all, and no accepted one can be used instead.
        KubeconfigError: there is no access to the hub cluster.
    """
    clock = clock or SystemClock()
    loaded: Loaded | None = None
    rejected: RegistryError | None = None
    try:
        check = check or isolated.begin(options.registry, options.content)
        loaded = await asyncio.to_thread(check.outcome)
    except RegistryError as error:
        if not options.fall_back or options.content is not None:
            raise
        rejected = error
    try:
        access = await asyncio.to_thread(load_hub_access, options.kubeconfig)
    except HubError:
        if rejected is not None:  # report the rejected registry: it must be fixed anyway
            raise rejected from None
        raise
    pool = LookupPool()
    try:
        async with Client(Credentials(access, clock), pool) as client:
            at = ""
            if loaded is None:
                loaded, at = await load_kept(client, options.namespace, options.registry, options.owner)
            if loaded is None:
                assert rejected is not None  # noqa: S101 - else the registry would be loaded
                raise rejected
            for problem in loaded.problems:
                log.warning("registry: %s", problem)
            hub = Hub(options, loaded, client, clock, pool, start_loop)
            if rejected is not None:
                hub.rejected, hub.fallback_accepted_at = rejected, at
                hub.reloads["accepted"] = 0
            yield hub
    finally:
        pool.close()
