"""One source: a cluster and one provider with one configuration.

Builds views, whose endpoints targets publish, from the cluster's nodes and the provider's answers. There is one view
for each node policy, shared by all targets with that policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from hub.decide.addresses import Accepted, AddressPolicy, OwnNetwork
from hub.decide.snapshot_view import SnapshotMemory, view_of_snapshot
from hub.decide.view import ViewBuilder, ViewResult
from hub.errors import HubError
from hub.kube.reflector import STEADY_AFTER
from hub.model import LOCAL, GuardDefaults, Node, Resolution, SourceView
from hub.observe.providers.endpoints import EndpointWatch
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.resolver import Resolver
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.status import State
from hub.plugin.spec import EndpointProviderType, ReadOnlyCluster
from hub.registry.spec import ClusterSpec, Network, NodePolicy, ProviderRef
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

NOT_LOADED: Final = "its provider is not ready yet"
REBUILD_AFTER: Final = 1.0
"""Seconds until a view is built again after it has requested a list of the Nodes."""


class Source:
    """A cluster and a provider.

    Args:
        remote: the cluster's Nodes; None if the cluster has no kubeconfig.
        denied: the registry's deniedCIDRs.
        own: the hub cluster's own networks.
        on_change: called when a view may have changed.
        api: read access to the cluster for the provider.

    Attributes:
        guard: the guard defaults of the provider type, once it is loaded.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        ref: ProviderRef,
        remote: RemoteCluster | None,
        host: ProviderHost,
        clock: Clock,
        denied: tuple[Network, ...],
        own: tuple[OwnNetwork, ...],
        on_change: Callable[[], None],
        api: ReadOnlyCluster | None = None,
    ) -> None:
        self.spec = spec
        self.ref = ref
        self.guard = GuardDefaults()
        self._polls = False
        self._remote = remote
        self._host = host
        self._clock = clock
        self._addresses = _policy(spec, denied, own)
        self._on_change = on_change
        self._api = api
        self._resolver: Resolver | None = None
        self._watch: EndpointWatch | None = None
        self._problem = NOT_LOADED
        self._began = clock.wall()
        self._builders: dict[NodePolicy, ViewBuilder] = {}
        self._memories: dict[NodePolicy, SnapshotMemory] = {}
        self._views: dict[NodePolicy, ViewResult] = {}
        self._built: dict[NodePolicy, tuple[int, int]] = {}
        """Versions of the nodes and resolutions that the last view was built from."""
        self._good: dict[NodePolicy, SourceView] = {}
        """The last known good views, which are published while the source is unknown."""
        self._was_known = False
        """Whether the source was known at the last call of ``state_changed``."""
        self._loaded = asyncio.Event()

    async def run(self) -> None:
        """Load the provider's type, then follow its answers until cancelled."""
        self._was_known = False
        backoff = Backoff(base=2.0)
        while True:
            try:
                kind = await self._host.catalog.load_async(self.ref.name)
            except HubError as error:
                self._problem = str(error)
                self._loaded.set()
                self._on_change()
                await self._clock.sleep(backoff.next(self._clock.now()))
                continue
            self.guard = kind.guard
            self._polls = kind.poll_interval is not None
            if isinstance(kind, EndpointProviderType):
                self._watch = EndpointWatch(self.spec.name, self.ref, self._host, self._on_change, api=self._api)
                self._loaded.set()
                await self._watch.run()
            elif self._remote is None:
                self._problem = f"provider {self.ref.name} resolves nodes: give the cluster a kubeconfig"
                self._loaded.set()
                self._on_change()
                await asyncio.Event().wait()
            else:
                self._resolver = Resolver(self.spec.name, self.ref, self._host, self._on_change, api=self._api)
                self._resolver.replace(self._remote.nodes.values())
                self._loaded.set()
                await self._resolver.run()

    def update(self, spec: ClusterSpec, denied: tuple[Network, ...], own: tuple[OwnNetwork, ...]) -> None:
        """Apply a changed registry entry with the same kubeconfig and provider; the provider is not called again."""
        addresses = _policy(spec, denied, own)
        if addresses != self._addresses or spec.max_endpoints != self.spec.max_endpoints:
            self._addresses = addresses
            self._builders.clear()
            self._built.clear()
            self._good = {policy: _within(view, addresses) for policy, view in self._good.items()}
        self.spec = spec

    def keep(self, policies: Collection[NodePolicy]) -> None:
        """Forget the views of other policies. No target uses them any more, and every view refers to all nodes."""
        by_policy: tuple[dict[NodePolicy, Any], ...] = (
            self._builders,
            self._memories,
            self._views,
            self._built,
            self._good,
        )
        for policy in self._views.keys() - policies:
            for values in by_policy:
                values.pop(policy, None)

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> bool:
        """Handle changed and deleted nodes of the cluster.

        Returns:
            Whether targets must be decided before the provider has answered. That is also the case while too many nodes
            are not Ready, since another number of nodes may end this state.
        """
        if self._resolver is None:
            return True
        news = self._resolver.update(changed, gone)
        return news or any(builder.disrupted for builder in self._builders.values())

    def state_changed(self) -> None:
        """Handle a changed state of the cluster or provider: if the source became unknown, update the last good views.

        They are built here because no pass may have built them: the Service is paused, or the replica does not lead.
        """
        was_known, self._was_known = self._was_known, not self._unknown()
        if was_known and not self._was_known:
            for policy in self._good:
                view = self._build(policy, self._views.get(policy), self._clock.wall()).view
                if view.unknown is None:
                    self._good[policy] = view

    async def settled(self) -> None:
        """Wait until the source is known, or ``problem`` says why it is not."""
        if self._remote is not None:
            await self._remote.settled()
        await self._loaded.wait()
        if self._watch is not None:
            await self._watch.settled()
        if self._resolver is not None and self._remote is not None and self._remote.synced:
            await self._resolver.settled()

    @property
    def problem(self) -> str:
        """Why the source is unknown or its provider fails; "" if neither."""
        if self._remote is not None and self._remote.status.state is not State.READY:
            status = self._remote.status
            return f"{status.state}: {status.error}" if status.error else str(status.state)
        feed = self._watch or self._resolver
        if feed is None:
            return self._problem
        if self._watch is not None and self._watch.snapshot is None:
            return feed.status.error or "no answer yet"
        return feed.status.error

    @property
    def failing_since(self) -> float | None:
        """Unix time since which the provider fails; None if it does not."""
        feed = self._watch or self._resolver
        if feed is None:
            return None if self._problem is NOT_LOADED else self._began
        return feed.status.since if feed.status.state == "degraded" else None

    @property
    def scope(self) -> str:
        """The ``scope`` of the provider's configuration, see :class:`ProviderType`; "" if the type has none."""
        feed = self._watch or self._resolver
        return feed.scope if feed is not None else ""

    def last_view(self, policy: NodePolicy) -> ViewResult | None:
        """The view of the last pass under a node policy; None if there was no pass, or the source was unknown."""
        found = self._views.get(policy)
        return found if found is not None and found.view.unknown is None else None

    @property
    def addresses(self) -> AddressPolicy:
        """The policy that says which addresses may be published and probed."""
        return self._addresses

    @property
    def answers(self) -> int:
        """Number of complete answers of the provider if it is polled, else of complete lists of Nodes.

        A polled provider is not called while the cluster has no Node, so lists count then. The number may become
        smaller when that changes: use it only to distinguish answers.
        """
        if self._watch is not None:
            return self._watch.answers
        if self._resolver is not None and self._polls and (self._remote is None or self._remote.nodes):
            return self._resolver.answers
        return self._remote.lists if self._remote is not None else 0

    @property
    def resolutions(self) -> Mapping[str, Resolution]:
        """The provider's resolution of each node, by name."""
        return self._resolver.resolutions if self._resolver is not None else {}

    def view(self, policy: NodePolicy) -> ViewResult:
        """The view of this source under a node policy, now."""
        unknown = self._unknown()
        if unknown:
            return self._unknown_view(policy, unknown)
        now = self._clock.wall()
        version = self._version()
        last = self._views.get(policy)
        if last is not None and self._built.get(policy) == version and (last.wake_at is None or now < last.wake_at):
            return last
        result = self._build(policy, last, now)
        # A grace period has ended by the clock, but the Nodes were last confirmed before its end: list them again.
        if result.wake_at is not None and result.wake_at <= now:
            assert self._remote is not None  # noqa: S101 - only views of Nodes wake by the clock
            self._remote.list_again(STEADY_AFTER)
            result = replace(result, wake_at=now + REBUILD_AFTER)
        good = self._good.get(policy)
        if result.view.unknown is None:
            self._good[policy] = result.view
        elif good is not None:  # more than maxEndpoints
            result = replace(result, view=msgspec.structs.replace(good, unknown=result.view.unknown))
        self._views[policy] = result
        self._built[policy] = version
        return result

    def _version(self) -> tuple[int, int]:
        """Versions of the nodes and resolutions that a view is built from."""
        if self._watch is not None:
            return self._watch.version, -1
        assert self._remote is not None  # noqa: S101 - _unknown() said so
        return self._remote.version, self._resolver.version if self._resolver is not None else 0

    def _build(self, policy: NodePolicy, last: ViewResult | None, now: float) -> ViewResult:
        if self._watch is not None and self._watch.snapshot is not None:
            return view_of_snapshot(
                self.spec.name,
                self._watch.snapshot,
                last.view if last is not None else None,
                self._addresses,
                self.spec.max_endpoints,
                same_cluster=self.spec.name == LOCAL,
                exclude_addresses=policy.exclude_addresses,
                zones=policy.zones,
                memory=self._memories.setdefault(policy, SnapshotMemory()),
            )
        assert self._remote is not None  # noqa: S101 - _unknown() said so
        builder = self._builders.get(policy)
        if builder is None:
            builder = ViewBuilder(self.spec.name, policy, self._addresses, self.spec.max_endpoints)
            self._builders[policy] = builder
        moment = now
        if policy.not_ready_grace > STEADY_AFTER:
            # The watch may be silent and the node Ready again: the grace period ends by the time at which the Nodes
            # were last known to be current.
            moment = min(now, now - self._clock.now() + self._remote.current_as_of)
        return builder.build(self._remote.nodes, self.resolutions, moment)

    def _unknown(self) -> str:
        """Why the source is unknown; "" if it is known. A failing NodeProvider leaves its earlier answers in force."""
        if self._remote is not None and self._remote.mismatch:
            return self.problem  # for every type of provider: it may have read its endpoints from the wrong cluster
        if self._watch is not None:
            return "" if self._watch.snapshot is not None and not self._watch.status.error else self.problem
        if self._resolver is None:
            return self.problem or self._problem
        if self._remote is None or self._remote.status.state is not State.READY:
            return self.problem or "no nodes yet"
        return ""

    def _unknown_view(self, policy: NodePolicy, why: str) -> ViewResult:
        """The last known good view, marked as unknown; the same object as before if nothing has changed."""
        self._built.pop(policy, None)
        good = self._good.get(policy)
        old = self._views.get(policy)
        if old is not None and old.view.unknown == why and (good is None or old.view.endpoints is good.endpoints):
            return old
        view = SourceView(self.spec.name, why, {}) if good is None else msgspec.structs.replace(good, unknown=why)
        result = self._views[policy] = ViewResult(view, {})
        return result


def _policy(spec: ClusterSpec, denied: tuple[Network, ...], own: tuple[OwnNetwork, ...]) -> AddressPolicy:
    if spec.name == LOCAL:
        return AddressPolicy((), denied, local=True)
    return AddressPolicy(spec.allowed_cidrs, denied, own=own)


def _within(view: SourceView, addresses: AddressPolicy) -> SourceView:
    """The view without addresses that may no longer be published."""
    families = {
        family: {
            address: endpoint for address, endpoint in content.items() if isinstance(addresses.check(address), Accepted)
        }
        for family, content in view.endpoints.items()
    }
    return msgspec.structs.replace(view, endpoints=families)
