"""``hub check --online``: does everything a registry names answer?

Reads exactly what ``hub run`` reads, everything concurrently and with one deadline; whatever has not answered by then
counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from hub.app.hub import Hub, Options, assemble
from hub.cli.render import one_line, table, warn
from hub.cli.traps import traps
from hub.cloud.addresses import NotReserved, Unknown
from hub.decide.addresses import OUTSIDE
from hub.decide.target import unfit
from hub.decide.view import NodeReport
from hub.model import LOCAL, TargetKey
from hub.observe.remote.fleet import SourceKey
from hub.observe.remote.status import State
from hub.registry.spec import REGISTRY_HELD, ClusterSpec, NodePolicy, Registry
from hub.report.clouds import clouds_of

if TYPE_CHECKING:
    from hub.allocating.accounts import Account
    from hub.allocations.view import Answer

DEADLINE: Final = 20.0
"""Seconds for everything: a connection may take 10, and then a provider that polls slowly may take about as long."""

OK: Final = "ok"
FROZEN: Final = "not tried: state frozen"
PORT_REASONS: Final = frozenset({"PortMismatch", "PortNotAllowed", "NodePortUnknown"})
"""Reasons of the findings about ports that cannot be determined."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cluster, provider, account or Service that was checked."""

    what: str
    numbers: tuple[str, ...]
    provider: str
    problem: str = ""
    note: str = OK

    @property
    def result(self) -> str:
        """The text of column RESULT."""
        return self.problem or self.note


async def check_online(options: Options) -> bool:
    """Contact everything and print the results; return whether all is well.

    Raises:
        KubeconfigError: there is no access to the hub cluster.
    """
    async with assemble(options) as hub:
        tasks = [
            asyncio.create_task(hub.local.follow_services(), name="services of the hub cluster"),
            asyncio.create_task(hub.local.follow_slices(), name="slices of the hub cluster"),
            asyncio.create_task(hub.host.loops.watch(), name="event loops of providers"),
        ]
        hub.fleet.update(hub.registry, hub.own_networks.networks)
        try:
            await asyncio.gather(hub.fleet.settled(DEADLINE), _local(hub))
            await hub.fleet.settled(DEADLINE)  # which copies Services ask for is known only now
            accounts, clouds = await _accounts(hub), await _clouds(hub)
            clusters, services = list(_clusters(hub)), list(_services(hub))
            withheld = hub.reconciler.withheld() if hub.local.synced else None
        finally:
            for room in (hub.allocating, hub.controlling):
                if room is not None:
                    await room.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await hub.fleet.close()
            await hub.host.close()
    click.echo("\n" + _table(("CLUSTER", "NODES", "PUBLISHABLE", "PROVIDER", "RESULT"), clusters))
    if accounts:
        click.echo("\n" + _table(("ACCOUNT", "ADDRESSES", "PROVIDER", "RESULT"), accounts))
    if clouds:
        click.echo("\n" + _table(("CLOUD OF", "NODES", "BALANCERS", "PROVIDER", "RESULT"), clouds))
    if services:
        click.echo("\n" + _table(("SERVICE", "RESULT"), services))
    if withheld is not None:
        warn(f"{REGISTRY_HELD}: {withheld.message}")
    rows = (*clusters, *accounts, *clouds, *services)
    failed = sum(bool(row.problem) for row in rows)
    click.echo(f"\nonline: {failed} of {len(rows)} failed")
    return not failed


async def _local(hub: Hub) -> None:
    """Read the hub cluster; if it does not answer in time, its row shows that."""
    try:
        async with asyncio.timeout(DEADLINE):
            while not hub.local.synced and not hub.local.error:  # noqa: ASYNC110 - states, not events
                await asyncio.sleep(0.01)
            await hub.own_networks.read_all()
            await hub.zones.read()
            await hub.approvals.read_once()
            hub.fleet.check_identities()
    except TimeoutError:
        return


def _clusters(hub: Hub) -> Iterator[Row]:
    problem = "" if hub.local.synced else hub.local.error or f"no answer within {DEADLINE:.0f} s"
    yield Row("(hub cluster)", ("", ""), "", problem)
    registry = hub.registry
    for name, reason in sorted(registry.broken_clusters.items()):
        yield Row(name, ("", ""), "", reason)
    policies = _policies(registry)
    for spec in registry.clusters.values():
        if spec.name == LOCAL and not any(key.cluster == LOCAL for key in hub.fleet.sources):
            continue
        yield from _cluster(hub, spec, policies)


async def _accounts(hub: Hub) -> list[Row]:
    """One row for each cloud account: its provider describes the addresses that allocations list, and changes none."""
    hub.follow_allocations()
    allocating, spec = hub.allocating, hub.registry.allocations
    if allocating is None or spec is None:
        return []
    await allocating.settled_once(DEADLINE)
    silent = [account for account in allocating.accounts.values() if account.unanswered]
    for account in silent:  # no allocation uses it, or they cannot be read: any address shows whether it answers
        account.ask([str(account.spec.addresses[0].network_address)], ())
    with suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE):
            while any(account.unanswered for account in silent):  # noqa: ASYNC110 - states, not events
                await asyncio.sleep(0.01)
    rows = [Row(name, ("",), "", problem) for name, problem in sorted(spec.broken.items())]
    for _, account in sorted(allocating.accounts.items()):
        rows.append(_account(account, {} if account in silent else account.answers))
    if allocating.trouble:
        rows.append(Row("(allocations)", ("",), "", allocating.trouble))
    return rows


