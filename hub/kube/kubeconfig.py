"""Reads kubeconfigs, which are input that is not fully trusted.

A document becomes one frozen :class:`ClusterAccess`. An unusable one raises :class:`~hub.errors.KubeconfigError`, which
names file, context, entry and field, says how to fix it, and never quotes credentials. A kubeconfig that runs a program
or reads a file is refused unless the hub's own flags (:class:`KubeconfigPolicy`) allow it. One that skips verification,
impersonates another account or contacts a forbidden host is always refused. Only the entries of the chosen context are
checked, since a developer's file may hold others.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

from hub.errors import KubeconfigError, did_you_mean
from hub.kube.cluster_access import (
    EXEC_VERSIONS,
    Auth,
    ClientCertificate,
    ClusterAccess,
    Exec,
    Token,
    TokenFile,
    usable_token,
)
from hub.kube.hosts import DNS_NAME, host_problem, is_address, same_host
from hub.kube.kubeconfig_document import Document, Entry, parse_document, quote, read_kubeconfig
from hub.kube.kubeconfig_yaml import Map
from hub.kube.proxy import BadProxy, Proxy, parse_proxy
from hub.kube.secret import Secret
from hub.model import join_first
from hub.runtime.files import ConfinedPath, OutsideFolders


@dataclass(frozen=True, slots=True)
class KubeconfigPolicy:
    """The programs, files and hosts that a kubeconfig may make the hub run, read or contact.

    Attributes:
        allow_exec: the programs of ``--allow-exec``. A ``command`` without a slash matches by base name, and the
            program listed here is run.
        folders: the folders that files named by the kubeconfig must be in; () = it may not name files, as for a
            kubeconfig from a Secret.
        base: the folder that relative paths start from; None = relative paths are refused.
        denied_servers: (host, port) of API servers that a remote cluster may not have: see
            :func:`~hub.kube.hub_access.in_cluster_servers`.
        trusted: whether this is the hub's own kubeconfig, given by the operator: it may run any program and read any
            file.
    """

    allow_exec: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()
    base: Path | None = None
    denied_servers: frozenset[tuple[str, int]] = frozenset()
    trusted: bool = False


def parse_kubeconfig(
    data: bytes, *, origin: str, policy: KubeconfigPolicy, context: str | None = None
) -> ClusterAccess:
    """The access that one context of a kubeconfig document describes; ``context`` None = its current-context.

    Reads no other file and runs no program. ``origin`` names the document in messages.

    Raises:
        KubeconfigError: the document does not parse, lacks the context or something that the context needs, or is
            refused by ``policy``.
    """
    return access_of(parse_document(data, origin, policy.base), policy, context)


def load_kubeconfig(path: str | Path, *, policy: KubeconfigPolicy, context: str | None = None) -> ClusterAccess:
    """Like :func:`parse_kubeconfig`, for a file. Relative paths in the file start from its folder.

    The file itself must also be in the folders of ``policy``, unless ``policy`` is that of the hub's own kubeconfig.

    Raises:
        OutsideFolders: the file is outside the folders.
        KubeconfigError: as :func:`parse_kubeconfig`, or the file cannot be read.
    """
    path = Path(path)
    policy = replace(policy, base=policy.base or path.absolute().parent)
    real = None if policy.trusted else ConfinedPath(path, *policy.folders).real()
    return parse_kubeconfig(read_kubeconfig(path, real), origin=f"kubeconfig {path}", policy=policy, context=context)


def _choose(name: str | None, document: Document) -> str:
    wanted = name or document.current_context
    if wanted is not None and wanted in document.contexts:
        return wanted
    if name:
        problem = f"no context {quote(name)}"
    elif wanted:
        problem = f"its current-context {quote(wanted)} is not among its contexts"
    else:
        problem = "no context given and no current-context set"
    known = sorted(document.contexts)
    hint = did_you_mean(wanted or "", known)
    shown = join_first(list(map(quote, known)), 10) or "no contexts at all"
    raise KubeconfigError(f"{document.origin}: {problem}; {f'{hint} ' if hint else ''}it has: {shown}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the fields of one entry. Errors name the field, and values only if they are not secret."""

    body: Map
    place: str
    origin: str
    base: Path | None
    policy: KubeconfigPolicy

    def refuse(self, key: str, problem: str) -> NoReturn:
        line = self.body.lines.get(key)
        origin = f"{self.origin}:{line}" if line else self.origin
        raise KubeconfigError(
            f"{origin}: {self.place}: {key}: {problem}" if key else f"{origin}: {self.place}: {problem}"
        )

    def only(self, known: Iterable[str]) -> None:
        """Refuse unknown fields, since one of them might change the account or the server."""
        known = tuple(known)
        for key in self.body:
            if key not in known:
                hint = did_you_mean(key, known, "remove it")
                line = self.body.lines[key]
                raise KubeconfigError(f"{self.origin}:{line}: {self.place}: unknown field; {hint}")

    def present(self, key: str) -> bool:
        """Whether the field has a value that has an effect in kubectl: not null, empty or false."""
        return self.body.get(key) not in (None, "", False, [], {})

    def text(self, key: str) -> str | None:
        """The field as a string; None if it is absent, null or empty, which are the same in Go."""
        value = self.body.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "must be text; put it in quotes")
        if value and not value.isprintable() and key != "token":
            self.refuse(key, "holds characters that are not printable; write it again")
        return value or None

    def flag(self, key: str) -> bool:
        """The field as a bool; False if it is absent or null."""
        value = self.body.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "must be true or false, without quotes")
        return bool(value)

    def pem(self, key: str, marker: str) -> bytes | None:
        """The decoded value of a base64 field, which must be PEM that contains ``marker``; None if it is absent."""
        text = self.body.get(key)
        if text is not None and not isinstance(text, str):
            self.refuse(key, "must be text; put it in quotes")
        if not text:
            return None
        try:
            data = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            self.refuse(key, "is not base64; write it with: base64 -w0 FILE")
        if marker.encode() not in data:
            what = "private key" if "KEY" in marker else "certificate"
            self.refuse(key, f"contains no {what} in PEM format; encode the PEM file with: base64 -w0 FILE")
        return data

    def path(self, key: str) -> Path | None:
        """The absolute path of a file that the kubeconfig names; None if the field is absent.

        The target of the path is checked here, and again whenever the file is read.
        """
        text = self.text(key)
        if text is None:
            return None
        if not (self.policy.folders or self.policy.trusted):
            self.refuse(key, "a kubeconfig from a Secret may not refer to files; put the content into it "
                             "(kubectl config view --flatten)")  # fmt: skip
        if not Path(text).is_absolute() and self.base is None:
            self.refuse(key, "must be an absolute path")
        path = (self.base or Path("/")) / text
        if self.policy.trusted:
            return path
        if any(_own_file(name) for name in (os.path.normpath(path), os.path.realpath(path))):
            self.refuse(key, "the hub's own credentials and the machine's pseudo files are not for remote clusters; "
                             "mount the file elsewhere")  # fmt: skip
        try:
            ConfinedPath(path, *self.policy.folders).real()
        except OutsideFolders as error:
            self.refuse(key, f"{text} {error.strerror}")
        return path


