"""How to access one API server: its address, the certificates to trust, and exactly one kind of credential.

The types cannot express access without credentials or without TLS verification. They are plain values:
:mod:`hub.kube.credentials` reads the files and runs the programs that they name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hub.kube.proxy import Proxy
from hub.kube.secret import Secret

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token written in the kubeconfig."""

    value: Secret


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A bearer token in a file that may be rotated."""

    path: Path


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A TLS client certificate. Certificate and key are each in the kubeconfig itself or in a file that may be rotated.

    If the kubeconfig has a ``token`` too, it is sent in addition, as kubectl does (AKS admin files hold both).
    """

    certificate: bytes | Path = field(repr=False)
    key: Secret | Path
    token: Token | TokenFile | None = None


@dataclass(frozen=True, slots=True)
class Exec:
    """A credential plugin to run. ``command`` is an absolute path, or a bare name that is searched for on PATH."""

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
    """How to access one API server, complete and checked against the policy.

    Attributes:
        server: ``https://host[:port][/path]`` without a final slash.
        auth: the credential; always present, since anonymous access is not supported.
        origin: the source of this access, for messages (``kubeconfig /etc/x, context "y"``).
        ca_data: PEM certificates to trust; with neither this nor ``ca_file``, the system's store is used.
        ca_file: a PEM file to use instead of ``ca_data``, read again when it changes.
        tls_server_name: the name to verify instead of the host.
        proxy: the proxy that leads to the server; None = the server is contacted directly.
        namespace: the namespace of the context, or of the Pod when in-cluster.
        folders: the folders that the files named here must be in whenever they are read; () = no restriction, for the
            hub's own access.
    """

    server: str
    auth: Auth
    origin: str
    ca_data: bytes | None = field(default=None, repr=False)
    ca_file: Path | None = None
    tls_server_name: str | None = None
    proxy: Proxy | None = None
    namespace: str | None = None
    folders: tuple[Path, ...] = ()


def usable_token(text: str) -> bool:
    """Whether ``text`` can be sent in an Authorization header: printable ASCII without spaces, up to 64 KiB."""
    return re.fullmatch(r"[\x21-\x7e]{1,65536}", text) is not None
