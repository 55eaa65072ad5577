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


variables = files("A manifest, or NAME=value lines; - = stdin. May be repeated. [default: this process's environment]")


@click.group("import", short_help="Convert another tool's configuration to clusters.yaml.")
def import_() -> None:
    """Convert another tool's configuration to clusters.yaml.

    Prints the result and changes nothing. Comments in it mark where the conversion had to choose between meanings.
    Review it, then run 'hub check' on it.
    """


@import_.command("env", short_help="Convert the environment of the single-target controller.")
@variables
@verbose
def env(files: Sequence[TextIO]) -> None:
    """Convert the environment of the single-target controller.

    Reads the controller's variables from this process, or with -f from manifests (the container of a Deployment or
    other workload, and the ConfigMaps it refers to) or from a file of NAME=value lines.
    """
    from hub.cli.importers import environment, target

    _print(environment.build(_variables(files, target.VARIABLES)).document)


@import_.command("inventory-script", short_help="Convert the environment of the controller's inventory script.")
@variables
@verbose
def inventory_script(files: Sequence[TextIO]) -> None:
    """Convert the environment of the controller's inventory script (render_inventory.py).

    The result needs neither the script nor an inventory: the hub reads the Nodes and the IONOS API. Variables
    are read as by 'hub import env'; if the controller's variables are among them, its Service is printed too.
    """
    from hub.cli.importers import script

    _print(script.build(_variables(files, script.VARIABLES)))


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
@verbose
def endpoint_copier(
    files: Sequence[TextIO], kubeconfig: str | None, managed_endpoint: str, default_endpoint: str
) -> None:
    """Convert the Services that endpoint-copier copies to.

    Annotated Services keep their annotations and are covered by rules in the annotations block; the Service that
    endpoint-copier manages without annotations becomes an entry of its own.
    """
    from hub.cli.importers import copier
    from hub.cli.importers.variables import documents
    from hub.model import TargetKey

    if files:
        found = copier.services(manifest for name, text in _texts(files) for manifest in documents(name, text))
    else:
        found = asyncio.run(_services(kubeconfig))
    managed, source = (TargetKey(*name.split("/", 1)) for name in (managed_endpoint, default_endpoint))
    _print(copier.build(found, managed, source))


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


def _print(document: Document) -> None:
    """Print a document that 'hub check' accepts, or report what is wrong with its input."""
    checked(document, PSEUDO_FILE)
    click.echo(document.text, nl=False)