def _own_file(path: str) -> bool:
    """Whether the path is a file of the hub's own service account or a pseudo file, which must not leak."""
    return path.removeprefix("/var").startswith(("/run/secrets/kubernetes.io/", "/proc/", "/sys/", "/dev/"))


# -- checks ---------------------------------------------------------------------------------------------------

_CONTEXT_FIELDS: Final = ("cluster", "user", "namespace", "extensions")
_CLUSTER_FIELDS: Final = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority", "certificate-authority-data",
    "proxy-url", "disable-compression", "extensions",
)  # fmt: skip
_USER_FIELDS: Final = (
    "client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile",
    "as", "as-uid", "as-groups", "as-user-extra", "username", "password", "auth-provider", "exec", "extensions",
)  # fmt: skip
_EXEC_FIELDS: Final = ("apiVersion", "command", "args", "env", "installHint", "provideClusterInfo", "interactiveMode")
_EXTENSION: Final = "client.authentication.k8s.io/exec"

_UNSAFE_VARIABLES = re.compile(
    r"LD_.*|PATH|ENV|BASH_ENV|SHELLOPTS|IFS|GLIBC_TUNABLES|PYTHON.*|PERL5.*|RUBY.*|NODE_.*|JAVA_.*|HOME"
)
"""Environment variables that can make an allowed program run another one. A kubeconfig may not set them."""