async def _clouds(hub: Hub) -> list[Row]:
    """One row for each cluster with a cloud controller: its cloud is asked about nodes and balancers, once."""
    hub.follow_clouds()
    if hub.controlling is None:
        return []
    await hub.controlling.settled_once(DEADLINE)
    rows = []
    for cloud in clouds_of(hub).clusters:
        unknown = sum(node.instance in ("", "unknown") for node in cloud.nodes)
        problem = cloud.problem or cloud.error or (f"{unknown} nodes are unknown to it" if unknown else "")
        numbers = (str(len(cloud.nodes)), str(len(cloud.balancers)))
        rows.append(Row(cloud.cluster, numbers, cloud.provider, problem))
    return rows


def _account(account: Account, answers: Mapping[str, Answer]) -> Row:
    name, provider = account.spec.name, account.spec.provider.name
    missing = {
        address: found.state.reason for address, found in answers.items() if isinstance(found.state, NotReserved)
    }
    unknown = next((found.state.reason for found in answers.values() if isinstance(found.state, Unknown)), "")
    problem = account.status.error or unknown
    if not problem and account.unanswered:
        problem = f"no answer within {DEADLINE:.0f} s"
    note = f"{OK}, except {'; '.join(f'{address}: {why}' for address, why in sorted(missing.items()))}"
    return Row(name, (str(len(answers)),), provider, problem, note if missing else OK)


def _cluster(hub: Hub, spec: ClusterSpec, policies: dict[SourceKey, NodePolicy]) -> Iterator[Row]:
    """One row for each provider that resolves the cluster's nodes."""
    if spec.state == "frozen":
        yield Row(spec.name, ("", ""), "", note=FROZEN)
        return
    unit = hub.fleet.clusters.get(spec.name)
    nodes = str(len(unit.nodes)) if unit is not None and unit.synced else ""
    sources = [key for key in hub.fleet.sources if key.cluster == spec.name]
    if not sources:
        problem = ""
        if unit is not None and unit.status.state is not State.READY:
            problem = f"{unit.status.state}: {unit.status.error}"
        yield Row(spec.name, (nodes, ""), "", problem)
    for key in sources:
        view = hub.fleet.sources[key].view(policies.get(key, NodePolicy()))
        offered = sum(bool(report.addresses) for report in view.reports.values())
        numbers = (nodes or str(len(view.reports)), str(offered))
        problem = view.view.unknown or hub.fleet.sources[key].problem
        if not problem and not offered:
            problem = _nothing_offered(view.reports.values())
        yield Row(spec.name, ("", "") if view.view.unknown else numbers, key.provider.name, problem)


def _nothing_offered(reports: Iterable[NodeReport]) -> str:
    """Why a source without publishable nodes is a problem; names ``allowedCIDRs`` if they are the reason."""
    outside = [address for report in reports for address, reason in report.rejected if reason == OUTSIDE]
    if not outside:
        return "no node is publishable: see hub nodes"
    others = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
    return f"no node is publishable: {outside[0]}{others} outside allowedCIDRs; correct allowedCIDRs, or see hub nodes"


def _policies(registry: Registry) -> dict[SourceKey, NodePolicy]:
    """The node rules applied to each source: those of the first Service that uses it."""
    found: dict[SourceKey, NodePolicy] = {}
    for target in registry.targets.values():
        for source in target.sources:
            found.setdefault(SourceKey(source.cluster, source.provider), source.nodes)
    return found


def _services(hub: Hub) -> Iterator[Row]:
    registry = hub.registry
    for key in sorted({*registry.targets, *registry.broken_targets}):
        problem = _service_problem(hub, key)
        if problem:
            yield Row(str(key), (), "", problem)
        else:
            yield _service_row(hub, key)


def _service_problem(hub: Hub, key: TargetKey) -> str:
    if key in hub.registry.broken_targets:
        return hub.registry.broken_targets[key]
    if not hub.local.synced:
        return "not known: the hub cluster does not answer"
    problem = unfit(hub.local.services.get(key))
    return f"{problem.reason}: {problem.message}" if problem is not None else ""


def _service_row(hub: Hub, key: TargetKey) -> Row:
    """The row of a Service that can be a target: failed if no source that is read can publish, because of its ports.

    Everything else that is worth knowing is a note.
    """
    decision = hub.reconciler.decide(key)
    publishing = {group.key.cluster for group in decision.groups}
    found = {
        cluster: f"{finding.reason}: {finding.message}"
        for finding in decision.findings
        if finding.reason in PORT_REASONS
        for cluster in finding.objects
        if cluster not in publishing and cluster not in decision.unknown
    }
    text = "; ".join(dict.fromkeys(found.values()))
    clusters = hub.registry.clusters
    sources = {source.cluster for source in hub.registry.targets[key].sources}
    read = {name for name in sources - decision.unknown.keys() if name in clusters and clusters[name].state == "active"}
    if text and read <= found.keys():
        return Row(str(key), (), "", text)
    service = hub.local.services.get(key)
    notes = [*filter(None, [text]), *(traps(service, decision) if service is not None else ())]
    if any(source.nodes.zones for source in hub.registry.targets[key].sources) and hub.zones.problem:
        notes.append(f"whether the hub cluster has the zones of zoneMap is not known: {hub.zones.problem}")
    return Row(str(key), (), "", note=f"{OK}, except {'; '.join(notes)}" if notes else OK)


def _table(headers: tuple[str, ...], rows: list[Row]) -> str:
    with_provider = "PROVIDER" in headers
    return table(
        headers,
        ((row.what, *row.numbers, *((row.provider,) if with_provider else ()), one_line(row.result)) for row in rows),
    )
