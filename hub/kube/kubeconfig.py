"""Kubeconfigs as input from people one does not fully trust.

A document becomes one frozen :class:`ClusterAccess` or a :class:`~hub.errors.KubeconfigError` that names
file, context, entry and field and the next step, and never quotes a value. Everything that could run a
program, read a file, skip verification, impersonate somebody or contact a forbidden host is refused
unless the hub's own flags (:class:`KubeconfigPolicy`) allow it. Only the chosen context's entries are
judged: what else a developer keeps in the file is not our business. An access without credentials
cannot be expressed, nor one without TLS verification.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import ipaddress
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import yaml

from hub.errors import KubeconfigError
from hub.kube.secret import Secret

MAX_BYTES: Final = 1 << 20
"""A kubeconfig of 100 contexts has 0.6 MB; nothing honest is larger than this."""

MAX_DEPTH: Final = 32

MAX_NODES: Final = 20_000
"""100 contexts have 3,000 values; 1 MiB of tiny ones would hold up the event loop for a second."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a Pod's own credentials."""

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token written in the kubeconfig."""

    value: Secret


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A bearer token in a file that somebody rotates."""

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
    """

    server: str
    auth: Auth
    origin: str
    ca_data: bytes | None = field(default=None, repr=False)
    ca_file: Path | None = None
    tls_server_name: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class KubeconfigPolicy:
    """What a kubeconfig may make the hub run, read or contact.

    Attributes:
        allow_exec: programs of ``--allow-exec``; a bare ``command`` matches by base name and runs the program
            named here.
        allow_files: True for one given by path; False for one from a Secret.
        base: folder for relative paths; None = they are refused.
        denied_servers: (host, port) of API servers no remote cluster may have: see :func:`in_cluster_servers`.
        trusted: the hub's own kubeconfig, given by whoever starts the hub: any program, any file, any host.
    """

    allow_exec: frozenset[str] = frozenset()
    allow_files: bool = False
    base: Path | None = None
    denied_servers: frozenset[tuple[str, int]] = frozenset()
    trusted: bool = False


def parse_kubeconfig(
    data: bytes, *, origin: str, policy: KubeconfigPolicy, context: str | None = None
) -> ClusterAccess:
    """One context of one kubeconfig document; ``context`` None = its current-context.

    Reads no file and runs nothing. ``origin`` names the document in messages.

    Raises:
        KubeconfigError: it does not parse, lacks what was asked for, or asks for what ``policy`` refuses.
    """
    return _access(_document(data, origin, policy.base), policy, context)


def load_kubeconfig(path: str | Path, *, policy: KubeconfigPolicy, context: str | None = None) -> ClusterAccess:
    """As :func:`parse_kubeconfig`, from a file; relative paths in it are relative to its folder."""
    path = Path(path)
    policy = replace(policy, base=policy.base or path.absolute().parent)
    return parse_kubeconfig(_read(path), origin=f"kubeconfig {path}", policy=policy, context=context)


def load_hub_access(
    path: str | Path | None = None, *, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> ClusterAccess:
    """Access to the hub cluster: ``path`` if given, else in-cluster, else KUBECONFIG, else ~/.kube/config.

    KUBECONFIG may list several files, which are merged as kubectl does: the first to define a name wins.
    A ``context`` means a kubeconfig, so the in-cluster account is passed over then.

    Raises:
        KubeconfigError: the first of these that exists cannot be used, or none exists.
    """
    policy = KubeconfigPolicy(allow_files=True, trusted=True)
    if path is not None:
        return load_kubeconfig(path, policy=policy, context=context)
    if context is None and (access := load_in_cluster(environ)) is not None:
        return access
    listed = [Path(item) for item in environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    candidates = listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]
    found = [item for item in candidates if item.exists()]
    if not found:
        raise KubeconfigError(
            f"no access to the hub cluster: not running in a cluster, and {' or '.join(map(str, candidates))} "
            "does not exist; give --kubeconfig FILE"
        )
    documents = [_document(_read(item), f"kubeconfig {item}", item.absolute().parent) for item in found]
    return _access(_merged(documents), policy, context)


def load_in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> ClusterAccess | None:
    """The Pod's own access, from the mounted service account; None outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token = folder / "token"
    if not host or not port or not token.exists():
        return None
    try:
        namespace = (folder / "namespace").read_text("utf-8").strip() or None
    except OSError:
        namespace = None
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        auth=TokenFile(token),
        origin="in-cluster service account",
        ca_file=folder / "ca.crt",
        namespace=namespace,
    )