def access_of(document: Document, policy: KubeconfigPolicy, context: str | None) -> ClusterAccess:
    """Like :func:`parse_kubeconfig`, for a document that is already parsed.

    Raises:
        KubeconfigError: the document lacks the context or something that the context needs, or is refused by
            ``policy``.
    """
    chosen = _choose(context, document)
    entry = document.contexts[chosen]
    fields = _Fields(entry.body, f"context {quote(chosen)}", entry.origin, entry.base, policy)
    fields.only(_CONTEXT_FIELDS)
    namespace = fields.text("namespace")
    if namespace is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", namespace):
        fields.refuse("namespace", "is not a namespace name")

    def follow(key: str, among: Mapping[str, Entry]) -> _Fields:
        name = fields.text(key)
        if name is None:
            fields.refuse(key, f"is missing; name one of the file's {key}s")
        target = among.get(name)
        if target is None:
            hint = did_you_mean(name, among, f"add it to {key}s")
            fields.refuse(key, f"there is no {key} {quote(name)}; {hint}")
        place = f"context {quote(chosen)}, {key} {quote(name)}"
        return _Fields(target.body, place, target.origin, target.base, policy)

    cluster, user = follow("cluster", document.clusters), follow("user", document.users)
    cluster.only(_CLUSTER_FIELDS)
    if cluster.flag("insecure-skip-tls-verify"):
        cluster.refuse(
            "insecure-skip-tls-verify",
            "the hub always verifies the server's certificate; remove this field and give certificate-authority-data",
        )
    cluster.flag("disable-compression")
    server_name = cluster.text("tls-server-name")
    if server_name is not None and not (DNS_NAME.fullmatch(server_name.lower()) or is_address(server_name)):
        cluster.refuse("tls-server-name", "is not a host name or an IP address")
    ca_data = cluster.pem("certificate-authority-data", "-----BEGIN CERTIFICATE-----")
    return ClusterAccess(
        server=_server(cluster),
        auth=_auth(user, cluster),
        origin=f"{document.origin}, context {quote(chosen)}",
        ca_data=ca_data,
        ca_file=cluster.path("certificate-authority") if ca_data is None else None,
        tls_server_name=server_name,
        proxy=_proxy(cluster),
        namespace=namespace,
        folders=policy.folders,
    )


def _server(cluster: _Fields) -> str:
    text = cluster.text("server")
    if text is None:
        cluster.refuse("server", "is missing; write https://HOST:PORT")
    try:
        url = urlsplit(text)
        host, port = (url.hostname or "").removesuffix("."), url.port or 443
    except ValueError:
        cluster.refuse("server", "is not a URL; write https://HOST:PORT")
    if url.scheme != "https":
        cluster.refuse("server", "must start with https://")
    if url.username is not None or url.password is not None:
        cluster.refuse("server", "must not hold a user or password; use the user entry")
    if "?" in text or "#" in text or not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", url.path) or "/.." in url.path + "/":
        cluster.refuse("server", "must be https://HOST:PORT, at most with a plain path")
    if not host or url.port == 0:
        cluster.refuse("server", "needs a host and a port between 1 and 65535")
    if (problem := host_problem(host)) is not None:
        cluster.refuse("server", f"its host is {problem}; give the API server's own name or address")
    if (same_host(host), port) in cluster.policy.denied_servers:
        cluster.refuse("server", 'is the hub cluster itself; use the built-in cluster "local"')
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}{'' if port == 443 else f':{port}'}{url.path.rstrip('/')}"


def _proxy(cluster: _Fields) -> Proxy | None:
    text = cluster.text("proxy-url")
    if text is None:
        return None
    try:
        return parse_proxy(text)
    except BadProxy as bad:
        problem = str(bad)
    return cluster.refuse("proxy-url", problem)  # outside of the handler: no error keeps another that may quote the URL


def _auth(user: _Fields, cluster: _Fields) -> Auth:
    user.only(_USER_FIELDS)
    for key in ("as", "as-uid", "as-groups", "as-user-extra"):
        if user.present(key):
            user.refuse(key, "impersonation is not supported; give the hub an account of its own")
    for key in ("username", "password"):
        if user.present(key):
            user.refuse(key, "Kubernetes no longer has basic authentication; give a token or a client certificate")
    if user.present("auth-provider"):
        user.refuse("auth-provider", "was removed from Kubernetes; give a token, a certificate or an exec plugin")
    token = _token(user)
    certificate = _certificate(user, token)
    plugin = _exec(user, cluster) if user.body.get("exec") is not None else None
    if plugin is not None and (token is not None or certificate is not None):
        user.refuse("exec", "cannot go with another credential; keep one of them")
    auth = plugin or certificate or token
    if auth is None:
        user.refuse(
            "", "has no credential, and the hub never connects anonymously; give a token or a client certificate"
        )
    return auth


