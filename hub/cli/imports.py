"""``hub import``: convert another tool's configuration to clusters.yaml."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from hub.cli.environment import PSEUDO_FILE, checked
from hub.cli.options import kubeconfig as kubeconfig_option
from hub.cli.options import service, verbose
from hub.errors import HubError

if TYPE_CHECKING:
    from hub.cli.importers.document import Document
    from hub.cli.importers.variables import Variables
    from hub.model import Service

F = TypeVar("F", bound=Callable[..., Any])

MAX_BYTES: Final = 4 * 1024 * 1024
"""Most bytes read of one file, as for a registry."""


def files(text: str) -> Callable[[F], F]:
    """Add ``-f``, the files to import; ``text`` is the option's help."""
    file = click.File("r", encoding="utf-8")
    return click.option("-f", "--filename", "files", metavar="FILE", type=file, multiple=True, help=text)


helm = click.option("--helm", is_flag=True, help="Print values for the Helm chart instead of clusters.yaml.")
variables = files("A manifest, or NAME=value lines; - = stdin. May be repeated. [default: this process's environment]")


@click.group("import", short_help="Convert another tool's configuration to clusters.yaml.")
def import_() -> None:
    """Convert another tool's configuration to clusters.yaml.

    Prints the result and changes nothing. Comments in it mark where the conversion had to choose between meanings.
    Review it, then run 'hub check' on it; or print values for the Helm chart (--helm) and install the chart with them.
    """


@import_.command("env", short_help="Convert the environment of ionoscloud-endpointslice-controller.")
@variables
@helm
@verbose
def env(files: Sequence[TextIO], helm: bool) -> None:
    """Convert the environment of ionoscloud-endpointslice-controller.

    Reads the controller's variables from this process, or with -f from manifests (the container of a Deployment or
    other workload, and the ConfigMaps it refers to) or from a file of NAME=value lines.
    """
    from hub.cli.importers import environment, target

    found = _variables(files, target.VARIABLES)
    imported = environment.build(found)
    _print(imported.document, found if helm else None, dry_run=imported.dry_run)


@import_.command("ip-address-controller", short_help="Convert the environment of ip-address-controller.")
@variables
@helm
@verbose
def ip_address_controller(files: Sequence[TextIO], helm: bool) -> None:
    """Convert the environment of ip-address-controller, which attaches reserved addresses to nodes.

    Variables are read as by 'hub import env'. The NetIPAllocation objects stay as they are.
    """
    from hub.cli.importers import allocator

    found = _variables(files, allocator.KNOWN)
    _print(allocator.build(found).document, found if helm else None)


@import_.command("inventory-script", short_help="Convert the environment of the controller's inventory script.")
@variables
@helm
@verbose
def inventory_script(files: Sequence[TextIO], helm: bool) -> None:
    """Convert the environment of the controller's inventory script (render_inventory.py).

    The result needs neither the script nor an inventory: the hub reads the Nodes and the IONOS API. Variables
    are read as by 'hub import env'; if the controller's variables are among them, its Service is printed too.
    """
    from hub.cli.importers import script

    found = _variables(files, script.VARIABLES)
    _print(script.build(found), found if helm else None)


@import_.command("endpoint-copier", short_help="Convert the Services that endpoint-copier copies to.")
@files("Manifests of Services; - = stdin. May be repeated. [default: all Services of the hub cluster]")
@kubeconfig_option
@click.option(
    "--managed-endpoint",
    metavar="NAMESPACE/NAME",
    type=service,
    default="default/kubernetes-vip",
    show_default=True,
    help="The Service that is a copy without annotations (--managed-endpoint-namespace and -name).",
)
@click.option(
    "--default-endpoint",
    metavar="NAMESPACE/NAME",
    type=service,
    default="default/kubernetes",
    show_default=True,
    help="The Service that --managed-endpoint copies (--default-endpoint-namespace and -name).",
)
@helm
@verbose
def endpoint_copier(
    files: Sequence[TextIO], kubeconfig: str | None, managed_endpoint: str, default_endpoint: str, helm: bool
) -> None:
    """Convert the Services that endpoint-copier copies to.

    Annotated Services keep their annotations and are covered by rules in the annotations block; the Service that
    endpoint-copier manages without annotations becomes an entry of its own.
    """
    from hub.cli.importers import copier
    from hub.cli.importers.variables import Variables, documents
    from hub.model import TargetKey

    if files:
        found = copier.services(manifest for name, text in _texts(files) for manifest in documents(name, text))
    else:
        found = asyncio.run(_services(kubeconfig))
    managed, source = (TargetKey(*name.split("/", 1)) for name in (managed_endpoint, default_endpoint))
    _print(copier.build(found, managed, source), Variables({}) if helm else None)


async def _services(kubeconfig: str | None) -> list[Service]:
    """All Services of the hub cluster, page by page."""
    from hub.cli.operations import PAGE, TIMEOUT, hub_cluster
    from hub.kube.wire import SERVICES

    found: list[Service] = []
    async with hub_cluster(kubeconfig) as client:
        token = ""
        while True:
            params = {"limit": PAGE} | ({"continue": token} if token else {})
            body = await client.request("GET", SERVICES.path, params=params, timeout=TIMEOUT)
            page, _, token = SERVICES.list_page(body)
            found.extend(page.values())
            if not token:
                return found


def _variables(files: Sequence[TextIO], marks: Sequence[str]) -> Variables:
    from hub.cli.importers.variables import Variables, from_texts

    return from_texts(_texts(files), marks) if files else Variables(os.environ)


def _texts(files: Sequence[TextIO]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for file in files:
        try:
            text = file.read(MAX_BYTES + 1)
        except ValueError:
            raise HubError(f"{file.name}: is not UTF-8 text") from None
        if len(text) > MAX_BYTES:
            raise HubError(f"{file.name}: is too large: at most {MAX_BYTES:,} characters are read")
        found.append((file.name, text))
    return found


def _print(document: Document, helm: Variables | None, *, dry_run: bool = False) -> None:
    """Print a registry that 'hub check' accepts, or report what is wrong with its input.

    Args:
        document: the registry.
        helm: the variables it was made from, to print values for the chart instead; None = print the registry.
        dry_run: the hub must write nothing.
    """
    checked(document, PSEUDO_FILE)
    if helm is not None:
        from hub.cli.importers import chart

        document = chart.values(document, helm, dry_run=dry_run)
    click.echo(document.text, nl=False)
