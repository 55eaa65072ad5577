"""``hub import``: from another tool's configuration to clusters.yaml."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from hub.cli.environment import PSEUDO_FILE, checked
from hub.cli.options import kubeconfig as kubeconfig_option
from hub.cli.options import service, verbose
from hub.errors import UsageError

if TYPE_CHECKING:
    from hub.importers.document import Document
    from hub.importers.variables import Variables
    from hub.model import Service

F = TypeVar("F", bound=Callable[..., Any])

MAX_BYTES: Final = 4 * 1024 * 1024
"""As for a registry."""


def files(text: str) -> Callable[[F], F]:
    """``-f``: what is imported, with this help."""
    file = click.File("r", encoding="utf-8")
    return click.option("-f", "--filename", "files", metavar="FILE", type=file, multiple=True, help=text)


variables = files("A manifest, or NAME=value lines; - = stdin. May be repeated. [default: this process's environment]")


@click.group("import", short_help="Print the clusters.yaml that another tool's configuration comes to.")
def import_() -> None:
    """Print the clusters.yaml that another tool's configuration comes to.

    Comments say where a meaning had to be chosen. Nothing is changed anywhere; look at it, then give it to
    'hub check'.
    """


@import_.command("env", short_help="From the environment of the single-target controller.")
@variables
@verbose
def env(files: Sequence[TextIO]) -> None:
    """From the environment of the single-target controller.

    Its variables are those of this process, or of the container that -f finds in manifests (Deployments and
    the like, with the ConfigMaps they refer to) or in a file of assignments.
    """
    from hub.importers import environment, target

    _print(environment.build(_variables(files, target.VARIABLES)).document)


@import_.command("inventory-script", short_help="From the environment of the controller's inventory script.")
@variables
@verbose
def inventory_script(files: Sequence[TextIO]) -> None:
    """From the environment of the controller's inventory script (render_inventory.py).

    The result needs neither script nor inventory: the hub reads the Nodes and asks the IONOS API. Variables
    are read as by 'hub import env'; with the controller's beside them, its Service is printed too.
    """
    from hub.importers import script

    _print(script.build(_variables(files, script.VARIABLES)))


@import_.command("endpoint-copier", short_help="From the Services that endpoint-copier copies to.")
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
    help="What it is a copy of (--default-endpoint-namespace and -name).",
)
@verbose
def endpoint_copier(
    files: Sequence[TextIO], kubeconfig: str | None, managed_endpoint: str, default_endpoint: str
) -> None:
    """From the Services that endpoint-copier copies to.

    Annotated Services keep their annotations and become rules of the annotations block; the one that is
    managed without annotations becomes an entry of its own.
    """
    from hub.importers import copier
    from hub.importers.variables import documents
    from hub.model import TargetKey

    if files:
        found = copier.services(each for name, text in _texts(files) for each in documents(name, text))
    else:
        found = asyncio.run(_services(kubeconfig))
    managed, source = (TargetKey(*each.split("/", 1)) for each in (managed_endpoint, default_endpoint))
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
    from hub.importers.variables import Variables, from_texts

    return from_texts(_texts(files), marks) if files else Variables(os.environ)


def _texts(files: Sequence[TextIO]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for file in files:
        try:
            text = file.read(MAX_BYTES + 1)
        except ValueError:
            raise UsageError(f"{file.name}: is not text in UTF-8") from None
        if len(text) > MAX_BYTES:
            raise UsageError(f"{file.name}: is too large: at most {MAX_BYTES:,} characters are read")
        found.append((file.name, text))
    return found


def _print(document: Document) -> None:
    """Print what 'hub check' accepts, or say what is wrong with what it was made from."""
    checked(document, PSEUDO_FILE)
    click.echo(document.text, nl=False)
