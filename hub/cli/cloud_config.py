"""The configuration of a cloud from the flags and variables of the cloud's own controller."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from hub.errors import HubError, did_you_mean

log = logging.getLogger(__name__)

API_URL, CLIENT, SECRET = "BRIGHTBOX_API_URL", "BRIGHTBOX_CLIENT", "BRIGHTBOX_CLIENT_SECRET"
DEFAULT_API_URL: Final = "https://api.gb1.brightbox.com"
IONOS_API_URL: Final = "IONOS_API_URL"
MAX_FILE: Final = 65_536
"""Most bytes of a file with tokens: the most that the hub reads of a credential."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Configured(NamedTuple):
    """What the flags and variables say.

    Attributes:
        config: ``clusters[].cloud.provider.config``.
        hosts: the API hosts that a variable allows.
        folder: where the configuration's files are.
    """

    config: dict[str, Any]
    hosts: frozenset[str]
    folder: str


def configuration(given: Mapping[str, Any], environ: Mapping[str, str]) -> Configured:
    """The cloud's configuration.

    Raises:
        UsageError: no such cloud is installed, or a flag is wrong for it.
        HubError: a variable or a file is missing or wrong.
    """
    from hub.observe.providers.catalog import Catalog

    name = given["cloud_provider"]
    known = Catalog().names()
    if name not in known:
        raise click.UsageError(
            f"--cloud-provider: no {name!r} is installed ({did_you_mean(name, known, ', '.join(known))})"
        )
    if name not in _CLOUDS:
        raise click.UsageError(
            f"--cloud-provider {name}: only {' and '.join(_CLOUDS)} are possible here; others need clusters[].cloud in "
            "a registry"
        )
    if given["private"] and name != "ionos":
        raise click.UsageError(f"--private is for ionos only, not for {name}")
    return _CLOUDS[name](given, environ)


def _brightbox(given: Mapping[str, Any], environ: Mapping[str, str]) -> Configured:
    if environ.get("BRIGHTBOX_USER_NAME") or environ.get("BRIGHTBOX_PASSWORD"):
        raise HubError("BRIGHTBOX_USER_NAME and BRIGHTBOX_PASSWORD need an application id; use an API client instead")
    missing = [variable for variable in (CLIENT, SECRET) if not environ.get(variable)]
    if missing:
        raise HubError(f"{' and '.join(missing)} must be set: the id and the secret of an API client")
    if given["cloud_config"]:
        log.warning("--cloud-config %s is not read: Brightbox has no such file", given["cloud_config"])
    config: dict[str, Any] = {"client": {"env": CLIENT}, "secret": {"env": SECRET}}
    url = environ.get(API_URL, "")
    if url.rstrip("/") == DEFAULT_API_URL:
        url = ""
    return Configured({**config, **({"url": url} if url else {})}, _hosts(url), str(Path.cwd()))


def _ionos(given: Mapping[str, Any], environ: Mapping[str, str]) -> Configured:
    """The data centers are the files of the folder; all have the same token, since the hub has one for an account."""
    if not given["cloud_config"]:
        raise click.UsageError(
            '--cloud-config is needed: a folder with a file for each data center, named by its UUID, {"tokens": ["…"]}'
        )
    folder = Path(given["cloud_config"]).absolute()
    try:
        files = sorted(file for file in folder.iterdir() if _UUID.fullmatch(file.name))
        tokens = {file.name: _token(file) for file in files}
    except OSError as error:
        raise HubError(f"--cloud-config {folder}: {error.strerror}") from error
    if not files:
        raise HubError(f"--cloud-config {folder}: no file is named by the UUID of a data center")
    if other := next((name for name in tokens if tokens[name] != tokens[files[0].name]), None):
        raise HubError(
            f"--cloud-config {folder}: {files[0].name} and {other} have different tokens; use one token for all data "
            "centers, or a registry with a cluster for each account"
        )
    url = environ.get(IONOS_API_URL, "")
    config: dict[str, Any] = {"datacenters": [*tokens], "token": {"file": files[0].name}}
    config |= {"private": True} if given["private"] else {}
    return Configured({**config, **({"apiUrl": url} if url else {})}, _hosts(url), str(folder))


def _token(file: Path) -> str:
    """The first token in a file, which is never shown."""
    with file.open("rb") as opened:
        text = opened.read(MAX_FILE + 1)
    try:
        found = json.loads(text)["tokens"][0] if len(text) <= MAX_FILE else None
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str) or not found:
        raise HubError(f'--cloud-config {file}: must be {{"tokens": ["…"]}} with a token')
    return found


def _hosts(url: str) -> frozenset[str]:
    """The host of an API address, which the variable allows by naming it."""
    return frozenset((urlsplit(url if "://" in url else f"https://{url}").netloc,)) if url else frozenset()


_CLOUDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str]], Configured]]] = {
    "brightbox": _brightbox,
    "ionos": _ionos,
}