def in_cluster_servers(environ: Mapping[str, str] = os.environ) -> frozenset[tuple[str, int]]:
    """The hub cluster's own API server under its in-cluster names, for ``KubeconfigPolicy.denied_servers``."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    servers = {(name, 443) for name in names}
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port.isdecimal():
        servers.add((_same_host(host), int(port)))
    return frozenset(servers)


def read_regular(path: Path, limit: int) -> bytes:
    """Up to ``limit`` bytes of a regular file (symlinks followed); a FIFO or device is not waited for.

    Raises:
        OSError: it cannot be read, is no regular file or is larger; ``strerror`` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(None, f"larger than {limit} bytes", str(path))
    return data


# -- hosts ----------------------------------------------------------------------------------------------------

_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_METADATA_ADDRESSES: Final = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"))
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)*"
)
_NUMERIC_LABEL: Final = re.compile(r"\d+|0x[0-9a-f]*")


def address_refusal(text: str) -> str | None:
    """Why no API server may have this IP address, or None. The client asks for what a name resolved to, too.

    Raises:
        ValueError: not an IP address.
    """
    address = _unwrapped(ipaddress.ip_address(text))
    if address in _METADATA_ADDRESSES:
        return "a cloud metadata service"
    if address.is_link_local:
        return "a link-local address"
    if address.is_loopback:
        return None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        return "not an address of one machine"
    return None


def _unwrapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address inside a mapped, 6to4 or NAT64 one; any other as it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _same_host(host: str) -> str:
    """One spelling for every way to write a host, for comparing."""
    try:
        return str(_unwrapped(ipaddress.ip_address(host)))
    except ValueError:
        return host.lower().removesuffix(".")


def _host_problem(host: str) -> str | None:
    if ":" in host or _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        if "%" in host:
            return "an address with a zone, which means another machine on each"
        try:
            return address_refusal(host)
        except ValueError:  # the resolver would read 2852039166 or 0xa9fea9fe as an address
            return "not a canonical IP address"
    if not _DNS_NAME.fullmatch(host):
        return "not a host name (international names: in their xn-- form)"
    if host in _METADATA_NAMES:
        return "a cloud metadata service"
    return None


# -- YAML -----------------------------------------------------------------------------------------------------


class _Map(dict[str, Any]):
    """A mapping that knows the line of each key."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: cannot be read: {error.strerror}; check its path and mode") from None


def _yaml(data: bytes, origin: str) -> Any:
    """Parse by events, so that aliases are seen before they multiply. Never quotes the document."""
    if len(data) > MAX_BYTES:
        raise KubeconfigError(f"{origin}: larger than {MAX_BYTES} bytes; keep one cluster's contexts in a file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KubeconfigError(f"{origin}: not UTF-8 text; save it as UTF-8") from None
    try:
        return _Parser(text, origin).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise KubeconfigError(f"{origin}{place}: not valid YAML; check indentation and quotes there") from None
    except yaml.YAMLError:
        raise KubeconfigError(f"{origin}: not valid YAML: it holds characters that YAML does not allow") from None


class _Parser:
    """Builds plain values from parser events; anything that is more than plain values is refused."""

    def __init__(self, text: str, origin: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        self._origin = origin
        self._resolver = yaml.resolver.Resolver()
        self._nodes = 0

    def document(self) -> Any:
        """The one document's value; None for an empty stream."""
        result: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second YAML document; keep one kubeconfig in a file")
            elif isinstance(event, yaml.NodeEvent):
                result = self._value(event, 0)
        return result

    def _value(self, event: yaml.Event, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, "YAML anchors and aliases are not accepted; write the value out")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "YAML tags are not accepted; remove the one starting with an exclamation mark")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._refuse(event, f"more than {MAX_NODES} values; keep one cluster's contexts in a file")
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        assert isinstance(event, yaml.ScalarEvent)  # noqa: S101 - the last kind of node there is
        text: str = event.value
        plain: bool = event.implicit[0]
        return self._plain(text) if plain else text

    def _mapping(self, depth: int) -> _Map:
        result = _Map()
        for key in self._events:
            if isinstance(key, yaml.MappingEndEvent):
                break
            self._value(key, depth + 1)  # refuses aliases and tags here too
            if not isinstance(key, yaml.ScalarEvent):
                self._refuse(key, "a key that is not text")
            name = key.value
            if name in result.lines:
                self._refuse(key, "a key is written twice; keep one")
            if name == "<<" and key.implicit[0]:
                self._refuse(key, "YAML merge keys are not accepted; write the values out")
            result.lines[name] = _line(key)
            result[name] = self._value(next(self._events), depth + 1)
        return result

    def _sequence(self, depth: int) -> list[Any]:
        result: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            result.append(self._value(event, depth + 1))
        return result

    def _plain(self, text: str) -> object:
        """An unquoted scalar: null, booleans and JSON's numbers become what they are, all else stays text."""
        tag: str = self._resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        if tag.endswith(":null"):
            return None
        if tag.endswith(":bool"):
            return text.lower() in ("true", "yes", "on")
        if tag.endswith((":int", ":float")):
            with suppress(ValueError):
                return json.loads(text)
        return text

    def _refuse(self, event: yaml.Event, problem: str) -> NoReturn:
        raise KubeconfigError(f"{self._origin}:{_line(event)}: {problem}")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


