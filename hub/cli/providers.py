"""``hub providers``: which provider types are installed, and whether they work."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import click

from hub.cli.options import output
from hub.cli.render import Output, document, one_line, table

if TYPE_CHECKING:
    from hub.observe.providers.catalog import Catalog, CatalogEntry


@click.command(short_help="List the installed provider types.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show each type's module, file, plugin API, purpose and configuration."
)
@output("table", "json")
def providers(verbose: bool, output: Output) -> None:
    """List the installed provider types: name, distribution, version, and whether each can be used.

    A provider type is an entry point in group hub.providers; a registry refers to it by the entry point's name.
    This command imports all of them; a running hub imports only those its registry names.

    States: ok, import-failed, import-stalled, name-taken (by another distribution), wrong-hook (missing,
    misspelt, other parameters), wrong-type (what the hook returned), unsupported-api.
    """
    logging.getLogger("hub.observe.providers").setLevel(logging.CRITICAL)  # the table says it
    from hub.observe.providers.catalog import Catalog

    catalog = Catalog()
    asyncio.run(_load_all(catalog))
    entries = catalog.entries()
    if output == "json":
        click.echo(document("Providers", {"providers": [_data(entry) for entry in entries]}, output))
    elif not entries:
        click.echo("no providers are installed; install those you use in the hub's environment", err=True)
    else:
        rows = [
            (entry.name, entry.distribution, entry.version, entry.state, ", ".join(entry.purposes)) for entry in entries
        ]
        click.echo(table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "PURPOSE"), rows))
        for entry in entries:
            if verbose:
                click.echo(f"\n{_details(entry)}")
            elif entry.error:
                click.echo(f"{entry.name}: {one_line(entry.error)}", err=True)


async def _load_all(catalog: Catalog) -> None:
    """Import every type concurrently; a failed import is recorded in its entry."""
    await asyncio.gather(*(catalog.load_async(name) for name in catalog.names()), return_exceptions=True)


def _details(entry: CatalogEntry) -> str:
    lines = [
        click.style(entry.name, bold=True),
        f"  distribution: {entry.distribution or 'not known'} {entry.version}".rstrip(),
        f"  module: {entry.module}",
        f"  file: {entry.file or 'not known'}",
        f"  state: {entry.state}",
    ]
    if entry.error:
        lines.append(f"  error: {one_line(entry.error)}")
    if entry.type is not None:
        lines.append(f"  plugin API: {entry.type.api_version}")
        lines.append(f"  purpose: {', '.join(entry.purposes)}")
    for title, schema in (("configuration", entry.schema()), ("configuration of an account", entry.account_schema())):
        if schema is not None:
            import json

            text = json.dumps(schema, indent=2, ensure_ascii=False).replace("\n", "\n  ")
            lines.append(f"  {title}:\n  {text}")
    return "\n".join(lines)


def _data(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "state": entry.state,
        "module": entry.module,
        "file": entry.file,
        "error": entry.error,
        "apiVersion": entry.type.api_version if entry.type is not None else None,
        "purposes": list(entry.purposes),
        "bringsEndpoints": entry.brings_endpoints if entry.type is not None else None,
        "schema": entry.schema(),
        "accountSchema": entry.account_schema(),
    }
