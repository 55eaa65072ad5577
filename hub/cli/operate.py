"""``hub approve``, ``pause``, ``resume`` and ``purge``: an operator's orders, written to the hub cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import (
    Given,
    Settings,
    approvable,
    cluster_name,
    hub_access,
    kubeconfig,
    lease_namespace,
    own_namespace,
    owner_option,
    previous_owner,
    registry,
    service,
    target_namespace,
    verbose,
    withheld_hash,
)
from hub.cli.render import count
from hub.cli.server import server_of, server_option

if TYPE_CHECKING:
    from hub.app.hub import Options


@click.command(short_help="Approve a withheld removal, or list what is withheld.")
@click.argument("subject", metavar="[SUBJECT]", type=approvable, required=False)
@click.argument("name", metavar="[HASH]", type=withheld_hash, required=False)
@click.option("--force", is_flag=True, help="Approve although no hub withholds a removal with this hash now.")
@owner_option
@server_option
@kubeconfig
@lease_namespace
@target_namespace
@verbose
@click.pass_context
def approve(
    ctx: click.Context,
    /,
    subject: str | None,
    name: str | None,
    force: bool,
    owner: str,
    kubeconfig: str | None,
    lease_namespace: str | None,
    target_namespace: tuple[str, ...],
    **given: Any,
) -> int:
    """Approve a withheld removal: the endpoints that were shown with HASH, or fewer of them, and no others.

    SUBJECT is NAMESPACE/SERVICE, cluster/NAME, allocation/NAME (moves of reserved addresses), cloud/CLUSTER
    (deletions of Nodes, nodes that leave balancers, deletions of what no Service needs, and a new balancer although
    another controller may have one or the cloud does not list the old one) or registry. Without arguments, list the
    removals that are withheld, each with the command that approves it. They are read from the running hub (--server)
    if it leads, else from its slices, which know only removals of Services. A hash that stands for none of them is
    refused. If the running hub has another owner than --owner, the hub's own is used.

    An approval is valid for an hour and is kept in the ConfigMap endpointslice-hub-approvals-OWNER of the hub's
    namespace; a running hub acts on it at once.

    Exit codes: 0 ok, 1 nothing has this hash, 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    if subject is not None and name is None:
        raise click.UsageError("Missing argument 'HASH': hub approve without arguments lists what is withheld")
    from hub.cli.approving import Withholding, approve_one, list_withheld

    where = Withholding(kubeconfig, lease_namespace or own_namespace(), owner, target_namespace, server_of(given))
    if subject is None or name is None:
        return asyncio.run(list_withheld(where))
    return asyncio.run(approve_one(where, subject, name, force=force))


@click.command(short_help="Stop changing the slices of a Service, or the addresses of an allocation.")
@click.argument("target", metavar="NAMESPACE/SERVICE|allocation/NAME", type=service)
@kubeconfig
@verbose
@click.pass_context
def pause(ctx: click.Context, /, target: str, kubeconfig: str | None) -> int:
    """Stop changing the slices of a Service until `hub resume`, whatever happens to its sources.

    Sets the annotation endpointslice-hub/paused on the Service, or on the NetIPAllocation: then its addresses stay
    where they are.

    Exit codes: 0 ok, 3 error.
    """
    return _annotate(ctx, target, kubeconfig, paused=True)


@click.command(short_help="Follow the sources of a paused Service again, or serve a paused allocation.")
@click.argument("target", metavar="NAMESPACE/SERVICE|allocation/NAME", type=service)
@kubeconfig
@verbose
@click.pass_context
def resume(ctx: click.Context, /, target: str, kubeconfig: str | None) -> int:
    """Follow the sources of a paused Service again. The guard checks the changes since then.

    Removes the annotation endpointslice-hub/paused from the Service or the NetIPAllocation.

    Exit codes: 0 ok, 3 error.
    """
    return _annotate(ctx, target, kubeconfig, paused=False)


def _annotate(ctx: click.Context, target: str, kubeconfig: str | None, *, paused: bool) -> int:
    logs.quiet(ctx.ensure_object(Settings).verbose)
    from hub.cli.operations import set_paused

    asyncio.run(set_paused(kubeconfig, target, paused=paused))
    click.echo(f"{target}: {f'paused, until: hub resume {target}' if paused else 'not paused'}")
    return Exit.OK