# -- the document ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named entry's body, and where it was written."""

    body: _Map
    origin: str
    base: Path | None


@dataclass(frozen=True, slots=True)
class _Document:
    origin: str
    current_context: str | None
    contexts: Mapping[str, _Entry]
    clusters: Mapping[str, _Entry]
    users: Mapping[str, _Entry]


def _document(data: bytes, origin: str, base: Path | None) -> _Document:
    root = _yaml(data, origin)
    if root is None:
        raise KubeconfigError(f"{origin}: empty; write the file with: kubectl config view --flatten --minify")
    if not isinstance(root, _Map):
        raise KubeconfigError(f"{origin}: not a kubeconfig: a mapping with clusters, contexts and users is expected")
    kind = root.get("kind", "Config")
    if kind != "Config" or root.get("apiVersion", "v1") != "v1":
        hint = "; give the decoded value of its key, not the Secret" if kind == "Secret" else ""
        raise KubeconfigError(f"{origin}: not a kubeconfig: kind Config of apiVersion v1 is expected{hint}")
    current = root.get("current-context") or None
    if current is not None and not isinstance(current, str):
        raise KubeconfigError(f"{origin}: current-context: must be text; put it in quotes")
    sections = (_entries(root, f"{kind}s", kind, origin, base) for kind in ("context", "cluster", "user"))
    return _Document(origin, current, *sections)


def _entries(root: _Map, section: str, kind: str, origin: str, base: Path | None) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    listed = root.get(section)
    if listed is None:
        return found
    if not isinstance(listed, list):
        raise KubeconfigError(
            f"{origin}:{root.lines[section]}: {section}: must be a list of entries with name and {kind}"
        )
    for index, item in enumerate(listed):
        name = item.get("name") if isinstance(item, _Map) else None
        if not isinstance(name, str) or not name:
            raise KubeconfigError(f"{origin}: {section}[{index}]: needs a name (text; put it in quotes)")
        if name in found:
            raise KubeconfigError(f"{origin}: {section}[{index}]: the name {_quote(name)} is taken; rename one")
        body = item.get(kind)
        found[name] = _Entry(body if isinstance(body, _Map) else _Map(), origin, base)
    return found


def _merged(documents: Sequence[_Document]) -> _Document:
    """KUBECONFIG's rule: the first file that defines a name, or the current context, wins."""
    first, *others = documents
    for other in others:
        first = _Document(
            f"{first.origin}, {other.origin.removeprefix('kubeconfig ')}",
            first.current_context or other.current_context,
            {**other.contexts, **first.contexts},
            {**other.clusters, **first.clusters},
            {**other.users, **first.users},
        )
    return first


def _quote(name: str) -> str:
    """A name as written by a stranger: printable, on one line, not endless."""
    return ascii(name if len(name) <= 100 else name[:99] + "…") if not name.isprintable() else f'"{name[:100]}"'


