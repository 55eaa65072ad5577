"""``hub cloud-controller``: the cloud controller of one cluster, in the place of a cloud's own binary.

It takes the flags of Kubernetes' cloud controllers (k8s.io/cloud-provider). ``--print-registry`` prints the registry
entry that means the same, for a hub that is the cloud controller of many clusters.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from hub.cli import logs
from hub.cli.cloud_config import configuration
from hub.cli.election import timing_of
from hub.cli.exits import Exit
from hub.cli.options import BindAddress, boolean, namespace, resource_name
from hub.cli.run import in_loop, on_signals
from hub.durations import parse as parse_duration
from hub.errors import did_you_mean

if TYPE_CHECKING:
    from hub.app.controller import ControllerOptions
    from hub.registry.spec import CloudNodesSpec

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., object])

PORT: Final = 10258
"""The port of Kubernetes' cloud controllers."""
PARTS: Final = {
    "cloud-node-controller": "nodes",
    "cloud-node": "nodes",
    "cloud-node-lifecycle-controller": "lifecycle",
    "cloud-node-lifecycle": "lifecycle",
    "service-lb-controller": "balancers",
    "service": "balancers",
    "node-route-controller": "",
    "route": "",
}
"""Name of a controller -> our part; "" = there is none."""
WITHOUT_EFFECT: Final = (
    "--use-service-account-credentials",
    "--configure-cloud-routes",
    "--route-reconciliation-period",
    "--concurrent-node-syncs",
    "--concurrent-node-status-updates",
    "--node-sync-period",
    "--min-resync-period",
    "--allow-untagged-cloud",
    "--profiling",
    "--feature-gates",
    "--authentication-kubeconfig",
    "--authentication-skip-lookup",
    "--authentication-token-webhook-cache-ttl",
    "--authentication-tolerate-lookup-failure",
    "--authorization-always-allow-paths",
    "--authorization-kubeconfig",
    "--authorization-webhook-cache-authorized-ttl",
    "--authorization-webhook-cache-unauthorized-ttl",
    "--requestheader-allowed-names",
    "--requestheader-client-ca-file",
    "--requestheader-extra-headers-prefix",
    "--requestheader-group-headers",
    "--requestheader-username-headers",
    "--kube-api-content-type",
    "--cluster-cidr",
    "--logging-format",
    "--cidr-allocator-type",
    "--external-cloud-volume-plugin",
    "--client-ca-file",
)
NOT_IN_REGISTRY: Final = (
    "--master",
    "--concurrent-service-syncs",
    "--kube-api-qps",
    "--kube-api-burst",
    "--leader-elect",
    "--leader-elect-lease-duration",
    "--leader-elect-renew-deadline",
    "--leader-elect-retry-period",
    "--leader-elect-resource-name",
    "--leader-elect-resource-namespace",
    "--bind-address",
    "--secure-port",
    "--tls-cert-file",
    "--tls-private-key-file",
)
"""Flags that clusters.yaml has no field for: they concern this process and its connections."""
IONOS_MONITOR: Final = 20.0
"""Seconds of --node-monitor-period on IONOS, whose API's rate limit 5 s would exhaust; its own controller has this."""


def _seconds(_: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}, such as 5s or 1m30s", param=parameter) from error


def _flag(name: str, text: str, *, default: bool) -> Callable[[F], F]:
    return click.option(
        name, type=boolean, is_flag=False, flag_value=True, default=default, metavar="[=true|false]", help=text
    )