def _token(user: _Fields) -> Token | TokenFile | None:
    text, path = user.text("token"), user.path("tokenFile")
    if path is not None:
        return TokenFile(path)  # as in client-go: the file wins over the token, since the file is rotated
    if text is None:
        return None
    if not usable_token(text.strip()):
        user.refuse("token", "holds characters a token cannot have; write it on one line")
    return Token(Secret(text.strip()))


def _certificate(user: _Fields, token: Token | TokenFile | None) -> ClientCertificate | None:
    certificate: bytes | Path | None = user.pem("client-certificate-data", "-----BEGIN CERTIFICATE-----")
    certificate = certificate or user.path("client-certificate")
    data = user.pem("client-key-data", "PRIVATE KEY-----")
    key: Secret | Path | None = Secret(data.decode("ascii", "ignore")) if data else user.path("client-key")
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "client-certificate" if certificate is None else "client-key"
        user.refuse(missing, "is missing: certificate and key come as a pair")
    return ClientCertificate(certificate, key, token)


def _exec(user: _Fields, cluster: _Fields) -> Exec:
    body = user.body["exec"]
    if not isinstance(body, Map):
        user.refuse("exec", "must be a mapping with command and apiVersion")
    fields = _Fields(body, f"{user.place}, exec", user.origin, user.base, user.policy)
    fields.only(_EXEC_FIELDS)
    version = fields.text("apiVersion")
    if version not in EXEC_VERSIONS:
        fields.refuse("apiVersion", f"must be {' or '.join(EXEC_VERSIONS)}; update the plugin's configuration")
    if fields.text("interactiveMode") == "Always":
        fields.refuse("interactiveMode", "the hub has no terminal; use a plugin mode that needs none")
    args = body.get("args") or []
    if not isinstance(args, list) or not all(isinstance(item, str) and "\0" not in item for item in args):
        fields.refuse("args", "must be a list of texts; put numbers in quotes")
    return Exec(
        command=_program(fields),
        args=tuple(args),
        env=_environment(fields),
        api_version=version,
        provide_cluster_info=fields.flag("provideClusterInfo"),
        cluster_config=_cluster_config(cluster),
    )


def _program(fields: _Fields) -> str:
    command, allowed = fields.text("command"), fields.policy.allow_exec
    if command is None:
        fields.refuse("command", "is missing; name the program")
    if "/" in command and not Path(command).is_absolute():
        if fields.base is None:
            fields.refuse("command", "must be an absolute path")
        command = str(fields.base / command)
    if fields.policy.trusted or command in allowed:
        return command
    named = sorted(item for item in allowed if "/" not in command and Path(item).name == command)
    if named:
        return named[0]
    shown = command if re.fullmatch(r"[\w./+-]{1,200}", command) else "PROGRAM"
    return fields.refuse("command", f"the hub may not run this program; start it with --allow-exec {shown}")


def _environment(fields: _Fields) -> tuple[tuple[str, str], ...]:
    listed = fields.body.get("env") or []
    if not isinstance(listed, list):
        fields.refuse("env", "must be a list of name and value")
    for item in listed:
        name, value = (item.get("name"), item.get("value", "")) if isinstance(item, Map) else (None, None)
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            fields.refuse("env", "an entry lacks a usable name")
        if not isinstance(value, str) or "\0" in value:
            fields.refuse("env", f"the value of {quote(name)} must be text; put it in quotes")
        if not fields.policy.trusted and _UNSAFE_VARIABLES.fullmatch(name):
            fields.refuse("env", f"{quote(name)} may not be set here: it changes what the program runs")
    return tuple((item["name"], item.get("value", "")) for item in listed)


def _cluster_config(cluster: _Fields) -> str:
    for item in cluster.body.get("extensions") or []:
        if isinstance(item, Map) and item.get("name") == _EXTENSION:
            return json.dumps(item.get("extension"))
    return "null"
