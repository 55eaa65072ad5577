"""How to access one API server: its address, the certificates to trust, and exactly one kind of credential.

An access without credentials, or without TLS verification, cannot be expressed. These are values only:
:mod:`hub.kube.credentials` reads the files and runs the programs that they name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hub.kube.secret import Secret

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token written in the kubeconfig."""

    value: Secret


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A bearer token in a file whose content is rotated."""

    path: Path


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A TLS client certificate; each part from the kubeconfig itself or from a file that may be rotated.

    ``token`` is sent along where the kubeconfig has one too, as kubectl does (AKS admin files hold both).
    """

    certificate: bytes | Path = field(repr=False)
    key: Secret | Path
    token: Token | TokenFile | None = None


@dataclass(frozen=True, slots=True)
class Exec:
    """A credential plugin to run. ``command`` is absolute, or a bare name to be found on PATH."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = EXEC_VERSIONS[0]
    provide_cluster_info: bool = False
    cluster_config: str = "null"
    """The cluster entry's extension for plugins, as JSON."""


Auth = Token | TokenFile | ClientCertificate | Exec


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How to talk to one API server, complete and allowed.

    Attributes:
        server: ``https://host[:port][/path]`` without a final slash.
        auth: never absent: there is no anonymous access.
        origin: where this comes from, for messages (``kubeconfig /etc/x, context "y"``).
        ca_data: PEM certificates to trust; with neither this nor ``ca_file`` the system's store counts.
        ca_file: a PEM file instead, re-read when it changes.
        tls_server_name: the name to verify instead of the host.
        namespace: the context's, or the Pod's when in-cluster.
        folders: the files named here must end in one of these whenever they are read; () = anywhere, for the hub's own.
    """

    server: str
    auth: Auth
    origin: str
    ca_data: bytes | None = field(default=None, repr=False)
    ca_file: Path | None = None
    tls_server_name: str | None = None
    namespace: str | None = None
    folders: tuple[Path, ...] = ()


def usable_token(text: str) -> bool:
    """Whether ``text`` can stand in an Authorization header: printable ASCII without spaces, not endless."""
    return re.fullmatch(r"[\x21-\x7e]{1,65536}", text) is not None