def _duration(name: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(name, metavar="DURATION", default=default, show_default=True, callback=_seconds, help=text)


def _without_effect(function: F) -> F:
    for name in WITHOUT_EFFECT:
        function = click.option(name, is_flag=False, flag_value="true", hidden=True)(function)
    return function


def _level(_: click.Context, parameter: click.Parameter, text: str) -> int:
    found = text.removeprefix("=")
    if not found.isdecimal():
        raise click.BadParameter(f"{text!r} is not a number", param=parameter)
    return int(found)


@click.command("cloud-controller", short_help="Be the cloud controller of one cluster.")
@click.option("--cloud-provider", metavar="NAME", required=True, help="An installed cloud; see 'hub providers'.")
@click.option("--cluster-name", default="", metavar="NAME", help="Last part of the names in the cloud. [kubernetes]")
@click.option("--cluster-id", default="", metavar="NAME", help="The same, as IONOS spells it.")
@click.option("--kubeconfig", default="", metavar="FILE", help="Access to the cluster. [default: in-cluster]")
@click.option("--master", default="", metavar="URL", help="Overrides the API server's address.")
@click.option("--cloud-config", default="", metavar="PATH", help="ionos: the folder with a file for each data center.")
@_flag("--private", "ionos: state no addresses on public LANs for Nodes.", default=False)
@click.option("--controllers", default="*", show_default=True, metavar="LIST", help="Parts to run; -NAME = not NAME.")
@_duration("--node-monitor-period", "5s", "How often Nodes that are not Ready are asked for; on ionos 20s.")
@_duration("--node-status-update-frequency", "5m", "How often all Nodes are asked for; at least 30s.")
@click.option("--concurrent-service-syncs", type=click.IntRange(1, 100), default=1, show_default=True)
@_flag("--leader-elect", "Hold the Lease.", default=True)
@_duration("--leader-elect-lease-duration", "15s", "Duration of the Lease.")
@_duration("--leader-elect-renew-deadline", "10s", "Longest time between two renewals.")
@_duration("--leader-elect-retry-period", "2s", "Time between two tries.")
@click.option("--leader-elect-resource-name", type=resource_name, default="cloud-controller-manager", show_default=True)
@click.option("--leader-elect-resource-namespace", type=namespace, default="kube-system", show_default=True)
@click.option("--leader-elect-resource-lock", default="leases", show_default=True, help="Only leases.")
@click.option("--bind-address", default="127.0.0.1", show_default=True, help="Where /healthz and /metrics answer.")
@click.option("--secure-port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 = off.")
@click.option("--tls-cert-file", default="", metavar="FILE", help="Certificate chain, PEM. [default: plain HTTP]")
@click.option("--tls-private-key-file", default="", metavar="FILE", help="Private key of --tls-cert-file, PEM.")
@click.option(
    "--kube-api-qps",
    type=click.FloatRange(0.1, 1000.0),
    default=20.0,
    show_default=True,
    help="Most writes to Nodes and Services per second.",
)
@click.option(
    "--kube-api-burst", type=click.IntRange(1, 1000), default=30, show_default=True, help="The same, in a row."
)
@_flag("--allocate-node-cidrs", "Refused: the hub allocates no networks.", default=False)
@click.option("--webhooks", default="", hidden=True)
@_flag("--print-registry", "Print the registry entry that means the same, and exit.", default=False)
@_flag("--print-rbac", "Print the rights that it needs, for --service-account, and exit.", default=False)
@click.option(
    "--service-account",
    default="kube-system/cloud-controller-manager",
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="With --print-rbac: the account that it runs with.",
)
@click.option("-v", "--v", "level", default="0", metavar="N", callback=_level, help="4 or more: log more.")
@_without_effect
@click.pass_context
def cloud_controller(ctx: click.Context, /, **given: Any) -> int:
    """Initialise Nodes, keep their addresses, delete those whose machine is gone, and make load balancers.

    Takes the flags of Kubernetes' cloud controllers and holds their Lease, so that the old and the new controller never
    write at once.
    """
    logs.follow("text", given["level"] >= 4)
    _refuse(given)
    if useless := _given(ctx, WITHOUT_EFFECT):
        log.info("without effect here: %s", " ".join(useless))
    if given["cloud_provider"] == "ionos" and not _given(ctx, ("--node-monitor-period",)):
        given["node_monitor_period"] = IONOS_MONITOR
    options, entry = _options(given, os.environ)
    if given["print_rbac"]:
        _print_rbac(options, given["service_account"])
        return Exit.OK
    if given["print_registry"]:
        import yaml

        click.echo(yaml.safe_dump({"version": 1, "clusters": [entry]}, sort_keys=False), nl=False)
        for host in options.allow_api_hosts:
            click.echo(f"hub run needs --allow-api-host {host}", err=True)
        if rest := _given(ctx, NOT_IN_REGISTRY):
            click.echo(f"clusters.yaml has no field for {' '.join(rest)}: left out", err=True)
        return Exit.OK
    return in_loop(_serve(options, _address(given), (given["tls_cert_file"], given["tls_private_key_file"])))


def _given(ctx: click.Context, flags: Sequence[str]) -> list[str]:
    """Those of the flags that do not have their default."""
    sources = {flag: ctx.get_parameter_source(flag[2:].replace("-", "_")) for flag in flags}
    return [flag for flag, source in sources.items() if source is not ParameterSource.DEFAULT]


def _print_rbac(options: ControllerOptions, account: str) -> None:
    import yaml

    from hub.cli.cluster import provider_ids
    from hub.controller.rights import needed_parts
    from hub.onboarding.manifests import Access, cloud_rbac

    namespace, _, name = account.partition("/")
    if not name:
        raise click.UsageError(f"--service-account {account}: give NAMESPACE/NAME")
    access = Access(
        options.name,
        namespace,
        name,
        cloud=tuple(needed_parts(options.cloud)),
        provider_ids=provider_ids(options.cloud.provider.name),
    )
    click.echo(yaml.safe_dump_all(cloud_rbac(access, options.lease), sort_keys=False), nl=False)


def _refuse(given: Mapping[str, Any]) -> None:
    if given["allocate_node_cidrs"]:
        raise click.UsageError("--allocate-node-cidrs=true is not possible: the hub allocates no networks to Nodes")
    if given["webhooks"]:
        raise click.UsageError("--webhooks is not possible: the hub serves no webhooks")
    if given["leader_elect_resource_lock"] != "leases":
        lock = given["leader_elect_resource_lock"]
        raise click.UsageError(f"--leader-elect-resource-lock={lock} is not possible: only leases is")
    if given["cluster_name"] and given["cluster_id"] and given["cluster_name"] != given["cluster_id"]:
        raise click.UsageError("--cluster-name and --cluster-id name two clusters; give one of them")


def _parts(text: str) -> set[str]:
    """The parts to run."""
    wanted = set(filter(None, PARTS.values())) if "*" in text.split(",") else set[str]()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name = item.removeprefix("-")
        if name != "*" and name not in PARTS:
            hint = did_you_mean(name, PARTS, f"known: {', '.join(PARTS)}")
            raise click.UsageError(f"--controllers: {name!r} is no controller ({hint})")
        if name != "*" and item.startswith("-"):
            wanted.discard(PARTS[name])
        elif name != "*" and PARTS[name]:
            wanted.add(PARTS[name])
    return wanted


def _options(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[ControllerOptions, dict[str, Any]]:
    """The options of the controller, and the registry entry that means the same."""
    from hub.app.controller import ControllerOptions
    from hub.registry.spec import CloudBalancersSpec, CloudNodesSpec, CloudSpec, ProviderRef

    configured = configuration(given, environ)
    parts, name = _parts(given["controllers"]), given["cluster_name"] or given["cluster_id"] or "kubernetes"
    nodes: CloudNodesSpec | None = None
    if {"nodes", "lifecycle"} & parts:
        own, life = "nodes" in parts, "lifecycle" in parts
        nodes = CloudNodesSpec(
            initialize=own,
            addresses=own,
            shutdown_taint=life,
            delete="guarded" if life else "never",
            refresh=max(30.0, given["node_status_update_frequency"]),
            monitor=max(5.0, given["node_monitor_period"]),
        )
    provider = {"name": given["cloud_provider"], "config": configured.config}
    cloud = CloudSpec(
        ProviderRef(provider["name"], json.dumps(configured.config, sort_keys=True, separators=(",", ":"))),
        name,
        nodes=nodes,
        balancers=CloudBalancersSpec(concurrent=given["concurrent_service_syncs"]) if "balancers" in parts else None,
    )
    entry = {
        "name": name.lower().replace("_", "-"),
        "kubeconfig": {"path": given["kubeconfig"]} if given["kubeconfig"] else {"inCluster": True},
        "cloud": {
            "provider": provider,
            "clusterName": name,
            "nodes": _written(nodes) if nodes is not None else "off",
            **({} if "balancers" in parts else {"loadBalancers": "off"}),
        },
    }
    times = ("lease_duration", "renew_deadline", "retry_period")
    options = ControllerOptions(
        name,
        cloud,
        given["kubeconfig"],
        given["master"],
        configured.hosts,
        configured.folder,
        given["leader_elect"],
        (given["leader_elect_resource_namespace"], given["leader_elect_resource_name"]),
        timing_of(*(given[f"leader_elect_{name}"] for name in times)),
        pace=(given["kube_api_qps"], given["kube_api_burst"]),
    )
    return options, entry


def _written(nodes: CloudNodesSpec) -> dict[str, Any]:
    """``cloud.nodes`` of a registry."""
    keys = {"initialize": nodes.initialize, "addresses": nodes.addresses, "shutdownTaint": nodes.shutdown_taint}
    times = {"refresh": f"{nodes.refresh:g}s", "monitor": f"{nodes.monitor:g}s"}
    return {**keys, "delete": nodes.delete, **times}


def _address(given: Mapping[str, Any]) -> BindAddress | None:
    """Where to answer probes and scrapes; plain HTTP on loopback only."""
    from hub.report.listener import is_loopback

    if given["secure_port"] == 0:
        return None
    files = given["tls_cert_file"], given["tls_private_key_file"]
    if any(files) and not all(files):
        raise click.UsageError("--tls-cert-file and --tls-private-key-file belong together: give both")
    host = given["bind_address"].strip("[]")
    if not any(files) and not is_loopback(host):
        raise click.UsageError(
            f"--bind-address {host}: without --tls-cert-file and --tls-private-key-file only loopback is possible, "
            "such as 127.0.0.1 or ::1; --secure-port 0 turns it off"
        )
    return BindAddress(host, given["secure_port"])


async def _serve(options: ControllerOptions, address: BindAddress | None, files: tuple[str, str]) -> int:
    stop = asyncio.Event()
    on_signals(stop.set)
    from hub.app.controller import assemble_controller
    from hub.report.certificate import Certificate
    from hub.report.controller import serving_controller
    from hub.runtime.heap import trimming

    certificate = Certificate(*files) if all(files) else None
    async with (
        trimming(),
        assemble_controller(options) as controller,
        serving_controller(address, controller, certificate),
    ):
        await controller.run(stop)
    return Exit.OK
