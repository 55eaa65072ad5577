"""``hub providers``: which provider types are installed, and whether they work."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import click

from hub.cli.options import output
from hub.cli.render import Output, document, one_line, table

if TYPE_CHECKING:
    from hub.resolution.catalog import Catalog, CatalogEntry


@click.command(short_help="List the installed provider types.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Show for each where it comes from, what it does, and its configuration."
)
@output("table", "json")
def providers(verbose: bool, output: Output) -> None:
    """List the installed provider types: name, distribution, version, and whether each can be used.

    A provider is a distribution with an entry point in group hub.providers; its entry point's name is what
    a registry names. All are imported for this, which a running hub does only with those its registry names.

    States: ok, import-failed, import-stalled, name-taken (by another distribution), wrong-hook (missing,
    misspelt, other parameters), wrong-type (what the hook returned), unsupported-api.
    """
    logging.getLogger("hub.resolution").setLevel(logging.CRITICAL)  # said in the table
    from hub.resolution.catalog import Catalog

    catalog = Catalog()
    asyncio.run(_load_all(catalog))
    entries = catalog.entries()
    if output == "json":
        click.echo(document("Providers", {"providers": [_data(each) for each in entries]}, output))
    elif not entries:
        click.echo("no providers are installed; install those you use beside the hub", err=True)
    else:
        rows = [(each.name, each.distribution, each.version, each.state) for each in entries]
        click.echo(table(("NAME", "DISTRIBUTION", "VERSION", "STATE"), rows))
        for each in entries:
            if verbose:
                click.echo(f"\n{_details(each)}")
            elif each.error:
                click.echo(f"{each.name}: {one_line(each.error)}", err=True)


async def _load_all(catalog: Catalog) -> None:
    """Import every type, side by side: what does not load says so in its entry."""
    await asyncio.gather(*(catalog.load_async(name) for name in catalog.names()), return_exceptions=True)


def _details(each: CatalogEntry) -> str:
    lines = [
        click.style(each.name, bold=True),
        f"  distribution: {each.distribution or 'not known'} {each.version}".rstrip(),
        f"  module: {each.module}",
        f"  file: {each.file or 'not known'}",
        f"  state: {each.state}",
    ]
    if each.error:
        lines.append(f"  error: {one_line(each.error)}")
    if each.type is not None:
        lines.append(f"  plugin API: {each.type.api_version}")
        lines.append(f"  does: {'bring endpoints' if each.type.brings_endpoints else 'resolve nodes'}")
    schema = each.schema()
    if schema is not None:
        import json

        text = json.dumps(schema, indent=2, ensure_ascii=False).replace("\n", "\n  ")
        lines.append(f"  configuration:\n  {text}")
    return "\n".join(lines)


def _data(each: CatalogEntry) -> dict[str, Any]:
    return {
        "name": each.name,
        "distribution": each.distribution,
        "version": each.version,
        "state": each.state,
        "module": each.module,
        "file": each.file,
        "error": each.error,
        "apiVersion": each.type.api_version if each.type is not None else None,
        "bringsEndpoints": each.type.brings_endpoints if each.type is not None else None,
        "schema": each.schema(),
    }
