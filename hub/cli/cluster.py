"""``hub cluster add`` and ``remove``: a remote cluster's account, its Secret and its registry entry."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import (
    Settings,
    cidr,
    cluster_name,
    duration,
    kubeconfig,
    lease_namespace,
    namespace,
    own_namespace,
    provider_name,
    secrets_namespace,
    verbose,
)
from hub.cli.render import one_line, warn
from hub.errors import did_you_mean

if TYPE_CHECKING:
    from hub.onboarding.remote import Step

DEFAULT_NAMESPACE: Final = "endpointslice-hub"


@click.group(short_help="Add or remove the hub's access to a remote cluster.")
def cluster() -> None:
    """Add or remove the hub's access to a remote cluster."""


def _namespaces(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse ``a,b``."""
    return tuple(namespace(name.strip()) for name in value.split(",")) if value else ()


def _token_lifetime(text: str) -> int:
    from hub.kube.tokens import SHORTEST

    seconds = int(duration(text))
    if seconds < SHORTEST:
        raise click.BadParameter("API servers do not issue tokens for less than 10m")
    return seconds


_remote_options = (
    click.option(
        "--from-kubeconfig", metavar="FILE", type=click.Path(), help="An administrator's access to the remote cluster."
    ),
    click.option("--context", metavar="CONTEXT", help="Context in --from-kubeconfig. [default: its current context]"),
    click.option(
        "--namespace",
        metavar="NAMESPACE",
        type=namespace,
        default=DEFAULT_NAMESPACE,
        show_default=True,
        help="Namespace of the hub's account in the remote cluster.",
    ),
    click.option("--registry", metavar="FILE", type=click.Path(), help="The registry: clusters.yaml."),
    kubeconfig,
    lease_namespace,
    secrets_namespace,
    verbose,
)


def _cloud_parts(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    known = ("nodes", "load-balancers", "delete-nodes")
    parts = tuple(sorted({part.strip() for part in (text or "").split(",") if part.strip()}))
    if unknown := [part for part in parts if part not in known]:
        hint = did_you_mean(unknown[0], known, f"known: {', '.join(known)}")
        raise click.BadParameter(f"{unknown[0]!r} is no part of a cloud controller ({hint})", param=parameter)
    return parts


def provider_ids(name: str | None) -> tuple[str, ...]:
    """Regular expressions of the provider IDs of a cloud; None = of every cloud that is installed.

    Raises:
        HubError: the cloud cannot be loaded, or none is installed.
    """
    from hub.errors import HubError
    from hub.observe.providers.catalog import Catalog, ProviderUnavailable, cloud_type

    catalog = Catalog()
    if name is not None:
        return (cloud_type(catalog.load(name)).provider_id.pattern,)
    found: list[str] = []
    for known in catalog.names():
        with suppress(ProviderUnavailable):
            type_ = catalog.load(known)
            if type_.cloud is not None:
                found.append(cloud_type(type_).provider_id.pattern)
    if not found:
        raise HubError("no cloud is installed whose provider IDs a policy could name; give --without-policy")
    return tuple(found)


def _remote(function: Any) -> Any:
    for option in reversed(_remote_options):
        function = option(function)
    return function


@cluster.command(short_help="Create the hub's account in a remote cluster, its Secret and its registry entry.")
@click.argument("name", type=cluster_name)
@click.option(
    "--allow-services",
    metavar="NAMESPACE,…",
    callback=_namespaces,
    help="Namespaces whose Services and EndpointSlices the account may read, to copy them or to read ports.",
)
@click.option(
    "--allow-allocations",
    is_flag=True,
    help="Let the account change labels of Nodes, for allocations with this spec.cluster.",
)
@click.option(
    "--allow-evictions",
    metavar="NAMESPACE,…",
    callback=_namespaces,
    help="With --allow-allocations: namespaces whose Pods the account may list and evict.",
)
@click.option(
    "--cloud",
    is_flag=False,
    flag_value="nodes,load-balancers",
    metavar="[=PARTS]",
    callback=_cloud_parts,
    help="Let the account be the cluster's cloud controller: nodes, load-balancers, delete-nodes. "
    "[without PARTS: nodes,load-balancers]",
)
@click.option(
    "--cloud-provider",
    metavar="CLOUD",
    type=provider_name,
    help="With --cloud: the cloud whose provider IDs the account may give to Nodes, and whose Nodes it may delete. "
    "[default: all installed clouds]",
)
@click.option(
    "--without-policy",
    is_flag=True,
    help="With --cloud: leave out the ValidatingAdmissionPolicies that hold the account to what the hub changes.",
)
@click.option(
    "--allowed-cidr",
    metavar="CIDR",
    type=cidr,
    multiple=True,
    help="A network of the registry entry's allowedCIDRs. May be repeated. [default: networks of the nodes' addresses]",
)
@click.option(
    "--provider",
    type=provider_name,
    default="node-addresses",
    show_default=True,
    help="Provider of the registry entry.",
)
@click.option(
    "--token-lifetime",
    metavar="DURATION",
    type=_token_lifetime,
    default="720h",
    show_default=True,
    help="Lifetime of the token; the hub renews it after half of it.",
)
@click.option(
    "--apply", is_flag=True, help="Write the Secret, and with --registry the entry, instead of printing them."
)
@click.option(
    "--rotate", is_flag=True, help="Issue a new token now. Needs no --from-kubeconfig while the old token still works."
)
@click.option("--print-manifests", is_flag=True, help="Print manifests for the remote cluster; contact no cluster.")
@_remote
@click.pass_context
def add(
    ctx: click.Context,
    /,
    name: str,
    allow_services: tuple[str, ...],
    allow_allocations: bool,
    allow_evictions: tuple[str, ...],
    cloud: tuple[str, ...],
    cloud_provider: str | None,
    without_policy: bool,
    allowed_cidr: tuple[Any, ...],
    token_lifetime: int,
    print_manifests: bool,
    **given: Any,
) -> int:
    """Create an account in a remote cluster, and a token for it. Without --allow options it may only read Nodes.

    Prints the Secret with the account's kubeconfig and the entry for the registry, or writes them with --apply. Even
    without --apply, the command creates the account in the remote cluster, and prints a token that is valid. A second
    run changes nothing. If you cannot get an administrator's kubeconfig, send the output of --print-manifests to the
    remote cluster's administrators; use the kubeconfig they send back as --from-kubeconfig of a second run.

    Exit codes: 0 ok, 3 error.
    """
    for flag in ("apply", "rotate"):
        if print_manifests and given[flag]:
            raise click.UsageError(f"--print-manifests only prints, and cannot be combined with --{flag}")
    if (cloud_provider or without_policy) and not cloud:
        raise click.UsageError("--cloud-provider and --without-policy need --cloud")
    if allow_evictions and not allow_allocations:
        raise click.UsageError("--allow-evictions needs --allow-allocations")
    logs.quiet(ctx.ensure_object(Settings).verbose)
    from hub.onboarding.manifests import Access, manifests_with_script

    access = Access(
        name,
        given["namespace"],
        services=tuple(sorted(set(allow_services))),
        allocations=allow_allocations,
        evictions=tuple(sorted(set(allow_evictions))),
        cloud=cloud,
        provider_ids=provider_ids(cloud_provider) if cloud and not without_policy else (),
    )
    if print_manifests:
        click.echo(manifests_with_script(access, f"{token_lifetime}s"), nl=False)
        return Exit.OK
    if given["from_kubeconfig"] is None and not given["rotate"]:
        raise click.UsageError("Missing option '--from-kubeconfig', '--rotate' or '--print-manifests'")
    options = _options(
        access,
        given,
        rotate=given["rotate"],
        lifetime=token_lifetime,
        networks=allowed_cidr,
        provider=given["provider"],
    )
    from hub.onboarding import add as adding
    from hub.runtime.clock import SystemClock

    steps: list[Step] = []
    try:
        done = asyncio.run(adding.add(options, SystemClock(), steps))
    finally:
        _steps(steps)
    for note in done.notes:
        warn(note)
    if done.secret is not None:
        import yaml

        click.echo(
            f"# Apply this to the hub cluster; it holds a token.\n{yaml.safe_dump(done.secret, sort_keys=False)}"
        )
    if done.entry:
        click.echo(
            "# Put this under clusters: in clusters.yaml, then: hub check clusters.yaml\n"
            f"# (with Helm: under registry.data.clusters: in your values)\n{done.entry}",
            nl=False,
        )
    return Exit.OK


@cluster.command(short_help="Remove a cluster's Secret, its registry entry, and the hub's account in it.")
@click.argument("name", type=cluster_name)
@click.option("--apply", is_flag=True, help="Make the changes; without this option they are only printed.")
@_remote
@click.pass_context
def remove(ctx: click.Context, /, name: str, **given: Any) -> int:
    """Remove a cluster: with --registry its entry, its Secret, and with --from-kubeconfig the hub's account in it.

    The remote cluster need not be reachable: the command lists what is left in it and how to remove it. A running hub
    removes the cluster's slices once the entry has been gone for the hub's --removal-grace.

    Exit codes: 0 ok, 3 error: something was not removed.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    from hub.errors import HubError
    from hub.onboarding import remove as removing
    from hub.onboarding.manifests import Access
    from hub.runtime.clock import SystemClock

    options = _options(Access(name, given["namespace"]), given)
    steps: list[Step] = []
    try:
        done = asyncio.run(removing.remove(options, SystemClock(), steps))
    finally:
        _steps(steps)
    if done.left:
        click.echo(f"Objects are left in cluster {name}; remove them with its administrator's kubeconfig:", err=True)
        for command in done.left:
            click.echo(f"  {command}", err=True)
    if not options.apply:
        click.echo("Nothing was changed; repeat with --apply to make these changes.", err=True)
    if done.problem:
        raise HubError(f"{done.problem}; the hub's side is {'done' if options.apply else 'only checked'}, see above")
    return Exit.OK


def _options(access: Any, given: dict[str, Any], **more: Any) -> Any:
    from hub.onboarding.options import ClusterOptions

    return ClusterOptions(
        access,
        kubeconfig=given["from_kubeconfig"],
        context=given["context"],
        hub_kubeconfig=given["kubeconfig"],
        secrets_namespace=given["secrets_namespace"] or given["lease_namespace"] or own_namespace(),
        registry=given["registry"],
        apply=given["apply"],
        **more,
    )


def _steps(steps: list[Step]) -> None:
    """Print the steps on stderr, also before an error; stdout is for the manifests."""
    width = max((len(step.done) for step in steps), default=0)
    for step in steps:
        click.echo(one_line(f"{step.done.ljust(width)}  {step.what}"), err=True)