def _choose(name: str | None, document: _Document) -> str:
    wanted = name or document.current_context
    if wanted is not None and wanted in document.contexts:
        return wanted
    if name:
        problem = f"no context {_quote(name)}"
    elif wanted:
        problem = f"its current-context {_quote(wanted)} is not among its contexts"
    else:
        problem = "no context given and no current-context set"
    known = sorted(document.contexts)
    close = difflib.get_close_matches(wanted or "", known, n=1)
    hint = f"did you mean {_quote(close[0])}? " if close else ""
    shown = ", ".join(map(_quote, known[:10])) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    raise KubeconfigError(f"{document.origin}: {problem}; {hint}it has: {shown or 'no contexts at all'}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to one entry's fields with errors that name the place, never the value."""

    body: _Map
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
        """An unknown field might change who we are or whom we talk to, so it is not ignored."""
        known = tuple(known)
        for key in self.body:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
                hint = f'did you mean "{close[0]}"?' if close else "remove it"
                line = self.body.lines[key]
                raise KubeconfigError(f"{self.origin}:{line}: {self.place}: a field that is not known here; {hint}")

    def present(self, key: str) -> bool:
        """Written and neither null nor empty nor false: what kubectl would act on."""
        return self.body.get(key) not in (None, "", False, [], {})

    def text(self, key: str) -> str | None:
        """A string, None where absent, null or empty (as Go's zero value)."""
        value = self.body.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "must be text; put it in quotes")
        if value and not value.isprintable() and key != "token":
            self.refuse(key, "holds characters that are not printable; write it again")
        return value or None

    def flag(self, key: str) -> bool:
        value = self.body.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "must be true or false, without quotes")
        return bool(value)

    def pem(self, key: str, marker: str) -> bytes | None:
        """A base64 field that must hold PEM with ``marker`` in it."""
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
            self.refuse(key, f"holds no PEM {marker.strip('-').lower()}; encode the PEM file as it is")
        return data

    def path(self, key: str) -> Path | None:
        """A file the policy lets this kubeconfig refer to, absolute; symlinks are fine, its target is read later."""
        text = self.text(key)
        if text is None:
            return None
        if not (self.policy.allow_files or self.policy.trusted):
            self.refuse(key, "a kubeconfig from a Secret may not refer to files; put the content into it "
                             "(kubectl config view --flatten)")  # fmt: skip
        if not Path(text).is_absolute() and self.base is None:
            self.refuse(key, "must be an absolute path")
        path = (self.base or Path("/")) / text
        if not self.policy.trusted and any(
            _own_file(name) for name in (os.path.normpath(path), os.path.realpath(path))
        ):
            self.refuse(key, "the hub's own credentials and the machine's pseudo files are not for remote clusters; "
                             "mount the file elsewhere")  # fmt: skip
        return path


def _own_file(path: str) -> bool:
    """The hub's own service account, or a file that is no file: sent to a remote server they would be a leak."""
    return path.removeprefix("/var").startswith(("/run/secrets/kubernetes.io/", "/proc/", "/sys/", "/dev/"))


# -- judging --------------------------------------------------------------------------------------------------

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

_STEERING = re.compile(
    r"LD_.*|PATH|ENV|BASH_ENV|SHELLOPTS|IFS|GLIBC_TUNABLES|PYTHON.*|PERL5.*|RUBY.*|NODE_.*|JAVA_.*|HOME"
)
"""Variables that make an allowed program run another one; whoever edits a registry may not set them."""