@click.command(short_help="Delete all slices of an owner; let go of allocations.")
@click.option("--owner", type=previous_owner, metavar="OWNER", help="The owner whose slices are all deleted.")
@click.option(
    "--allocations", is_flag=True, help="Take the hub's finalizer off NetIPAllocations, and its labels off nodes."
)
@click.option(
    "--cloud",
    type=cluster_name,
    metavar="CLUSTER",
    help="Delete the objects in this cluster's cloud that no Service needs; needs --registry.",
)
@click.option("--yes", is_flag=True, help="Delete without asking for confirmation.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, delete nothing.")
@registry(required=False)
@hub_access
@verbose
@click.pass_context
def purge(
    ctx: click.Context,
    /,
    owner: str | None,
    allocations: bool,
    cloud: str | None,
    yes: bool,
    dry_run: bool,
    registry: str | None,
    **given: Any,
) -> int:
    """Delete all slices of an owner, in every namespace; slices of other owners are never touched.

    With --allocations, remove the finalizer netinfra.darkbrains.com/release from NetIPAllocations, so that they can be
    deleted without a hub, and the labels ip.ready and spec.addressLabel from nodes of the hub cluster. The addresses
    stay where they are. Pods that need the label are not evicted, but do not start again.

    With --cloud, delete the balancers, addresses, groups and policies in the cluster's cloud that are called
    SERVICE.NAMESPACE.CLUSTERNAME and have no such Service. A hub may run meanwhile. Objects of another cluster with the
    same clusterName in the same account have such names, too: read the list.

    Otherwise stop the hub first: a running hub writes its slices and labels again. No guard applies: consumers lose
    every endpoint of the owner. Lists everything and asks before it deletes.

    Exit codes: 0 ok, 3 error, 130 not confirmed.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    access = Given(**given)
    if owner is None and not allocations and cloud is None:
        raise click.UsageError("Missing option '--owner', '--allocations' or '--cloud'")
    if cloud is not None and registry is None:
        raise click.UsageError("--cloud needs --registry")
    if owner is not None:
        _purge_slices(owner, access.kubeconfig, yes=yes, dry_run=dry_run)
    if allocations:
        _purge_allocations(access.kubeconfig, yes=yes, dry_run=dry_run)
    if cloud is not None and registry is not None:
        _purge_cloud(cloud, access.options(registry, leader_elect=False), yes=yes, dry_run=dry_run)
    return Exit.OK


def _purge_slices(owner: str, kubeconfig: str | None, *, yes: bool, dry_run: bool) -> None:
    from hub.cli.operations import delete_slices, list_slices, print_slices

    found = asyncio.run(list_slices(kubeconfig, owner))
    print_slices(found)
    if not found:
        click.echo(f"no slices of owner {owner}")
    elif not dry_run:
        if not yes:
            click.confirm(f"Delete {count(len(found), 'slice')} of owner {owner}?", abort=True, err=True)
        click.echo(f"{count(asyncio.run(delete_slices(kubeconfig, owner, found)), 'slice')} deleted")


def _purge_allocations(kubeconfig: str | None, *, yes: bool, dry_run: bool) -> None:
    from hub.cli import leftovers

    found = asyncio.run(leftovers.find(kubeconfig))
    leftovers.show(found)
    if not (found.finalizers or found.labels):
        click.echo("no leftovers of allocations")
    elif not dry_run:
        if not yes:
            click.confirm(f"Remove {found}?", abort=True, err=True)
        asyncio.run(leftovers.let_go(kubeconfig, found))
        click.echo(f"{found} removed")


def _purge_cloud(cluster: str, options: Options, *, yes: bool, dry_run: bool) -> None:
    from hub.cli import cloud_leftovers

    found = asyncio.run(cloud_leftovers.find(options, cluster))
    cloud_leftovers.show(found)
    what = f"{count(sum(len(left.objects) for left in found), 'object')} in the cloud of cluster {cluster}"
    if not found:
        click.echo(f"no leftovers in the cloud of cluster {cluster}")
    elif not dry_run:
        if not yes:
            click.confirm(f"Delete {what}?", abort=True, err=True)
        asyncio.run(cloud_leftovers.delete(options, cluster, {left.name for left in found}))
        click.echo(f"{what} deleted")
