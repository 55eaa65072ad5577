"""``hub schema`` and ``hub version``."""

from __future__ import annotations

import click


@click.command(short_help="Print the JSON Schema of clusters.yaml.")
def schema() -> None:
    """Print the JSON Schema of clusters.yaml, for editors and pipelines."""
    from hub.registry.schema import text

    click.echo(text(), nl=False)


@click.command(short_help="Print the version.")
def version() -> None:
    """Print the version."""
    from hub import __version__

    click.echo(f"endpointslice-hub {__version__}")