def _access(document: _Document, policy: KubeconfigPolicy, context: str | None) -> ClusterAccess:
    chosen = _choose(context, document)
    entry = document.contexts[chosen]
    fields = _Fields(entry.body, f"context {_quote(chosen)}", entry.origin, entry.base, policy)
    fields.only(_CONTEXT_FIELDS)
    namespace = fields.text("namespace")
    if namespace is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", namespace):
        fields.refuse("namespace", "is not a namespace name")

    def follow(key: str, among: Mapping[str, _Entry]) -> _Fields:
        name = fields.text(key)
        if name is None:
            fields.refuse(key, f"is missing; name one of the file's {key}s")
        target = among.get(name)
        if target is None:
            close = difflib.get_close_matches(name, sorted(among), n=1)
            hint = f"did you mean {_quote(close[0])}?" if close else f"add it to {key}s"
            fields.refuse(key, f"there is no {key} {_quote(name)}; {hint}")
        place = f"context {_quote(chosen)}, {key} {_quote(name)}"
        return _Fields(target.body, place, target.origin, target.base, policy)

    cluster, user = follow("cluster", document.clusters), follow("user", document.users)
    cluster.only(_CLUSTER_FIELDS)
    if cluster.flag("insecure-skip-tls-verify"):
        cluster.refuse(
            "insecure-skip-tls-verify", "an unverified server is not talked to; give its certificate-authority-data"
        )
    if cluster.present("proxy-url"):
        cluster.refuse("proxy-url", "proxies are not supported; give a server address that is reachable directly")
    cluster.flag("disable-compression")
    server_name = cluster.text("tls-server-name")
    if server_name is not None and not (_DNS_NAME.fullmatch(server_name.lower()) or _is_address(server_name)):
        cluster.refuse("tls-server-name", "is not a host name or an IP address")
    ca_data = cluster.pem("certificate-authority-data", "-----BEGIN CERTIFICATE-----")
    return ClusterAccess(
        server=_server(cluster),
        auth=_auth(user, cluster),
        origin=f"{document.origin}, context {_quote(chosen)}",
        ca_data=ca_data,
        ca_file=cluster.path("certificate-authority") if ca_data is None else None,
        tls_server_name=server_name,
        namespace=namespace,
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


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
    if (problem := _host_problem(host)) is not None:
        cluster.refuse("server", f"its host is {problem}; give the API server's own name or address")
    if not cluster.policy.trusted and (_same_host(host), port) in cluster.policy.denied_servers:
        cluster.refuse("server", 'is the hub cluster itself; use the built-in cluster "local"')
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}{'' if port == 443 else f':{port}'}{url.path.rstrip('/')}"


def _auth(user: _Fields, cluster: _Fields) -> Auth:
    user.only(_USER_FIELDS)
    for key in ("as", "as-uid", "as-groups", "as-user-extra"):
        if user.present(key):
            user.refuse(key, "impersonation is not supported; give an account of the hub's own")
    for key in ("username", "password"):
        if user.present(key):
            user.refuse(key, "Kubernetes has no basic authentication any more; give a token or a client certificate")
    if user.present("auth-provider"):
        user.refuse("auth-provider", "was removed from Kubernetes; give a token, a certificate or an exec plugin")
    token = _token(user)
    certificate = _certificate(user, token)
    plugin = _exec(user, cluster) if user.body.get("exec") is not None else None
    if plugin is not None and (token is not None or certificate is not None):
        user.refuse("exec", "stands beside another credential; keep one of them")
    auth = plugin or certificate or token
    if auth is None:
        user.refuse(
            "", "has no credential, and the hub never connects anonymously; give a token or a client certificate"
        )
    return auth


def _token(user: _Fields) -> Token | TokenFile | None:
    text, path = user.text("token"), user.path("tokenFile")
    if path is not None:
        return TokenFile(path)  # client-go: the file wins, since it is the one that is rotated
    if text is None:
        return None
    if not usable_token(text.strip()):
        user.refuse("token", "holds characters a token cannot have; write it on one line")
    return Token(Secret(text.strip()))


def usable_token(text: str) -> bool:
    """Whether ``text`` can stand in an Authorization header: printable ASCII without spaces, not endless."""
    return re.fullmatch(r"[\x21-\x7e]{1,65536}", text) is not None


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
    if not isinstance(body, _Map):
        user.refuse("exec", "must be a mapping with command and apiVersion")
    fields = _Fields(body, f"{user.place}, exec", user.origin, user.base, user.policy)
    fields.only(_EXEC_FIELDS)
    version = fields.text("apiVersion")
    if version not in EXEC_VERSIONS:
        fields.refuse("apiVersion", f"must be {' or '.join(EXEC_VERSIONS)}; update the plugin's configuration")
    if fields.text("interactiveMode") == "Always":
        fields.refuse("interactiveMode", "there is nobody to ask; use a plugin mode that needs no terminal")
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
        name, value = (item.get("name"), item.get("value", "")) if isinstance(item, _Map) else (None, None)
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            fields.refuse("env", "an entry lacks a usable name")
        if not isinstance(value, str) or "\0" in value:
            fields.refuse("env", f"the value of {_quote(name)} must be text; put it in quotes")
        if not fields.policy.trusted and _STEERING.fullmatch(name):
            fields.refuse("env", f"{_quote(name)} may not be set here: it changes what the program runs")
    return tuple((item["name"], item.get("value", "")) for item in listed)


def _cluster_config(cluster: _Fields) -> str:
    for item in cluster.body.get("extensions") or []:
        if isinstance(item, _Map) and item.get("name") == _EXTENSION:
            return json.dumps(item.get("extension"))
    return "null"
