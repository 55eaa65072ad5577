"""``hub plugin new``: write the package of a new provider, with tests that pass."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Final, Literal

import click

from hub import __version__
from hub.errors import UsageError

Kind = Literal["nodes", "endpoints", "cloud"]

NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME: Final = 40
"""Characters; the name becomes part of a distribution's and a module's name."""
UNKNOWN: Final = "HUB"
"""Stands for the folder of the hub's sources in the next steps, if that is not known."""

COMMON: Final = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
}
"""File in the new package -> its template."""
SERVERS: Final = {"src/{module}/api.py": "api.py", "tests/fake_{plain}.py": "fake.py"}
KINDS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "nodes": SERVERS | {"src/{module}/__init__.py": "nodes.py", "tests/test_{plain}.py": "test_nodes.py"},
    "endpoints": SERVERS | {"src/{module}/__init__.py": "endpoints.py", "tests/test_{plain}.py": "test_endpoints.py"},
    "cloud": {
        "src/{module}/__init__.py": "cloud.py",
        "src/{module}/api.py": "cloud_api.py",
        "src/{module}/cloud.py": "cloud_plan.py",
        "tests/fake_{plain}.py": "cloud_fake.py",
        "tests/test_{plain}.py": "test_cloud.py",
    },
}
WHAT: Final[Mapping[Kind, str]] = {
    "nodes": "addresses of nodes",
    "endpoints": "endpoints",
    "cloud": "machines and load balancers",
}
PROVIDER: Final = """\
provider:
  name: $name
  config:
    apiUrl: https://api.$name.example
    token: {env: ${upper}_TOKEN}
"""
ENTRY: Final[Mapping[Kind, str]] = {
    "nodes": f"kubeconfig: {{path: kubeconfigs/eu}}\nallowedCIDRs: [10.7.0.0/16]\n{PROVIDER}    refresh: 30s\n",
    "endpoints": f"allowedCIDRs: [10.7.0.0/16]\n{PROVIDER}    refresh: 30s\n",
    "cloud": f"kubeconfig: {{path: kubeconfigs/eu}}\ncloud:\n{indent(PROVIDER, '  ')}",
}
"""The example of a cluster in clusters.yaml, without its name."""
EXPECTS: Final[Mapping[Kind, str]] = {
    "nodes": 'a JSON array such as `[{"id": "s1", "address": "10.7.0.1"}]` from `GET <apiUrl>/servers`.',
    "endpoints": 'a JSON array such as `[{"id": "s1", "address": "10.7.0.1"}]` from `GET <apiUrl>/servers`.',
    "cloud": "the made-up API of `tests/fake_$plain.py`.",
}


@click.group(short_help="Help for authors of providers.")
def plugin() -> None:
    """Help for authors of providers."""


@plugin.command(short_help="Write the package of a new provider.")
@click.argument("name")
@click.option(
    "--directory",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder to write to; must be new or empty. [default: endpointslice-hub-NAME]",
)
@click.option("--endpoints", is_flag=True, help="Write a provider that brings endpoints instead of resolving Nodes.")
@click.option("--cloud", is_flag=True, help="Write the plugin of a cloud controller: machines and load balancers.")
def new(name: str, directory: Path | None, endpoints: bool, cloud: bool) -> None:
    """Write the package of a provider called NAME: source, tests, README, pyproject.toml.

    The package works as written, against a stand-in for an API, and passes its tests, which include the hub's
    conformance suite. Then replace the stand-in, in src/, with the API you need.
    """
    if endpoints and cloud:
        raise UsageError("--endpoints and --cloud are two kinds of provider; choose one")
    files = package(name, "endpoints" if endpoints else "cloud" if cloud else "nodes")
    folder = directory or Path(f"endpointslice-hub-{name}")
    _refuse_taken(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another one with --directory")
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    click.echo(f"wrote {folder}: {len(files)} files")
    sources = clone()
    click.echo(f"next: cd {shlex.quote(str(folder))} && python -m venv .venv && . .venv/bin/activate")
    click.echo(f"      pip install {sources} {sources}/testkit --editable '.[dev]' && python -m pytest")
    if sources == UNKNOWN:
        click.echo(f"      ({UNKNOWN}: a clone of the hub's repository)")


def clone() -> str:
    """The folder that this hub was installed from, as a word of the shell; UNKNOWN if it was not a folder."""
    import importlib.metadata
    import json
    from contextlib import suppress
    from urllib.parse import unquote, urlsplit

    with suppress(importlib.metadata.PackageNotFoundError):
        # Written by installers (PEP 610).
        origin = json.loads(importlib.metadata.distribution("endpointslice-hub").read_text("direct_url.json") or "{}")
        if "dir_info" in origin:
            return shlex.quote(unquote(urlsplit(origin["url"]).path))
    return UNKNOWN


def package(name: str, kind: Kind = "nodes") -> dict[str, str]:
    """The files of a new package: text by path.

    Raises:
        UsageError: the name is not valid for a provider.
    """
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise UsageError(
            f"{name!r} cannot be a provider's name: lower case letters, digits and single dashes between them, "
            f"a letter first, at most {MAX_NAME} characters (such as my-cloud)"
        )
    from importlib.resources import files
    from string import Template

    plain = name.replace("-", "_")
    what = WHAT[kind]
    values = {
        "name": name,
        "module": f"hub_provider_{plain}",
        "plain": plain,
        "upper": plain.upper(),
        "title": f"Provider {name}",
        "summary": f"{what} from the API of {name}",
        "headline": f"{what.capitalize()} from the API of {name}",
        "version": ">=" + ".".join(__version__.split(".")[:2]),
    }
    values["entry"] = Template(indent(ENTRY[kind], "    ")).substitute(values).rstrip()
    values["expects"] = Template(EXPECTS[kind]).substitute(values)
    templates = files("hub.plugin") / "template"
    package = {}
    for path, template in {**COMMON, **KINDS[kind]}.items():
        text = (templates / f"{template}.tmpl").read_text("utf-8")
        package[path.format(module=values["module"], plain=plain)] = Template(text).substitute(values)
    package[f"src/{values['module']}/py.typed"] = ""
    return package


def _refuse_taken(name: str) -> None:
    from hub.observe.providers.catalog import Catalog

    for entry in Catalog().entries():
        if entry.name == name:
            raise UsageError(
                f"provider {name!r} exists: {entry.distribution} {entry.version} is installed; choose another name"
            )
