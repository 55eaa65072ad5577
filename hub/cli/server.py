"""``--server URL``: ask a running hub instead of reading the clusters."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from hub.cli.options import is_from_environment, shared_option
from hub.cli.options import registry as registry_option
from hub.errors import HubError
from hub.report.values import API_VERSION
from hub.runtime.files import read_regular

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

TIMEOUT: Final = 30.0
LIMIT: Final = 64 << 20
"""Most bytes of an answer; a fleet of 500 clusters and 2,000 Services needs one or two million."""
FILE_LIMIT: Final = 1 << 20
"""Most bytes of a token file or a certificate file."""
TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Server:
    """A running hub.

    Attributes:
        url: ``http://127.0.0.1:8080``.
        token_file: file with a bearer token, if the hub authenticates requests.
        ca_file: file with the CA of the hub's certificate; None = the system's CAs.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None


def server_url(text: str) -> str:
    """Parse ``http://HOST:PORT`` or ``https://…``; returns the URL without slashes at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise click.BadParameter(f"{text!r} is not http(s)://HOST:PORT")
    if parts.username or parts.password:
        raise click.BadParameter("do not put a password in the URL; use --server-token-file")
    return text.rstrip("/")


def registry_or_server(function: F) -> F:
    """Add the options ``--registry`` and ``--server``; :func:`server_or_registry` reads their values."""
    return registry_option(required=False)(server_option(function))


def server_option(function: F) -> F:
    """Add the options ``--server…``; :func:`server_of` reads their values."""
    options = (
        shared_option(
            "--server",
            metavar="URL",
            type=server_url,
            help="Ask the running hub at this address, such as http://127.0.0.1:8080.",
        ),
        shared_option(
            "--server-token-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="File with a bearer token for --server; needed if that hub authenticates requests.",
        ),
        shared_option(
            "--server-ca-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="File with the CA of --server's certificate. [default: the system's CAs]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def server_or_registry(given: dict[str, Any], registry: str | None) -> Server | str:
    """The server to ask, taken out of ``given``, or the path of the registry to read.

    An option wins over the environment. If the environment names both, the server is asked.

    Raises:
        click.UsageError: both options are given, or nothing is known of either.
    """
    found = server_of(given)
    if registry is None and found is None:
        raise click.UsageError("Missing option '--registry' (or '--server').")
    if found is not None and (registry is None or is_from_environment("registry")):
        return found
    if found is not None and not is_from_environment("server"):
        raise click.UsageError("--server and --registry cannot be combined")
    assert registry is not None  # noqa: S101 - checked above
    return registry


def server_of(given: dict[str, Any]) -> Server | None:
    """The server to ask, taken out of ``given``; None if there is none."""
    url, token, ca = (given.pop(name) for name in ("server", "server_token_file", "server_ca_file"))
    return Server(url, token, ca) if url is not None else None


async def fetch(server: Server, path: str, type_: type[T]) -> T:
    """GET a document of a running hub.

    Raises:
        HubError: nothing answers there, the answer is not a hub's, or the hub refuses or lacks the document.
    """
    import aiohttp

    headers, trust = _credentials(server)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session,
            session.get(server.url + path, headers=headers, ssl=trust, allow_redirects=False) as response,
        ):
            status, body = response.status, await response.content.read(LIMIT)
            while more := await response.content.read(LIMIT):
                body += more
                if len(body) > LIMIT:
                    raise HubError(f"{server.url}: the answer is larger than {LIMIT >> 20} MiB")
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:  # UnicodeError: of an invalid host name
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise HubError(f"{server.url}: {str(cause) or type(cause).__name__}; is a hub listening there?") from error
    if status != 200:
        raise HubError(f"{server.url}: {status} {_detail(body)}".rstrip())
    try:
        found = msgspec.json.decode(body, type=_Document)
        if (found.api_version, found.kind) == (API_VERSION, type_.__name__):
            return msgspec.json.decode(body, type=type_)
        reason = f"it is a {found.kind} of {found.api_version}" if found.kind else "it has no kind"
    except msgspec.DecodeError as error:
        from hub.kube.wire import fault

        reason = fault(error)
    raise HubError(f"{server.url}: the answer is not from a hub of this version: {reason}")


def _credentials(server: Server) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    headers = {"Accept": "application/json"}
    if server.token_file is not None:
        token = _content("--server-token-file", server.token_file).decode("utf-8", "replace").strip()
        if not TOKEN.fullmatch(token):
            raise HubError(
                f"--server-token-file {server.token_file}: must contain one token: one word of ASCII characters"
            )
        headers["Authorization"] = f"Bearer {token}"
    if server.ca_file is None:
        return headers, True
    # Bundles have comments in any language; the certificates themselves are ASCII.
    pem = _content("--server-ca-file", server.ca_file).decode("ascii", "ignore")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # starts without CAs: an empty file must not mean the system's CAs
    try:
        trust.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise HubError(f"--server-ca-file {server.ca_file}: contains no certificate in PEM format") from error
    return headers, trust


def _content(flag: str, file: str) -> bytes:
    """Read the file that a flag names.

    Raises:
        HubError: it cannot be read.
    """
    try:
        return read_regular(file, FILE_LIMIT).data
    except OSError as error:
        raise HubError(f"{flag} {file}: cannot be read: {error.strerror}") from error


class _Document(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""


def _detail(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return ""
    return found.detail or found.title
